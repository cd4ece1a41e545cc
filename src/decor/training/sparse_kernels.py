"""Numba kernels for sparse graphs: in place, a few columns of all users at a time, in cache.

Blocks are [users, settings, parameters]; `left` and `right` bound the columns, so that threads can
share the work.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from decor.array_types import Array
from decor.noise.gaussians import GROUP, fill

_CACHE = 1 << 15
"""Values processed together: all users' in a few columns."""


def width(users: int) -> int:
    """Columns at a time: at least a cache line; with few users, whole groups of Gaussians."""
    wide = _CACHE // users
    return wide // GROUP * GROUP if wide >= GROUP else max(16, wide // 16 * 16)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def add_columns(
    to: Array,
    start: Array,
    rows: Array,
    values: Array,
    places: Array,
    alpha: Array,
    seed: np.uint64,
    stream: int,
    step: int,
    wide: int,
    left: int,
    right: int,
) -> None:
    """to[:, r] += alpha[r] * F_r Z, where F_r = values[r] by columns and Z has one row for each.

    `places` number the rows of Gaussians, so that ranks with other columns draw the same ones.
    """
    # Gaussians are numbered in groups, row by row, so that any part of a row can be drawn alone
    groups = (to.shape[2] + GROUP - 1) // GROUP
    z = np.empty(wide, np.float32)
    for first in range(left, right, wide):
        some = min(wide, right - first)
        for k in range(len(start) - 1):
            fill(z[:some], seed, stream, step, places[k] * groups + first // GROUP)
            # one row of Gaussians serves every user and every setting that has it
            for p in range(start[k], start[k + 1]):
                for r in range(to.shape[1]):
                    a = to.dtype.type(alpha[r] * values[r, p])
                    row = to[rows[p], r, first : first + some]
                    for j in range(some):
                        row[j] += a * z[j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def add_complete(
    to: Array,
    members: Array,
    n: int,
    apart: float,
    together: float,
    seed: np.uint64,
    stream: int,
    step: int,
) -> None:
    """On a complete graph Sigma^(1/2) Z = apart (Z - mean) + together mean.

    `to` has the `members` of n users; the mean is over all n. Rows are drawn twice, and never kept.
    """
    d = to.shape[1]
    groups = (d + GROUP - 1) // GROUP
    # the mean over all users in float64; n rows of Gaussians would not fit into cache
    z, mean = np.empty(d, np.float32), np.zeros(d)
    for i in range(n):
        fill(z, seed, stream, step, i * groups)
        mean += z
    # apart (Z - mean) + together mean = apart Z + (together - apart) mean
    mean *= (together - apart) / n
    for i in range(len(members)):
        fill(z, seed, stream, step, members[i] * groups)
        for j in range(d):
            to[i, j] += apart * z[j] + mean[j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def gossip(
    blocks: Array,
    start: Array,
    columns: Array,
    weights: Array,
    steps: Array,
    wide: int,
    left: int,
    right: int,
) -> None:
    """Rounds x_{k+1} = a_k W x_k + b_k x_{k-1} + c_k x_k, in place on [users, columns].

    As a + b + c = 1 and W's rows sum to 1, that is x + a sum_j w_j (x_j - x) + b (y - x). Written
    this way, values that all users share stay exactly the same, however large a is. Rounded weights
    would move them a little, in the same direction in every step.
    """
    n = len(blocks)
    now, before = np.zeros((n, wide), blocks.dtype), np.zeros((n, wide), blocks.dtype)
    for first in range(left, right, wide):
        some = min(wide, right - first)
        now[:, :some] = blocks[:, first : first + some]
        for k in range(len(steps)):
            a, b = steps[k, 0], steps[k, 1]
            last = k == len(steps) - 1
            back = blocks.dtype.type(b)
            for i in range(n):
                # the last round writes into the models
                row = blocks[i, first : first + some] if last else before[i, :some]
                old, own = before[i, :some], now[i, :some]
                if b == 0.0:
                    for j in range(some):
                        row[j] = own[j]
                else:
                    for j in range(some):
                        row[j] = own[j] + back * (old[j] - own[j])
                p = start[i]
                while p + 1 < start[i + 1]:  # two neighbours at a time halve the passes
                    w, other = blocks.dtype.type(a * weights[p]), now[columns[p], :some]
                    v, another = blocks.dtype.type(a * weights[p + 1]), now[columns[p + 1], :some]
                    for j in range(some):
                        row[j] += w * (other[j] - own[j]) + v * (another[j] - own[j])
                    p += 2
                if p < start[i + 1]:
                    w, other = blocks.dtype.type(a * weights[p]), now[columns[p], :some]
                    for j in range(some):
                        row[j] += w * (other[j] - own[j])
            now, before = before, now


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def one_round(
    to: Array,
    now: Array,
    before: Array,
    ghosts: Array,
    start: Array,
    columns: Array,
    weights: Array,
    a: float,
    b: float,
    some: Array,
) -> None:
    """One round of `gossip` for `some` of the users here; models of other ranks are `ghosts`.

    `columns` below the number of users are users here, the others ghosts. `before` may be `to`.
    """
    n, wide = len(now), 1 << 12
    back = to.dtype.type(b)
    for first in range(0, now.shape[1], wide):
        last = min(first + wide, now.shape[1])
        for i in some:
            row, own, old = to[i, first:last], now[i, first:last], before[i, first:last]
            if b == 0.0:
                for j in range(last - first):
                    row[j] = own[j]
            else:
                for j in range(last - first):
                    row[j] = own[j] + back * (old[j] - own[j])
            for p in range(start[i], start[i + 1]):
                k, w = columns[p], to.dtype.type(a * weights[p])
                other = now[k, first:last] if k < n else ghosts[k - n, first:last]
                for j in range(last - first):
                    row[j] += w * (other[j] - own[j])
