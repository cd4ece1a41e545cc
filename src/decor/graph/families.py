"""Graph families by name, and graphs from edges or networkx."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from decor import checks
from decor.array_types import Ints
from decor.errors import GraphError
from decor.text import amount

from .topology import MAX_USERS, Family, Topology


def ring(users: int) -> Topology:
    """A cycle: each user has two neighbours, and those two together can isolate it.

    Args:
        users: The number of users, at least 3.
    """
    n = _size("the number of users of a ring", users, 3, "a path joins two users")
    return _family("ring", (n,), n, _cycle(n))


def path(users: int) -> Topology:
    """A ring with one edge removed.

    Args:
        users: The number of users.
    """
    n = _size("the number of users of a path", users, 1)
    i = np.arange(n - 1, dtype=np.int64)
    return _family("path", (n,), n, np.stack([i, i + 1], axis=1))


def star(users: int) -> Topology:
    """User 0 is the only neighbour of all others, and can isolate each of them.

    Args:
        users: The number of users, the centre included.
    """
    n = _size("the number of users of a star", users, 1)
    leaves = np.arange(1, n, dtype=np.int64)
    return _family("star", (n,), n, np.stack([np.zeros_like(leaves), leaves], axis=1))


def complete(users: int) -> Topology:
    """An edge between every two users.

    Args:
        users: The number of users, at most 20,000.
    """
    n = _size("the number of users of a complete graph", users, 1)
    # 200 million edges would take gigabytes
    if n > 20_000:
        raise GraphError(
            f"a complete graph of {n:,} users has {n * (n - 1) // 2:,} edges, and at most 20,000 "
            "users are taken; take a random regular graph of degree 16"
        )
    return _family("complete", (n,), n, np.stack(np.triu_indices(n, 1), axis=1).astype(np.int64))


def hypercube(dimension: int) -> Topology:
    """2**dimension users; the numbers of neighbours differ in one bit.

    Args:
        dimension: The number of bits, from 0 to 26.
    """
    k = _size("the dimension of a hypercube", dimension, 0, most=26)
    i = np.arange(1 << k, dtype=np.int64)
    edges = [np.empty((0, 2), dtype=np.int64)]
    for bit in (1 << b for b in range(k)):
        lower = i[i & bit == 0]
        edges.append(np.stack([lower, lower | bit], axis=1))
    return _family("hypercube", (k,), 1 << k, _in_order(np.concatenate(edges)))


def torus(rows: int, columns: int) -> Topology:
    """A grid whose opposite sides are joined (the paper calls it "grid").

    Args:
        rows: Users in each column, at least 2.
        columns: Users in each row, at least 2. With 3 or more both ways, all have 4 neighbours.
    """
    r, c = _size("a side of a torus", rows, 2), _size("a side of a torus", columns, 2)
    # two users share one edge, not the two of a cycle
    down, across = (_cycle(n) if n > 2 else path(2).edges for n in (r, c))
    return _family("torus", (r, c), r * c, _product(down, r, across, c))


def grid(rows: int, columns: int) -> Topology:
    """A lattice with borders: the corners have two neighbours.

    Args:
        rows: Users in each column.
        columns: Users in each row.
    """
    r, c = _size("a side of a grid", rows, 1), _size("a side of a grid", columns, 1)
    return _family("grid", (r, c), r * c, _product(path(r).edges, r, path(c).edges, c))


def random_regular(users: int, degree: int, seed: int = 0) -> Topology:
    """A random graph in which each user has `degree` neighbours: the usual good choice.

    Args:
        users: The number of users.
        degree: Neighbours of each user, fewer than `users`; users x degree must be even.
        seed: Selects the graph; the same seed gives the same graph.
    """
    import networkx as nx

    n = _size("the number of users of a random regular graph", users, 1)
    k = _size("the degree of a random regular graph", degree, 0)
    if k >= n:
        raise GraphError(
            f"a random regular graph of {amount(n, 'user')} cannot have degree {k:,}: a user has "
            f"at most {amount(n - 1, 'neighbour')}; take a lower degree, or a complete graph"
        )
    if n * k % 2:
        raise GraphError(
            f"a random regular graph of {n:,} users cannot have degree {k:,}: users x degree must "
            f"be even; take degree "
            f"{k + 1 if k + 1 < n else k - 1}"
        )
    # the complement of a random regular graph is as random, and far quicker to draw if k is large
    dense = k > n // 2
    graph = nx.random_regular_graph(n - 1 - k if dense else k, n, seed=_seed(seed))
    return Topology(n, _pairs((nx.complement(graph) if dense else graph).edges()))


def erdos_renyi(users: int, probability: float, seed: int = 0) -> Topology:
    """Each possible edge is present independently; the graph may be disconnected.

    Args:
        users: The number of users.
        probability: Of each edge, from 0 to 1.
        seed: Selects the graph; the same seed gives the same graph.
    """
    import networkx as nx

    n = _size("the number of users of an Erdos-Renyi graph", users, 1)
    p = float(probability) if isinstance(probability, int | float | np.number) else math.nan
    if not 0.0 <= p <= 1.0:
        raise GraphError(
            f"the probability of an edge in an Erdos-Renyi graph must be between 0 and 1, not "
            f"{probability!r}"
        )
    # networkx's fast sampler takes the logarithm of 1 - p
    graph = nx.fast_gnp_random_graph(n, p, seed=_seed(seed)) if p < 1.0 else nx.complete_graph(n)
    return Topology(n, _pairs(graph.edges()))


def from_edges(users: int, edges: ArrayLike, labels: Iterable[str] | None = None) -> Topology:
    """The graph with these edges.

    Args:
        users: The number of users.
        edges: Pairs of user numbers, counted from 0, in any order and orientation.
        labels: One unique name per user; None calls users by their numbers.
    """
    names = None if labels is None else tuple(labels)
    return Topology(users, edges, names)  # type: ignore[arg-type]


def from_networkx(graph: Any) -> Topology:
    """The topology of a networkx graph.

    Args:
        graph: An undirected networkx.Graph. Node names become labels, unless they are 0 to n-1;
            edge attributes are ignored.
    """
    if not hasattr(graph, "is_directed"):
        raise GraphError(
            f"a networkx.Graph is needed, not {type(graph).__name__}; for a list of edges use "
            "from_edges(users, edges)"
        )
    if graph.is_directed():
        raise GraphError(
            "two users share each secret, so the graph must be undirected; pass "
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
        # so that user k is node k whatever the order of insertion
        nodes.sort()
    number = {node: k for k, node in enumerate(nodes)}
    labels = None if nodes == list(range(len(nodes))) else tuple(str(node) for node in nodes)
    return Topology(len(nodes), _pairs((number[a], number[b]) for a, b in graph.edges()), labels)


def _size(what: str, value: object, least: int, hint: str = "", most: int = MAX_USERS) -> int:
    return checks.count(what, value, least, most, hint=hint, error=GraphError)


def _seed(seed: object) -> int:
    return _size("seed", seed, 0, most=2**63 - 1)


def _family(name: str, sizes: tuple[int, ...], users: int, edges: Ints) -> Topology:
    if users > MAX_USERS:
        shape = " x ".join(f"{size:,}" for size in sizes)
        raise GraphError(f"a {name} of {shape} has {users:,} users; the most is {MAX_USERS:,}")
    return Topology._of_family(Family(name, sizes), users, np.ascontiguousarray(edges))


def _cycle(n: int) -> Ints:
    """Sorted edges of a cycle of n > 2 users: 0-1, 0-(n-1), then 1-2, 2-3 and so on."""
    i = np.arange(1, n - 1, dtype=np.int64)
    return np.concatenate([[(0, 1), (0, n - 1)], np.stack([i, i + 1], axis=1)])


def _product(first: Ints, rows: int, second: Ints, columns: int) -> Ints:
    """Edges of the Cartesian product of two graphs, node (r, c) numbered r * columns + c."""
    down = first[:, None, :] * columns + np.arange(columns)[None, :, None]
    across = second[None, :, :] + (np.arange(rows) * columns)[:, None, None]
    return _in_order(np.concatenate([down.reshape(-1, 2), across.reshape(-1, 2)]))


def _in_order(edges: Ints) -> Ints:
    return edges[np.lexsort((edges[:, 1], edges[:, 0]))]


def _pairs(edges: Iterable[tuple[int, int]]) -> Ints:
    # the reshape is for graphs without edges
    return np.array([tuple(edge) for edge in edges], dtype=np.int64).reshape(-1, 2)
