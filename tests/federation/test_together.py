"""A whole federation on one machine: the command `decor up`, and the engine that runs it from a program."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import decor


def run(*words, cwd, code=0):
    done = subprocess.run([sys.executable, "-m", "decor", *words], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A federation of four that has been trained, one of its users killed on the way."""
    folder = tmp_path_factory.mktemp("trial")
    new = ("federation", "new", "--task", "breast-cancer", "--users", "4", "--epsilon", "10", "--steps", "40")
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
        assert left.stopped is None and left.steps_taken == user["messages"] and "loss" not in left.history
        assert left.guarantee.epsilon <= 10
        models.append(left.models["weight"].numpy())
    assert np.abs(models[0] - models[1]).max() < 0.2 * np.abs(models[0]).max()
    log = (folder / "trial" / "run" / "ulm.log").read_text()
    assert re.search(r"event=resumed step=\d+", log) and len(re.findall(r"event=connected .* epoch=2 ", log)) == 2
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z user=ulm event=", line) for line in log.splitlines())
    shown = run("ledger", "trial/run/ulm.ledger", "--json", cwd=folder)
    (entry,) = json.loads(shown.stdout)["runs"]
    assert entry["name"] == "breast-cancer" and entry["why"] == "finished" and 9 < entry["epsilon"] <= 10


def test_a_spent_budget_is_refused_to_the_whole_federation(trial):
    done = run("up", "trial/federation.toml", cwd=trial[0], code=2)
    assert "budget is spent" in done.stderr


@pytest.mark.parametrize("crash", ["ulm", "ulm@", "ulm@0", "ulm@40", "rome@3", "ulm@x"])
def test_a_crash_that_cannot_be_is_refused(trial, crash):
    assert "--crash" in run("up", "trial/federation.toml", "--crash", crash, cwd=trial[0], code=2).stderr


def test_the_engine_trains_what_the_simulator_trains(tmp_path):
    task = decor.tasks.breast_cancer(users=3, seed=0)
    plan = decor.calibrate(
        decor.complete(3), decor.Exposure(clip=0.1, steps=15), decor.Adversary.eavesdropper(), decor.Budget(20.0, 1e-5)
    )
    run_ = decor.train(task, plan, learning_rate=2.0, engine=decor.Peers(folder=tmp_path, timeout=60.0), final_gossip_rounds=2)
    assert run_.steps_taken == 15 and run_.models["weight"].shape == (3, 1, 30) and run_.metrics["accuracy"] > 0.8
    assert run_.metrics["consensus"] < 1e-6  # rounds on a complete graph agree
    assert run_.guarantee.epsilon == pytest.approx(plan.guarantee().epsilon)
    run_.save(tmp_path / "kept")
    assert decor.Run.load(tmp_path / "kept").manifest["engine"]["name"] == "peers"
    assert len(list(Path(tmp_path).glob("user-*.ledger"))) == 3


def test_the_engine_refuses_what_peers_cannot_do():
    task = decor.tasks.breast_cancer(users=3, seed=0)
    plan = planned()
    with pytest.raises(decor.InputError, match="no sweep, callbacks, resume or evaluate_every"):
        decor.train(task, plan, learning_rate=1.0, engine=decor.Peers(), evaluate_every=2)
    with pytest.raises(decor.InputError, match="round of gossip"):
        decor.train(task, plan, learning_rate=1.0, engine=decor.Peers(), gossip_rounds=0)
    by_hand = decor.NoisePlan(decor.ring(3), decor.Exposure(1.0, 5), decor.Adversary.eavesdropper(), 1.0, 1.0)
    with pytest.raises(decor.InputError, match="make the plan for a budget"):
        decor.train(task, by_hand, learning_rate=1.0, engine=decor.Peers())
    central = decor.baselines.central(decor.ring(3), decor.Exposure(1.0, 5), decor.Budget(5.0, 1e-5))
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
    with pytest.raises(decor.DecorError, match=r"user-1 stopped early: .*(no ledger|not a database)"):
        decor.train(task, plan, learning_rate=1.0, engine=decor.Peers(folder=tmp_path, timeout=5.0))
    assert children() <= before


def planned():
    return decor.calibrate(decor.ring(3), decor.Exposure(1.0, 5), decor.Adversary.eavesdropper(), decor.Budget(10.0, 1e-5))


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
