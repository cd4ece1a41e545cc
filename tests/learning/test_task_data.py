"""Tasks from what people have: tables, arrays, Datasets, several inputs."""

import ast
import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import decor
from decor.errors import InputError
from decor.learning import losses, models
from decor.learning.columns import CategoryColumn, Label, NumberColumn, PlainColumn
from decor.learning.task import Task

torch.set_num_threads(1)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2)).astype("float32")
Y = np.array([0, 1, 1, 0, 1, 0])
FRAME = pd.DataFrame({"age": X[:, 0], "ill": Y, "bp": X[:, 1], "ward": list("aabbcc")})
AGE, BP = NumberColumn("age", -3, 3), NumberColumn("bp", -3, 3)


def made(shards, model=models.logistic, loss=losses.logistic, **more):
    return Task(model, loss, shards, **{"label": "ill", **more})


def same(task, X, y, user=0):
    found = task.shards[user]
    return np.allclose(found[0].numpy(), X) and np.array_equal(found[1].numpy(), y)


@pytest.mark.parametrize("make", [lambda f: f, pl.from_pandas, lambda f: f.to_dict("list")])
def test_tables_of_any_kind_are_shards(make):
    frame = make(FRAME[["age", "ill", "bp"]])
    task = made({"bonn": frame, "ulm": frame}, test=frame)
    assert task.names == ("bonn", "ulm") and same(task, X, Y) and same(task, X, Y, 1)
    assert torch.equal(task.test[0], task.shards[0][0])
    assert task.columns.features == ("age", "bp") and task.parameters == 3


def test_columns_are_matched_by_name_and_may_be_described():
    other = FRAME[["ward", "bp", "ill", "age"]].rename(columns={"bp": " bp"})
    columns = [BP, CategoryColumn("ward", ["a", "b"]), "age"]
    task = made([FRAME, other], columns=columns, label=Label("ill", [0, 1]))
    assert torch.equal(task.shards[0][0], task.shards[1][0])
    assert task.shards[0][0].shape == (6, 5) and torch.equal(
        task.shards[0][0][:, 4], torch.tensor(X[:, 0])
    )
    assert task.columns.classes == ("0", "1")
    assert task.table_counts["user 0"].columns["ward"].other == 2


def test_what_was_changed_is_for_the_owner_and_not_for_repr():
    frame = FRAME.assign(ill=["yes", "no", "?", "no", "yes", "no"])
    task = made([frame] * 2, columns=[AGE, BP], label=Label("ill", ["no", "yes"]))
    assert task.counts == (5, 5) and task.table_counts["user 0"].dropped == 1
    assert "1" not in repr(task).replace("10 examples", "")


def test_kinds_of_data_may_be_mixed():
    shards = {
        "bonn": FRAME[["age", "bp", "ill"]],
        "ulm": (X, Y),
        "kiel": TensorDataset(torch.tensor(X), torch.tensor(Y)),
        "jena": (torch.tensor(X), Y.tolist()),
        "gera": (X.tolist(), pd.Series(Y)),
    }
    task = made(shards)
    for user in range(5):
        assert same(task, X, Y, user)


def test_a_dataset_is_read_once():
    class Counted(Dataset):
        reads = 0

        def __len__(self):
            return 4

        def __getitem__(self, k):
            Counted.reads += 1
            return X[k], int(Y[k])

    task = made([Counted(), Subset(TensorDataset(torch.tensor(X), torch.tensor(Y)), [0, 2])])
    assert Counted.reads == 4 and same(task, X[:4], Y[:4]) and same(task, X[[0, 2]], Y[[0, 2]], 1)


