"""Where the users of a graph are drawn, in figures, in reports and on the planner's page."""

from __future__ import annotations

import numpy as np

from decor.array_types import Floats
from decor.graph.topology import Topology


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
    return np.array([layout[user] for user in range(n)])


def _circle(angles: Floats) -> Floats:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)
