"""Whole numbers as people give them."""

from __future__ import annotations

import numpy as np

from decor.errors import InputError


def whole(what: str, value: object, least: int) -> int:
    """`value` as an int, where it is a whole number from `least` that fits in 63 bits."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= int(value) < 2**63:
        raise InputError(f"{what} must be a whole number from {least}, not {value!r}")
    return int(value)
