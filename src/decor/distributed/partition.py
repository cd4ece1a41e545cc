"""Partition: users dealt out to a few machines, as many to each, so that few edges run between
machines.
"""

from __future__ import annotations

import numpy as np

from decor.arrays import Array
from decor.errors import InputError
from decor.graph.topology import Topology
from decor.noise import root

_SPECTRAL = 4096
"""Users up to which the slowest modes of gossip are looked at."""
_PASSES = 20
"""Rounds of exchanging users between parts; each one needs a pass over the edges, and few rounds
find most of the gain.
"""


def partition(topology: Topology, parts: int) -> Array:
    """The part of every user, from 0; sizes differ by one at most.

    Users are put into an order in which neighbours are close, and the order is cut into equal
    pieces; then pairs of users change places as long as that cuts fewer edges. Of several orders
    the one that ends best is taken.
    """
    users = topology.users
    if not 1 <= parts <= users:
        raise InputError(f"{users} users can be dealt out to 1 to {users} parts, not {parts}")
    sizes = np.full(parts, users // parts)
    sizes[: users % parts] += 1
    pieces = np.repeat(np.arange(parts), sizes)
    if parts == 1 or not topology.edge_count:
        return pieces
    neighbours = _neighbours(topology)
    found = []
    for order in (np.arange(users), root.nearby(users, topology.edges)[1], *_around(topology)):
        part = np.empty(users, dtype=np.int64)
        part[order] = pieces
        found.append(_refined(part, *neighbours, topology, parts))
    return min(found, key=lambda part: cut(topology, part))


def cut(topology: Topology, part: Array) -> int:
    """Edges whose ends are in different parts."""
    i, j = topology.edges.T
    return int((part[i] != part[j]).sum())


def _neighbours(topology: Topology) -> tuple[Array, Array]:
    i, j = topology.edges.T
    ends, others = np.r_[i, j], np.r_[j, i]
    order = np.argsort(ends, kind="stable")
    return np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=topology.users))]), others[
        order
    ]


def _around(topology: Topology) -> list[Array]:
    """The order in which the two slowest modes go around: along rings and the long way of grids and
    tori.
    """
    from scipy.sparse.linalg import ArpackError, eigsh

    if not 8 <= topology.users <= _SPECTRAL:
        return []
    try:
        start = np.random.default_rng(0).normal(size=topology.users)
        values, modes = eigsh(topology.mixing, k=3, which="LA", v0=start)
    except ArpackError:  # it did not converge: there are other orders
        return []
    slowest = modes[:, np.argsort(values)[:2]]
    return [np.argsort(np.arctan2(slowest[:, 0], slowest[:, 1]), kind="stable")]


def _refined(part: Array, start: Array, others: Array, topology: Topology, parts: int) -> Array:
    """Swaps users of two parts, those first whose moves save most, until no swap saves an edge."""
    part, users = part.copy(), np.arange(topology.users)
    owners = np.repeat(users, np.diff(start))
    for _ in range(_PASSES):
        before = cut(topology, part)
        # how many neighbours everybody has in every part
        counts = np.zeros((topology.users, parts), dtype=np.int64)
        np.add.at(counts, (owners, part[others]), 1)
        gain = counts - counts[users, part][:, None]
        gain[users, part] = np.iinfo(np.int64).min
        wanted = gain.argmax(axis=1)
        best = gain[users, wanted]
        for a in range(parts):
            for b in range(a + 1, parts):
                there = np.flatnonzero((part == a) & (wanted == b) & (best >= 0))
                back = np.flatnonzero((part == b) & (wanted == a) & (best >= 0))
                there, back = (
                    there[np.argsort(-best[there], kind="stable")],
                    back[np.argsort(-best[back], kind="stable")],
                )
                for u, v in zip(there.tolist(), back.tolist(), strict=False):
                    _swap(part, u, v, start, others)
        if cut(topology, part) >= before:
            return part
    return part


def _swap(part: Array, u: int, v: int, start: Array, others: Array) -> None:
    """Lets two users change places if that cuts fewer edges as things are now."""
    a, b = part[u], part[v]
    around_u, around_v = (
        part[others[start[u] : start[u + 1]]],
        part[others[start[v] : start[v + 1]]],
    )
    saved = int(
        (around_u == b).sum()
        - (around_u == a).sum()
        + (around_v == a).sum()
        - (around_v == b).sum()
    )
    if v in others[start[u] : start[u + 1]]:
        saved -= 2
    if saved > 0:
        part[u], part[v] = b, a
