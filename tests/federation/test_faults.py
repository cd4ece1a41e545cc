"""Crashes and faults of disks and cables, on real processes: no step has two messages, no other user
fails, and all users finish.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
from command_server import decor_command
from fault_injection import POINTS
from proxy import second_messages
from trial_federation import EPSILON, PATIENCE, Trial, until

from decor.federation.spending import own_figure
from decor.net import messages
from decor.results.run import Run

STEP = 5
"""The step in which the fault comes."""


def fetch_arguments(one, name):
    """Of `decor fetch`, for a user of a trial."""
    paths = {"--identity": one.path(name, "key"), "--output": one.path(name, "run")}
    return [one.file, *(word for pair in paths.items() for word in pair), "--patience", "180"]


def is_whole(one, name):
    """Whether this user has all its neighbours."""
    return all(n["here"] for n in one.status(name).get("neighbours", [{"here": False}]))


def sent(trial, name, step):
    """The different messages of a user for a step that were heard."""
    return {
        bytes(r.message.values) for r in trial.heard() if (r.sender, r.message.step) == (name, step)
    }


# a model that diverges


def diverge(one, names, **fault):
    """Starts users at a learning rate that no model survives; gives how they have ended."""
    # the first to diverge leaves: all must have met by then, or the last waits for it
    one.hold_at(0)
    one.start(*names, **fault)
    for name in names:
        until(partial(is_met_or_over, one, name), f"{name}'s neighbours")
    one.hurry()
    return [one.ended(name) for name in names]


def is_met_or_over(one, name):
    """Whether a user has all its neighbours, or has ended."""
    return not one.alive(name) or is_whole(one, name)


def last_message(one, name):
    """The only run in a user's ledger, and the step of its last message."""
    (entry,), rows = one.entries(name)
    assert max(rows) == (1, entry.last_step) and len(rows) == entry.steps == entry.last_step + 1
    return entry


@pytest.mark.parametrize("killed", [False, True])
def test_a_step_that_diverges_is_paid_for_and_neither_sent_nor_made_again(trial, killed):
    """That a node stops is seen outside: else each restart would be a question about the data that
    nobody counts.
    """
    one = trial(learning_rate=1e18, steps=50, timeout=30.0, users=3)
    fault = {"kill": "before the end"} if killed else {}
    assert diverge(one, one.names, **fault) == [-signal.SIGKILL if killed else 2] * 3
    steps = {}
    for name in one.names:
        entry = last_message(one, name)
        assert entry.why == (None if killed else "diverged")
        steps[name] = entry.steps
        assert sent(one, name, entry.last_step) == set()
    # whatever is tried then
    for again in range(2):
        assert diverge(one, one.names) == [2] * 3
        for name in one.names:
            entry = last_message(one, name)
            assert (entry.steps, entry.why) == (steps[name], "diverged"), again
            assert sent(one, name, entry.last_step) == set()
            assert "has diverged" in one.errors(name) and "Traceback" not in one.errors(name)
    assert second_messages(one.heard()) == []


def test_of_a_run_that_has_diverged_ledger_and_status_say_so(trial):
    one = trial(learning_rate=1e18, steps=50, timeout=30.0, users=3)
    diverge(one, one.names)
    ledger = one.path("bonn", "ledger")
    entry = last_message(one, "bonn")
    code, shown = one.decor("ledger", ledger)
    assert code == 0 and re.search(rf" {entry.steps} .* diverged$", shown, re.MULTILINE), shown
    code, shown = one.decor("status", ledger)
    said = f"bonn has ended at step {entry.last_step} of 50: diverged"
    assert code == 2 and said in shown and "restart" not in shown, shown
    (kept,), _ = one.entries("bonn")
    cost = own_figure(kept)
    # at user level what was made counts, the message that was not sent included
    assert cost.promised == cost.so_far == own_figure(replace(kept, ended=None)).so_far


# SIGKILL at every point of a step


