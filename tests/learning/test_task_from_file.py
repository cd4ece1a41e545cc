"""A task with the data of its file: each user's own records, and test records."""

import numpy as np
import pytest
import torch
from own_tables import (
    BY_USER,
    EACH,
    FILE,
    NAMES,
    ONE_FILE,
    PUBLIC,
    records,
    without,
    write,
    write_all,
)

import decor
from decor.errors import InputError
from decor.learning.task_file import TaskFile
from decor.learning.task_from_file import make_task, split_tables, user_tables


@pytest.fixture
def task(tmp_path):
    """Makes the task of a file in a folder with data."""
    write_all(tmp_path)

    def made(text, users=3, **more):
        (tmp_path / "task.toml").write_text(text)
        return make_task(TaskFile.read(tmp_path / "task.toml"), users, **more)

    return made


def test_one_file_with_a_column_of_users_and_a_file_for_each_are_the_same_task(task):
    one, each = task(FILE + BY_USER + PUBLIC), task(FILE + EACH + "\n[source]\n" + PUBLIC)
    assert one.names == tuple(sorted(NAMES)) and set(each.names) == set(NAMES)
    assert one.records == dict.fromkeys(NAMES, 40) == each.records
    for name, (X, y) in zip(one.names, one.shards, strict=True):
        same = [rows.tolist() for rows in each.shards[each.names.index(name)]]
        # users keep the order of their records
        assert sorted(X.tolist()) == sorted(same[0]) and sorted(y.tolist()) == sorted(same[1])
    assert one.test_public and len(one.test[1]) == 60 and one.parameters == 6
    assert one.definition == TaskFile.parse(FILE).definition


def test_without_test_records_a_fifth_of_each_users_is_held_back_and_stays_private(task):
    made = task(FILE + BY_USER)
    assert made.records == dict.fromkeys(NAMES, 32) and len(made.test[1]) == 24
    assert not made.test_public
    assert not torch.equal(made.shards[0][0], task(FILE + BY_USER, seed=1).shards[0][0])
    together = np.concatenate([X for X, _ in (*made.shards, made.test)])
    every = task(FILE + BY_USER + PUBLIC)
    assert sorted(together.tolist()) == sorted(
        np.concatenate([X for X, _ in every.shards]).tolist()
    )


def test_records_without_users_are_split(task, tmp_path):
    write(tmp_path / "all.csv", without(records(120), "hospital"))
    assert task(FILE + ONE_FILE, 4).counts == (24, 24, 24, 24)
    named = task(FILE + ONE_FILE + PUBLIC, ("a", "b"), shards="by-label")
    assert named.names == ("a", "b") and named.counts == (60, 60)
    assert min(len(set(y.tolist())) for _, y in named.shards) == 1
    file = TaskFile.read(tmp_path / "task.toml")
    tables = split_tables(file, ("a", "b"), seed=1)
    assert user_tables(file) is None and [len(t["age"]) for t in tables.values()] == [60, 60]


def test_a_run_of_it_says_what_it_has_learnt_and_predicts(task, tmp_path):
    made = task(FILE + BY_USER + PUBLIC)
    topology = decor.from_edges(3, [(0, 1), (1, 2), (0, 2)], made.names)
    plan = decor.calibrate(
        topology, decor.Exposure(1.0, 30), decor.Adversary.curious(), decor.Budget(50, 1e-5)
    )
    run = decor.train(made, plan, learning_rate=1.0, engine=decor.Vectorised(seed=None))
    run.release(tmp_path / "released")
    released = decor.Run.load(tmp_path / "released")
    assert released.definition == made.definition
    outputs = released.model()(made.test[0]).detach().flatten()
    predicted = released.predict(records(60, seed=1))
    assert predicted.classes == ("no", "yes")
    assert np.allclose(predicted.values[:, 1], torch.sigmoid(outputs.double()), atol=1e-6)
    right = np.mean(np.array(predicted.most_likely) == records(60, seed=1)["sick"])
    assert right == pytest.approx(released.metrics["accuracy"])


