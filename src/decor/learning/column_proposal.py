"""Columns for a task's file: from what somebody types, or from a public sample.

Never from private data: a range or a list of categories taken from them would publish them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from decor.errors import InputError

from .columns import AnyLabel, CategoryColumn, Column, Label, NumberColumn
from .csv_table import NUMBER

_MOST_CATEGORIES = 50
"""A column of more different texts is rather a name or a note than a category."""
_MOST_CLASSES = 20
"""A label of more different numbers is predicted as a number."""
_NO_VALUE = frozenset(("", "na", "n/a", "#n/a", "nan", "null"))
"""How spreadsheets, R and pandas write that a value is missing."""
SYNTAX = "LOW:HIGH for numbers, or A,B,... for categories"


def parse_column(name: str, text: str) -> Column:
    """A column as it is typed.

    Args:
        name: The column.
        text: "0:120" for numbers in this range, or "north,south" for categories.

    Raises:
        InputError: If it is neither.
    """
    span = _range(text)
    if span is not None:
        return NumberColumn(name, *span)
    return CategoryColumn(name, _names(name, text))


def parse_label(name: str, text: str) -> AnyLabel:
    """The label as it is typed: "no,yes" for its classes, or "0:30" for a number in this range."""
    span = _range(text)
    return Label(name, _names(name, text)) if span is None else NumberColumn(name, *span)


def sample_column(name: str, cells: Sequence[str]) -> Column:
    """A column with the range or the categories of a public sample.

    Args:
        name: The column.
        cells: Its values in the sample; empty ones, NA and the like say nothing.

    Raises:
        InputError: If the sample holds no value, too many different texts, or many numbers among
            texts.
    """
    values = _present(name, cells)
    numbers = _numbers(values)
    if numbers is not None:
        low, high = min(numbers), max(numbers)
        # a range needs room: one value alone lies in its middle
        return NumberColumn(name, low, high) if low < high else NumberColumn(name, low - 1, low + 1)
    different = sorted({*values} - {"other"})
    texts = [value for value in different if _numbers([value]) is None]
    # one mistyped number would make every age a category of its own
    if len(different) - len(texts) > _MOST_CLASSES:
        raise InputError(
            f"column {name!r} has many different numbers in the public sample, and also "
            f"{texts[0]!r}; say which it holds with --column {name}=LOW:HIGH for numbers or "
            f"{name}=A,B,... for categories"
        )
    if len(different) > _MOST_CATEGORIES:
        raise InputError(
            f"column {name!r} has {len(different):,} different texts in the public sample; drop "
            f"the column from all files, or name its categories with --column {name}=A,B,..."
        )
    return CategoryColumn(name, different)


def sample_label(name: str, cells: Sequence[str]) -> AnyLabel:
    """The label with the classes of a public sample, or its range if there are many numbers."""
    values = _present(name, cells)
    different = sorted({*values})
    numbers = _numbers(different)
    if numbers is not None and len(different) > _MOST_CLASSES:
        return NumberColumn(name, min(numbers), max(numbers))
    if len(different) < 2:
        raise InputError(
            f"label {name!r} has one value in the public sample, {different[0]!r}; name its "
            "classes with --classes"
        )
    if numbers is not None:
        different = sorted(different, key=float)
    return Label(name, different)


def _present(name: str, cells: Sequence[str]) -> list[str]:
    values = [cell.strip() for cell in cells if cell.strip().lower() not in _NO_VALUE]
    if not values:
        raise InputError(
            f"column {name!r} has no value in the public sample; say what it holds with --column "
            f"{name}=LOW:HIGH or {name}=A,B,..."
        )
    return values


def _numbers(values: Sequence[str]) -> list[float] | None:
    """The values as numbers; None if one of them is none."""
    if not all(map(NUMBER.fullmatch, values)):
        return None
    numbers = list(map(float, values))
    return numbers if all(map(math.isfinite, numbers)) else None


def _range(text: str) -> tuple[float, float] | None:
    low, colon, high = text.partition(":")
    if not colon or not NUMBER.fullmatch(low) or not NUMBER.fullmatch(high):
        return None
    return float(low), float(high)


def _names(name: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if len(names) < 2:
        raise InputError(f"column {name!r} is {SYNTAX}, not {text!r}")
    return names
