"""A user's own data: from a CSV file, a NumPy file, or a function.

The values are used as they are: no mean, deviation or range of the data is computed. At example
level a statistic of the other records would carry a record past the noise. Scale the data with
public constants, before the file is written or in the function. No error message repeats the
content of a cell; it says where the cell is.
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

from decor.array_types import Array
from decor.errors import InputError

from .csv_table import NUMBER, separator_of

Arrays = tuple[NDArray[np.float32], Array]
"""(X, y)."""

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_SOURCES = "give a CSV file, an .npz file or package.module:function"


def read(
    path_or_name: str | Path, label: str | int | None = None, features: int | None = None
) -> Arrays:
    """Reads one user's records.

    Args:
        path_or_name: One of three sources. A CSV file has commas, semicolons or tabs, only
            numbers, and may have a header. A `.npz` file has the arrays X and y.
            "package.module:function" is called, and returns (X, y).
        label: The label's column in a CSV file, by name or by number counted from 1; None is the
            last column. If it names a column, the first line is a header.
        features: How many the model takes; another number is refused. None takes any.

    Returns:
        X in float32 [records, features], and y in int64 if all labels are whole numbers, else
        float32.

    Raises:
        InputError: If there is no record, or a value is missing, NaN or infinite.
    """
    name, path = str(path_or_name), Path(path_or_name)
    # a file called a:b is a file
    if not path.exists() and is_function(name):
        return _validate(repr(name), *_call(name), features=features)
    packed = path.suffix.lower() == ".npz"
    if label is not None and packed:
        raise InputError(
            f"label {label!r} names a column of a CSV file, and {name!r} holds its labels as y; "
            "drop it"
        )
    try:
        if packed:
            return _validate(repr(name), *_npz(path), features=features)
        # spreadsheets write a byte order mark, which is not part of a column's name
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _validate(repr(name), *_table(file, repr(name), label), features=features)
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise InputError(f"the data {name!r} cannot be read: {reason}; {_SOURCES}") from None
    except UnicodeDecodeError:
        raise InputError(f"{name!r} is not a text file; {_SOURCES}") from None


def is_function(name: str) -> bool:
    """Whether this is written as "package.module:function"."""
    return _FUNCTION.fullmatch(name) is not None


def import_function(name: str, what: str) -> Callable[..., Any]:
    """Imports a function.

    Args:
        name: "package.module:function".
        what: What error messages call it, such as "the data".
    """
    if not _FUNCTION.fullmatch(name):
        raise InputError(f'{what} must be "package.module:function", not {name!r}')
    module, _, function = name.partition(":")
    try:
        attribute = getattr(import_module(module), function, None)
    except Exception as problem:  # the user's own module may raise anything
        reason = f"{type(problem).__name__}: {problem}"
        raise InputError(
            f"{what} {name!r}: the module cannot be imported ({reason}); install it, or add its "
            "folder to PYTHONPATH"
        ) from None
    if not callable(attribute):
        raise InputError(
            f"{what} {name!r}: the module has no function {function!r}; correct the name"
        )
    return attribute  # type: ignore[no-any-return]


def call(name: str) -> Any:
    """What a function returns that gives data.

    Args:
        name: "package.module:function".
    """
    function = import_function(name, "the data")
    try:
        return function()
    except Exception as problem:  # its message is left out: it might repeat data
        raise InputError(
            f"the data {name!r} raised {type(problem).__name__}; call the function alone to see why"
        ) from None


def _call(name: str) -> tuple[Any, Any]:
    result = call(name)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise InputError(f"the data {name!r} must give a pair (X, y), not {type(result).__name__}")
    return result[0], result[1]


def _npz(path: Path) -> tuple[Any, Any]:
    how = "numpy.savez(file, X=..., y=...)"
    if not zipfile.is_zipfile(path):
        path.open("rb").close()  # a missing or locked file raises its own error
        raise InputError(f"{str(path)!r} is no .npz file; write one with {how}")
    try:
        # no object arrays: loading them would run code from the file
        with np.load(path) as arrays:
            for name in ("X", "y"):
                if name not in arrays.files:
                    raise InputError(f"{str(path)!r} has no array {name}; write it with {how}")
            return arrays["X"], arrays["y"]
    except InputError:
        raise
    except (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        raise InputError(
            f"{str(path)!r} is damaged, or holds other things than numbers; write it again"
        ) from None


def _table(file: TextIO, name: str, label: str | int | None) -> tuple[Any, Any]:
    """All columns of a CSV file except the label's, and the label's."""
    separator = separator_of(file.readline())
    file.seek(0)
    rows = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
    # an array of doubles takes a quarter of the memory of a list of floats
    values, width, column = array("d"), 0, 0
    try:
        for row in rows:
            if not row or not any(cell.strip() for cell in row):
                continue
            line = f"line {rows.line_num}"
            if not width:
                width, column = len(row), _label_column(row, f"{line} of {name}", label)
                if _is_header(row, f"{line} of {name}", label):
                    continue
            if len(row) != width:
                raise InputError(
                    f"{line} of {name} has {len(row)} columns, and the lines before have {width}"
                )
            for k, cell in enumerate(row, start=1):
                values.append(_number(cell, f"{line}, column {k} of {name}"))
    except csv.Error as problem:
        raise InputError(f"line {rows.line_num} of {name} is not CSV: {problem}") from None
    if not values:
        raise InputError(
            f"{name} holds no record; write one per line, numbers with commas between them"
        )
    whole = np.frombuffer(values, dtype=np.float64).reshape(-1, width)
    return np.delete(whole, column, axis=1), whole[:, column]


def _label_column(row: Sequence[str], where: str, label: str | int | None) -> int:
    """The label's column, counted from 0, given the first line."""
    names = [cell.strip() for cell in row]
    if len(row) < 2:
        raise InputError(
            f"{where} has one column; a record has features and a label, with commas between them"
        )
    if label is None:
        return len(row) - 1
    if isinstance(label, str) and label.strip() in names:
        if names.count(label.strip()) > 1:
            raise InputError(
                f"{where} has several columns called {label!r}; give the label's number, from 1"
            )
        return names.index(label.strip())
    # a column number may come from the command line as text
    number = int(label) if not isinstance(label, bool) and str(label).isdecimal() else 0
    if not 1 <= number <= len(row):
        raise InputError(
            f"{where} names no column {label!r}; give the label's name in the header, or its "
            f"number from 1 to {len(row)}"
        )
    return number - 1


