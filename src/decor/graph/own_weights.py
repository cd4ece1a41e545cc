"""Gossip weights of one's own, checked: a symmetric, doubly stochastic matrix on the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decor.array_types import Array, Floats, Ints
from decor.errors import GraphError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_TOLERANCE = 1e-9
"""Rounding that a matrix may have: weights are then made symmetric, and rows are completed."""


def weights_of(W: Any, users: int, edges: Ints, name: Callable[[int], str]) -> Floats:
    """The weight of each edge.

    Args:
        W: A matrix, dense or sparse; row i has the weights that user i gives to each model.
        users: The number of users.
        edges: The edges of the graph, the lower user first.
        name: A user's name, for messages.

    Raises:
        GraphError: If averages would not be averages: W is of another size, not finite, negative,
            not symmetric, not on the graph, or its rows do not sum to one; or if users of one part
            of the graph would never hear of each other.
    """
    entries = _Entries.of(W, users, name)
    entries.check_shares()
    entries.check_symmetry()
    entries.check_edges(edges)
    entries.check_sums()
    i, j = edges.T
    dense = entries.matrix
    # a difference in rounding would move the average of all models
    weights = np.asarray((dense[i, j] + dense[j, i]) / 2, dtype=np.float64).ravel()
    _check_parts(users, edges, weights, name)
    return weights


@dataclass(frozen=True)
class _Entries:
    """The entries of a matrix that are not zero, and what each may be."""

    matrix: csr_array
    rows: Ints
    columns: Ints
    values: Floats
    name: Callable[[int], str]

    @classmethod
    def of(cls, W: Any, users: int, name: Callable[[int], str]) -> _Entries:
        from scipy.sparse import coo_array, issparse

        try:
            matrix = coo_array(W if issparse(W) else np.asarray(W, dtype=np.float64))
        except (TypeError, ValueError) as problem:
            raise GraphError(f"W must be a matrix of numbers: {problem}") from None
        if matrix.shape != (users, users):
            raise GraphError(
                f"W has shape {matrix.shape}; give a row and a column for each of the {users} users"
            )
        # a sparse matrix may list a place twice, and then means the sum
        matrix.sum_duplicates()
        rows, columns = (np.asarray(each, dtype=np.int64) for each in matrix.coords)
        values = np.asarray(matrix.data, dtype=np.float64)
        return cls(matrix.tocsr(), rows, columns, values, name)

    def _refuse(self, wrong: Array, why: str) -> None:
        """Refuses the entry that is most wrong, if any is; `wrong` is zero where nothing is."""
        if not wrong.any():
            return
        k = int(np.argmax(wrong))
        row, column = (self.name(int(each[k])) for each in (self.rows, self.columns))
        raise GraphError(f"the weight from {row} to {column} is {self.values[k]:g}{why}")

    def check_shares(self) -> None:
        # a negative weight can bring an eigenvalue below -1, and gossip would diverge
        is_share = np.isfinite(self.values) & (self.values >= 0)
        self._refuse(1.0 - is_share, "; weights are shares, from 0 to 1")

    def check_symmetry(self) -> None:
        across = np.asarray(self.matrix[self.columns, self.rows]).ravel()
        off = np.abs(self.values - across)
        why = ", and another one the other way; W must be symmetric"
        self._refuse(np.where(off > _TOLERANCE, off, 0.0), why)

    def check_edges(self, edges: Ints) -> None:
        users = self.matrix.shape[0]
        low, high = np.minimum(self.rows, self.columns), np.maximum(self.rows, self.columns)
        # a pair as one number, because isin compares numbers and not rows
        known = np.isin(low * users + high, edges[:, 0] * users + edges[:, 1])
        stray = np.where(known | (low == high), 0.0, self.values)
        self._refuse(stray, ", and they share no edge; weights are on edges alone")

    def check_sums(self) -> None:
        # rows are enough: symmetry was checked before, so columns have the same sums
        off = np.bincount(self.rows, self.values, self.matrix.shape[0]) - 1
        i = int(np.argmax(np.abs(off)))
        if abs(off[i]) > _TOLERANCE:
            raise GraphError(
                f"the weights of {self.name(i)} sum to {1 + off[i]:.9g}; W must be doubly "
                "stochastic: every row sums to 1, with the user's own weight on the diagonal"
            )


def _check_parts(users: int, edges: Array, weights: Floats, name: Callable[[int], str]) -> None:
    """Refuses weights of zero that cut the graph: models of its parts would never agree."""
    before, after = (_parts(users, edges), _parts(users, edges[weights > 0]))
    if after.max(initial=0) == before.max(initial=0):
        return
    i, j = edges[int(np.argmax(after[edges[:, 0]] != after[edges[:, 1]]))]
    raise GraphError(
        f"with these weights {name(int(i))} and {name(int(j))} never hear of each other, although "
        "the graph joins them; give an edge between their parts a weight above 0"
    )


def _parts(users: int, edges: Array) -> Ints:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    i, j = edges.T
    graph = coo_array((np.ones(len(edges)), (i, j)), shape=(users, users))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def self_weights(users: int, edges: Ints, weights: Floats) -> Floats:
    """The weight that each user gives its own model: what its edges leave of one."""
    (i, j) = edges.T
    given_away = np.bincount(i, weights, users) + np.bincount(j, weights, users)
    # no share is negative, however sums are rounded
    return np.asarray(np.maximum(1.0 - given_away, 0.0), dtype=np.float64)


def mixing_matrix(users: int, edges: Ints, weights: Any) -> csr_array:
    """The sparse symmetric matrix with these weights on the edges, whose rows sum to one.

    Args:
        users: The number of users.
        edges: The edges.
        weights: One for each edge.
    """
    from scipy.sparse import coo_array

    (i, j), w, k = edges.T, np.asarray(weights, dtype=np.float64), np.arange(users)
    if w.shape != i.shape:
        raise GraphError(f"{w.size} weights were given for {len(i)} edges; give one for each")
    entries = np.r_[w, w, self_weights(users, edges, w)]
    places = (np.r_[i, j, k], np.r_[j, i, k])
    return coo_array((entries, places), shape=(users, users)).tocsr()
