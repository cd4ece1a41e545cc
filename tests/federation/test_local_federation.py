"""A whole federation on one machine: the command `decor up`, and the engine that runs it from a
program.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import decor
from decor.cli.main import main
from decor.federation.local_federation import Together
from decor.federation.peers import alone
from decor.learning.recipe import Recipe
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.training.engine import Setting


def run(*words, cwd, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "decor", *words],
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
        assert lines[at + 2] == f"  its model and run: trial/run/{name}"
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
    assert "ulm stopped at step 12 of 40" in said and "bonn" not in said and "to go on" in said
    with Ledger(tmp_path / "ulm.ledger"):
        assert (
            "ulm does not answer: it is starting or ending"
            in run("status", ".", cwd=tmp_path, code=2).stderr
        )
    assert (
        "in the folder that decor node was given"
        in run("status", "bonn.ledger", cwd=tmp_path).stdout
    )
    (tmp_path / "ulm.ledger").write_bytes(b"not a ledger" * 1000)
    assert "cannot be read as a ledger" in run("status", "ulm.ledger", cwd=tmp_path, code=2).stderr
    assert "no node is running behind" in run("status", "rome.ledger", cwd=tmp_path, code=2).stderr


@pytest.fixture
def up(tmp_path, monkeypatch, capsys):
    """`decor up` of a federation of three, within this process: what is patched here is so in those
    that it forks.
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

    def run_up(*words, code=0):
        assert main(["up", "trial/federation.toml", *words]) == code
        return capsys.readouterr()

    return run_up


@pytest.fixture
def late(monkeypatch):
    """From now on one user's process fails when all its work is done."""
    from decor.federation import local_federation

    attended = local_federation.attended

    async def failing(node, *more):
        found = await attended(node, *more)
        if node.number == 1:
            raise decor.DecorError("the disk is full")
        return found

    monkeypatch.setattr(local_federation, "attended", failing)


def test_a_failure_after_the_last_work_is_told_and_is_none_of_the_run(late, up):
    done = up()
    assert (
        "ulm had finished its work when its process ended with code 2; see trial/run/ulm.log"
    ) in done.err
    assert (
        "The average of all models is right on" in done.out
        and 'why="the disk is full"' in Path("trial/run/ulm.log").read_text()
    )
    assert "budget is spent" in up(code=2).err, (
        "what an earlier run has left is no success of this one"
    )


def test_who_fails_before_its_end_fails_the_run_and_who_has_finished_is_named(
    tmp_path, monkeypatch
):
    from decor.federation.node import Node

    ends = Node.outcome

    def broken(self):
        if self.number == 2 and self.step > self.steps:
            while not all(
                (tmp_path / name / "manifest.json").exists() for name in ("user-0", "user-1")
            ):
                time.sleep(0.01)
            raise decor.DecorError("the model cannot be measured")
        return ends(self)

    monkeypatch.setattr(Node, "outcome", broken)
    with pytest.raises(
        decor.DecorError,
        match="user-2 stopped early: .*cannot be measured.*; finished all the "
        "same: user-0, user-1;",
    ):
        task = decor.tasks.breast_cancer(users=3, seed=0)
        decor.train(
            task, planned(), learning_rate=1.0, engine=decor.Peers(folder=tmp_path, timeout=5.0)
        )


def test_an_average_that_cannot_be_measured_does_not_undo_the_training(up, monkeypatch):
    from decor.federation import peers

    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(peers, "joined", broken)
    done = up("--json")
    assert (
        "everybody has finished, but the average of all models could not be measured: out of memory"
    ) in done.err
    said = json.loads(done.out)
    assert said["metrics"] == {} and said["epsilon"] <= 10 and len(said["users"]) == 3


def test_a_user_to_be_killed_who_has_finished_is_not_started_again(tmp_path):
    task, plan = decor.tasks.breast_cancer(users=3, seed=0), planned()
    identities = [Identity.new() for _ in range(3)]
    terms = decor.Peers().terms(task, Setting(plan, 1.0, 0), Recipe(), identities, 1e-5)
    told = []
    together = Together(terms, identities, alone(task), tmp_path, tell=told.append)
    (tmp_path / "user-1").mkdir()
    manifest = {"federation": terms.digest.hex(), "stopped": None}
    (tmp_path / "user-1" / "manifest.json").write_text(json.dumps(manifest))
    together.pids[1] = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
    together._crashed(1, 5)
    assert together.pids == {} and told[-1] == (
        "user-1 had finished its work, and is not started again"
    )


def test_a_spent_budget_is_refused_to_the_whole_federation(trial):
    done = run("up", "trial/federation.toml", cwd=trial[0], code=2)
    assert "budget is spent" in done.stderr


