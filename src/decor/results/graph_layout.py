"""Where the users of a graph are drawn, in figures, in reports and on the planner's page."""

from __future__ import annotations

import numpy as np

from decor.array_types import Floats
from decor.graph.topology import Topology

_WIDE = 1.25
"""Users need this much more space beside than below them: names are wider than they are high."""
_TOUCH = 0.12
"""Users nearer than this, in a picture of height 2, would be drawn over each other."""


def places(topology: Topology) -> Floats:
    """One row (x, y) for each user: the usual picture of a family, or a layout by distances."""
    n, family = topology.users, topology.family
    name = None if family is None else family.name
    if family is not None and name in ("torus", "grid"):
        rows, columns = np.divmod(np.arange(n), family.sizes[1])
        return np.stack([columns, -rows], axis=1).astype(float)
    if name == "star" and n > 1:
        return np.concatenate([np.zeros((1, 2)), _circle(2 * np.pi * np.arange(n - 1) / (n - 1))])
    if name == "path":
        return np.stack([np.arange(n), np.zeros(n)], axis=1).astype(float)
    if name in ("ring", "complete") or n == 1 or topology.edge_count == 0:
        # clockwise from the top
        return _circle(np.pi / 2 - 2 * np.pi * np.arange(n) / n)
    import networkx as nx

    graph = nx.Graph(topology.edges.tolist())
    graph.add_nodes_from(range(n))
    # Kamada-Kawai needs all distances: seconds above 200 users, and a connected graph
    small = n <= 200 and topology.is_connected
    layout = nx.kamada_kawai_layout(graph) if small else nx.spring_layout(graph, seed=1)
    return _apart(np.array([layout[user] for user in range(n)]))


def _circle(angles: Floats) -> Floats:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _apart(at: Floats) -> Floats:
    """The places moved apart within a box of 2.5 x 2, if some users would touch."""
    n, low, high = len(at), at.min(axis=0), at.max(axis=0)
    # at most 256 users: all pairs are compared
    if n > 256 or (high - low).min() <= 0:
        return at
    at = (at - (low + high) / 2) * (2 / (high - low).max())
    if _gaps(at)[1].min() >= _TOUCH:
        return at
    # four fifths of what each user would have if all had equal space
    least = 0.8 * np.sqrt(4 / n)
    for _ in range(300):
        between, gap = _gaps(at)
        push = np.maximum(least / gap - 1, 0)
        at = np.clip(at + 0.25 * np.sum(between * push[..., None], axis=1), -1, 1)
    return at * (_WIDE, 1)


def _gaps(at: Floats) -> tuple[Floats, Floats]:
    """From every user to every other: the differences and the distances, infinite to itself."""
    between = at[:, None] - at[None]
    gap = np.maximum(np.linalg.norm(between, axis=2), 1e-6)
    np.fill_diagonal(gap, np.inf)
    return between, gap
