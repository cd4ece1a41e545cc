"""A whole federation on one machine: the command `decor up`, and the engine that runs it from a
program.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command_server import decor_command

import decor
from decor.cli.main import main
from decor.federation import federation, local_federation, peers_engine, user_processes
from decor.federation.federation import build_tasks
from decor.federation.local_federation import LocalFederation
from decor.federation.node import Node
from decor.federation.peers_engine import split_by_user
from decor.federation.process_starter import ProcessStarter
from decor.learning.recipe import Recipe
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.training.engine import Setting


def run(*words, cwd, code=0):
    done = subprocess.run(
        [*decor_command(), *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A federation of four that has been trained, one of its users killed on the way."""
    folder = tmp_path_factory.mktemp("trial")
    new = (
        "federation",
        "new",
        "--task",
        "breast-cancer",
        "--users",
        "4",
        "--epsilon",
        "10",
        "--steps",
        "40",
    )
    run(*new, "--output", "trial", cwd=folder)
    done = run("up", "trial/federation.toml", "--crash", "ulm@12", "--json", cwd=folder)
    return folder, json.loads(done.stdout), done.stderr


def test_a_user_that_is_killed_and_started_again_ends_with_the_others(trial):
    _, said, errors = trial
    assert "killing ulm with SIGKILL after step 12" in errors and "starting ulm again" in errors
    assert [user["name"] for user in said["users"]] == ["bonn", "ulm", "kiel", "jena"]
    for user in said["users"]:
        assert user["messages"] + user["missed"] == 40 and user["messages"] >= 30
    assert said["epsilon"] <= 10 and said["delta"] == 1e-5 and "curious" in said["adversary"]
    # a machine that is too slow for the timeout loses messages: noise that stays costs accuracy
    if all(user["noise_left"] <= 1 for user in said["users"]):
        assert 0.7 < said["metrics"]["accuracy"] <= 1


def test_every_user_leaves_a_run_a_ledger_and_a_log(trial):
    folder, said, _ = trial
    models = []
    for user in said["users"]:
        left = decor.Run.load(folder / "trial" / "run" / user["name"])
        assert (
            left.stopped is None
            and left.steps_taken == user["messages"]
            and "loss" not in left.history
        )
        assert left.guarantee.epsilon <= 10
        models.append(left.models["weight"].numpy())
    assert np.abs(models[0] - models[1]).max() < 0.2 * np.abs(models[0]).max()
    log = (folder / "trial" / "run" / "ulm.log").read_text()
    assert (
        re.search(r"event=resumed step=\d+", log)
        and len(
            re.findall(
                r"event=connected .* "
                r"epoch=2 ",
                log,
            )
        )
        == 2
    )
    assert all(
        re.match(
            r"\d{4}-\d\d-\d\dT[\d:.]+Z user=ulm "
            r"event=",
            line,
        )
        for line in log.splitlines()
    )
    shown = run("ledger", "trial/run/ulm.ledger", "--json", cwd=folder)
    (entry,) = json.loads(shown.stdout)["runs"]
    assert (
        entry["name"] == "breast-cancer"
        and entry["why"] == "finished"
        and 9 < entry["epsilon"] <= 10
    )


def test_the_status_of_a_finished_run_says_so_and_where_the_models_are(trial):
    folder, said, _ = trial
    done = run("status", "trial/run", cwd=folder)
    lines = done.stdout.splitlines()
    for user in said["users"]:
        name = user["name"]
        at = lines.index(f"{name} in breast-cancer: step 40 of 40, finished")
        assert f"{user['messages']} messages, {user['missed']} steps missed" in lines[at + 1]
        assert lines[at + 2].endswith(f"model and run: trial/run/{name}")
    assert lines[-1] == "Finished: all 4 users are done, and nothing is running."
    (told,) = json.loads(run("status", "trial/run/ulm.ledger", "--json", cwd=folder).stdout)[
        "nodes"
    ]
    assert (
        told["finished"]
        and not told["running"]
        and told["result"] == "trial/run/ulm"
        and told["steps"] == 40
    )
    assert 9 < told["epsilon"] <= 10 and told["delta"] == 1e-5
    assert (
        "Finished: this user is done"
        in run("status", "trial/run/ulm.ledger.socket", cwd=folder).stdout
    )
    assert "name the folder 'trial/run'" in run("status", "trial", cwd=folder, code=2).stderr
    assert "start one with decor" in run("status", "trial/keys", cwd=folder, code=2).stderr


