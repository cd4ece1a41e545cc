"""One table becomes a shard for each user: every record once, none lost."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch.utils.data import TensorDataset

import decor
from decor.errors import InputError

RECORDS = 24
TABLE = {
    "id": list(range(RECORDS)),
    "town": ["ulm", "bonn", "kiel"] * (RECORDS // 3),
    "ill": [0, 1] * (RECORDS // 2),
}
KINDS = {
    "pandas": pd.DataFrame(TABLE, index=range(100, 100 + RECORDS)),
    "polars": pl.DataFrame(TABLE),
    "mapping": TABLE,
    "arrays": (np.array(TABLE["id"]), np.array(TABLE["ill"])),
    "tensors": (torch.tensor(TABLE["id"]), torch.tensor(TABLE["ill"])),
    "lists": (TABLE["id"], TABLE["ill"]),
    "series": (pd.Series(TABLE["id"], index=range(7, 7 + RECORDS)), pd.Series(TABLE["ill"])),
    "inputs": ({"a": torch.tensor(TABLE["id"])}, torch.tensor(TABLE["ill"])),
    "dataset": TensorDataset(torch.tensor(TABLE["id"]), torch.tensor(TABLE["ill"])),
}


def ids(shard):
    """(id, ill) of each record of a shard of any kind."""
    if isinstance(shard, TensorDataset | torch.utils.data.Subset):
        return [(int(x), int(y)) for x, y in shard]
    if not isinstance(shard, tuple):
        return list(zip(list(shard["id"]), list(shard["ill"]), strict=True))
    X, y = shard
    return [(int(a), int(b)) for a, b in zip(X["a"] if isinstance(X, dict) else X, y, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["iid", "dirichlet", "by-label"])
def test_every_record_is_at_one_user(kind, how):
    label = "ill" if kind in ("pandas", "polars", "mapping") else None
    shards = decor.split(KINDS[kind], 4, how=how, label=label, seed=3)
    assert list(shards) == ["0", "1", "2", "3"]
    found = sorted(pair for shard in shards.values() for pair in ids(shard))
    assert found == list(zip(TABLE["id"], TABLE["ill"], strict=True))
    if kind in ("pandas", "polars"):
        assert all(type(shard) is type(KINDS[kind]) for shard in shards.values())
    # all kinds are split alike
    alike = decor.split(KINDS["mapping"], 4, how=how, label="ill", seed=3)
    assert [ids(shard) for shard in shards.values()] == [ids(s) for s in alike.values()]


@pytest.mark.parametrize("kind", ["pandas", "polars", "mapping"])
def test_each_value_of_a_column_is_a_user_without_the_column(kind):
    shards = decor.split(KINDS[kind], by="town")
    assert list(shards) == ["bonn", "kiel", "ulm"]
    assert ids(shards["bonn"]) == [(k, k % 2) for k in range(1, RECORDS, 3)]
    assert "town" not in shards["bonn"]


def test_another_seed_is_another_split():
    assert ids(decor.split(TABLE, 4, seed=0)["0"]) != ids(decor.split(TABLE, 4, seed=1)["0"])


BAD = {
    "neither": (lambda: decor.split(TABLE), "either users=16 or by=COLUMN"),
    "both": (lambda: decor.split(TABLE, 3, by="town"), "either users=16 or by=COLUMN"),
    "no column": (lambda: decor.split(TABLE, by="city"), "by='city' is no column of the table"),
    "column of arrays": (lambda: decor.split(KINDS["arrays"], by="town"), "data are tuple"),
    "empty cells": (
        lambda: decor.split({"a": [1, 2], "town": ["ulm", None]}, by="town"),
        "column 'town' is empty in 1 records",
    ),
    "labels": (lambda: decor.split(TABLE, 3, how="by-label"), "name their column with label="),
    "way": (lambda: decor.split(TABLE, 3, how="even"), "must be one of iid, dirichlet, by-label"),
    "many": (lambda: decor.split(TABLE, 30), "cannot give 30 users at least 1 each"),
    "a number": (lambda: decor.split(3, 2), "must be a table, a pair"),
    "alpha": (lambda: decor.split(TABLE, 3, alpha=1.0), "changes nothing for iid"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_split_is_refused(case):
    make, said = BAD[case]
    with pytest.raises(InputError, match=said):
        make()
