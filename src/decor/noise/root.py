"""Square roots of Sigma = s^2 I + sum over edges of c_e^2 k_e k_e': n Gaussians a coordinate
instead of one for every edge too.

Three roots, equal in law (tests say so). Small or dense graphs: the eigenvectors of the Laplacian,
which all couples share. Graphs that are narrow bands, such as rings: a Cholesky factor without
fill. Other large graphs: the edges themselves, because a factor of theirs fills up and costs more
than the Gaussians it saves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decor.arrays import Array


class Columns(NamedTuple):
    """A sparse root by columns: column k has `values` at `rows` from start[k] to start[k + 1]; one
    Gaussian a column.

    `places` names the columns: whoever holds some of the rows draws the same Gaussians for them as
    who holds all.
    """

    start: Array
    rows: Array
    values: Array
    places: Array

    @classmethod
    def of(cls, start: Array, rows: Array, values: Array) -> Columns:
        """All columns, in their order."""
        return cls(start.astype(np.int64), rows.astype(np.int64), values, np.arange(len(start) - 1))

    def within(self, users: Array, count: int) -> Columns:
        """What concerns some of `count` users, by their place among these."""
        place = np.full(count, -1)
        place[users] = np.arange(len(users))
        column, row = np.repeat(np.arange(len(self.places)), np.diff(self.start)), place[self.rows]
        kept, numbers = np.unique(column[row >= 0], return_counts=True)
        start = np.concatenate([[0], np.cumsum(numbers)])
        return Columns(
            start.astype(np.int64),
            row[row >= 0].astype(np.int64),
            self.values[row >= 0],
            self.places[kept],
        )


def eigenvectors(users: int, edges: Array, weights: Array) -> tuple[Array, Array]:
    """(lambda, U) of the Laplacian with these edge weights; U diag(sqrt(s^2 + lambda)) is the root
    of s^2 I + L.
    """
    laplacian = np.zeros((users, users))
    i, j = edges.T
    np.add.at(laplacian, (i, j), -weights)
    np.add.at(laplacian, (j, i), -weights)
    laplacian[np.diag_indices(users)] = -laplacian.sum(axis=1)
    values, vectors = np.linalg.eigh(laplacian)
    # one null eigenvalue for every part of the graph; they come out as roundings, which a large c
    # would make larger than s
    parts = _parts(users, edges, weights)
    values[:parts] = 0.0
    # averages of one sign on every graph, so that the same Gaussians move them alike and graphs
    # compare with less luck
    vectors[:, :parts] *= np.where(vectors[:, :parts].sum(axis=0) < 0, -1.0, 1.0)
    return np.clip(values, 0.0, None), vectors


def _parts(users: int, edges: Array, weights: Array) -> int:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    i, j = edges[weights > 0].T
    return int(
        connected_components(
            coo_array((np.ones(len(i)), (i, j)), shape=(users, users)), directed=False
        )[0]
    )


def uneven(c: Array) -> bool:
    """Edges so different that eigenvectors would lose the weak ones among the roundings of the
    strong.
    """
    return bool(c.any()) and bool((c[c > 0] < 1e-5 * c.max()).any())


def sparse(users: int, edges: Array, s: float, c: Array) -> Columns:
    """The cheaper of the two sparse roots; `c` has one deviation for every edge."""
    return (
        by_band(users, edges, s, c) if banded(users, edges, s, c) else by_edges(users, edges, s, c)
    )


def banded(users: int, edges: Array, s: float, c: Array) -> bool:
    """Whether a Cholesky factor is cheaper than the edges, and good."""
    # beside a large c it loses s, and with it the noise of everybody's sum
    if not s**2 > 1e-8 * c.max(initial=0.0) ** 2:
        return False
    band = nearby(users, edges)[0] if c.any() else 0
    # a Gaussian costs about as much as four multiplications and additions of an entry
    return users * (4 + band + 1) < (users + len(edges)) * 4 + users + 2 * len(edges)


def by_edges(users: int, edges: Array, s: float, c: Array) -> Columns:
    """One column for every edge (+c at one end, -c at the other) and one for every user."""
    kept = c > 0
    (i, j), c = edges[kept].T, c[kept]
    alone = np.arange(users) if s > 0 else np.empty(0, dtype=int)
    rows = np.concatenate([np.stack([i, j], 1).ravel(), alone])
    values = np.concatenate([np.stack([c, -c], 1).ravel(), np.full(len(alone), s)])
    start = np.concatenate([2 * np.arange(len(c)), 2 * len(c) + np.arange(len(alone) + 1)])
    return Columns.of(start, rows, values)


def by_band(users: int, edges: Array, s: float, c: Array) -> Columns:
    """The Cholesky factor in an order that keeps neighbours close."""
    from scipy.linalg import cholesky_banded

    band, order = nearby(users, edges)
    place = np.empty(users, dtype=np.int64)
    place[order] = np.arange(users)
    low = np.sort(place[edges], axis=1)
    lower = np.zeros((band + 1, users))
    lower[0] = s**2 + np.bincount(low.ravel(), np.repeat(c**2, 2), users)
    np.subtract.at(lower, (low[:, 1] - low[:, 0], low[:, 0]), c**2)
    factor = cholesky_banded(lower, lower=True)
    k, column = np.meshgrid(np.arange(band + 1), np.arange(users))
    inside = (column + k < users) & (factor.T != 0)
    return Columns.of(
        np.r_[0, np.cumsum(inside.sum(axis=1))], order[(column + k)[inside]], factor.T[inside]
    )


def nearby(users: int, edges: Array) -> tuple[int, Array]:
    """An order in which neighbours are close, and how far apart they still are."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    i, j = edges.T
    graph = coo_array(
        (np.ones(2 * len(edges)), (np.r_[i, j], np.r_[j, i])), shape=(users, users)
    ).tocsr()
    order = np.asarray(reverse_cuthill_mckee(graph, symmetric_mode=True), dtype=np.int64)
    place = np.empty(users, dtype=np.int64)
    place[order] = np.arange(users)
    return int(np.abs(place[i] - place[j]).max(initial=0)), order
