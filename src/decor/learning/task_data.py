"""What people give a task as data, made into tensors.

Tables, pairs of arrays, torch Datasets, and several inputs by keyword.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from decor.errors import InputError

from . import frames
from .columns import AnyLabel, Column, Counts, Label, PlainColumn, Preparation

Inputs = Tensor | dict[str, Tensor]
"""Examples as one tensor, or as one for each keyword of the model."""


@dataclass(frozen=True)
class Examples:
    """One user's examples.

    Attributes:
        inputs: What the model takes, examples first.
        targets: One per example.
        counts: What preparation changed, if the examples came from a table.
    """

    inputs: Inputs
    targets: Tensor
    counts: Counts | None = None


def check_shards(shards: Any) -> None:
    """Refuses what is given in the place of one shard per user.

    Args:
        shards: What the caller gave.
    """
    how = 'decor.split(..., users=16), or give one shard for each user, such as {"bonn": ...}'
    if frames.is_frame(shards):
        raise InputError(f"shards is one table; split it among users with {how}")
    if isinstance(shards, Dataset | DataLoader):
        raise InputError(f"shards is one {type(shards).__name__}; split it among users with {how}")
    # a list of two users' shards is a pair too, which only its parts tell
    if _is_pair(shards) and not any(
        _is_pair(part) or isinstance(part, Mapping | Dataset) or frames.is_frame(part)
        for part in shards
    ):
        raise InputError(f"shards is one pair (X, y); split it among users with {how}")
    if not isinstance(shards, list | tuple | Mapping) or not shards:
        raise InputError(
            "shards must be a list of (X, y), one for every user, or a mapping such as "
            '{"bonn": (X, y)}, and not empty'
        )


def preparation_of(
    columns: Preparation | Sequence[str | Column] | None,
    label: str | AnyLabel | None,
    sources: Sequence[tuple[str, Any]],
) -> Preparation | None:
    """The preparation of tables among the sources; None if there is none.

    Args:
        columns: The columns that the model takes; a name alone takes its numbers as they are.
            None takes all columns of the first table but the label.
        label: The column to predict; a name alone takes its numbers as they are.
        sources: Each source of data, with its owner.

    Raises:
        InputError: If a table has no label.
    """
    if isinstance(columns, Preparation):
        return columns
    tables = [(owner, source) for owner, source in sources if _is_table(source, columns)]
    if not tables:
        return None
    owner, first = tables[0]
    if label is None:
        raise InputError(f"{owner} has a table; name the column to predict with label=...")
    target = PlainColumn(label) if isinstance(label, str) else label
    if columns is None:
        # the first table decides; another one that lacks a column is refused when it is read
        names = frames.table_of(first, f"the table of {owner}").names
        columns = [name for name in names if name != target.name]
        for other, table in tables[1:]:
            more = {*frames.table_of(table, f"the table of {other}").names} - {*names}
            if more:
                raise InputError(
                    f"the table of {other} has column {frames.names_text(sorted(more))}, and "
                    f"that of {owner} has not; drop it, or say with columns=[...] which the model "
                    "takes"
                )
    elif isinstance(columns, str):
        raise InputError(f"columns must be a list of columns, not {columns!r}")
    return Preparation(
        [PlainColumn(each) if isinstance(each, str) else each for each in columns], target
    )


def read_examples(
    owner: str,
    source: Any,
    preparation: Preparation | None,
    label: str | None,
) -> Examples:
    """One user's examples as tensors.

    Args:
        owner: Who has them, for messages.
        source: A table, a pair (X, y), a torch Dataset, or a dict of tensors.
        preparation: How tables are prepared.
        label: The targets' name in a dict of tensors, or in the dicts that a Dataset gives.

    Raises:
        InputError: If it is none of these, or parts do not fit together.
    """
    if preparation is not None and _is_table(source, preparation):
        where = f"the table of {owner}"
        prepared = preparation.apply(source, where, extra="ignore")
        assert prepared.targets is not None  # the table was prepared with its label
        if prepared.counts.dropped and not prepared.counts.used:
            raise InputError(
                f"{owner} has no record with a known value of {preparation.label.name!r}; correct "
                "the classes, or leave the user out"
            )
        features, targets = map(torch.from_numpy, (prepared.features, prepared.targets))
        return Examples(features, targets, prepared.counts)
    if isinstance(source, DataLoader):
        raise InputError(
            f"{owner} has a DataLoader, whose batches are drawn already; give its .dataset"
        )
    if isinstance(source, Dataset):
        return _of_dataset(owner, source, label)
    if isinstance(source, Mapping):
        inputs, targets = _with_labels(owner, source, label)
        return Examples(_tensors(owner, inputs), _tensor(owner, targets, "targets"))
    if not _is_pair(source):
        raise InputError(
            f"the shard of {owner} must be a pair (X, y), a DataFrame, a torch Dataset or a dict "
            f"of tensors, not {_kind(source)}"
        )
    X, y = source
    if isinstance(X, Mapping):
        return Examples(_tensors(owner, X), _tensor(owner, y, "targets"))
    if frames.is_frame(X):
        raise InputError(
            f"{owner} has a pair of a table and targets; put the targets into the table, and give "
            "label=..."
        )
    return Examples(_tensor(owner, X, "examples"), _tensor(owner, y, "targets"))


def one_class_refusal(preparation: Preparation, counts: Sequence[Counts]) -> str | None:
    """Why there is nothing to learn: all records of all users are of one class; else None."""
    present = {name for each in counts for name, number in each.classes.items() if number}
    if not isinstance(preparation.label, Label) or len(present) != 1:
        return None
    return (
        f"label {preparation.label.name!r} has only the class {present.pop()!r} in all shards, so "
        "there is nothing to learn; correct the classes, or give other records"
    )


def _kind(value: object) -> str:
    size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    return f"{type(value).__name__}{size}"


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _is_table(source: Any, columns: Any) -> bool:
    """Whether a source is a table: a DataFrame, or a mapping of flat columns."""
    if not isinstance(source, Mapping):
        return frames.is_frame(source)
    # tensors, or several values per example, are inputs by keyword unless columns are described
    return columns is not None or not any(
        isinstance(part, Tensor) or np.ndim(part) > 1 for part in source.values()
    )


def _with_labels(owner: str, item: Mapping[str, Any], label: str | None) -> tuple[Any, Any]:
    """The inputs of a mapping, and its targets."""
    if label is None or label not in item:
        names = frames.names_text(list(map(str, item)))
        raise InputError(
            f"{owner} has a dict with {names}; say with label=... which of them is to be predicted"
        )
    return {name: part for name, part in item.items() if name != label}, item[label]


def _of_dataset(owner: str, dataset: Any, label: str | None) -> Examples:
    """All items of a Dataset, each read once."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(
            f"{owner} has a Dataset without a length; give one with __len__ and __getitem__"
        )
    # a Dataset may draw an item anew at each reading, but an example must stay what it is
    pairs = [_pair_of_item(owner, k, dataset[k], label) for k in range(len(dataset))]
    if not pairs:
        raise InputError(f"{owner} has an empty shard; leave the user out, or give it data")
    targets = _stack(owner, [y for _, y in pairs], "target")
    first = pairs[0][0]
    if not isinstance(first, Mapping):
        return Examples(_stack(owner, [x for x, _ in pairs], "example"), targets)
    # an input that an item lacks becomes None, which is refused with the item's number
    inputs = {
        name: _stack(owner, [x.get(name) for x, _ in pairs], f"input {name!r}") for name in first
    }
    return Examples(inputs, targets)


