"""No environment variable decides what is saved, printed or attacked.

RANK is also set in processes that belong to no group: in all but one pod of a Kubernetes job, in
everything that torchrun starts, by some Slurm prologues.
"""

import json
import os
import re
import subprocess
import sys

import decor
from decor.auditing.findings import Audit, SourceFindings
from decor.net.identity import Identity
from decor.net.ledger import Ledger

TORCHRUNS = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
)
PLAIN = {name: value for name, value in os.environ.items() if name not in TORCHRUNS}
CASES = {
    "RANK without WORLD_SIZE": {"RANK": "1"},
    "WORLD_SIZE without RANK": {"WORLD_SIZE": "2"},
    "the second of one": {"RANK": "1", "WORLD_SIZE": "1"},
    "the second of two, without an address": {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "run",
        "LOCAL_RANK": "1",
    },
    "no number": {"RANK": "abc"},
    "an address alone": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
}
EVERYTHING = """
import contextlib, io, tempfile
from pathlib import Path
from decor.cli.main import main
from decor.training.channel import DenseChannel

def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return [code, out.getvalue(), err.getvalue()]

def answer():
    os.chdir(tempfile.mkdtemp())
    graph = ["--users", "3", "--topology", "ring", "--epsilon", "3"]
    train = ["train", "--task", "breast-cancer", *graph, "--steps", "2", "--learning-rate", "0.1", "--output", "cli"]
    results = {"plan": run("plan", *graph), "refused": run("plan", "--epsilon", "-3")}
    results |= {"warned": run("plan", *graph[:2], *graph[4:]), "train": run(*train), "again": run(*train)}
    results["audit"] = run("audit", *graph, "--canaries", "3000", "--audit-steps", "2")
    plan = decor.NoisePlan(decor.ring(3), decor.Exposure(1.0, 2), decor.Adversary.curious(), 1.0, 1.0)
    decor.train(decor.tasks.breast_cancer(users=3), plan, learning_rate=0.1).save("saved")
    (swept,) = decor.sweep(decor.tasks.breast_cancer(users=3), [plan], learning_rates=0.1).runs
    swept.save("swept")
    results["files"] = sorted(str(path) for path in Path(".").rglob("*"))
    audits = decor.audit(plan, canaries=3000, steps=2)
    right, DenseChannel.noise = DenseChannel.noise, lambda *_: None
    broken = decor.audit(plan, canaries=3000, steps=2)
    DenseChannel.noise = right
    results["audited"] = [[audit.passed, len(audit.rows), str(audit)[:4]] for audit in (audits, broken)]
    return results
"""
GROUP = """
def answer():
    plan = decor.NoisePlan(decor.ring(3), decor.Exposure(1.0, 2), decor.Adversary.curious(), 1.0, 1.0)
    try:
        decor.train(decor.tasks.breast_cancer(users=3), plan, learning_rate=0.1, engine=decor.ProcessGroup())
        return "alone"
    except decor.InputError as problem:
        return str(problem)
"""
FORKED = """
import json, os, sys
import decor, torch
{answer}
print(json.dumps(answer()), flush=True)
for case in json.loads(sys.argv[1]):
    if not os.fork():
        os.environ.update(case)
        print(json.dumps(answer()), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
"""Libraries are imported once for all cases, as that takes most of the time."""


def answers(folder, script, cases):
    """Results of `answer` without and with each environment; seconds are left out."""
    command = [sys.executable, "-c", FORKED.replace("{answer}", script), json.dumps(cases)]
    environment = PLAIN | {"TMPDIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in re.sub(r"\([\d.]+ s\)", "", done.stdout).splitlines()]


def test_what_is_saved_printed_and_attacked_does_not_depend_on_the_environment(tmp_path):
    plain, *others = answers(tmp_path, EVERYTHING, list(CASES.values()))
    assert [plain[name][0] for name in ("plan", "refused", "train", "again", "audit")] == [
        0,
        2,
        0,
        2,
        0,
    ]
    assert (
        "decor: " in plain["refused"][2]
        and "holds a run" in plain["again"][2]
        and "PASS" in plain["audit"][1]
    )
    assert {"cli/manifest.json", "saved/manifest.json", "swept/manifest.json"} < set(plain["files"])
    assert [row[0] for row in plain["audited"]] == [True, False] and all(
        row[1] > 0 for row in plain["audited"]
    )
    for case, found in zip(CASES, others, strict=True):
        for name, expected in plain.items():
            assert found[name] == expected, (case, name)


def test_a_node_with_a_rank_keeps_its_model(tmp_path):
    """The budget was spent, the ledger closed and the model lost, with exit code 0."""
    new = "federation new --task breast-cancer --users 2 --epsilon 10 --steps 2 --output t".split()
    subprocess.run(
        [sys.executable, "-m", "decor", *new], cwd=tmp_path, check=True, capture_output=True
    )
    nodes = []
    for name in ("bonn", "ulm"):
        key = f"t/keys/{name}.key"
        Ledger.create(tmp_path / f"{name}.ledger", Identity.load(tmp_path / key).public)
        own = ["--identity", key, "--data", f"t/data/{name}.npz", "--output", name]
        own += ["--ledger", f"{name}.ledger"]
        command = [sys.executable, "-m", "decor", "node", "t/federation.toml", *own]
        environment = PLAIN | {"RANK": "1", "WORLD_SIZE": "2"}
        nodes.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    said = [node.communicate(timeout=240) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    for name, (out, _) in zip(("bonn", "ulm"), said, strict=True):
        assert b"wrote" in out and decor.Run.load(tmp_path / name).steps_taken == 2


WHOLE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_a_process_group_is_joined_with_all_that_torchrun_sets_or_not_at_all(tmp_path):
    cases = [
        ({"RANK": "1"}, "alone"),
        ({"WORLD_SIZE": "2"}, "alone"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT not"),
        ({"RANK": "1", "WORLD_SIZE": "1", **WHOLE}, "RANK=1 and WORLD_SIZE=1 name no process"),
        ({"RANK": "abc", "WORLD_SIZE": "2", **WHOLE}, "RANK=abc and WORLD_SIZE=2 name no process"),
    ]
    plain, *found = answers(tmp_path, GROUP, [environment for environment, _ in cases])
    assert plain == "alone"
    for (environment, said), answer in zip(cases, found, strict=True):
        assert said in answer, environment


def test_an_audit_that_measured_nothing_has_not_passed_and_says_so():
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(1.0, 2), decor.Adversary.curious(), 1.0, 1.0
    )
    for wires in ((), (SourceFindings("vectorised", (), ()),)):
        audit = Audit(plan, 1e-5, 2, 3000, 0.9999, wires, 0.0)
        assert (
            not audit.passed
            and "nothing was measured" in str(audit)
            and str(audit).startswith("FAIL")
        )
        assert audit.to_json()["failures"] == audit.failures and len(audit.failures) == 1


def test_a_command_leaves_warnings_as_they_were(here):
    import warnings

    before = warnings.showwarning
    here("plan", "--users", 5, "--epsilon", 3)
    here("plan", "--epsilon", -3, check=2)
    assert warnings.showwarning is before
