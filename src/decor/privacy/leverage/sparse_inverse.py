"""Diagonal of Sigma^-1 for large sparse networks: star-mesh elimination, block by block.

Nodes are eliminated in order of least degree. Nodes that share all neighbours form a block, so the
work is on small dense matrices (the multifrontal method of Duff and Reid). The inverse is computed
on the way back along the same blocks, only where the factor is not zero, which includes the
diagonal (Takahashi). Once the nodes left are mostly joined to one another they are the core, which
is inverted densely. As in `dense`, ground and edges are kept apart, and positive numbers are added,
multiplied and divided, never subtracted.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from decor.array_types import Floats, Ints
from decor.errors import InputError

from . import dense
from .network import UNIT_ROUNDOFF, Network
from .sparse_order import Analysis, analyse

_PANEL = 64
# Sums here have positive terms only: the error bound holds in any order of summation.
_ANY_ORDER = {"reassoc", "contract"}


def diagonal(network: Network, analysis: Analysis | None = None) -> tuple[Floats, float]:
    """Each (Sigma^-1)_ii, and a bound on its relative error: true <= value * (1 + bound).

    Args:
        network: The network.
        analysis: `analyse(network.nodes, network.edges)`; keep it while only ground and
            conductances change.
    """
    if analysis is None:
        analysis = analyse(network.nodes, network.edges)
    elif analysis.order.size != network.nodes or not np.array_equal(analysis.edges, network.edges):
        raise InputError(
            f"the analysis is of another graph ({analysis.order.size} nodes, "
            f"{len(analysis.edges)} edges) than the network ({network.nodes} nodes, "
            f"{len(network.edges)} edges). Give analyse(network.nodes, network.edges)."
        )
    # a copy, which the elimination overwrites
    ground = network.ground[analysis.order]
    conductance = network.conductance[analysis.edge_order]
    in_core = slice(analysis.edge_first[-1], None)
    core = np.zeros((analysis.core, analysis.core))
    i, j = analysis.ends[in_core].T - analysis.first[-1]
    core[i, j] = conductance[in_core]
    factor = _eliminate(analysis, conductance, ground, core)
    if analysis.core:
        core += core.T  # from above the diagonal to both sides
        # LAPACK stores by columns; the inverse is symmetric, so its transpose needs no copy
        core = np.ascontiguousarray(dense.inverse(core, ground[analysis.first[-1] :]).T)
    resistance = np.empty(network.nodes)
    resistance[analysis.order] = _way_back(analysis, factor, core)
    return resistance, relative_error(analysis)


def relative_error(analysis: Analysis) -> float:
    """Bound on the relative error of each entry of `diagonal`.

    Let node j have s_j neighbours when it is eliminated. The mesh that replaces j is the exact
    star-mesh image of its star but for the s_j additions in its sum d_j and at most 4 roundings
    elsewhere. For x >= 0, x' Sigma^-1 x is monotone in the conductances and homogeneous of degree
    -1. So errors of conductances reach it (and, with x a unit vector, a resistance) unamplified,
    and add up over nodes. The shares c/d_j by which j passes x on to its neighbours add one
    rounding, and the error of d_j again but opposite to its effect on the mesh: x' Sigma^-1 x is
    off by 2 s_j + 6 in all. The way back sums s_j products twice, 2 s_j + 1. The dense inverse of
    the core costs no more. A factor 1.01 covers terms of second order.
    """
    k, r = np.diff(analysis.first), np.diff(analysis.row_first)
    # the sum of all s_j: each block's nodes see its rows and the nodes after them
    entries = float(np.sum(k * r + k * (k - 1) / 2)) + analysis.core * (analysis.core - 1) / 2
    return 4.04 * UNIT_ROUNDOFF * (entries + 3 * analysis.order.size)


@njit(cache=True, fastmath=_ANY_ORDER)
def _eliminate(analysis: Analysis, conductance: Floats, ground: Floats, core: Floats) -> Floats:
    """The factor; `ground` and `core` (above its diagonal) become those of the network left."""
    first, row_first, low, stack = analysis.first, analysis.row_first, analysis.low, analysis.stack
    blocks = low.size
    factor = np.empty(analysis.factor[blocks])
    waiting = np.empty(stack[blocks])
    local = np.empty(ground.size, np.int64)
    for b in range(blocks):
        rows = analysis.rows[row_first[b] : row_first[b + 1]]
        k, f = first[b + 1] - first[b], first[b + 1] - first[b] + rows.size
        _locate(first[b], k, rows, local)
        front = np.zeros((f, f))
        for e in range(analysis.edge_first[b], analysis.edge_first[b + 1]):
            front[local[analysis.ends[e, 0]], local[analysis.ends[e, 1]]] = conductance[e]
        # the children of b, last first: below child c lie the blocks from low[c] on
        child = b - 1
        while child >= low[b]:
            place = local[analysis.rows[row_first[child] : row_first[child + 1]]]
            _add(front, place, _square(waiting, stack[child], place.size))
            child = low[child] - 1
        g = np.empty(f)
        for i in range(f):
            g[i] = ground[first[b] + i] if i < k else ground[rows[i - k]]
        _star_mesh(front, g, k)
        for i in range(k, f):
            ground[rows[i - k]] = g[i]
        panel = factor[analysis.factor[b] : analysis.factor[b + 1]].reshape(k, f)
        # the factor keeps the shares c/d, and d on the diagonal
        for a in range(k):
            panel[a, a] = front[a, a]
            for j in range(a + 1, f):
                panel[a, j] = front[a, j] / front[a, a]
        # what b leaves waits for its parent, or goes to the core
        if analysis.parent[b] < blocks:
            _copy(_square(waiting, stack[b], f - k), front[k:, k:])
        else:
            _add(core, rows - first[blocks], front[k:, k:])
    return factor


@njit(cache=True, fastmath=_ANY_ORDER)
def _way_back(analysis: Analysis, factor: Floats, core: Floats) -> Floats:
    """Diagonal of the inverse, by place in the order, from the factor and the core's inverse."""
    first, row_first, low, stack = analysis.first, analysis.row_first, analysis.low, analysis.stack
    blocks = low.size
    waiting = np.empty(stack[blocks])
    resistance = np.empty(analysis.order.size)
    local = np.empty(analysis.order.size, np.int64)
    for i in range(len(core)):
        resistance[first[blocks] + i] = core[i, i]
    # parents before children: a block needs the inverse among its rows
    for b in range(blocks - 1, -1, -1):
        rows = analysis.rows[row_first[b] : row_first[b + 1]]
        k, f = first[b + 1] - first[b], first[b + 1] - first[b] + rows.size
        inverse = np.empty((f, f))
        if analysis.parent[b] < blocks:
            _copy(inverse[k:, k:], _square(waiting, stack[b], f - k))
        else:
            _take(inverse[k:, k:], core, rows - first[blocks])
        _extend(inverse, factor[analysis.factor[b] : analysis.factor[b + 1]].reshape(k, f))
        for a in range(k):
            resistance[first[b] + a] = inverse[a, a]
        _locate(first[b], k, rows, local)
        child = b - 1
        while child >= low[b]:
            place = local[analysis.rows[row_first[child] : row_first[child + 1]]]
            _take(_square(waiting, stack[child], place.size), inverse, place)
            child = low[child] - 1
    return resistance