def test_the_status_of_a_user_who_did_not_finish_is_no_success(trial, tmp_path):
    folder, _, _ = trial
    for name in ("bonn", "ulm"):
        shutil.copy(folder / "trial" / "run" / f"{name}.ledger", tmp_path)
    with closing(sqlite3.connect(tmp_path / "ulm.ledger")) as db:
        db.execute("UPDATE runs SET ended = NULL, why = NULL")
        db.execute("DELETE FROM messages WHERE step > 12")
        db.commit()
    said = run("status", ".", cwd=tmp_path, code=2).stderr
    assert "ulm stopped at step 12 of 40" in said and "bonn" not in said and "restart it" in said
    with Ledger(tmp_path / "ulm.ledger"):
        assert (
            "ulm does not answer: it is starting or ending"
            in run("status", ".", cwd=tmp_path, code=2).stderr
        )
    assert "in the folder given to decor node" in run("status", "bonn.ledger", cwd=tmp_path).stdout
    (tmp_path / "ulm.ledger").write_bytes(b"not a ledger" * 1000)
    assert "cannot be read as a ledger" in run("status", "ulm.ledger", cwd=tmp_path, code=2).stderr
    assert "no node is running behind" in run("status", "rome.ledger", cwd=tmp_path, code=2).stderr


@pytest.fixture
def up(tmp_path, monkeypatch, capsys):
    """`decor up` of a federation of three, within this process: what `plant` is given is called in
    the process that starts the users.
    """
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            "federation new --task breast-cancer --users 3 --epsilon 10 --steps 5 --output "
            "trial".split()
        )
        == 0
    )
    capsys.readouterr()

    def run_up(*words, code=0, plant=None):
        if plant is not None:
            monkeypatch.setattr(federation, "build_tasks", partial(planted, plant, build_tasks))
        assert main(["up", "trial/federation.toml", *words]) == code
        return capsys.readouterr()

    return run_up


def planted(plant, give_tasks, *arguments):
    """The tasks, after a fault was planted where users are started: `plant` is of this module."""
    plant()
    return give_tasks(*arguments)


def fail_at_the_end():
    """From now on one user's process fails when all its work is done."""
    run_node = user_processes.run_node

    async def failing(node, *more):
        found = await run_node(node, *more)
        if node.number == 1:
            raise decor.DecorError("the disk is full")
        return found

    user_processes.run_node = failing


def test_a_failure_after_the_last_work_is_told_and_is_none_of_the_run(up):
    done = up(plant=fail_at_the_end)
    assert (
        "ulm had finished its work when its process ended with code 2; see trial/run/ulm.log"
    ) in done.err
    assert (
        "The average of all models is right on" in done.out
        and 'why="the disk is full"' in Path("trial/run/ulm.log").read_text()
    )
    assert "ulm stopped early" in up(code=2).err, (
        "what an earlier run has left is no success of this one"
    )


def fail_after_the_others(folder):
    """From now on user 2 has no outcome, once users 0 and 1 have written theirs."""
    ends = Node.outcome

    def broken(self):
        if self.number == 2 and self.step > self.steps:
            while not all(
                (folder / name / "manifest.json").exists() for name in ("user-0", "user-1")
            ):
                time.sleep(0.01)
            raise decor.DecorError("the model cannot be measured")
        return ends(self)

    Node.outcome = broken


def test_who_fails_before_its_end_fails_the_run_and_who_has_finished_is_named(
    tmp_path, monkeypatch
):
    plant = partial(fail_after_the_others, tmp_path)
    monkeypatch.setattr(peers_engine, "split_by_user", partial(planted, plant, split_by_user))
    with pytest.raises(
        decor.DecorError,
        match="user-2 stopped early: .*cannot be measured.*; finished all the "
        "same: user-0, user-1;",
    ):
        task = decor.tasks.breast_cancer(users=3, seed=0)
        decor.train(
            task, make_plan(), learning_rate=1.0, engine=decor.Peers(folder=tmp_path, timeout=5.0)
        )


