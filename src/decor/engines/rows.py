"""Kernels for large graphs: in place on everybody's numbers, with workspace for a few columns or one row of Gaussians."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from decor.noise.gaussians import GROUP, fill

Array = NDArray[Any]
_WIDE = 16
"""Columns gossiped at a time: a cache line of float32, so that the workspace stays small and lines are read once."""


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def add_columns(
    to: Array, start: Array, rows: Array, values: Array, alpha: float, seed: np.uint64, stream: int, step: int
) -> None:
    """to += alpha * F Z with F by columns and one fresh row Z_k of Gaussians for each of them."""
    d = to.shape[1]
    groups = (d + GROUP - 1) // GROUP
    z = np.empty(d, np.float32)
    for k in range(len(start) - 1):
        fill(z, seed, stream, step, k * groups)
        for p in range(start[k], start[k + 1]):
            a, row = to.dtype.type(alpha * values[p]), to[rows[p]]
            for j in range(d):
                row[j] += a * z[j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def add_complete(to: Array, apart: float, together: float, seed: np.uint64, stream: int, step: int) -> None:
    """On a complete graph Sigma^(1/2) Z = apart (Z - mean) + together mean: the rows are made twice, and never kept."""
    n, d = to.shape
    groups = (d + GROUP - 1) // GROUP
    z, mean = np.empty(d, np.float32), np.zeros(d)
    for i in range(n):
        fill(z, seed, stream, step, i * groups)
        mean += z
    mean *= (together - apart) / n
    for i in range(n):
        fill(z, seed, stream, step, i * groups)
        for j in range(d):
            to[i, j] += apart * z[j] + mean[j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def gossip(blocks: Array, start: Array, columns: Array, weights: Array, steps: Array) -> None:
    """Rounds x_{k+1} = a_k W x_k + b_k x_{k-1} of W by rows, in place."""
    n, d = blocks.shape
    now, before = np.zeros((n, _WIDE), blocks.dtype), np.zeros((n, _WIDE), blocks.dtype)
    for left in range(0, d, _WIDE):
        wide = min(_WIDE, d - left)
        now[:, :wide] = blocks[:, left : left + wide]
        for k in range(len(steps)):
            a, b = steps[k]
            for i in range(n):
                row = before[i]
                for j in range(_WIDE):
                    row[j] = blocks.dtype.type(b) * row[j] if k else blocks.dtype.type(0)
                for p in range(start[i], start[i + 1]):
                    w, other = blocks.dtype.type(a * weights[p]), now[columns[p]]
                    for j in range(_WIDE):
                        row[j] += w * other[j]
            now, before = before, now
        blocks[:, left : left + wide] = now[:, :wide]
