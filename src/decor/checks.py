"""Validation of numbers and choices, written once.

Each check returns the value, or raises what, the value and the way out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from decor.errors import InputError

SMALLEST, LARGEST = 1e-100, 1e100
"""Magnitudes that are accepted: squares of numbers far beyond them overflow or vanish."""


def as_float(value: Any) -> float:
    """`value` as a float: NaN where it is not a number (True is none), infinity where it is too
    large.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def is_count(value: Any, least: int = 1, most: int = 2**63 - 1) -> bool:
    """Whether `value` is a whole number between the limits; True and 1.0 are not."""
    return (
        # of the two kinds of truth values only Python's is an int; NumPy's is no np.integer
        isinstance(value, int | np.integer)
        and not isinstance(value, bool)
        and least <= int(value) <= most
    )


def count(
    what: str,
    value: Any,
    least: int = 1,
    most: int | None = None,
    *,
    hint: str = "",
    error: type[InputError] = InputError,
) -> int:
    """A whole number from `least`, up to `most` where that is given.

    Args:
        what: What the number is, for the message.
        value: As the caller gave it.
        least: The smallest that is accepted.
        most: The largest that is accepted; by default what fits in 63 bits.
        hint: What to give instead, in the caller's words.
        error: The error to raise.
    """
    if is_count(value, least, 2**63 - 1 if most is None else most):
        return int(value)
    # a huge limit is told only to those who exceed it
    if most is not None and (most < 10**9 or is_count(value, least)):
        wanted = f"a whole number from {least} to {most:,}"
    else:
        wanted = "a positive whole number" if least == 1 else f"a whole number from {least}"
    raise error(f"{what} must be {wanted}, not {value!r}" + (f"; {hint}" if hint else ""))


def positive(
    what: str,
    value: Any,
    *,
    most: float = LARGEST,
    hint: str = "",
    error: type[InputError] = InputError,
) -> float:
    """A positive finite number. Arguments as of `count`."""
    number = as_float(value)
    # as_float gives NaN for what is no number, and NaN is not above 0
    if not (number > 0 and math.isfinite(number)):
        raise error(
            f"{what} must be a positive finite number, not "
            f"{value!r}" + (f"; {hint}" if hint else "")
        )
    # a message of its own, because such a number is positive and finite
    if not SMALLEST <= number <= most:
        raise error(
            f"{what} must lie between {SMALLEST:g} and {most:g}, not "
            f"{value!r}" + (f"; {hint}" if hint else "")
        )
    return number


def not_negative(what: str, value: Any, *, error: type[InputError] = InputError) -> float:
    """Zero or a positive finite number. Arguments as of `count`."""
    number = as_float(value)
    if not (number >= 0 and math.isfinite(number)):
        raise error(f"{what} must be a finite number of at least 0, not {value!r}")
    if number and not SMALLEST <= number <= LARGEST:
        raise error(f"{what} must be 0 or lie between {SMALLEST:g} and {LARGEST:g}, not {value!r}")
    return number


def one_of(
    what: str,
    value: Any,
    choices: Sequence[str],
    *,
    hint: str = "",
    error: type[InputError] = InputError,
) -> str:
    """One of the names. Arguments as of `count`."""
    # the type first: an array that is compared with names may have no truth value
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(f'"{name}"' for name in choices[:-1]) + f' or "{choices[-1]}"'
        raise error(f"{what} must be {names}, not {value!r}" + (f"; {hint}" if hint else ""))
    return value