@njit(cache=True)
def _locate(first: int, k: int, rows: Ints, local: Ints) -> None:
    """Sets each node's place in the front of a block that eliminates k nodes from `first` on."""
    for i in range(k):
        local[first + i] = i
    for i in range(rows.size):
        local[rows[i]] = k + i


@njit(cache=True)
def _square(stack: Floats, start: int, size: int) -> Floats:
    return stack[start : start + size * size].reshape(size, size)


@njit(cache=True)
def _copy(target: Floats, source: Floats) -> None:
    """target[:k, :f] = source, which numba takes seconds to compile."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@njit(cache=True)
def _add(front: Floats, place: Ints, network: Floats) -> None:
    """Adds the network that a child left among its rows to a front, above the diagonal."""
    for i in range(place.size):
        for j in range(i + 1, place.size):
            front[place[i], place[j]] += network[i, j]


@njit(cache=True)
def _take(part: Floats, inverse: Floats, place: Ints) -> None:
    """Copies the inverse among a child's rows into `part`."""
    for i in range(place.size):
        for j in range(place.size):
            part[i, j] = inverse[place[i], place[j]]


@njit(cache=True)
def _width(k: int, f: int) -> int:
    """Nodes per panel: one in small fronts, where a loop beats a call of BLAS."""
    return _PANEL if k >= 4 and f >= 48 else 1