class Items(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


BAD = {
    "one table": (FRAME, "shards is one table; split it .* decor.split"),
    "one pair": ((X, Y), r"shards is one pair \(X, y\); split it"),
    "one dataset": (Items((X[0], 0)), "shards is one Items; split it"),
    "text column": (
        [FRAME],
        "column 'ward' holds text, not numbers; describe it as CategoryColumn",
    ),
    "object column": (
        [pd.DataFrame({"age": pd.Series([1, "two", 3], dtype=object), "ill": [0, 1, 0]})],
        "column 'age' has 1 value that is missing or no number; fill it in.*NumberColumn",
    ),
    "text label": (
        [FRAME.assign(ill="yes")[["age", "ill"]]],
        r"label 'ill' has values .*label=Label\(\"ill\", classes",
    ),
    "no such column": (
        [FRAME[["age", "bp", "ill"]], FRAME[["age", "ill"]]],
        "the table of user 1 has no column 'bp'; its header has 'age', 'ill'; add it",
    ),
    "one column more": (
        [FRAME[["age", "ill"]], FRAME[["age", "bp", "ill"]]],
        "the table of user 1 has column 'bp', and that of user 0 has not; drop it, or say",
    ),
    "table and targets": ([(FRAME[["age"]], Y)], "put the targets into the table"),
    "loader": (
        [DataLoader(Items((X[0], 0)))],
        "DataLoader, whose batches are drawn already; give its .dataset",
    ),
    "stream": ([Stream()], "Dataset without a length"),
    "empty dataset": ([Items()], "empty shard; leave the user out"),
    "items differ in shape": (
        [Items((X[0], 0), (X[0][:1], 1))],
        r"items that differ in shape: the example of item 1 has \(1,\), and that of item 0 \(2,\); "
        "resize or pad",
    ),
    "items differ in type": (
        [Items((X[0], 0), (X[0].astype("float64"), 1))],
        "items that differ in type: the example of item 1 is torch.float64",
    ),
    "items are no pairs": ([Items(X[0])], "item 0 of the Dataset of user 0 is ndarray.*pair"),
    "items are images": ([Items((object(), 0))], "example of item 0 of user 0 are object"),
}


@pytest.mark.parametrize("case", BAD)
def test_data_that_do_not_fit_are_refused_with_the_way_out(case):
    shards, said = BAD[case]
    with pytest.raises(InputError, match=said):
        made(shards)


def test_a_table_needs_a_label():
    with pytest.raises(InputError, match="user 0 has a table; name the column to predict"):
        made([FRAME], label=None)


def test_a_label_of_one_class_or_none_is_refused():
    healthy = FRAME.assign(ill=0)
    described = {"columns": [AGE, BP], "label": Label("ill", [0, 1])}
    with pytest.raises(InputError, match="label 'ill' has only the class '0' in all shards"):
        made([healthy, healthy], **described)
    # a name alone says nothing of classes, which the loss and whole numbers tell
    logits = functional.binary_cross_entropy_with_logits
    for loss in (losses.logistic, logits):
        with pytest.raises(InputError, match="all labels 'ill' of all users are 0, so there is no"):
            made([healthy, healthy], columns=["age"], loss=loss)
    for y in (np.zeros(6), np.ones(6, int), torch.zeros(6, dtype=torch.long)):
        with pytest.raises(InputError, match="all labels.* are [01], so there is no"):
            made({"a": (X, y), "b": (X, y)})
    with pytest.raises(InputError, match="all labels.* are 0"):  # an own loss
        made([(X, 0 * Y)] * 2, model=models.mlp(2, 3, 2), loss=lambda out, y: out[:, y].mean())
    # a node has its own data alone
    assert made([(X, 0 * Y)]).users == 1
    # one user may have one class: shards by label are like that
    assert made([healthy, FRAME], **described).users == 2
    with pytest.raises(InputError, match="user 1 has no record with a known value of 'ill'"):
        made([FRAME, FRAME.assign(ill="?")], **described)
    with pytest.raises(InputError, match="user 1 has an empty shard"):
        made([FRAME[["age", "ill"]], FRAME[["age", "ill"]][:0]])


def test_values_may_all_be_equal():
    """Real numbers, and whole ones where the loss is about values."""
    half = np.full((6, 1), 0.5, dtype="float32")
    for loss, y in ((losses.squared, 0 * Y), (functional.mse_loss, half), (losses.squared, half)):
        y = np.asarray(y).reshape(-1, 1)
        assert made([(X, y)] * 2, model=lambda inputs: nn.Linear(inputs, 1), loss=loss).users == 2
    frame = FRAME.assign(ill=7)
    values = made(
        [frame] * 2, columns=["age"], model=lambda n: nn.Linear(n, 1), loss=losses.squared
    )
    assert values.shards[1][1].unique().tolist() == [7]


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.binary_cross_entropy_with_logits])
def test_one_output_is_compared_with_one_target_and_not_broadcast(loss):
    task = made(
        [FRAME], columns=["age", "bp"], model=lambda inputs: nn.Linear(inputs, 1), loss=loss
    )
    assert task.shards[0][1].shape == (6, 1) and task.shards[0][1].dtype == torch.float32


def test_a_whole_column_of_one_user_is_real_where_another_has_real_numbers():
    shards = [
        {"a": [1.0, 2.0], "price": [1, 2]},
        {"a": [1.0, 2.0], "price": [1.5, 2]},
    ]
    task = Task(
        lambda inputs: nn.Linear(inputs, 1), functional.mse_loss, shards, label=PlainColumn("price")
    )
    assert [y.tolist() for _, y in task.shards] == [[[1], [2]], [[1.5], [2]]]


