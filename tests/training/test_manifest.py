"""RunManifest is the same in memory and in a file; a fingerprint sees every change of a task."""

import json
import platform
from pathlib import Path

import pytest
import torch
from small_tasks import make, planned

import decor
from decor import losses
from decor.training.manifest import RunManifest, fingerprint, resume_tag

FULL = RunManifest(
    simulated=False,
    task={"name": "toy", "users": 3},
    learning_rate=0.1,
    seed="secret",
    noise={"kind": "grid", "distance": 1e-12},
    stop_saw_private_data=True,
    steps_missed=0,
)


def test_a_manifest_is_read_as_it_was_written():
    written = json.loads(json.dumps(FULL.to_json()))
    assert written == FULL.to_json() and RunManifest.from_json(written) == FULL
    assert "machine" not in written and written["steps_missed"] == 0, "None is left out, 0 is not"


def test_keys_of_other_versions_are_ignored_and_missing_ones_are_none():
    manifest = RunManifest.from_json({"task": {"name": "toy"}, "invented later": 1})
    assert manifest.task == {"name": "toy"} and manifest.recipe is None
    assert manifest.simulated, "a manifest that does not say so is not of a private run"


@pytest.mark.parametrize("engine", [decor.Vectorised(), decor.Vectorised(seed=None)], ids=str)
def test_a_runs_manifest_holds_plain_values(engine):
    task = make("logistic")
    run = decor.train(task, planned(task, s=5.0), learning_rate=0.1, engine=engine)
    assert type(run.manifest) is dict and json.loads(json.dumps(run.manifest)) == run.manifest
    assert RunManifest.from_json(run.manifest).to_json() == run.manifest


def scaled(factor):
    return lambda output, target: factor * losses.cross_entropy(output, target)


def test_equal_tasks_have_equal_fingerprints_and_others_do_not():
    tasks = [make("relu"), make("tanh"), make("relu"), make("relu")]
    with torch.no_grad():
        next(tasks[2].model.parameters()).add_(1)
    tasks[3].shards[0][0][0, 0] += 1
    assert fingerprint(make("relu")) == fingerprint(tasks[0])
    assert len({fingerprint(task) for task in tasks}) == 4
    task = tasks[0]
    for scale in (1.0, 2.0):
        other = decor.Task(task.model, scaled(scale), task.shards)
        assert fingerprint(other) != fingerprint(task) and fingerprint(other) != fingerprint(
            decor.Task(task.model, scaled(scale + 1), task.shards)
        )


def test_a_resume_tag_depends_on_key_and_data():
    tags = {resume_tag(bytes([k]) * 32, data) for k in (0, 1) for data in ("a", "b")}
    assert len(tags) == 4 and all(len(bytes.fromhex(tag)) == 32 for tag in tags)


def test_a_task_has_the_fingerprint_that_version_0_1_gave_it():
    """Otherwise none of its runs could be resumed. The hash covers the bytecode of the loss."""
    path = Path(__file__).parent.parent / "version_0_1" / "stopped" / "manifest.json"
    old = json.loads(path.read_text())
    if old["versions"]["python"].split(".")[:2] != platform.python_version().split(".")[:2]:
        pytest.skip(f"the run was made by Python {old['versions']['python']}")
    assert fingerprint(decor.tasks.breast_cancer(users=4, seed=0)) == old["task"]["fingerprint"]
