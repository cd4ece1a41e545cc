"""Topology: who talks to whom. Validated once, at the door; every later line may rely on it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from decor import checks
from decor.arrays import Floats, Ints
from decor.errors import GraphError

if TYPE_CHECKING:
    from scipy.sparse import csr_array


MAX_USERS = 100_000_000


@dataclass(frozen=True)
class Family:
    """A graph known by name and sizes, for which closed forms may exist."""

    name: str
    sizes: tuple[int, ...]

    @property
    def vertex_transitive(self) -> bool:
        """Whether every user looks like every other, so that one target stands for all."""
        return self.name in ("ring", "torus", "complete", "hypercube")


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """An undirected graph of users 0..n-1: simple, possibly disconnected, immutable, equal when its
    edges are equal.

    `edges` may come in any order and orientation; it is kept as an (m, 2) array, lower user first,
    sorted. `labels` are the names people know the users by; without them a user is called by its
    number.
    """

    users: int
    edges: Ints
    labels: tuple[str, ...] | None = None
    family: Family | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        users = _checked_users(self.users)
        object.__setattr__(self, "users", users)
        if self.labels is not None:
            object.__setattr__(self, "labels", _checked_labels(self.labels, users))
        edges = _checked_edges(self.edges, users, self.name)
        edges.flags.writeable = False
        object.__setattr__(self, "edges", edges)

    @classmethod
    def _of_family(cls, family: Family, users: int, edges: Ints) -> Topology:
        """For the constructors of families alone: closed forms trust the name, so the edges must be
        what it says.
        """
        self = cls(users, np.empty((0, 2), dtype=np.int64))
        edges.flags.writeable = False
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "family", family)
        return self

    def name(self, user: int) -> str:
        return self.labels[user] if self.labels is not None else str(user)

    @property
    def edge_count(self) -> int:
        return int(self.edges.shape[0])

    @cached_property
    def degrees(self) -> Ints:
        return np.bincount(self.edges.ravel(), minlength=self.users).astype(np.int64)

    @cached_property
    def adjacency(self) -> csr_array:
        """Sparse 0/1 matrix with sorted indices."""
        from scipy.sparse import coo_array

        i, j = self.edges.T
        ones = np.ones(2 * self.edge_count)
        matrix = coo_array(
            (ones, (np.r_[i, j], np.r_[j, i])), shape=(self.users, self.users)
        ).tocsr()
        matrix.sort_indices()
        return matrix

    @property
    def laplacian(self) -> csr_array:
        """L = degrees - adjacency."""
        from scipy.sparse import diags_array

        return (diags_array(self.degrees.astype(float)) - self.adjacency).tocsr()

    @property
    def edge_weights(self) -> Floats:
        """Metropolis weight 1 / (1 + max(deg i, deg j)) of every edge, in the order of `edges`.

        The paper's 1 / (deg(i) + 1) is symmetric and doubly stochastic on regular graphs only;
        there the two agree.
        """
        i, j = self.edges.T
        return np.asarray(
            1.0 / (1.0 + np.maximum(self.degrees[i], self.degrees[j])), dtype=np.float64
        )

    @property
    def self_weights(self) -> Floats:
        """The weight W_ii that every user gives its own model."""
        i, j = self.edges.T
        given = np.bincount(i, self.edge_weights, self.users) + np.bincount(
            j, self.edge_weights, self.users
        )
        return np.asarray(1.0 - given, dtype=np.float64)

    @property
    def mixing(self) -> csr_array:
        """Metropolis weights W: symmetric and doubly stochastic on every graph."""
        from scipy.sparse import coo_array

        i, j = self.edges.T
        k = np.arange(self.users)
        values = np.r_[self.edge_weights, self.edge_weights, self.self_weights]
        return coo_array(
            (values, (np.r_[i, j, k], np.r_[j, i, k])), shape=(self.users,) * 2
        ).tocsr()

    def neighbours(self, user: int) -> Ints:
        if self.family is not None and self.family.name == "complete":
            return np.delete(np.arange(self.users, dtype=np.int64), user)
        i, j = self.edges.T
        return np.sort(np.concatenate([j[i == user], i[j == user]]))

    @cached_property
    def components(self) -> Ints:
        """The number of the connected component of every user."""
        if self.family is not None:  # every family that has a name here is connected
            return np.zeros(self.users, dtype=np.int64)
        from scipy.sparse.csgraph import connected_components

        return np.asarray(connected_components(self.adjacency, directed=False)[1], dtype=np.int64)

    @property
    def component_count(self) -> int:
        return int(self.components.max()) + 1

    @property
    def is_connected(self) -> bool:
        return self.component_count == 1

    @property
    def vertex_transitive(self) -> bool:
        """True only when known to be so; a graph from a file may be transitive without our
        knowing.
        """
        return self.family is not None and self.family.vertex_transitive

    @cached_property
    def digest(self) -> str:
        """SHA-256 over users, edges and labels: equal graphs, equal digests, on every machine."""
        h = hashlib.sha256(f"decor-topology-1 {self.users} {self.edge_count}\n".encode())
        h.update(self.edges.astype("<i8").tobytes())
        for label in self.labels or ():
            h.update(len(label.encode()).to_bytes(4, "little") + label.encode())
        return h.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        if self.family is not None:
            return f"{self.family.name}({', '.join(map(str, self.family.sizes))})"
        return f"Topology({self.description})"

    @property
    def description(self) -> str:
        """The graph in a few words."""
        if self.family is not None:
            return f"{self.users:,} users on {self!r}"
        parts = "connected" if self.is_connected else f"in {self.component_count:,} parts"
        return f"{self.users:,} users, {self.edge_count:,} edges, {parts}"

    def to_networkx(self) -> Any:
        """A networkx.Graph with the labels as node names (numbers when there are none)."""
        import networkx as nx

        names: Sequence[str | int] = self.labels if self.labels is not None else range(self.users)
        graph = nx.Graph()
        graph.add_nodes_from(names)
        graph.add_edges_from((names[i], names[j]) for i, j in self.edges.tolist())
        return graph


def _checked_users(users: object) -> int:
    return checks.count("the number of users", users, 1, MAX_USERS, error=GraphError)


def _checked_labels(labels: Sequence[str], users: int) -> tuple[str, ...]:
    names = tuple(str(label) for label in labels)
    if len(names) != users:
        raise GraphError(
            f"{len(names)} labels were given for {users} users; give one for each, or none"
        )
    if len(set(names)) != users:
        twice = next(name for name in names if names.count(name) > 1)
        raise GraphError(f"two users are called {twice!r}; give every user its own name")
    return names


def _checked_edges(edges: ArrayLike, users: int, name: Any) -> Ints:
    try:
        pairs = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))  # type: ignore[arg-type]
    except (ValueError, TypeError) as problem:
        raise GraphError(
            f"edges must be pairs of user numbers, such as [(0, 1), (1, 2)]: {problem}"
        ) from None
    if pairs.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise GraphError(
            "edges must be pairs of whole user numbers, such as [(0, 1), (1, 2)], "
            f"not {_shown(edges)}"
        )
    pairs = np.sort(pairs.astype(np.int64), axis=1)
    outside = (pairs[:, 0] < 0) | (pairs[:, 1] >= users)
    if outside.any():
        i, j = pairs[int(np.argmax(outside))].tolist()
        unknown = i if i < 0 else j
        raise GraphError(
            f"edge {i}-{j} names user {unknown}, but there are {users} users, numbered 0 to "
            f"{users - 1}; "
            "raise the number of users or mend the edge"
        )
    loops = pairs[:, 0] == pairs[:, 1]
    if loops.any():
        i = int(pairs[int(np.argmax(loops)), 0])
        raise GraphError(f"edge {name(i)}-{name(i)} joins user {name(i)} to itself; remove it")
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    pairs = np.ascontiguousarray(pairs[order])
    twice = (pairs[1:] == pairs[:-1]).all(axis=1)
    if twice.any():
        i, j = pairs[int(np.argmax(twice))].tolist()
        raise GraphError(
            f"edge {name(i)}-{name(j)} is given twice; give every edge once, in either direction"
        )
    return pairs


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
