"""a9a: census data with 123 binary features, and whether the income is above 50,000 dollars."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decor.array_types import Floats, Ints
from decor.errors import InputError

from . import files

FEATURES = 123

Arrays = tuple[NDArray[np.float32], Ints]


def load() -> tuple[Arrays, Arrays]:
    """(training rows, test rows), each (X, y): X dense, y 1 for an income above 50,000, else 0.

    The last feature is 0 in every test row: the published test file does not have it.
    """
    train, where = files.read("a9a", "a9a")
    test, there = files.read("a9a", "a9a.t")
    return parse(train, str(where)), parse(test, str(there))


def parse(text: bytes, where: str, features: int = FEATURES) -> Arrays:
    """Rows in LIBSVM's format: a label -1 or +1, then `index:value` of each non-zero feature.

    Args:
        text: The content of the file.
        where: What error messages call it.
        features: The largest index; indices count from 1.
    """
    # whole-array operations: a loop over the 450,000 pairs would take seconds
    bytes_ = np.frombuffer(text + b"\n", dtype=np.uint8)
    colon, newline = bytes_ == ord(":"), bytes_ == ord("\n")
    gap = np.isin(bytes_, np.frombuffer(b" \t\r\n\v\f:", dtype=np.uint8))
    # numbers begin after a gap and end before one
    start = np.flatnonzero(~gap & np.concatenate(([True], gap[:-1])))
    end = np.flatnonzero(gap & np.concatenate(([False], ~gap[:-1])))
    line = np.cumsum(newline)[start]
    first = np.concatenate(([True], line[1:] != line[:-1]))[: len(line)]
    row = np.cumsum(first) - 1
    # the place of each number in its row: 0 is the label, then indices and values take turns
    place = np.arange(len(row)) - np.flatnonzero(first)[row]
    is_index = place % 2 == 1
    # a colon follows each index at once, each row ends with a value, and there is no other colon
    wrong = (is_index != colon[end]) | (is_index & np.concatenate((first[1:], [True]))[: len(row)])
    if wrong.any():
        raise _problem(where, int(line[np.argmax(wrong)]), "it is not `label index:value ...`")
    if len(row) == 0 or colon.sum() != is_index.sum():
        raise InputError(f"{where!r} holds no rows in LIBSVM's format; fetch the file again")
    try:
        numbers = np.array(text.replace(b":", b" ").split()).astype(np.float64)
    except ValueError as problem:
        raise InputError(
            f"{where!r} holds something that is no number: {problem}; fetch the file again"
        ) from None
    _check(numbers, place, line, where, features)
    X = np.zeros((int(row[-1]) + 1, features), dtype=np.float32)
    X[row[is_index], numbers[is_index].astype(np.int64) - 1] = numbers[(place > 0) & ~is_index]
    return X, (numbers[first] > 0).astype(np.int64)


def _check(numbers: Floats, place: Ints, line: Ints, where: str, features: int) -> None:
    label, index = place == 0, place % 2 == 1
    wrong_index = index & ~((numbers >= 1) & (numbers <= features) & (numbers == np.floor(numbers)))
    for wrong, what in (
        (label & (np.abs(numbers) != 1), "a label is -1 or +1"),
        (wrong_index, f"an index is a whole number from 1 to {features}"),
        (~np.isfinite(numbers), "a value is a finite number"),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            raise _problem(where, int(line[at]), f"{what}, not {numbers[at]:g}")


def _problem(where: str, line: int, what: str) -> InputError:
    return InputError(f"line {line + 1} of {where!r} cannot be read: {what}; fetch the file again")
