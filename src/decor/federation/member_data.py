"""A user's own data for a federation: prepared by the columns of its file, or taken as they are.

Where the file has columns, no value of the data can keep a user from joining: neighbours would see
it. Wrong columns do, and are found before anything is spent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decor.array_types import Array
from decor.errors import InputError
from decor.learning import own_data
from decor.learning.columns import Counts, Prepared
from decor.learning.csv_table import read_columns

from .federation import Federation

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class MemberData:
    """What a user trains on.

    Attributes:
        shard: (X, y).
        counts: What preparation changed, where the file has columns. Private: for the owner only.
    """

    shard: Pair
    counts: Counts | None = None


def read_member_data(
    federation: Federation, source: str | Path, label: str | None = None, number: int | None = None
) -> MemberData:
    """Reads one user's records, as the federation's file prepares them.

    Args:
        federation: The file.
        source: A CSV file, an .npz file or "package.module:function"; with columns in the file, a
            CSV file with a header, or a function that returns a table.
        label: The label's column, where the file has no columns.
        number: The user who trains; at example level its number of records is the file's. None:
            the data are only looked at.

    Raises:
        InputError: If the source cannot be read, or its columns are not the file's.
    """
    if federation.data is None:
        return MemberData(own_data.read(source, label=label))
    prepared = _prepare(federation, source, label)
    records = prepared.counts.records
    declared = None if number is None else federation.members[number].records
    # a record without a known label counts as a record of nothing: at example level so that the
    # number of records is the public one, and where nothing is left so that the user can join
    wanted = records if declared is not None else max(1, prepared.counts.used)
    if federation.privacy.rate is not None:
        # always one more: were it there only without any other, it would replace the last example,
        # and the plan is for examples that are added or removed
        wanted = prepared.counts.used + 1
    return MemberData(_fill(federation, prepared, wanted), prepared.counts)


def read_test_data(federation: Federation, source: str | Path, label: str | None = None) -> Pair:
    """Reads public test examples; those without a known label are left out. As `read_member_data`.

    Raises:
        InputError: Also if no example has a known label.
    """
    if federation.data is None:
        return own_data.read(source, label=label)
    prepared = _prepare(federation, source, label)
    if not prepared.counts.used:
        raise InputError(
            f"the test data {str(source)!r} has no record with a known label; give records whose "
            f"{federation.data.label.name!r} is known"
        )
    return prepared.features, prepared.targets


def _prepare(federation: Federation, source: str | Path, label: str | None) -> Prepared:
    assert federation.data is not None
    if label is not None:
        raise InputError(
            f"the federation's file names the label, {federation.data.label.name!r}; drop --label"
        )
    return federation.data.apply(read_table(source), repr(str(source)))


def read_table(source: str | Path) -> Any:
    """A table with named columns: of a CSV file, or what "package.module:function" returns."""
    name = str(source)
    if not Path(source).exists() and own_data.is_function(name):
        return own_data.call(name)
    if Path(source).suffix.lower() == ".npz":
        raise InputError(
            f"{name!r} has no names of columns, by which the data are prepared; give a CSV file "
            "with a header"
        )
    return read_columns(source)


def _fill(federation: Federation, prepared: Prepared, wanted: int) -> Pair:
    """The examples, and as many constant ones as are wanted: the middle of all ranges, no category,
    and one class after the other.
    """
    assert federation.data is not None and prepared.targets is not None
    missing = wanted - len(prepared.features)
    if missing <= 0:
        return prepared.features, prepared.targets
    features = np.zeros((missing, federation.data.width), dtype=np.float32)
    classes, kind = federation.data.classes, prepared.targets.dtype
    targets: Array = np.zeros((missing, 1), dtype=kind)
    if classes is not None:
        targets = np.arange(missing, dtype=kind) % len(classes)
    return (
        np.concatenate([prepared.features, features]),
        np.concatenate([prepared.targets, targets]),
    )