@njit(cache=True, fastmath=_ANY_ORDER)
def _star_mesh(front: Floats, ground: Floats, k: int) -> None:
    """Eliminates the first k nodes of a front, above its diagonal.

    Their rows stay unchanged, with the sum d on the diagonal.
    """
    f = len(front)
    width = _width(k, f)
    for start in range(0, k, width):
        stop = min(start + width, k)
        for a in range(start, stop):
            d = ground[a]
            for j in range(a + 1, f):
                d += front[a, j]
            front[a, a] = d
            for i in range(a + 1, stop if width > 1 else f):
                share = front[a, i] / d
                ground[i] += share * ground[a]
                for j in range(i + 1, f):
                    front[i, j] += share * front[a, j]
        # the columns right of the panel by one matrix product
        if width > 1:
            tail = front[start:stop, stop:].copy()
            shares = np.empty_like(tail)
            for a in range(stop - start):
                for j in range(f - stop):
                    shares[a, j] = tail[a, j] / front[start + a, start + a]
                    ground[stop + j] += shares[a, j] * ground[start + a]
            mesh = np.dot(shares.T, tail)
            for i in range(f - stop):
                for j in range(i + 1, f - stop):
                    front[stop + i, stop + j] += mesh[i, j]


@njit(cache=True, fastmath=_ANY_ORDER)
def _extend(inverse: Floats, panel: Floats) -> None:
    """Extends the inverse Z of a front from its rows to the nodes eliminated there, last first.

    For node a and all nodes S after it, Z_aS = n_a Z_SS and Z_aa = 1/d_a + Z_aS n_a', where n_a are
    the shares and d_a the diagonal of the panel.
    """
    k, f = panel.shape
    width = _width(k, f)
    for start in range((k - 1) // width * width, -1, -width):
        stop = min(start + width, k)
        if width > 1:
            product = np.dot(panel[start:stop, stop:].copy(), inverse[stop:, stop:].copy())
            _copy(inverse[start:stop, stop:], product)
        else:
            for j in range(stop, f):
                inverse[start, j] = 0.0
            _accumulate(inverse, panel, start, stop, f, stop)
        for a in range(stop - 1, start - 1, -1):
            _accumulate(inverse, panel, a, a + 1, stop, stop)
            for j in range(a + 1, stop):
                z = 0.0
                for i in range(a + 1, f):
                    z += panel[a, i] * inverse[j, i]
                inverse[a, j] = z
            z = 1 / panel[a, a]
            for j in range(a + 1, f):
                z += panel[a, j] * inverse[a, j]
                inverse[j, a] = inverse[a, j]
            inverse[a, a] = z


@njit(cache=True, fastmath=_ANY_ORDER)
def _accumulate(inverse: Floats, panel: Floats, a: int, start: int, stop: int, column: int) -> None:
    """Adds n_ai times row i, for i from start to stop, to row a of the inverse from `column` on."""
    for i in range(start, stop):
        for j in range(column, len(inverse)):
            inverse[a, j] += panel[a, i] * inverse[i, j]