def test_from_a_table_to_a_guarantee_are_six_statements_and_to_the_picture_four():
    """The blocks of docs/own-data.md, which tests/test_docs.py runs."""
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()
    blocks = [ast.parse(text).body for text in re.findall(r"```python\n(.*?)```", page, re.S)]
    trained = next(block for block in blocks if "decor.split" in ast.unparse(block[0]))
    assert len(trained) <= 6 and "run.guarantee" in ast.unparse(trained[-1])
    compared = next(block for block in blocks if "decor.compare" in ast.unparse(block[0]))
    needed = [*trained[:2], *compared[:2]]
    texts = [ast.unparse(each) for each in needed]
    for text, word in zip(texts, ("split", "Task", "compare", "plot"), strict=True):
        assert word in text


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(50, 4), nn.Linear(5, 2)

    def forward(self, ids, weight, mask):
        words = (self.words(ids) * mask.unsqueeze(-1)).mean(1)
        return self.out(torch.cat([words, weight.unsqueeze(-1)], -1))


def inputs(records, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "ids": torch.randint(50, (records, 3), generator=generator),
        "weight": torch.randn(records, generator=generator),
        "mask": torch.rand(records, 3, generator=generator) > 0.3,
    }


def test_several_inputs_are_given_to_the_model_by_keyword():
    torch.manual_seed(0)
    model, labels = TwoInputs(), torch.tensor([0, 1, 1, 0])
    several = [{**inputs(4, seed), "y": labels} for seed in range(3)]
    task = Task(model, functional.cross_entropy, several, test=several[0], label="y")
    with torch.no_grad():
        direct, packed = model(**inputs(4)), task.model(task.shards[0][0])
    assert torch.equal(direct, packed)
    assert task.model.state_dict().keys() == model.state_dict().keys()
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(clip=1.0, steps=3), decor.Adversary.curious(), 1e-6, 1e-6
    )
    run = decor.train(task, plan, learning_rate=0.5)
    model.load_state_dict(run.average_model)
    loss = functional.cross_entropy(model(**inputs(4)), labels)
    assert abs(loss.item() - run.metrics["test_loss"]) < 1e-5


@pytest.mark.parametrize("unit", ["user", "example"])
def test_private_runs_and_peers_train_several_inputs(unit):
    labels = torch.tensor([0, 1, 1, 0])
    shards = {name: (inputs(4, k), labels) for k, name in enumerate(("bonn", "ulm", "kiel"))}
    task = Task(TwoInputs(), functional.cross_entropy, shards, test=(inputs(4), labels))
    ring = decor.from_edges(3, [(0, 1), (1, 2), (2, 0)], labels=["kiel", "bonn", "ulm"])
    example = {"unit": "example", "batch_size": 2, "records": task.records}
    exposure = decor.Exposure(clip=1.0, steps=3, **({} if unit == "user" else example))
    plan = decor.calibrate(ring, exposure, decor.Adversary.curious(), decor.Budget(5.0, 1e-5))
    for engine in (decor.Vectorised(seed=None), decor.Peers()):
        run = decor.train(task, plan, learning_rate=0.5, engine=engine)
        assert not run.simulated and run.steps_taken == 3
        TwoInputs().load_state_dict(run.average_model)


def test_a_pair_and_a_dataset_may_hold_several_inputs_too():
    parts, labels = inputs(4), torch.tensor([0, 1, 1, 0])
    items = [{**{name: part[k] for name, part in parts.items()}, "y": labels[k]} for k in range(4)]
    task = Task(TwoInputs, functional.cross_entropy, [(parts, labels), Items(*items)], label="y")
    assert torch.equal(task.shards[0][0], task.shards[1][0])


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ([inputs(2)], "has a dict with 'ids', 'weight', 'mask'; say with label="),
        ([(inputs(2), Y[:2]), (X, Y)], "some users have examples as a dict"),
        (
            [(inputs(2), Y[:2]), ({**inputs(2), "ids": torch.zeros(2, 4).long()}, Y[:2])],
            r"user 1 has the inputs ids \(4,\) int64.*first user has ids \(3,\) int64",
        ),
        (
            [({**inputs(2), "ids": torch.full((2, 3), 2**25)}, Y[:2])],
            "input 'ids' of user 0 has whole numbers beyond 16,777,216",
        ),
        ([({**inputs(2), "weight": torch.zeros(3)}, Y[:2])], "different numbers of examples"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(shards, said):
    with pytest.raises(InputError, match=said):
        Task(TwoInputs, functional.cross_entropy, shards)


def test_whole_inputs_of_any_size_are_exact():
    large = {"ids": torch.tensor([[2**40 + 1]]), "other": torch.tensor([3])}

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(1, 2)

        def forward(self, ids, other):
            return self.out((ids - 2**40 + other.unsqueeze(-1)).to(self.out.weight.dtype))

    task = Task(Sum(), functional.cross_entropy, [(large, [1])])
    assert task.shards[0][0].tolist() == [[2**40 + 1, 3]]
