# mypy: disallow-untyped-decorators=False
"""Operations on whole models in one pass over memory, where NumPy would take several."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decor.array_types import Array

Vector = Array
LARGEST = 1e18
"""The largest parameter: up to here, with sensible data, no gradient overflows in float64."""


def descend(model: Vector, direction: Vector, rate: float, keep: float) -> tuple[Vector, bool]:
    """keep * model - rate * direction in the model's dtype, and whether that is bounded."""
    out = np.empty_like(model)
    # checked in the same pass that writes it
    return out, bool(_move(model, direction, rate, keep, out))


def is_bounded(model: Vector, largest: float = LARGEST) -> bool:
    """Whether all parameters are within `largest` of zero; NaN is not."""
    return bool(_is_bounded(model, largest))


def pull_towards(mixed: Vector, now: Vector, other: Vector, weight: float) -> None:
    """mixed += weight * (other - now), in place: equal models stay as they are."""
    # the weight in the model's dtype, or float32 models would be mixed in float64
    _pull(mixed, now, other, mixed.dtype.type(weight))


@njit(cache=True, nogil=True)
def _move(model: Vector, direction: Vector, rate: float, keep: float, out: Vector) -> bool:
    finite = True
    for k in range(len(out)):
        out[k] = keep * model[k] - rate * direction[k]
        finite &= abs(out[k]) <= LARGEST
    return finite


@njit(cache=True, nogil=True)
def _is_bounded(model: Vector, largest: float) -> bool:
    fine = True
    for k in range(len(model)):
        fine &= abs(model[k]) <= largest
    return fine


@njit(cache=True, nogil=True)
def _pull(mixed: Vector, now: Vector, other: Vector, weight: Any) -> None:
    for k in range(len(mixed)):
        mixed[k] += weight * (other[k] - now[k])
