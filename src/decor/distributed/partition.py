"""Partition: assigns users to ranks, equally many to each, so that few edges cross ranks."""

from __future__ import annotations

import numpy as np

from decor.array_types import Array
from decor.errors import InputError
from decor.graph.topology import Topology
from decor.noise import root

_SPECTRAL_LIMIT = 4096
"""Users up to which eigenvectors of the mixing matrix are computed for an order."""
_PASSES = 20
"""Passes of swaps over all edges; the first few find most of the gain."""


def partition(topology: Topology, parts: int) -> Array:
    """The part of every user, from 0; sizes differ by one at most.

    Users are put into an order in which neighbours are close, and the order is cut into equal
    pieces. Then pairs of users swap parts as long as that cuts fewer edges. Several orders are
    tried, and the one that ends best is taken.
    """
    users = topology.users
    if not 1 <= parts <= users:
        raise InputError(f"{users} users can be split into 1 to {users} parts, not {parts}")
    sizes = np.full(parts, users // parts)
    sizes[: users % parts] += 1
    pieces = np.repeat(np.arange(parts), sizes)
    if parts == 1 or not topology.edge_count:
        return pieces
    neighbours = _neighbours(topology)
    candidates = []
    for order in (
        np.arange(users),
        root.bandwidth_order(users, topology.edges)[1],
        *_spectral_orders(topology),
    ):
        part = np.empty(users, dtype=np.int64)
        part[order] = pieces
        candidates.append(_refine(part, *neighbours, topology, parts))
    return min(candidates, key=lambda part: cut(topology, part))


def cut(topology: Topology, part: Array) -> int:
    """The number of edges whose ends are in different parts."""
    i, j = topology.edges.T
    return int((part[i] != part[j]).sum())


def _neighbours(topology: Topology) -> tuple[Array, Array]:
    """Adjacency lists: user u's neighbours are others[start[u] : start[u + 1]]."""
    i, j = topology.edges.T
    ends, others = np.r_[i, j], np.r_[j, i]
    order = np.argsort(ends, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=topology.users))])
    return start, others[order]


def _spectral_orders(topology: Topology) -> list[Array]:
    """At most one order: around rings, and the long way along grids and tori."""
    from scipy.sparse.linalg import ArpackError, eigsh

    if not 8 <= topology.users <= _SPECTRAL_LIMIT:
        return []
    try:
        # a fixed start vector: every rank must compute the same partition
        start = np.random.default_rng(0).normal(size=topology.users)
        values, modes = eigsh(topology.mixing, k=3, which="LA", v0=start)
    except ArpackError:  # no convergence; the other orders remain
        return []
    # the two slowest modes of gossip are cosine and sine on a ring: their angle is the position
    slowest = modes[:, np.argsort(values)[:2]]
    return [np.argsort(np.arctan2(slowest[:, 0], slowest[:, 1]), kind="stable")]


def _refine(part: Array, start: Array, others: Array, topology: Topology, parts: int) -> Array:
    """Swaps users of two parts, largest gain first, until no swap saves an edge."""
    part, users = part.copy(), np.arange(topology.users)
    owners = np.repeat(users, np.diff(start))
    for _ in range(_PASSES):
        before = cut(topology, part)
        # each user's number of neighbours in every part
        counts = np.zeros((topology.users, parts), dtype=np.int64)
        np.add.at(counts, (owners, part[others]), 1)
        gain = counts - counts[users, part][:, None]
        gain[users, part] = np.iinfo(np.int64).min  # staying is no move
        wanted = gain.argmax(axis=1)
        best = gain[users, wanted]
        for a in range(parts):
            for b in range(a + 1, parts):
                there, back = _movers(part, wanted, best, a, b), _movers(part, wanted, best, b, a)
                for u, v in zip(there, back, strict=False):
                    _swap(part, u, v, start, others)
        if cut(topology, part) >= before:
            return part
    return part


def _movers(part: Array, wanted: Array, best: Array, a: int, b: int) -> list[int]:
    """Users of part a whose best move is to part b, largest gain first."""
    movers = np.flatnonzero((part == a) & (wanted == b) & (best >= 0))
    return [int(user) for user in movers[np.argsort(-best[movers], kind="stable")]]


def _swap(part: Array, u: int, v: int, start: Array, others: Array) -> None:
    """Swaps the parts of two users if that cuts fewer edges as things are now."""
    a, b = part[u], part[v]
    around_u = part[others[start[u] : start[u + 1]]]
    around_v = part[others[start[v] : start[v + 1]]]
    saved_by_u = (around_u == b).sum() - (around_u == a).sum()
    saved_by_v = (around_v == a).sum() - (around_v == b).sum()
    # an edge between the two is cut before and after; each move alone counts it as saved
    common = 2 if v in others[start[u] : start[u + 1]] else 0
    if saved_by_u + saved_by_v - common > 0:
        part[u], part[v] = b, a