@pytest.mark.parametrize(
    "point", [point for point in POINTS if POINTS[point][0] in ("record", "sends", "exchange")]
)
def test_a_user_killed_anywhere_in_a_step_goes_on_with_the_message_it_had(trial, point):
    one = trial(rounds=2, steps=10, timeout=30.0)  # so long that all users wait for it
    one.start("bonn", "ulm", "jena")
    one.start("kiel", kill=point, step=STEP)
    assert one.ended("kiel") == -signal.SIGKILL
    kept = one.entries("kiel")[1].get((1, STEP))
    assert (kept is None) == (point == "before record")
    left = sent(one, "kiel", STEP)
    if point in ("before record", "after record", "before the first send", "within the first send"):
        assert not left
    one.start("kiel")
    one.finished()
    digests = one.check()
    last = STEP if kept else STEP - 1
    assert f"event=resumed step={last}" in one.log("kiel")
    assert "event=lost neighbour=kiel" in one.log("ulm") and "event=lost neighbour=kiel" in one.log(
        "jena"
    )
    # no user went on without it: every step has a message of each user, and the step of the fault
    # the one that was kept
    assert set(digests) == {(name, step) for name in one.names for step in range(10)}
    assert kept in (None, digests["kiel", STEP]) and left <= sent(one, "kiel", STEP)
    receivers = {r.receiver for r in one.heard() if (r.sender, r.message.step) == ("kiel", STEP)}
    assert receivers == {"ulm", "jena"}
    # the user that was killed has lost its secrets, and the others use no older ones
    assert not any("noise does not cancel" in one.log(name) for name in one.names)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before record", "between two sends"])
def test_the_command_itself_killed_and_started_again(trial, point):
    """Without forks: the command as an operator starts it, twice; the others do not wait for it."""
    one = trial(steps=200, timeout=1.0, pace=0.1)
    # a process that loads everything takes its time on a busy machine
    one.hold_at(150)
    one.start("ulm", "kiel", "jena")
    arguments = one.arguments("bonn")
    one.make_ledger("bonn")
    with one.path("bonn", "out").open("ab") as out, one.path("bonn", "err").open("ab") as err:
        script = os.path.join(os.path.dirname(__file__), "fault_injection.py")
        fault = json.dumps({"kill": point, "step": STEP})
        killed = subprocess.run(
            [sys.executable, script, fault, *arguments], stdout=out, stderr=err, timeout=PATIENCE
        )
    assert killed.returncode == -signal.SIGKILL
    one.killed["bonn"] += 1
    last = one.entries("bonn")[0][0].last_step or 0

    def found():
        heard = {step: sent(one, "bonn", step) for step in range(STEP, 200)}
        return {step: values for step, values in heard.items() if values}

    # on a busy machine what has left may be read a moment later
    before = until(found, "the message that had left") if point == "between two sends" else found()
    assert len(before) == (point == "between two sends") and all(step <= last for step in before)
    one.logged("ulm", "going on without.*neighbour=bonn")
    known = len(one.log("bonn"))
    one.start("bonn", real=True)
    one.logged("bonn", f"event=resumed step={last}")
    one.logged("bonn", "event=connected", after=known)
    one.hurry()
    one.logged("bonn", 'event="caught up"')
    one.finished()
    one.check()
    # the others had gone on: what had left did not leave again, and what had not was never made
    assert all(sent(one, "bonn", step) == values for step, values in before.items())
    assert (
        Run.load(one.path("bonn", "run")).stopped is None
        and "SecLDP" in one.path("bonn", "out").read_text()
    )


@pytest.mark.parametrize(
    "point", [point for point in POINTS if POINTS[point][0] in ("end", "save")]
)
def test_a_user_killed_at_the_very_end_finishes_when_it_is_back(trial, point):
    """Its neighbours have finished by then: they stay until it says that it has, too."""
    one = trial(steps=6, timeout=30.0)
    one.start("bonn", "ulm", "jena")
    one.start("kiel", kill=point)
    assert one.ended("kiel") == -signal.SIGKILL
    is_resumed = point == "before the end"  # otherwise the ledger holds its final model
    one.start("kiel")
    one.finished("kiel")
    assert ("event=resumed" in one.log("kiel")) == is_resumed
    run = Run.load(one.path("kiel", "run"))
    assert run.stopped is None and run.steps_taken == 6
    one.finished("bonn", "ulm", "jena")
    one.check()
    assert one.entries("kiel")[0][0].steps == 6


