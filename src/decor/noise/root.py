"""Square roots of Sigma = diag(s_i^2) + sum over edges of c_e^2 k_e k_e'.

With a root, a coordinate takes one Gaussian for each user instead of one for each edge as well.
There are three roots, with the same distribution of noise (tested). Small or dense graphs: the
eigenvectors of the Laplacian, which all noise pairs share. Graphs that are narrow bands, such as
rings: a Cholesky factor without fill. Other large graphs: the edges themselves, because a factor
would fill up and cost more than the Gaussians it saves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decor.array_types import Array


class SparseRoot(NamedTuple):
    """A sparse root by columns, with one Gaussian for each column.

    Attributes:
        start: Column k has the entries from start[k] to start[k + 1].
        rows: The row of each entry.
        values: The value of each entry.
        places: Names of the columns: a process with some of the rows draws the same Gaussians for
            them as one with all.
    """

    start: Array
    rows: Array
    values: Array
    places: Array

    @classmethod
    def of(cls, start: Array, rows: Array, values: Array) -> SparseRoot:
        """All columns, in their order."""
        return cls(start.astype(np.int64), rows.astype(np.int64), values, np.arange(len(start) - 1))

    def rows_for(self, users: Array, count: int) -> SparseRoot:
        """The rows of some of `count` users, numbered in the order of `users`."""
        place = np.full(count, -1)
        place[users] = np.arange(len(users))
        column, row = np.repeat(np.arange(len(self.places)), np.diff(self.start)), place[self.rows]
        here = row >= 0
        kept, sizes = np.unique(column[here], return_counts=True)
        start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows = row[here].astype(np.int64)
        return SparseRoot(start, rows, self.values[here], self.places[kept])


def eigenvectors(
    users: int, edges: Array, weights: Array, ground: Array | None = None
) -> tuple[Array, Array]:
    """(lambda, U) of L = the weighted Laplacian + diag(ground), where ground is given.

    U diag(sqrt(s^2 + lambda)) is a root of s^2 + L: with own noise per user, s is the least and
    `ground` what each user has beyond.
    """
    laplacian = np.zeros((users, users))
    i, j = edges.T
    np.add.at(laplacian, (i, j), -weights)
    np.add.at(laplacian, (j, i), -weights)
    own = np.zeros(users) if ground is None else ground
    laplacian[np.diag_indices(users)] = own - laplacian.sum(axis=1)
    values, vectors = np.linalg.eigh(laplacian)
    # one null eigenvalue for each connected part without ground; computed ones are roundings, which
    # a large c would make larger than s
    parts = _parts(users, edges, weights, own)
    values[:parts] = 0.0
    # averages have one sign on all graphs: the same Gaussians move them alike, which makes
    # comparisons between graphs less noisy
    vectors[:, :parts] *= np.where(vectors[:, :parts].sum(axis=0) < 0, -1.0, 1.0)
    return np.clip(values, 0.0, None), vectors


def _parts(users: int, edges: Array, weights: Array, ground: Array) -> int:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    i, j = edges[weights > 0].T
    graph = coo_array((np.ones(len(i)), (i, j)), shape=(users, users))
    parts = connected_components(graph, directed=False)[1]
    return int((np.bincount(parts, ground) == 0).sum())


def uneven(c: Array) -> bool:
    """Whether eigenvectors would lose weak edges in the roundings of the strong ones."""
    return bool(c.any()) and bool((c[c > 0] < 1e-5 * c.max()).any())


def sparse(users: int, edges: Array, s: float | Array, c: Array) -> SparseRoot:
    """The cheaper of the two sparse roots.

    `s` is the deviation of every user's own noise, or one for each; `c` has one for each edge.
    """
    root = by_band if is_banded(users, edges, s, c) else by_edges
    return root(users, edges, s, c)


def is_banded(users: int, edges: Array, s: float | Array, c: Array) -> bool:
    """Whether a Cholesky factor is cheaper than the edges, and accurate."""
    # beside a large c it loses s, and with it the noise in the sum of all users
    if not np.min(s) ** 2 > 1e-8 * max(np.max(s), c.max(initial=0.0)) ** 2:
        return False
    band = bandwidth_order(users, edges)[0] if c.any() else 0
    # a Gaussian costs about as much as four multiplications and additions of an entry
    return users * (4 + band + 1) < (users + len(edges)) * 4 + users + 2 * len(edges)


def by_edges(users: int, edges: Array, s: float | Array, c: Array) -> SparseRoot:
    """One column for each edge (+c at one end, -c at the other) and one for each user."""
    kept = c > 0
    (i, j), c = edges[kept].T, c[kept]
    own = np.broadcast_to(s, users)
    alone = np.flatnonzero(own > 0)
    rows = np.concatenate([np.stack([i, j], 1).ravel(), alone])
    values = np.concatenate([np.stack([c, -c], 1).ravel(), own[alone]])
    start = np.concatenate([2 * np.arange(len(c)), 2 * len(c) + np.arange(len(alone) + 1)])
    return SparseRoot.of(start, rows, values)


def by_band(users: int, edges: Array, s: float | Array, c: Array) -> SparseRoot:
    """The Cholesky factor, in an order that keeps neighbours close."""
    from scipy.linalg import cholesky_banded

    band, order = bandwidth_order(users, edges)
    place = np.empty(users, dtype=np.int64)
    place[order] = np.arange(users)
    low = np.sort(place[edges], axis=1)
    lower = np.zeros((band + 1, users))
    # the diagonals of Sigma, as LAPACK keeps a banded matrix
    lower[0] = np.broadcast_to(s, users)[order] ** 2 + np.bincount(
        low.ravel(), np.repeat(c**2, 2), users
    )
    np.subtract.at(lower, (low[:, 1] - low[:, 0], low[:, 0]), c**2)
    factor = cholesky_banded(lower, lower=True)
    k, column = np.meshgrid(np.arange(band + 1), np.arange(users))
    # exact zeros need no multiplication
    inside = (column + k < users) & (factor.T != 0)
    start = np.r_[0, np.cumsum(inside.sum(axis=1))]
    return SparseRoot.of(start, order[(column + k)[inside]], factor.T[inside])


def bandwidth_order(users: int, edges: Array) -> tuple[int, Array]:
    """(bandwidth, order) of an order of users in which neighbours are close."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    i, j = edges.T
    ends = np.r_[i, j], np.r_[j, i]
    graph = coo_array((np.ones(2 * len(edges)), ends), shape=(users, users)).tocsr()
    order = np.asarray(reverse_cuthill_mckee(graph, symmetric_mode=True), dtype=np.int64)
    place = np.empty(users, dtype=np.int64)
    place[order] = np.arange(users)
    return int(np.abs(place[i] - place[j]).max(initial=0)), order
