"""Certified upper bounds for graphs too large to solve: every user is looked at within a piece of
the graph around it.

Deleting users and edges only raises a resistance to ground (Rayleigh), whoever colludes. So a
user's leverage in any subgraph that contains it, against colluders chosen within that subgraph, is
never below its leverage in the whole graph.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from decor import progress
from decor.arrays import Floats, Ints

from .deletion import bounds_within
from .network import Network

_CORE, _PIECE = 60, 400
"""Users that a piece answers for (at most), and users that it holds: those and as many around them
as fit.
"""


def upper_bounds(network: Network, colluders: int) -> Floats:
    """For every user an upper bound on its worst leverage against so many colluders."""
    neighbours = [list_.tolist() for list_, _ in network.neighbour_lists()]
    bounds = np.zeros(network.nodes)
    answered = np.zeros(network.nodes, dtype=bool)
    for seed in range(network.nodes):
        if answered[seed]:
            continue
        progress.report("bounding piece by piece", int(answered.sum()), network.nodes)
        targets = [u for u in _around([seed], neighbours, _CORE) if not answered[u]]
        piece = np.array(sorted(_around(targets, neighbours, _PIECE)), dtype=np.int64)
        place = np.searchsorted(piece, targets)
        bounds[targets] = bounds_within(_piece(network, piece), colluders, place)
        answered[targets] = True
    return bounds


def _around(start: list[int], neighbours: list[list[int]], size: int) -> list[int]:
    """The `size` users nearest to `start`, in order of distance."""
    seen, queue = dict.fromkeys(start), deque(start)
    while queue and len(seen) < size:
        for other in neighbours[queue.popleft()]:
            if other not in seen and len(seen) < size:
                seen[other] = None
                queue.append(other)
    return list(seen)


def _piece(network: Network, users: Ints) -> Network:
    """The network among some users only."""
    kept = np.zeros(network.nodes, dtype=bool)
    kept[users] = True
    return network.without(np.flatnonzero(~kept))[0]