def test_a_user_that_comes_when_the_others_have_left_is_told_where_it_stands(trial):
    one = trial(steps=6, timeout=1.0, patience=3.0)
    one.start("bonn", "ulm", "jena")
    one.start("kiel", kill="before the end")
    assert one.ended("kiel") == -signal.SIGKILL
    one.finished("bonn", "ulm", "jena")
    one.start("kiel")
    code = one.ended("kiel")
    # worth a restart: a neighbour may be back, or serve the model
    assert code == 1 and "no neighbour came for the last rounds" in one.errors("kiel")
    one.check(codes={"kiel": code})
    one.start("ulm", more=["--serve"])
    fetched = decor("fetch", *fetch_arguments(one, "kiel"))
    assert fetched.returncode == 0, fetched.stderr
    assert "from ulm" in fetched.stdout
    got, theirs = (Run.load(one.path(name, "run")) for name in ("kiel", "ulm"))
    assert all(bool((got.models[k] == theirs.models[k]).all()) for k in theirs.models)
    # nothing that a user's own ledger does not say: the whole plan's promise
    assert got.guarantee.epsilon <= EPSILON and got.steps_taken == 6
    one.signal("ulm", signal.SIGTERM)
    assert one.ended("ulm") in (0, 4)


def test_a_disk_that_is_full_at_the_end_does_not_cost_the_model(trial):
    one = trial(steps=6, timeout=1.0)
    one.start("bonn", "ulm", "jena")
    one.start("kiel", kill="before the model is saved")
    assert one.ended("kiel") == -signal.SIGKILL
    one.finished("bonn", "ulm", "jena")
    one.start("kiel")  # alone: the model is in its ledger
    one.finished("kiel")
    assert Run.load(one.path("kiel", "run")).stopped is None
    one.check()


def test_a_user_that_is_back_before_the_others_leave_finishes_with_them(trial):
    one = trial(steps=6, timeout=30.0)
    one.start("bonn", "ulm", "jena")
    one.start("kiel", kill="after the last send", step=5)
    assert one.ended("kiel") == -signal.SIGKILL
    one.start("kiel")
    one.finished()
    one.check()
    assert Run.load(one.path("kiel", "run")).stopped is None


@pytest.mark.slow
def test_a_user_that_is_killed_ten_times_comes_to_the_end(trial):
    one = trial(steps=300, timeout=1.0, pace=0.05)
    one.hold_at(280)
    one.start()
    one.reached("jena", STEP)
    dice = random.Random(1)
    for k in range(10):
        # any moment will do: of a step, of a handshake, of catching up
        time.sleep(dice.uniform(0, 0.6))
        one.kill("jena")
        one.start("jena")
        until(lambda: one.log("jena").count("event=resumed") > k, "its return")  # noqa: B023
    one.logged("jena", "event=connected")
    one.hurry()
    one.finished()
    one.check()
    assert one.log("jena").count("event=resumed") == 10


# a neighbour that stops, cables that are cut


def test_a_neighbour_that_stands_still_is_left_behind_and_catches_up(trial):
    # long enough for honest users on a busy machine
    one = trial(steps=100, timeout=10.0, pace=0.05)
    one.hold_at(60)
    one.start()
    one.reached("kiel", STEP)
    one.signal("kiel", signal.SIGSTOP)
    for name in ("ulm", "jena"):
        assert re.search("was silent for 10 s", one.logged(name, "event=lost neighbour=kiel"))
    one.hold_at(80)
    at = one.status("bonn")["step"]
    one.reached("bonn", at + 5)
    assert [n["here"] for n in one.status("ulm")["neighbours"] if n["name"] == "kiel"] == [False]
    one.signal("kiel", signal.SIGCONT)
    one.logged("kiel", r'event="caught up" from_step=\d+ to_step=\d+')
    one.hurry()
    one.finished()
    one.check()
    # its neighbours said that they wait: the user at the other end of the ring has lost none
    assert "event=lost" not in one.log("bonn") and "going on without" not in one.log("bonn")
    missed = 100 - one.entries("kiel")[0][0].steps
    assert 0 < missed < 95 and Run.load(one.path("kiel", "run")).manifest["steps_missed"] == missed
    assert one.entries("bonn")[0][0].steps == 100