def _is_header(row: Sequence[str], where: str, label: str | int | None) -> bool:
    """Whether the first line names columns."""
    words = [k for k, cell in enumerate(row, start=1) if not NUMBER.fullmatch(cell)]
    has_label = isinstance(label, str) and label.strip() in (cell.strip() for cell in row)
    if len(words) == len(row) or (has_label and not NUMBER.fullmatch(str(label))):
        return True
    # half words, half numbers: to skip it might drop a record with a missing value
    if words:
        raise InputError(
            f"{where} is neither a header nor a record: column {words[0]} is no number, others "
            "are; name every column in words, or correct the cell"
        )
    return False


def _number(cell: str, where: str) -> float:
    if not cell.strip():
        problem = "is empty"
    elif not NUMBER.fullmatch(cell):
        problem = "is no number"
    elif not math.isfinite(value := float(cell)):
        problem = "is not finite"
    else:
        return value
    raise InputError(f"{where} {problem}; fill it in, or drop the record")


def _validate(name: str, X: Any, y: Any, features: int | None) -> Arrays:
    """Refuses what is not finite numbers, one label per record, and the model's features."""
    remedy = "give X and y as arrays of numbers"
    try:
        X, y = (np.asarray(part) for part in (X, y))
    except (TypeError, ValueError):
        raise InputError(f"{name} holds other things than numbers; {remedy}") from None
    if any(part.dtype.kind not in "fiub" for part in (X, y)):
        raise InputError(f"{name} holds other things than real numbers; {remedy}")
    if X.ndim < 2 or y.ndim < 1 or len(X) != len(y) or len(X) == 0:
        raise InputError(
            f"X has shape {X.shape} and y {y.shape} in {name}; give X as [records, features] and y "
            "with one label per record"
        )
    if features is not None and X.shape[1:] != (features,):
        shape = str(X.shape[1]) if X.ndim == 2 else str(X.shape[1:])
        raise InputError(
            f"{name} has {shape} features beside the label, and the model takes {features}; give "
            "as many"
        )
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, and is refused
        narrow = X.astype(np.float32)
    for part, what in ((narrow, "record"), (y, "label of record")):
        bad = ~np.isfinite(part.reshape(len(part), -1)).all(axis=1)
        if bad.any():
            raise InputError(
                f"the {what} {int(np.argmax(bad))} (counted from 0) in {name} is not finite, or "
                "too large; correct or drop it"
            )
    return narrow, _labels(y, name)


def _labels(y: Array, name: str) -> Array:
    # beyond 2^53 a float64 label may already be rounded
    if y.dtype.kind in "iub" or bool(((y == np.floor(y)) & (np.abs(y) < 2**53)).all()):
        return y.astype(np.int64)
    with np.errstate(over="ignore"):
        narrow = y.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise InputError(f"a label in {name} is too large for float32; scale the labels")
    return narrow