def _pair_of_item(owner: str, k: int, item: Any, label: str | None) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        return _with_labels(f"item {k} of {owner}", item, label)
    if not _is_pair(item):
        raise InputError(
            f"item {k} of the Dataset of {owner} is {type(item).__name__}; let it be a pair "
            "(x, y), or a dict with label=..."
        )
    x, y = item
    return x, y


def _stack(owner: str, parts: Sequence[Any], what: str) -> Tensor:
    """One tensor of the parts of all items, which must be alike."""
    tensors = [_tensor(f"item {k} of {owner}", part, what) for k, part in enumerate(parts)]
    first = tensors[0]
    for k, each in enumerate(tensors):
        if each.shape != first.shape:
            raise InputError(
                f"{owner} has items that differ in shape: the {what} of item {k} has "
                f"{tuple(each.shape)}, and that of item 0 {tuple(first.shape)}; resize or pad all "
                "items to one shape"
            )
        if each.dtype != first.dtype:
            raise InputError(
                f"{owner} has items that differ in type: the {what} of item {k} is {each.dtype}, "
                f"and that of item 0 {first.dtype}; convert them to one type"
            )
    return torch.stack(tensors)


def _tensors(owner: str, inputs: Mapping[Any, Any]) -> dict[str, Tensor]:
    if not inputs:
        raise InputError(f"{owner} has a dict without inputs; name at least one")
    made = {str(name): _tensor(owner, part, f"input {name!r}") for name, part in inputs.items()}
    flat = [name for name, part in made.items() if not part.dim()]
    if flat:
        raise InputError(f"{owner} has an input {flat[0]!r} without examples; put them first")
    return made


def _tensor(owner: str, part: Any, what: str) -> Tensor:
    """A part as a tensor; refuses what is no numbers, without repeating values."""
    if isinstance(part, Tensor):
        return part
    try:
        if not hasattr(part, "__array__"):  # lists become the type that torch would give them
            return torch.as_tensor(part)
        array = np.asarray(part)
        if array.dtype.kind == "O":  # numbers in an array of objects
            array = np.array([np.asarray(each) for each in array])
        if array.dtype.kind in "OUSmM":
            raise TypeError
        # pandas lends its memory, which a tensor could write to
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError, RuntimeError):
        # from None: NumPy and torch may repeat values in what they raise
        raise InputError(
            f"the {what} of {owner} are {_kind(part)} that holds other things than numbers of one "
            "shape; convert them to tensors, or give a table with label=... and columns=[...]"
        ) from None
