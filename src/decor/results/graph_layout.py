"""Where everybody is drawn, in figures, in reports and on the planner's page."""

from __future__ import annotations

import numpy as np

from decor.arrays import Floats
from decor.graph.topology import Topology


def places(topology: Topology) -> Floats:
    """A place for every user: families as they are known, other graphs by their distances."""
    n = topology.users
    family = topology.family
    if family is not None and family.name in ("torus", "grid"):
        columns = family.sizes[1]
        return np.stack([np.arange(n) % columns, -(np.arange(n) // columns)], axis=1).astype(float)
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if family is not None and family.name in ("ring", "complete"):
        return circle
    if family is not None and family.name == "star" and n > 1:
        around = 2 * np.pi * np.arange(n - 1) / (n - 1)
        return np.concatenate(
            [np.zeros((1, 2)), np.stack([np.cos(around), np.sin(around)], axis=1)]
        )
    if family is not None and family.name == "path":
        return np.stack([np.arange(n), np.zeros(n)], axis=1).astype(float)
    if n == 1 or topology.edge_count == 0:
        return circle
    import networkx as nx

    graph = nx.Graph(topology.edges.tolist())
    graph.add_nodes_from(range(n))
    placed = (
        nx.kamada_kawai_layout(graph)
        if n <= 200 and topology.is_connected
        else nx.spring_layout(graph, seed=1)
    )
    return np.array([placed[k] for k in range(n)])
