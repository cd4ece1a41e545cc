"""Edges that a graph could have as well: so that every user has enough neighbours."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .families import from_edges
from .topology import Topology


def edges_to_add(
    topology: Topology, degree: int, unreachable: frozenset[int] = frozenset()
) -> list[tuple[int, int]]:
    """Edges that give every user `degree` neighbours; empty if that is not possible.

    Args:
        topology: The graph so far.
        degree: How many neighbours every user is to have.
        unreachable: Users without an address: two of them cannot be neighbours.
    """
    from scipy.sparse.csgraph import shortest_path

    near = topology.adjacency.toarray() > 0
    far = shortest_path(topology.adjacency, unweighted=True)
    added: list[tuple[int, int]] = []
    while near.sum(axis=1).min() < degree:
        degrees = near.sum(axis=1)
        user = int(np.argmin(degrees))
        excluded = near[user].copy()
        excluded[user] = True
        if user in unreachable:
            excluded[list(unreachable)] = True
        others = np.flatnonzero(~excluded).tolist()
        if not others:
            return []
        # fewest neighbours first, then the farthest: long edges make the graph mix faster
        other = min(others, key=lambda v: (degrees[v], -far[user, v], v))
        near[user, other] = near[other, user] = True
        added.append((min(user, other), max(user, other)))
    return sorted(added)


def with_edges(topology: Topology, pairs: Iterable[tuple[int, int]]) -> Topology:
    """The graph with some edges more, and the same users in the same order.

    Args:
        topology: The graph so far.
        pairs: The new edges, as numbers of users.
    """
    edges = [*map(tuple, topology.edges.tolist()), *pairs]
    return from_edges(topology.users, edges, topology.labels)
