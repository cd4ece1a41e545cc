"""Topology: an undirected graph of users, validated once when it is built."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from decor import checks
from decor.array_types import Floats, Ints
from decor.errors import GraphError
from decor.text import amount, html_table

from .own_weights import mixing_matrix, self_weights, weights_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array


MAX_USERS = 100_000_000


@dataclass(frozen=True)
class Family:
    """A graph known by name and sizes, for which closed forms may exist.

    Attributes:
        name: The function that builds it: "ring", "torus", "complete" and so on.
        sizes: The arguments of that function.
    """

    name: str
    sizes: tuple[int, ...]

    @property
    def vertex_transitive(self) -> bool:
        """Whether all users are equivalent, so that results for one user hold for all."""
        return self.name in ("ring", "torus", "complete", "hypercube")


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """An undirected, simple graph of users 0 to n-1: immutable, possibly disconnected.

    Two topologies are equal when their users, edges and labels are equal.

    Attributes:
        users: The number of users.
        edges: Pairs of user numbers, in any order and orientation. Kept as a sorted (m, 2) array
            with the lower user first.
        labels: One unique name per user; None calls each user by its number.
        family: Set for graphs built by a function such as `ring`; None for all others.
        own_weights: Gossip weights of one's own, of each edge, set by `with_mixing`; None:
            Metropolis weights.

    Raises:
        GraphError: If an edge is a self-loop, is given twice, or names an unknown user; or if
            labels are not unique.
    """

    users: int
    edges: Ints
    labels: tuple[str, ...] | None = None
    # not an argument: closed forms trust the family, so no caller may claim one
    family: Family | None = field(default=None, init=False)
    # not an argument: weights are checked by `with_mixing`
    own_weights: Floats | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        users = checks.count("the number of users", self.users, 1, MAX_USERS, error=GraphError)
        object.__setattr__(self, "users", users)
        if self.labels is not None:
            object.__setattr__(self, "labels", _unique_labels(self.labels, users))
        self._set_edges(_normal_edges(self.edges, users, self.name))

    @classmethod
    def _of_family(cls, family: Family, users: int, edges: Ints) -> Topology:
        """For the builders of families only: the edges must be exactly those of the family."""
        self = cls(users, np.empty((0, 2), dtype=np.int64))
        # skips validation, which would sort millions of edges that are sorted already
        self._set_edges(edges)
        object.__setattr__(self, "family", family)
        return self

    def _set_edges(self, edges: Ints) -> None:
        edges.flags.writeable = False
        object.__setattr__(self, "edges", edges)

    def with_mixing(self, W: Any) -> Topology:
        """The same graph, with gossip weights of one's own in place of Metropolis weights.

        Noise, leverages and epsilon do not depend on the weights: averaging acts on messages.

        Args:
            W: A matrix, dense or sparse: W[i, j] is the share of j's model in i's average.

        Raises:
            GraphError: If W is not symmetric and doubly stochastic with weights on edges alone, or
                cuts the graph by weights of zero.
        """
        weights = weights_of(W, self.users, self.edges, self.name)
        weights.flags.writeable = False
        # without the family: its closed forms are those of Metropolis weights
        changed = Topology(self.users, self.edges, self.labels)
        object.__setattr__(changed, "own_weights", weights)
        return changed

    def name(self, user: int) -> str:
        """The label of `user`, or its number as text if the graph has no labels."""
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
        places = (np.r_[i, j], np.r_[j, i])
        ones = np.ones(2 * self.edge_count)
        matrix = coo_array((ones, places), shape=(self.users, self.users)).tocsr()
        matrix.sort_indices()
        return matrix

    @property
    def laplacian(self) -> csr_array:
        """L = degrees - adjacency."""
        from scipy.sparse import diags_array

        return (diags_array(self.degrees.astype(float)) - self.adjacency).tocsr()

    @property
    def edge_weights(self) -> Floats:
        """Gossip weight of each edge, in the order of `edges`.

        Unless `with_mixing` has set others, Metropolis weights 1 / (1 + max(deg i, deg j)).

        The paper's 1 / (deg(i) + 1) is symmetric and doubly stochastic on regular graphs only.
        On regular graphs the two are equal.
        """
        if self.own_weights is not None:
            return self.own_weights
        i, j = self.edges.T
        larger = np.maximum(self.degrees[i], self.degrees[j])
        return np.asarray(1.0 / (1.0 + larger), dtype=np.float64)

    @property
    def self_weights(self) -> Floats:
        """The weight W_ii that each user gives its own model."""
        return self_weights(self.users, self.edges, self.edge_weights)

    @property
    def mixing(self) -> csr_array:
        """The gossip weights W: symmetric and doubly stochastic on every graph."""
        return mixing_matrix(self.users, self.edges, self.edge_weights)

    def neighbours(self, user: int) -> Ints:
        """The users that share an edge with `user`, in ascending order."""
        # no scan of all edges, which a complete graph has n^2 / 2 of
        if self.family is not None and self.family.name == "complete":
            return np.delete(np.arange(self.users, dtype=np.int64), user)
        i, j = self.edges.T
        return np.sort(np.concatenate([j[i == user], i[j == user]]))

    @cached_property
    def components(self) -> Ints:
        """The number of each user's connected component."""
        if self.family is not None:  # every family is connected
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
        """True only if known to be so; a graph from a file may be transitive undetected."""
        return self.family is not None and self.family.vertex_transitive

    @cached_property
    def digest(self) -> str:
        """SHA-256 over users, edges, labels and own weights: the same on every machine."""
        # saved results hold this digest, so its bytes must never change
        h = hashlib.sha256(f"decor-topology-1 {self.users} {self.edge_count}\n".encode())
        # fixed byte order, and a length before each label so that ("ab", "c") is not ("a", "bc")
        h.update(self.edges.astype("<i8").tobytes())
        for label in self.labels or ():
            h.update(len(label.encode()).to_bytes(4, "little") + label.encode())
        if self.own_weights is not None:
            # no label is this long
            h.update(b"\xff\xff\xff\xff own weights" + self.own_weights.astype("<f8").tobytes())
        return h.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        if self.family is not None:
            return f"{self.family.name}({', '.join(map(str, self.family.sizes))})"
        return f"Topology({self.description})"

    def _repr_html_(self) -> str:
        """The graph's size and its users' neighbours, as a notebook shows them."""
        least, most = int(self.degrees.min()), int(self.degrees.max())
        rows = [
            ("graph", "from edges" if self.family is None else repr(self)),
            ("users", f"{self.users:,}"),
            ("edges", f"{self.edge_count:,}"),
            ("neighbours", f"{least:,}" if least == most else f"{least:,} to {most:,}"),
            ("connected", "yes" if self.is_connected else f"no, {self.component_count:,} parts"),
            ("gossip weights", "Metropolis" if self.own_weights is None else "own"),
        ]
        return html_table((), rows)

    @property
    def description(self) -> str:
        """Users, edges and parts in one short line."""
        if self.family is not None:
            return f"{amount(self.users, 'user')} on {self!r}"
        users = amount(self.users, "user")
        parts = "connected" if self.is_connected else f"in {self.component_count:,} parts"
        weights = "" if self.own_weights is None else ", own weights"
        return f"{users}, {amount(self.edge_count, 'edge')}, {parts}{weights}"

    def to_networkx(self) -> Any:
        """A networkx.Graph whose nodes are the labels, or the user numbers if there are none."""
        import networkx as nx

        names: Sequence[str | int] = self.labels if self.labels is not None else range(self.users)
        graph = nx.Graph()
        graph.add_nodes_from(names)
        graph.add_edges_from((names[i], names[j]) for i, j in self.edges.tolist())
        return graph