def test_own_code_gives_the_same_numbers_as_the_same_built_in_model(task, tmp_path, monkeypatch):
    (tmp_path / "ownmodel.py").write_text(
        "import decor\n\ndef make():\n    return decor.models.mlp(5, 4, 2), decor.losses.cross_entropy\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from decor.learning.model_code import hash_source

    sha256 = hash_source("ownmodel:make")
    own = f'code = "ownmodel:make"\ncode_sha256 = "{sha256}"'
    plan = decor.calibrate(
        decor.complete(3),
        decor.Exposure(1.0, 10),
        decor.Adversary.curious(),
        decor.Budget(10, 1e-5),
    )
    results = []
    for model in ('kind = "mlp"\nhidden = [4]', own):
        made = task(FILE.replace('kind = "logistic"', model) + BY_USER + PUBLIC)
        plan = decor.NoisePlan(
            decor.from_edges(3, [(0, 1), (1, 2), (0, 2)], made.names),
            plan.exposure,
            plan.adversary,
            plan.sigma_cdp,
            plan.sigma_cor,
        )
        run = decor.train(made, plan, learning_rate=0.5)
        results.append((run.history, run.models, run))
    (history, models, _), (own_history, own_models, run) = results
    assert history == own_history
    assert all(torch.equal(models[name], own_models[name]) for name in models)
    with pytest.raises(InputError, match="is the code 'ownmodel:make'.*trust_code=True"):
        run.model()
    assert run.model(trust_code=True)(made.test[0]).shape == (60, 2)
    # the code has changed since
    (tmp_path / "ownmodel.py").write_text("raise SystemExit('this was imported')\n")
    with pytest.raises(InputError, match="install the version"):
        run.model(trust_code=True)
    with pytest.raises(InputError, match="install the version"):
        task(FILE.replace('kind = "logistic"', own) + BY_USER)


@pytest.mark.parametrize(
    ("more", "change", "problem"),
    [
        (BY_USER, {"hospital": None}, "has no column 'hospital', which source.user names"),
        (BY_USER, {"ward": None}, "has no column 'ward'"),
        (BY_USER, {"extra": ["1"] * 120}, "has column 'extra', which the description"),
        (BY_USER, {"hospital": [" "] * 120}, "a record without a user in column 'hospital'"),
        (BY_USER, {"sick": ["no"] * 120}, "all records are of class 'no', so there is nothing"),
        (BY_USER, {"sick": ["no", "", "yes"] * 40}, "user ulm has an empty shard"),
        ("", {}, "says nowhere where the data are; give source.file"),
        (EACH.replace("ulm.csv", "rome.csv"), {}, "rome.csv' cannot be read"),
    ],
)
def test_data_that_do_not_fit_are_refused(task, tmp_path, more, change, problem):
    table = {**records(120), **change}
    write(tmp_path / "all.csv", {k: v for k, v in table.items() if v is not None})
    with pytest.raises(InputError, match=problem):
        task(FILE + more)


def test_options_of_a_split_are_refused_where_records_have_users(task):
    with pytest.raises(InputError, match="says whose each record is; drop --shards"):
        task(FILE + BY_USER, shards="iid")


def test_own_metrics_are_measured_on_the_test_records(task, tmp_path, monkeypatch):
    (tmp_path / "own_metrics.py").write_text(
        "def positive(outputs, targets):\n    return float((outputs.flatten() > 0).float().mean())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    more = '\n[metrics]\npositive = "own_metrics:positive"\n'
    made = task(FILE + BY_USER + PUBLIC + more)
    plan = decor.NoisePlan(
        decor.from_edges(3, [(0, 1), (1, 2), (0, 2)], made.names),
        decor.Exposure(1.0, 2),
        decor.Adversary.curious(),
        0.1,
        0.1,
    )
    run = decor.train(made, plan, learning_rate=0.5)
    X, _ = made.test
    expected = float((run.model()(X).flatten() > 0).float().mean())
    assert run.metrics["positive"] == pytest.approx(expected)
