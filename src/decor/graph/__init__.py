"""Graphs of users: which users exchange models and share noise secrets."""

from .families import (
    complete,
    erdos_renyi,
    from_edges,
    from_networkx,
    grid,
    hypercube,
    path,
    random_regular,
    ring,
    star,
    torus,
)
from .files import read, write
from .topology import Family, Topology

__all__ = [
    "Family",
    "Topology",
    "complete",
    "erdos_renyi",
    "from_edges",
    "from_networkx",
    "grid",
    "hypercube",
    "path",
    "random_regular",
    "read",
    "ring",
    "star",
    "torus",
    "write",
]
