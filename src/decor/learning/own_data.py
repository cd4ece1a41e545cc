"""A user's own records: from a CSV file, a NumPy file, or a function of its own.

Nothing is done to the numbers: no mean, no deviation, no range of the data is taken. At example
level a statistic of the other records would carry a record past the noise; scale with public
constants, before the file is written or in the function. No error repeats what a cell holds; it
says where the cell is.
"""

from __future__ import annotations

import csv
import math
import re
import zipfile
import zlib
from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from decor.arrays import Array
from decor.errors import InputError

Arrays = tuple[NDArray[np.float32], Array]

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(
    r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf|infinity)\s*",
    re.ASCII | re.IGNORECASE,
)


def read(
    path_or_name: str | Path, label: str | int | None = None, features: int | None = None
) -> Arrays:
    """(X, y): records in float32 [records, features], and their labels: int64 where all are whole
    numbers, else float32.

    - a CSV file, with commas, semicolons or tabs, all numbers, with or without a header. `label` is
      a column's name, or its number counted from 1; the last unless told. A column named by `label`
      says that the first line is a header.
    - a `.npz` file with the arrays X and y.
    - "package.module:function", which is called and gives (X, y).

    `features` is how many the model takes; another number is refused. So are NaN, infinity, and an
    empty file.
    """
    name = str(path_or_name)
    path = Path(path_or_name)
    if not path.exists() and _FUNCTION.fullmatch(name):
        return _checked(repr(name), *_called(name), features=features)
    if label is not None and path.suffix.lower() == ".npz":
        raise InputError(
            f"label {label!r} names a column of a CSV file, and {name!r} holds its "
            "labels as y; drop it"
        )
    try:
        if path.suffix.lower() == ".npz":
            return _checked(repr(name), *_npz(path), features=features)
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _checked(repr(name), *_table(file, repr(name), label), features=features)
    except OSError as problem:
        said = problem.strerror or type(problem).__name__
        raise InputError(
            f"the data {name!r} cannot be read: {said}; give a CSV file, an .npz file or "
            "package.module:function"
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"{name!r} is not a text file; give a CSV file, an .npz file or package.module:function"
        ) from None


def function_of(name: str, what: str) -> Callable[[], Any]:
    """The function that "package.module:function" names; `what` says for whom, in errors."""
    if not _FUNCTION.fullmatch(name):
        raise InputError(f'{what} must be "package.module:function", not {name!r}')
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function, None)
    except Exception as problem:  # whatever other people's code raises, it is theirs to mend
        said = f"{type(problem).__name__}: {problem}"
        raise InputError(
            f"{what} {name!r}: the module cannot be imported ({said}); install it, or name its "
            "folder in PYTHONPATH"
        ) from None
    if not callable(found):
        raise InputError(f"{what} {name!r}: the module has no function {function!r}; mend the name")
    return found  # type: ignore[no-any-return]


def _called(name: str) -> tuple[Any, Any]:
    function = function_of(name, "the data")
    try:
        made = function()
    except Exception as problem:  # what it says might repeat data
        raise InputError(
            f"the data {name!r} raised {type(problem).__name__}; call the function alone to see why"
        ) from None
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise InputError(f"the data {name!r} must give a pair (X, y), not {type(made).__name__}")
    return made[0], made[1]


