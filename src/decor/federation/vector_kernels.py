# mypy: disallow-untyped-decorators=False
"""Whole models at once, in one pass over memory: in NumPy every operation would be another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decor.arrays import Array

Vector = Array
LARGEST = 1e18
"""Of a model's numbers: with these, and data of any sensible size, no gradient overflows in double
precision.
"""


def moved(model: Vector, direction: Vector, rate: float, keep: float) -> Vector | None:
    """keep * model - rate * direction in the model's own type; None if that is not moderate."""
    out = np.empty_like(model)
    return out if _move(model, direction, rate, keep, out) else None


def moderate(model: Vector) -> bool:
    """Whether all numbers are within LARGEST of zero.

    Not a number is not; nor is what could make a gradient overflow.
    """
    return bool(_moderate(model, LARGEST))


def pulled(mixed: Vector, now: Vector, other: Vector, weight: float) -> None:
    """mixed += weight * (other - now): models that agree stay as they are, whatever the weight."""
    _pull(mixed, now, other, mixed.dtype.type(weight))


@njit(cache=True, nogil=True)
def _move(model: Vector, direction: Vector, rate: float, keep: float, out: Vector) -> bool:
    finite = True
    for k in range(len(out)):
        out[k] = keep * model[k] - rate * direction[k]
        finite &= abs(out[k]) <= LARGEST
    return finite


@njit(cache=True, nogil=True)
def _moderate(model: Vector, largest: float) -> bool:
    fine = True
    for k in range(len(model)):
        fine &= abs(model[k]) <= largest
    return fine


@njit(cache=True, nogil=True)
def _pull(mixed: Vector, now: Vector, other: Vector, weight: Any) -> None:
    for k in range(len(mixed)):
        mixed[k] += weight * (other[k] - now[k])