def run_out_of_memory():
    """From now on the average model cannot be measured."""

    def broken(*_):
        raise RuntimeError("out of memory")

    user_processes.combine = broken


def test_an_average_that_cannot_be_measured_does_not_undo_the_training(up):
    done = up("--json", plant=run_out_of_memory)
    assert (
        "all users have finished, but their average model could not be measured: out of memory"
    ) in done.err
    said = json.loads(done.out)
    assert said["metrics"] == {} and said["epsilon"] <= 10 and len(said["users"]) == 3


@pytest.fixture
def three(tmp_path):
    """A federation of three, and what it told; nothing is started yet but the starter."""
    task, plan = decor.tasks.breast_cancer(users=3, seed=0), make_plan()
    identities = [Identity.new() for _ in range(3)]
    terms = decor.Peers().terms(
        task, Setting(plan, 1.0, 0), Recipe(gossip_rounds=1), identities, 1e-5
    )
    told = []
    with ProcessStarter() as starter:
        tasks = partial(split_by_user, task)
        yield (
            LocalFederation(starter, terms, identities, tasks, tmp_path, notify=told.append),
            told,
        )


def prepare(together):
    together.starter.prepare(
        together.terms, together.identities, together.tasks, together.users, False
    )


def test_a_user_to_be_killed_who_has_finished_is_not_started_again(three, tmp_path):
    together, told = three
    prepare(together)
    together.start(1)
    (tmp_path / "user-1").mkdir()
    manifest = {"federation": together.terms.digest.hex(), "stopped": None}
    (tmp_path / "user-1" / "manifest.json").write_text(json.dumps(manifest))
    together._crash_and_restart(1, 5)
    assert together.pids == {} and told[-1] == (
        "user-1 had finished its work, and is not started again"
    )


def test_a_users_process_can_be_killed_by_its_id(three, monkeypatch):
    # on a busy machine it may take long to stop
    monkeypatch.setattr(local_federation, "_STOP_SECONDS", 120)
    together, _ = three
    prepare(together)
    (pid,) = together.start(1)
    os.kill(pid, signal.SIGKILL)
    while together.pids:
        together.reap(1.0)
    assert together.codes == {1: -signal.SIGKILL}
    together.start(0)
    # alone it waits for its neighbours until it is told to stop
    together.stop()
    assert together.pids == {} and together.codes[0] in (130, -signal.SIGTERM)


def test_a_starter_that_is_killed_takes_its_users_along_and_the_caller_says_so(three):
    together, _ = three
    prepare(together)
    pids = together.start(0, 1)
    os.kill(together.starter.pid, signal.SIGKILL)
    with pytest.raises(decor.DecorError, match="ended with code -9, and so they have stopped"):
        while True:
            together.reap(1.0)
    # they notice it by a pipe that ends, each in its own time
    end = time.monotonic() + 240
    while any(map(is_running, pids)):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_second_time_every_user_gives_its_model_again_and_spends_nothing(trial):
    folder, said, _ = trial
    ledgers = ("ledger", "trial/run/ulm.ledger", "--json")
    before = run(*ledgers, cwd=folder).stdout
    again = json.loads(run("up", "trial/federation.toml", "--json", cwd=folder).stdout)
    assert again["users"] == said["users"] and again["metrics"] == said["metrics"]
    assert run(*ledgers, cwd=folder).stdout == before


@pytest.mark.parametrize("crash", ["ulm", "ulm@", "ulm@0", "ulm@40", "rome@3", "ulm@x"])
def test_a_crash_that_cannot_be_is_refused(trial, crash):
    assert (
        "--crash"
        in run("up", "trial/federation.toml", "--crash", crash, cwd=trial[0], code=2).stderr
    )


def make_plan():
    return decor.calibrate(
        decor.ring(3),
        decor.Exposure(1.0, 5),
        decor.Adversary.eavesdropper(),
        decor.Budget(10.0, 1e-5),
    )


def is_running(pid):
    """Whether there is a process of this id that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
