"""Tables of any kind, seen as columns by name: DataFrames (through narwhals), and mappings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decor.array_types import Array
from decor.errors import InputError, require

_HOW = "give a DataFrame, or a mapping from column names to lists"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        names: The header, without blanks at the ends of names.
        records: How many records it has.
        column: The values of a column, by name.
    """

    names: tuple[str, ...]
    records: int
    column: Callable[[str], Array]


def is_frame(value: object) -> bool:
    """Whether this is a DataFrame of some library; imports nothing."""
    # of the type: to ask a lazy frame itself would compute its header
    return any(hasattr(type(value), name) for name in ("columns", "column_names"))


def table_of(value: object, where: str = "the table") -> Table:
    """Any table as columns.

    Args:
        value: A DataFrame, or a mapping from names to flat lists or arrays of one length.
        where: What messages call it.

    Raises:
        InputError: If it is neither, or its columns have different lengths.
        MissingExtra: If a DataFrame is given and narwhals is not installed.
    """
    if isinstance(value, Mapping):
        return _of_mapping(value, where)
    if is_frame(value):
        return _of_frame(value, where)
    raise InputError(f"{where} is not a table, but {type(value).__name__}; {_HOW}")


def rows(frame: Any, chosen: Array) -> Any:
    """Some rows of a DataFrame, as a DataFrame of the same library.

    Args:
        frame: The DataFrame.
        chosen: The numbers of the rows.
    """
    return _narwhal(frame, "the table")[chosen.tolist()].to_native()


def refuse_twice(where: str, names: Sequence[str], what: str = "column") -> None:
    """Refuses a name that is there more than once.

    Args:
        where: What messages call the place.
        names: The names.
        what: What has the names.
    """
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise InputError(f"{where} has {what} {names_text(twice)} more than once; name each once")


def names_text(names: Sequence[str]) -> str:
    """Names for a message: the first eight, and how many more."""
    shown = ", ".join(map(repr, names[:8]))
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8:,} more"


def without(table: Any, column: str) -> Any:
    """A table without one of its columns.

    Args:
        table: A DataFrame or a mapping.
        column: The name of the column, blanks at its ends aside.
    """
    if isinstance(table, Mapping):
        return {name: part for name, part in table.items() if str(name).strip() != column}
    frame = _narwhal(table, "the table")
    return frame.drop([name for name in frame.columns if name.strip() == column]).to_native()


def _of_mapping(value: Mapping[Any, Any], where: str) -> Table:
    refuse_twice(where, [str(name).strip() for name in value])
    columns = {str(name).strip(): _flat(part, str(name), where) for name, part in value.items()}
    lengths = {name: len(part) for name, part in columns.items()}
    if len(set(lengths.values())) > 1:
        some = ", ".join(f"{name!r} {length:,}" for name, length in list(lengths.items())[:8])
        raise InputError(
            f"{where} has columns of different length ({some}); make them equally long"
        )
    return Table(tuple(columns), next(iter(lengths.values()), 0), columns.__getitem__)


def _of_frame(frame: Any, where: str) -> Table:
    if hasattr(type(frame), "collect"):  # a query, without rows yet
        raise InputError(f"{where} is a lazy table; give its .collect()")
    # before narwhals, which refuses names that are there twice in its own words
    names = tuple(str(name).strip() for name in getattr(frame, "column_names", frame.columns))
    refuse_twice(where, names)
    table = _narwhal(frame, where)
    places = {name: k for k, name in enumerate(names)}

    def column(name: str) -> Array:
        series = table[:, places[name]]
        numeric = series.dtype.is_numeric() and not series.null_count()
        return series.to_numpy() if numeric else _flat(series.to_list(), name, where)

    return Table(names, len(table), column)


def _narwhal(frame: Any, where: str) -> Any:
    require("narwhals", "tables", "DataFrames")
    import narwhals.stable.v1 as nw  # loaded when a DataFrame is there

    try:
        return nw.from_native(frame, eager_only=True)
    except TypeError:
        raise InputError(f"{where} is not a table, but {type(frame).__name__}; {_HOW}") from None


def _flat(part: Any, name: str, where: str) -> Array:
    """A column as a flat array; of objects unless it is one of numbers already."""
    if isinstance(part, np.ndarray):
        array = part
    else:
        # as objects: NumPy would turn numbers beside texts into texts
        array = np.fromiter(part, dtype=object)
    if array.ndim != 1:
        raise InputError(f"column {name!r} of {where} has several values per record; split it up")
    return array
