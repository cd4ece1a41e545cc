"""`decor federation new --task` makes a trial on one machine."""

import json

import numpy as np
import pytest

import decor
from decor.federation.federation import Federation
from decor.learning import own_data
from decor.net.identity import Identity

from .commands import run


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial") / "out"
    line = "federation new --task breast-cancer --users 8 --topology ring --epsilon 10 --json"
    return folder, json.loads(run(*line.split(), "--output", folder).stdout)


def test_a_trial_has_the_key_and_the_data_of_every_user(here, trial):
    folder, answer = trial
    federation = Federation.read(folder / "federation.toml")
    assert answer["file"] == str(folder / "federation.toml") and answer["epsilon"] <= 10
    assert answer["digest"] == federation.digest.hex()
    assert len(federation.members) == 8 and len({m.address for m in federation.members}) == 8
    task = decor.tasks.breast_cancer(users=8, seed=0)
    for k, member in enumerate(federation.members):
        identity = Identity.load(folder / "keys" / f"{member.name}.key")
        assert federation.number_of(identity.public) == k
        assert member.address.startswith("127.0.0.1:")
        X, y = own_data.read(folder / "data" / f"{member.name}.npz", features=30)
        assert (X == task.shards[k][0].numpy()).all() and (y == task.shards[k][1].numpy()).all()
        assert federation.task((X, y)).parameters == federation.parameters == 31
    with np.load(folder / "test.npz") as test:
        for name, expected in zip("Xy", task.test, strict=True):
            assert (test[name] == expected.numpy()).all()
    again = "federation new --task breast-cancer --epsilon 10 --output".split()
    assert "--overwrite" in here(*again, folder, check=2).stderr


def test_a_trial_learns(trial):
    """In the simulator, with the file's own plan, recipe and data."""
    federation = Federation.read(trial[0] / "federation.toml")
    names = [member.name for member in federation.members]
    task, recipe = decor.tasks.breast_cancer(users=names, seed=0), federation.recipe
    accuracies = [
        decor.train(
            task,
            federation.plan,
            learning_rate=federation.learning_rate,
            gossip_rounds=recipe.gossip.rounds,
            accelerate=recipe.gossip.accelerate,
            final_gossip_rounds=recipe.final_gossip.rounds,
            engine=decor.Vectorised(seed=seed),
            evaluate_every=federation.training.steps,
        ).metrics["accuracy"]
        for seed in range(5)
    ]
    assert np.mean(accuracies) > 0.92, "always answering benign is right in 63 %"


def test_a_trial_at_example_level_counts_the_records(here, tmp_path):
    line = "--task breast_cancer --users 14 --epsilon 10 --unit example --batch-size 8"
    here("federation", "new", *line.split(), "--topology", "complete", "--output", tmp_path / "t")
    file = tmp_path / "t" / "federation.toml"
    federation, task = Federation.read(file), decor.tasks.breast_cancer(users=14, seed=0)
    members = [(member.name, member.records) for member in federation.members]
    assert tuple(records for _, records in members) == task.records
    assert [name for name, _ in members][:2] == ["bonn", "ulm"] and members[12][0] == "bonn-2"
    X, y = own_data.read(tmp_path / "t" / "data" / "bonn-2.npz")
    assert federation.task((X, y), user=12).records == (task.records[12],)
    rows = [line.split() for line in here("federation", "check", file).stdout.splitlines()]
    header = rows.index(["user", "records", "address", "neighbours", "epsilon"])
    listed = rows[header + 2 : header + 2 + len(members)]
    assert [(row[0], int(row[1])) for row in listed] == members