@pytest.mark.parametrize("how", ["cut", "refuse", "lose", "hold"])
def test_an_edge_that_fails_and_is_healed(trial, how):
    one = trial(steps=60, timeout=1.0, pace=0.05)
    one.hold_at(35)
    one.start()
    one.reached("bonn", STEP)
    edge = one.proxies["ulm", "bonn"]
    before = edge.dialled
    getattr(edge, how)()
    if how != "cut":
        why = "was silent for 1 s" if how in ("lose", "hold") else "hung up|reset|no TLS"
        one.logged("bonn", f"event=lost neighbour=ulm.*({why})")
        one.hold_at(55)
        one.moving("bonn", "ulm", steps=5)  # with their other neighbours
        assert not any(n["here"] for n in one.status("bonn")["neighbours"] if n["name"] == "ulm")
        edge.heal()
    until(lambda: edge.dialled > before, "a new connection")
    until(
        lambda: any(
            n["here"] for n in one.status("bonn").get("neighbours", []) if n["name"] == "ulm"
        ),
        "ulm's return",
    )
    one.hurry()
    one.finished()
    one.check()
    # a user that comes back may have to catch up
    assert all(one.entries(name)[0][0].steps > 50 for name in one.names)
    assert "noise does not cancel" not in one.log("bonn") + one.log("ulm")


def test_two_halves_of_a_ring_go_on_apart_and_meet_again_by_themselves(trial):
    one = trial(steps=80, timeout=1.0, pace=0.05)
    one.hold_at(50)
    one.start()
    one.reached("bonn", STEP)
    between = [one.proxies["kiel", "ulm"], one.proxies["jena", "bonn"]]
    for edge in between:
        edge.refuse()
    for name, other in (("ulm", "kiel"), ("kiel", "ulm"), ("bonn", "jena"), ("jena", "bonn")):
        one.logged(name, f'event="going on without" neighbour={other} step=')
    one.hold_at(70)
    one.moving("bonn", "ulm", "kiel", "jena", steps=5)
    for edge in between:
        edge.heal()
    for name in ("ulm", "bonn"):
        until(partial(is_whole, one, name), f"{name}'s other half")
    one.hurry()
    one.finished()
    one.check()
    for edge in between:
        assert edge.dialled >= 2
        last = max(r.time for r in edge.messages() if isinstance(r.message, messages.Model))
        assert last > max(
            r.time for r in edge.messages() if isinstance(r.message, messages.Confirmation)
        )


