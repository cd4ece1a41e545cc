"""The engine Peers, from a program: what it trains, and what it refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import decor


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


GPU = """
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


def test_on_a_machine_with_a_gpu_users_can_still_differentiate(tmp_path):
    """With a GPU, autograd starts threads, and a process forked beside them could not use it."""
    script = tmp_path / "gpu.py"
    script.write_text(GPU)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240)
    if "AttributeError" in ended.stderr:
        pytest.skip(f"this torch has no devices written in Python: {ended.stderr.splitlines()[-1]}")
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr[-2000:]


def test_the_engine_refuses_what_peers_cannot_do():
    task = decor.tasks.breast_cancer(users=3, seed=0)
    plan = make_plan()
    with pytest.raises(decor.InputError, match="Peers does not support evaluate_every; drop it"):
        decor.train(task, plan, learning_rate=1.0, engine=decor.Peers(), evaluate_every=2)
    with pytest.raises(decor.InputError, match="round of gossip"):
        decor.train(task, plan, learning_rate=1.0, engine=decor.Peers(), gossip_rounds=0)
    by_hand = decor.NoisePlan(
        decor.ring(3), decor.Exposure(1.0, 5), decor.Adversary.eavesdropper(), 1.0, 1.0
    )
    with pytest.raises(decor.InputError, match="a plan with a privacy budget"):
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
    plan = make_plan()
    before = children()
    (tmp_path / "user-1.ledger").write_bytes(b"not a ledger" * 1000)
    with pytest.raises(
        decor.DecorError,
        match=r"user-1 stopped early: .*(no ledger|not a "
        r"database)",
    ):
        decor.train(task, plan, learning_rate=1.0, engine=decor.Peers(folder=tmp_path, timeout=5.0))
    assert children() <= before


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


def make_plan():
    return decor.calibrate(
        decor.ring(3),
        decor.Exposure(1.0, 5),
        decor.Adversary.eavesdropper(),
        decor.Budget(10.0, 1e-5),
    )
