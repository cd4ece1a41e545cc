# mypy: disallow-untyped-decorators=False
"""Whole models at once, in one pass over memory: in NumPy every operation would be another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Vector = NDArray[Any]


def moved(model: Vector, direction: Vector, rate: float, keep: float) -> Vector | None:
    """keep * model - rate * direction in the model's own type; None if that is not finite."""
    out = np.empty_like(model)
    return out if _move(model, direction, rate, keep, out) else None


def pulled(mixed: Vector, now: Vector, other: Vector, weight: float) -> None:
    """mixed += weight * (other - now): models that agree stay as they are, whatever the weight."""
    _pull(mixed, now, other, mixed.dtype.type(weight))


@njit(cache=True, nogil=True)
def _move(model: Vector, direction: Vector, rate: float, keep: float, out: Vector) -> bool:
    finite = True
    for k in range(len(out)):
        out[k] = keep * model[k] - rate * direction[k]
        finite &= np.isfinite(out[k])
    return finite


@njit(cache=True, nogil=True)
def _pull(mixed: Vector, now: Vector, other: Vector, weight: Any) -> None:
    for k in range(len(mixed)):
        mixed[k] += weight * (other[k] - now[k])
