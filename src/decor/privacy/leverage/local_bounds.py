"""Certified upper bounds for graphs too large to solve: each user within a piece of the graph.

Deleting users and edges only raises a resistance to ground (Rayleigh), whichever users collude. So
a user's leverage in any subgraph that contains it, against colluders within that subgraph, is never
below its leverage in the whole graph.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from decor import progress
from decor.array_types import Floats

from .deletion import bounds_within
from .network import Network

_CORE, _PIECE = 60, 400
"""Most users that a piece gives bounds for, and the users in it: those and the nearest others."""


def upper_bounds(network: Network, colluders: int) -> Floats:
    """For each user an upper bound on its worst leverage against this many colluders."""
    neighbours = [others.tolist() for others, _ in network.neighbour_lists()]
    bounds = np.zeros(network.nodes)
    done = np.zeros(network.nodes, dtype=bool)
    for seed in range(network.nodes):
        if done[seed]:
            continue
        progress.report("bounding piece by piece", int(done.sum()), network.nodes)
        targets = [u for u in _nearest([seed], neighbours, _CORE) if not done[u]]
        # the piece surrounds all its targets: a target at its rim would have a loose bound
        piece = np.array(sorted(_nearest(targets, neighbours, _PIECE)), dtype=np.int64)
        left, kept = network.without(np.setdiff1d(np.arange(network.nodes), piece))
        bounds[targets] = bounds_within(left, colluders, np.searchsorted(kept, targets))
        done[targets] = True
    return bounds


def _nearest(start: list[int], neighbours: list[list[int]], size: int) -> list[int]:
    """The `size` users nearest to `start`, in order of distance."""
    seen, queue = dict.fromkeys(start), deque(start)
    while queue and len(seen) < size:
        for other in neighbours[queue.popleft()]:
            if other not in seen and len(seen) < size:
                seen[other] = None
                queue.append(other)
    return list(seen)