def test_below_a_quorum_a_user_pauses_and_says_so_and_goes_on_when_they_are_back(trial):
    one = trial(users=3, topology="path", steps=60, timeout=3.0, pace=0.05)  # bonn - ulm - kiel
    one.hold_at(50)
    one.start()
    one.reached("bonn", STEP)
    one.kill("ulm")
    said = one.logged("bonn", "event=paused why=.only")
    assert 'why="only 0 of 1 neighbours are here, and 1 are needed"' in said
    one.logged("kiel", "event=paused why=.only 0 of 1")
    assert one.status("bonn")["paused"].startswith("only 0 of 1") and one.status("kiel")["paused"]
    at = one.status("bonn")["messages"]
    time.sleep(3.5)  # longer than the timeout: a pause has no end of its own
    assert one.status("bonn")["messages"] == at
    shown = subprocess.run(
        [sys.executable, "-m", "decor", "status", str(one.path("bonn", "ledger"))],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "paused: only 0 of 1 neighbours are here" in shown.stdout and shown.returncode == 0
    one.start("ulm")
    one.logged("bonn", 'event="goes on"')
    one.hurry()
    one.finished()
    one.check()
    assert all(one.entries(name)[0][0].steps == 60 for name in one.names)


@pytest.mark.parametrize("restarted", [False, True])
def test_after_a_start_no_message_is_made_before_all_neighbours_have_greeted(trial, restarted):
    """The one who is not here may be the only one that knows a newer message of this user."""
    one = trial(users=3, topology="complete", steps=6, timeout=0.3, patience=1000.0)
    one.hold_at(2 if restarted else 0)
    if restarted:
        one.start()
        one.reached("bonn", 2)
        one.kill("bonn")
        one.kill("kiel")
    made = one.entries("bonn")[0][0].steps if restarted else 0
    before = len(one.log("bonn"))
    one.start("bonn", *([] if restarted else ["ulm"]))
    one.logged("bonn", "event=connected neighbour=ulm", after=before)
    one.hurry()
    # with a quorum, a step goes on after the timeout; not the first one after a start
    time.sleep(1.5)
    assert one.entries("bonn")[0][0].steps == made
    assert one.status("bonn")["paused"] == "waits for kiel"
    one.start("kiel")
    one.finished()
    one.check()


# disks and clocks


@pytest.fixture
def small_disk(tmp_path_factory):
    """A disk of 600 kB, which fills up in the middle of a run."""
    folder = tmp_path_factory.mktemp("disk")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip("only root can make a disk that is soon full")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def remounted(folder, option):
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


@pytest.mark.parametrize(
    "full", [("ledger",), ("ledger", "log"), ("ledger", "log", "run")], ids="-".join
)
def test_a_full_disk_stops_a_user_with_a_sentence_and_nothing_is_lost(trial, small_disk, full):
    one = trial(steps=60, timeout=1.0, pace=0.05)
    one.places = {("kiel", kind): small_disk for kind in (*full, "ledger.socket")}
    one.hold_at(45)
    one.start()
    assert one.ended("kiel") == 2
    one.hold_at(55)
    assert re.search(
        r"decor: the ledger '.*' cannot be used: .*full.*; nothing is sent before it can be "
        r"written",
        one.errors("kiel"),
    )
    if "log" not in full:
        one.logged("kiel", "event=failed step=.*cannot be used")
    last = one.entries("kiel")[0][0].last_step
    assert max(r.message.step for r in one.heard() if r.sender == "kiel") == last < 44
    one.start("kiel")  # nothing has changed
    assert one.ended("kiel") == 2
    one.moving("bonn", "ulm", "jena")
    one.check(codes={"kiel": 2})
    remounted(small_disk, "size=4m")
    one.back("kiel")
    one.finished()
    one.check()
    assert f"event=resumed step={last}" in one.log("kiel")


def test_a_file_that_may_not_grow_is_a_full_disk(trial):
    one = trial(steps=60, timeout=1.0, pace=0.05)
    one.hold_at(45)
    one.start("bonn", "ulm", "jena")
    one.start("kiel", bytes=400_000)
    assert one.ended("kiel") == 2
    assert "nothing is sent before it can be written" in one.errors(
        "kiel"
    ) and "event=failed" in one.log("kiel")
    one.back("kiel")
    one.finished()
    one.check()
    assert "event=resumed" in one.log("kiel")


def test_a_log_that_cannot_be_written_stops_nobody(trial):
    one = trial(users=3, steps=6)
    one.start("bonn", "ulm")
    one.start("kiel", more=["--log", "/dev/full"])
    one.finished()
    one.check()


def test_a_disk_that_cannot_be_written_is_told_before_anything_is_sent(trial, small_disk):
    remounted(small_disk, "size=4m")
    one = trial(steps=40, timeout=1.0, pace=0.05)
    one.places = {("kiel", kind): small_disk for kind in ("ledger", "ledger.socket")}
    # the others are not to be at the end before it is back, however slow the machine is
    one.hold_at(35)
    one.start()
    one.reached("kiel", STEP)
    one.kill("kiel")
    remounted(small_disk, "ro")
    before = len([r for r in one.heard() if r.sender == "kiel"])
    one.start("kiel")
    assert one.ended("kiel") == 2
    assert re.search("decor: the ledger '.*' cannot be used: .*nothing is sent", one.errors("kiel"))
    assert len([r for r in one.heard() if r.sender == "kiel"]) == before
    remounted(small_disk, "rw")
    one.back("kiel")
    one.finished()
    one.check()


def test_a_clock_that_jumps_by_years_changes_nothing(trial):
    one = trial(steps=10, timeout=30.0)
    one.start(clock=10 * 365 * 86400.0)
    one.finished()
    one.check()
    years = {line[:4] for name in one.names for line in one.log(name).splitlines()}
    assert len(years) == 3  # it has jumped
    assert all(one.entries(name)[0][0].steps == 10 for name in one.names)
    assert not any(
        "silent" in one.log(name) or "going on without" in one.log(name) for name in one.names
    )


# the budget, and what a node says of itself


def decor(*arguments):
    return subprocess.run(
        [*decor_command(), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_the_budget_is_counted_over_interruptions_runs_and_federations(
    trial, tmp_path, fork_server
):
    one = trial(users=3, steps=30, timeout=30.0, pace=0.05)
    one.hold_at(20)
    one.start()
    one.reached("kiel", STEP)
    for name in one.names:
        one.signal(name, signal.SIGTERM)
    for name in one.names:
        assert one.ended(name) == 130
        assert "event=stopped" in one.log(name) and "start it again to go on" in one.log(name)
    taken = one.entries("kiel")[0][0].steps
    assert 0 < taken < 30 and Run.load(one.path("kiel", "run")).stopped is not None
    one.check(codes=dict.fromkeys(one.names, 130))
    one.hurry()
    one.start()
    one.finished()
    one.check()
    (entry,) = one.entries("kiel")[0]
    assert entry.steps == 30 and entry.why == "finished" and entry.last_step == 29

    # no second run of the same file: it gives its model again
    one.start("kiel")
    one.finished("kiel")
    assert one.entries("kiel")[0] == [entry]
    one.check()

    shown = decor("ledger", one.path("kiel", "ledger"), "--json")
    assert shown.returncode == 0, shown.stderr
    said = json.loads(shown.stdout)
    assert [run["messages"] for run in said["runs"]] == [30] and all(
        total["epsilon"] <= EPSILON for total in said["totals"]
    )

    with Trial(
        one.folder, fork_server, users=3, steps=10, name="second", identities=one.identities
    ) as two:
        two.places = {(name, "run"): tmp_path for name in two.names}
        two.start("kiel")
        assert two.ended("kiel") == 3  # for privacy
        refused = re.search(
            r"come to epsilon 10; with second it comes to.*--allow (1\d\.\d+)", two.errors("kiel")
        )
        # not the sum of both, and what the sentence says is enough
        assert refused and EPSILON < float(refused[1]) < 1.6 * EPSILON
        two.start(more=["--allow", refused[1]])
        two.finished()
        two.check(allow=2 * EPSILON)
    shown = decor("ledger", one.path("kiel", "ledger"))
    rows = [line.split() for line in shown.stdout.splitlines()]
    for each, count in ((one, "30"), (two, "10")):
        assert any({each.federation.digest.hex()[:12], count} <= set(row) for row in rows), (
            shown.stdout
        )
    (total,) = [row for row in rows if row[:2] == ["user", "replace"]]
    assert float(total[3]) == float(total[4]) == float(refused[1])


def test_a_running_node_answers_its_operator(trial):
    one = trial(users=3, steps=200, pace=0.05)
    one.start()
    one.reached("bonn", STEP)
    assert os.stat(one.path("bonn", "ledger.socket")).st_mode & 0o777 == 0o600
    shown = decor("status", one.path("bonn", "ledger"))
    assert (
        shown.returncode == 0
        and "bonn in trial: step" in shown.stdout
        and "ulm: here" in shown.stdout
    )
    everybody = json.loads(decor("status", one.folder, "--json").stdout)["nodes"]
    assert [node["user"] for node in everybody] == ["bonn", "kiel", "ulm"]
    for name in one.names:
        one.signal(name, signal.SIGTERM)
    assert [one.ended(name) for name in one.names] == [130] * 3
    assert (
        not one.path("bonn", "ledger.socket").exists()
        and "no node is running" in decor("status", one.path("bonn", "ledger")).stderr
    )
    one.check(codes=dict.fromkeys(one.names, 130))


def test_a_user_that_is_done_and_cannot_dial_still_fetches_the_final_model(trial):
    """Its folder is lost afterwards. Its neighbours, who serve the model, have to dial it."""
    one = trial(users=3, topology="complete", steps=4, timeout=1.0, proxied=False)
    one.start("ulm", "kiel", more=["--serve"])
    one.start("bonn")
    one.finished("bonn")
    shutil.rmtree(one.path("bonn", "run"))
    time.sleep(1)
    # it has left in good order: no operator has to look for it
    assert not any("cannot be reached" in one.log(n).split("finished")[1] for n in ("ulm", "kiel"))
    fetched = decor("fetch", *fetch_arguments(one, "bonn"))
    assert fetched.returncode == 0, fetched.stderr
    for name in ("ulm", "kiel"):
        one.signal(name, signal.SIGTERM)
        assert one.ended(name) in (0, 4)
