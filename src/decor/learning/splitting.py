"""split: one table, one pair of arrays or one Dataset becomes a shard for each user, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, Subset

from decor import checks
from decor.array_types import Array, Ints
from decor.errors import InputError

from . import frames, shards
from .columns import category_text

How = Literal["iid", "dirichlet", "by-label"]


def split(
    data: Any,
    users: int | None = None,
    *,
    by: str | None = None,
    how: How = "iid",
    label: str | None = None,
    alpha: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Splits data among users, for simulations: real users never pool their data.

    Args:
        data: A DataFrame, a mapping from column names to lists, a pair (X, y), or a torch Dataset.
        users: The number of users. Without `by` they are called "0" to "n-1", as the users of a
            graph without names.
        by: A column of a table: each of its values is a user, who holds the records with this
            value, without the column.
        how: "iid" (at random), "dirichlet" (unlike shares of the labels) or "by-label" (sorted by
            label, so that most users have one or two).
        label: The column of the labels, if `how` looks at labels and the data are a table.
        alpha: Of "dirichlet": 10 makes users alike, 0.1 unlike; 0.5 by default.
        seed: Selects the split.

    Returns:
        A shard for each user, of the same kind as the data; `Task(shards=...)` takes it.

    Raises:
        InputError: If the data cannot be split in this way, or a user would be left with nothing.
    """
    if (users is None) == (by is None):
        raise InputError(
            "split needs either users=16 or by=COLUMN, which makes each value of a column a user"
        )
    if by is not None:
        return _by_column(data, by)
    count = checks.count("users", users, 1)
    if how == "dirichlet" and alpha is None:
        alpha = 0.5
    shards.check(how, alpha)
    # iid needs no labels, and so also splits data that have none
    labels = np.zeros(_length(data)) if how == "iid" else _labels(data, label)
    rows = shards.split(how, labels, count, seed, alpha)
    return {str(user): _part(data, chosen) for user, chosen in enumerate(rows)}


def _by_column(data: Any, by: str) -> dict[str, Any]:
    """One shard for each value of a column, in the order of the values."""
    if not (isinstance(data, Mapping) or frames.is_frame(data)):
        raise InputError(f"by={by!r} names a column, and the data are {_kind(data)}; give a table")
    # as in columns of categories 1, 1.0 and "1" are the same, here the same user
    names = [category_text(cell) for cell in _column(data, by, "by").tolist()]
    empty = names.count("")
    if empty:
        raise InputError(
            f"column {by!r} is empty in {empty:,} records, which belong to no user; drop them, or "
            "fill it in"
        )
    owners = np.array(names, dtype=object)
    rest = frames.without(data, by)
    # sorted, because the order of records must not decide the order of users
    return {name: _part(rest, np.flatnonzero(owners == name)) for name in sorted(set(names))}


def _column(data: Any, name: str, option: str) -> Array:
    table = frames.table_of(data, "the table")
    if name not in table.names:
        known = frames.names_text(table.names)
        raise InputError(f"{option}={name!r} is no column of the table; it has {known}")
    return table.column(name)


def _length(data: Any) -> int:
    if isinstance(data, Mapping) or frames.is_frame(data):
        return frames.table_of(data).records
    if isinstance(data, tuple | list) and len(data) == 2:
        return len(data[1])
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        return len(data)
    raise InputError(
        f"the data to split must be a table, a pair (X, y) or a torch Dataset, not {_kind(data)}"
    )


def _labels(data: Any, label: str | None) -> Array:
    """The labels, as numbers of classes."""
    if isinstance(data, Mapping) or frames.is_frame(data):
        if label is None:
            raise InputError("this split looks at labels; name their column with label=...")
        cells = _column(data, label, "label").tolist()
        return np.unique([category_text(cell) for cell in cells], return_inverse=True)[1]
    if isinstance(data, tuple | list) and len(data) == 2:
        return np.asarray(data[1])
    if isinstance(data, Dataset):
        items: Any = data
        return np.asarray([int(items[k][1]) for k in range(_length(data))])
    return np.zeros(_length(data))


def _part(data: Any, rows: Ints) -> Any:
    """Some records, as data of the same kind."""
    if frames.is_frame(data):
        return frames.rows(data, rows)
    if isinstance(data, Mapping):
        return {name: _part_of_array(column, rows) for name, column in data.items()}
    if isinstance(data, Dataset):
        # the items themselves are read when the task is made
        return Subset(data, rows.tolist())
    X, y = data
    if isinstance(X, Mapping):
        return {name: _part_of_array(part, rows) for name, part in X.items()}, _part_of_array(
            y, rows
        )
    return _part_of_array(X, rows), _part_of_array(y, rows)


def _part_of_array(part: Any, rows: Ints) -> Any:
    if isinstance(part, list | tuple):
        return [part[row] for row in rows]
    # a Series of pandas counts rows by its index, and not from 0
    return part[rows] if isinstance(part, Tensor) else np.asarray(part)[rows]


def _kind(data: Any) -> str:
    return type(data).__name__
