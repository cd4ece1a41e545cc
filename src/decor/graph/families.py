"""The graphs people ask for by name, and graphs from edges or networkx."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from decor import checks
from decor.arrays import Ints
from decor.errors import GraphError

from .topology import MAX_USERS, Family, Topology


def ring(users: int) -> Topology:
    """Everybody has two neighbours; any two users can isolate a third."""
    n = _size("ring", users, 3, "path(2) joins two users")
    return _family("ring", (n,), n, _cycle(n))


def path(users: int) -> Topology:
    """A ring cut open."""
    n = _size("path", users, 1)
    i = np.arange(n - 1, dtype=np.int64)
    return _family("path", (n,), n, np.stack([i, i + 1], axis=1))


def star(users: int) -> Topology:
    """User 0 is everybody's only neighbour, and can isolate each of them."""
    n = _size("star", users, 1)
    leaves = np.arange(1, n, dtype=np.int64)
    return _family("star", (n,), n, np.stack([np.zeros_like(leaves), leaves], axis=1))


def complete(users: int) -> Topology:
    """Everybody talks to everybody."""
    n = _size("complete", users, 1)
    if n > 20_000:
        raise GraphError(
            f"complete({n}) has {n * (n - 1) // 2:,} edges; use random_regular({n}, "
            "degree=16) instead"
        )
    return _family("complete", (n,), n, np.stack(np.triu_indices(n, 1), axis=1).astype(np.int64))


def hypercube(dimension: int) -> Topology:
    """2**dimension users; neighbours differ in one bit."""
    k = _size("hypercube", dimension, 0, most=26)
    n = 1 << k
    i = np.arange(n, dtype=np.int64)
    edges = [
        np.stack([i[i & bit == 0], i[i & bit == 0] | bit], axis=1)
        for bit in (1 << b for b in range(k))
    ]
    return _family(
        "hypercube",
        (k,),
        n,
        _sorted(np.concatenate(edges) if edges else np.empty((0, 2), dtype=np.int64)),
    )


def torus(rows: int, columns: int) -> Topology:
    """A grid whose borders meet (the paper calls it "grid"); four neighbours each when both sides
    are at least 3.
    """
    r, c = _size("torus", rows, 2), _size("torus", columns, 2)
    return _family("torus", (r, c), r * c, _product(_closed(r), r, _closed(c), c))


def grid(rows: int, columns: int) -> Topology:
    """A lattice with borders: corners have two neighbours."""
    r, c = _size("grid", rows, 1), _size("grid", columns, 1)
    return _family("grid", (r, c), r * c, _product(path(r).edges, r, path(c).edges, c))


def random_regular(users: int, degree: int, seed: int = 0) -> Topology:
    """A random graph in which everybody has `degree` neighbours: the usual good choice."""
    import networkx as nx

    n = _size("random_regular", users, 1)
    k = _size("random_regular degree", degree, 0, most=MAX_USERS)
    if k >= n:
        raise GraphError(
            f"random_regular({n}, degree={k}): a user has at most {n - 1} "
            f"neighbours; use complete({n})"
        )
    if n * k % 2:
        raise GraphError(
            f"random_regular({n}, degree={k}): users x degree must be even; take degree "
            f"{k + 1 if k + 1 < n else k - 1}"
        )
    if k > n // 2:  # who is not joined is as random, and far quicker to draw
        graph = nx.complement(nx.random_regular_graph(n - 1 - k, n, seed=_seed(seed)))
    else:
        graph = nx.random_regular_graph(k, n, seed=_seed(seed))
    return Topology(n, _pairs(graph.edges()))


def erdos_renyi(users: int, probability: float, seed: int = 0) -> Topology:
    """Every edge is there with the given probability, independently; may be disconnected."""
    import networkx as nx

    n = _size("erdos_renyi", users, 1)
    p = float(probability) if isinstance(probability, int | float | np.number) else math.nan
    if not 0.0 <= p <= 1.0:
        raise GraphError(
            f"erdos_renyi({n}, {probability!r}): the probability must be between 0 and 1"
        )
    graph = nx.fast_gnp_random_graph(n, p, seed=_seed(seed)) if p < 1.0 else nx.complete_graph(n)
    return Topology(n, _pairs(graph.edges()))


def from_edges(users: int, edges: ArrayLike, labels: Iterable[str] | None = None) -> Topology:
    """The graph with these edges; users are numbered from 0."""
    return Topology(users, edges, tuple(labels) if labels is not None else None)  # type: ignore[arg-type]


def from_networkx(graph: Any) -> Topology:
    """The graph of a networkx.Graph; node names become labels, edge attributes are not read."""
    if not hasattr(graph, "is_directed"):
        raise GraphError(
            f"a networkx.Graph is needed, not {type(graph).__name__}; for a list of edges use "
            "from_edges(users, edges)"
        )
    if graph.is_directed():
        raise GraphError(
            "secrets are shared by two users, so the graph must be undirected; pass "
            "graph.to_undirected()"
        )
    if graph.is_multigraph():
        raise GraphError(
            "two users share one edge at most; pass networkx.Graph(graph) to merge parallel edges"
        )
    nodes = list(graph.nodes())
    if not nodes:
        raise GraphError("the graph has no users; add at least one node")
    if all(isinstance(node, int) for node in nodes):
        nodes.sort()
    number = {node: k for k, node in enumerate(nodes)}
    labels = None if nodes == list(range(len(nodes))) else tuple(str(node) for node in nodes)
    return Topology(len(nodes), _pairs((number[a], number[b]) for a, b in graph.edges()), labels)


def _size(what: str, value: object, least: int, otherwise: str = "", most: int = MAX_USERS) -> int:
    return checks.count(what, value, least, most, hint=otherwise, error=GraphError)


def _seed(seed: object) -> int:
    return _size("seed", seed, 0, most=2**63 - 1)


def _family(name: str, sizes: tuple[int, ...], users: int, edges: Ints) -> Topology:
    if users > MAX_USERS:
        raise GraphError(f"{name}{sizes} has {users:,} users; the most is {MAX_USERS:,}")
    return Topology._of_family(Family(name, sizes), users, np.ascontiguousarray(edges))


def _cycle(n: int) -> Ints:
    i = np.arange(n - 1, dtype=np.int64)
    edges = np.empty((n, 2), dtype=np.int64)
    edges[0], edges[1] = (0, 1), (0, n - 1)
    edges[2:, 0], edges[2:, 1] = i[1:], i[1:] + 1
    return edges


def _closed(n: int) -> Ints:
    """A cycle; of two users, the one edge they share."""
    return _cycle(n) if n > 2 else np.array([[0, 1]], dtype=np.int64)


def _product(first: Ints, rows: int, second: Ints, columns: int) -> Ints:
    """Edges of the Cartesian product of two graphs, node (r, c) numbered r * columns + c."""
    down = first[:, None, :] * columns + np.arange(columns)[None, :, None]
    across = second[None, :, :] + (np.arange(rows) * columns)[:, None, None]
    return _sorted(np.concatenate([down.reshape(-1, 2), across.reshape(-1, 2)]))


def _sorted(edges: Ints) -> Ints:
    return edges[np.lexsort((edges[:, 1], edges[:, 0]))]


def _pairs(edges: Iterable[tuple[int, int]]) -> Ints:
    pairs = np.array([tuple(edge) for edge in edges], dtype=np.int64)
    return pairs.reshape(-1, 2)