@pytest.mark.parametrize("crash", ["ulm", "ulm@", "ulm@0", "ulm@40", "rome@3", "ulm@x"])
def test_a_crash_that_cannot_be_is_refused(trial, crash):
    assert (
        "--crash"
        in run("up", "trial/federation.toml", "--crash", crash, cwd=trial[0], code=2).stderr
    )


def test_the_engine_trains_what_the_simulator_trains(tmp_path):
    task = decor.tasks.breast_cancer(users=3, seed=0)
    plan = decor.calibrate(
        decor.complete(3),
        decor.Exposure(clip=0.1, steps=15),
        decor.Adversary.eavesdropper(),
        decor.Budget(20.0, 1e-5),
    )
    run_ = decor.train(
        task,
        plan,
        learning_rate=2.0,
        engine=decor.Peers(folder=tmp_path, timeout=60.0),
        final_gossip_rounds=2,
    )
    assert (
        run_.steps_taken == 15
        and run_.models["weight"].shape == (3, 1, 30)
        and run_.metrics["accuracy"] > 0.8
    )
    assert run_.metrics["consensus"] < 1e-6  # rounds on a complete graph agree
    assert run_.guarantee.epsilon == plan.guarantee(0.999e-5).epsilon and not run_.simulated
    run_.save(tmp_path / "kept")
    assert decor.Run.load(tmp_path / "kept").manifest["engine"]["name"] == "peers"
    assert len(list(Path(tmp_path).glob("user-*.ledger"))) == 3


CARD = """
import torch
from torch.utils import backend_registration

class Guard(torch._C._acc.DeviceGuard):
    def type_(self): return torch._C._autograd.DeviceType.PrivateUse1
    def device_count_(self): return 1
    def deviceCount(self): return 1

backend_registration._setup_privateuseone_for_python_backend("card", device_guard=Guard())
import decor
if __name__ == "__main__":
    plan = decor.NoisePlan(decor.ring(3), decor.Exposure(clip=1.0, steps=3), decor.Adversary.curious(), 1.0, 1.0)
    print(decor.audit(plan, engine=decor.Peers(), canaries=3000, steps=2).passed)
"""


def test_on_a_machine_with_a_card_users_can_still_differentiate(tmp_path):
    """Where torch sees a card, differentiating starts threads; who parted from a process that had
    them could not do it.
    """
    script = tmp_path / "card.py"
    script.write_text(CARD)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    if "AttributeError" in ended.stderr:
        pytest.skip(f"this torch has no devices written in Python: {ended.stderr.splitlines()[-1]}")
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr[-2000:]


def test_the_engine_refuses_what_peers_cannot_do():
    task = decor.tasks.breast_cancer(users=3, seed=0)
    plan = planned()
    with pytest.raises(decor.InputError, match="Peers does not support evaluate_every; drop it"):
        decor.train(task, plan, learning_rate=1.0, engine=decor.Peers(), evaluate_every=2)
    with pytest.raises(decor.InputError, match="round of gossip"):
        decor.train(task, plan, learning_rate=1.0, engine=decor.Peers(), gossip_rounds=0)
    by_hand = decor.NoisePlan(
        decor.ring(3), decor.Exposure(1.0, 5), decor.Adversary.eavesdropper(), 1.0, 1.0
    )
    with pytest.raises(decor.InputError, match="make the plan for a budget"):
        decor.train(task, by_hand, learning_rate=1.0, engine=decor.Peers())
    central = decor.baselines.central(
        decor.ring(3), decor.Exposure(1.0, 5), decor.Budget(5.0, 1e-5)
    )
    with pytest.raises(decor.InputError, match="no server"):
        decor.train(task, central, learning_rate=1.0, engine=decor.Peers())
    for wrong in ({"dtype": "float16"}, {"timeout": 0}, {"quorum": 0}, {"quorum": 1.5}):
        with pytest.raises(decor.InputError):
            decor.Peers(**wrong)


def test_a_user_who_cannot_go_on_is_named(tmp_path):
    task = decor.tasks.breast_cancer(users=3, seed=0)
    plan = planned()
    before = children()
    (tmp_path / "user-1.ledger").write_bytes(b"not a ledger" * 1000)
    with pytest.raises(
        decor.DecorError,
        match=r"user-1 stopped early: .*(no ledger|not a "
        r"database)",
    ):
        decor.train(task, plan, learning_rate=1.0, engine=decor.Peers(folder=tmp_path, timeout=5.0))
    assert children() <= before


def planned():
    return decor.calibrate(
        decor.ring(3),
        decor.Exposure(1.0, 5),
        decor.Adversary.eavesdropper(),
        decor.Budget(10.0, 1e-5),
    )


def children():
    """Processes of this one that are not over."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # gone meanwhile
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(stat.parent.name)
    return found