def _unique_labels(labels: Sequence[str], users: int) -> tuple[str, ...]:
    names = tuple(str(label) for label in labels)
    if len(names) != users:
        raise GraphError(
            f"{len(names)} labels were given for {users} users; give one for each, or none"
        )
    if len(set(names)) != users:
        twice = next(name for name in names if names.count(name) > 1)
        raise GraphError(f"two users are called {twice!r}; give every user its own name")
    return names


def _normal_edges(edges: ArrayLike, users: int, name: Callable[[int], str]) -> Ints:
    """The edges, validated and sorted, each with its lower user first; `name` is for messages."""
    try:
        given = edges if isinstance(edges, np.ndarray) else list(edges)  # type: ignore[arg-type]
        pairs = np.asarray(given)
    except (ValueError, TypeError) as problem:
        raise GraphError(
            f"edges must be pairs of user numbers, such as [(0, 1), (1, 2)]: {problem}"
        ) from None
    if pairs.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        text = repr(edges)
        raise GraphError(
            "edges must be pairs of whole user numbers, such as [(0, 1), (1, 2)], "
            f"not {text if len(text) <= 60 else text[:57] + '...'}"
        )
    pairs = np.sort(pairs.astype(np.int64), axis=1)
    # pairs are sorted within an edge, so these two tests cover both users
    outside = (pairs[:, 0] < 0) | (pairs[:, 1] >= users)
    if outside.any():
        i, j = pairs[int(np.argmax(outside))].tolist()
        raise GraphError(
            f"edge {i}-{j} names user {i if i < 0 else j}, but there are {users} users, numbered "
            f"0 to {users - 1}; raise the number of users or correct the edge"
        )
    loops = pairs[:, 0] == pairs[:, 1]
    if loops.any():
        user = name(int(pairs[int(np.argmax(loops)), 0]))
        raise GraphError(f"edge {user}-{user} joins user {user} to itself; remove it")
    # equal edges are neighbours after sorting
    pairs = np.ascontiguousarray(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))])
    twice = (pairs[1:] == pairs[:-1]).all(axis=1)
    if twice.any():
        i, j = pairs[int(np.argmax(twice))].tolist()
        raise GraphError(
            f"edge {name(i)}-{name(j)} is given twice; give every edge once, in either direction"
        )
    return pairs