def _npz(path: Path) -> tuple[Any, Any]:
    if not zipfile.is_zipfile(path):
        path.open("rb").close()  # a missing or locked file says so itself
        raise InputError(
            f"{str(path)!r} is no .npz file; write one with numpy.savez(file, X=..., y=...)"
        )
    try:
        with np.load(path) as held:
            missing = [name for name in ("X", "y") if name not in held.files]
            if missing:
                raise InputError(
                    f"{str(path)!r} has no array {missing[0]}; write it with "
                    "numpy.savez(file, X=..., y=...)"
                )
            return held["X"], held["y"]
    except InputError:
        raise
    except (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        raise InputError(
            f"{str(path)!r} is damaged, or holds other things than numbers; write it again"
        ) from None


def _table(file: TextIO, name: str, label: str | int | None) -> tuple[Any, Any]:
    """All cells as numbers, less the label's column, which comes second."""
    first = file.readline()
    file.seek(0)
    rows = csv.reader(
        file, delimiter=max(",;\t", key=first.count), skipinitialspace=True, strict=True
    )
    numbers, width, column = array("d"), 0, 0
    try:
        for row in rows:
            if not row or not any(cell.strip() for cell in row):
                continue
            if not width:
                width, column = len(row), _column(row, name, rows.line_num, label)
                if _is_header(row, name, rows.line_num, label):
                    continue
            if len(row) != width:
                raise InputError(
                    f"line {rows.line_num} of {name} has {len(row)} columns, and the "
                    f"lines before have {width}"
                )
            numbers.extend(
                _cell(cell, name, rows.line_num, k) for k, cell in enumerate(row, start=1)
            )
    except csv.Error as problem:
        raise InputError(f"line {rows.line_num} of {name} is not CSV: {problem}") from None
    if not numbers:
        raise InputError(
            f"{name} holds no record; write one a line, numbers with commas between them"
        )
    whole = np.frombuffer(numbers, dtype=np.float64).reshape(-1, width)
    return np.delete(whole, column, axis=1), whole[:, column]


def _column(row: Sequence[str], name: str, line: int, label: str | int | None) -> int:
    """Where the labels are, counted from 0."""
    names = [cell.strip() for cell in row]
    if len(row) < 2:
        raise InputError(
            f"line {line} of {name} has one column; a record has features and a "
            "label, with commas between them"
        )
    if label is None:
        return len(row) - 1
    if isinstance(label, str) and label.strip() in names:
        if names.count(label.strip()) > 1:
            raise InputError(
                f"line {line} of {name} has several columns called {label!r}; give "
                "the label's number, from 1"
            )
        return names.index(label.strip())
    number = int(label) if not isinstance(label, bool) and str(label).isdecimal() else 0
    if not 1 <= number <= len(row):
        raise InputError(
            f"line {line} of {name} names no column {label!r}; give the label's name in the "
            "header, or its number from 1 "
            f"to {len(row)}"
        )
    return number - 1


def _is_header(row: Sequence[str], name: str, line: int, label: str | int | None) -> bool:
    """Whether the first line names columns.

    One that is half numbers is refused: it might be a record with a hole.
    """
    words = [k for k, cell in enumerate(row, start=1) if not _NUMBER.fullmatch(cell)]
    named = (
        isinstance(label, str)
        and label.strip() in (cell.strip() for cell in row)
        and not _NUMBER.fullmatch(label)
    )
    if named or len(words) == len(row):
        return True
    if words:
        raise InputError(
            f"line {line} of {name} is neither a header nor a record: column {words[0]} is no "
            "number, others are; "
            "name every column in words, or mend the cell"
        )
    return False


def _cell(cell: str, name: str, line: int, column: int) -> float:
    if not _NUMBER.fullmatch(cell):
        empty = "is empty" if not cell.strip() else "is no number"
        raise InputError(
            f"line {line}, column {column} of {name} {empty}; fill it in, or drop the record"
        )
    value = float(cell)
    if not math.isfinite(value):
        raise InputError(
            f"line {line}, column {column} of {name} is not finite; fill it in, or drop the record"
        )
    return value


def _checked(name: str, X: Any, y: Any, features: int | None) -> Arrays:
    """Finite numbers, one label for each record, and as many features as the model takes."""
    try:
        X, y = (np.asarray(part) for part in (X, y))
    except (TypeError, ValueError):
        raise InputError(
            f"{name} holds other things than numbers; give X and y as arrays of numbers"
        ) from None
    if any(part.dtype.kind not in "fiub" for part in (X, y)):
        raise InputError(
            f"{name} holds other things than real numbers; give X and y as arrays of numbers"
        )
    if X.ndim < 2 or y.ndim < 1 or len(X) != len(y) or len(X) == 0:
        shapes = f"X has shape {X.shape} and y {y.shape}"
        raise InputError(
            f"{shapes} in {name}; give X as [records, features] and y with one label a record"
        )
    if features is not None and X.shape[1:] != (features,):
        shape = str(X.shape[1]) if X.ndim == 2 else str(X.shape[1:])
        raise InputError(
            f"{name} has {shape} features beside the label, and the model takes "
            f"{features}; give as many"
        )
    with np.errstate(over="ignore"):
        narrow = X.astype(np.float32)
    for part, what in ((narrow, "record"), (y, "label of record")):
        bad = ~np.isfinite(part.reshape(len(part), -1)).all(axis=1)
        if bad.any():
            at = int(np.argmax(bad))
            raise InputError(
                f"the {what} {at} (counted from 0) in {name} is not finite, or too "
                "large; mend or drop it"
            )
    return narrow, _labels(y, name)


def _labels(y: Array, name: str) -> Array:
    if y.dtype.kind in "iub":
        return y.astype(np.int64)
    if bool((y == np.floor(y)).all()) and bool((np.abs(y) < 2**53).all()):
        return y.astype(np.int64)
    with np.errstate(over="ignore"):
        narrow = y.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise InputError(f"a label in {name} is too large for float32; scale the labels")
    return narrow
