"""Dense inverse of Sigma that never subtracts: star-mesh elimination of an electrical network.

The algorithm is that of Grassmann, Taksar and Heyman. Why not Cholesky: Sigma is a tiny multiple of
the identity plus a huge Laplacian, and its factorisation cancels. At a variance ratio of 1e16 a
plain inverse is six times too small, which would report a sixth of the truth. Here ground and edge
conductances are kept apart, every operation adds, multiplies or divides positive numbers, and each
relative error is at most a few roundings.
"""

from __future__ import annotations

import numpy as np

from decor.array_types import Floats

from .network import UNIT_ROUNDOFF

# Columns eliminated one by one, and columns per matrix product; the speed is flat around these.
_LEAF = 16
_STRIP = 256


def relative_error(nodes: int) -> float:
    """Bound on the relative error of every diagonal entry of `inverse` and `batch_diagonal`.

    For x >= 0, x' Sigma^-1 x is monotone in the conductances and homogeneous of degree -1. So a
    relative error of all conductances that are left reaches it unamplified, and the errors of the
    eliminations add up. Eliminating a node with s neighbours costs 2 s + 6 roundings (s additions
    in its sum, which enters twice), and the way back 2 s + 1 at most.
    """
    return 4.04 * UNIT_ROUNDOFF * (nodes * (nodes - 1) / 2 + 3 * nodes)


def entry_error(nodes: int) -> float:
    """Bound on |error of entry ij| / sqrt(entry ii * entry jj), for every entry of `inverse`.

    The quadratic form is right to `relative_error` for e_i, e_j and their sum scaled to equal size,
    and twice the entry is the difference of the three: at most (2 + correlation) times that error.
    """
    return 3 * relative_error(nodes)


def inverse(conductance: Floats, ground: Floats) -> Floats:
    """(diag(ground) + Laplacian(conductance))^-1 as a full symmetric matrix.

    Guarantee: diagonal entries are right to `relative_error(n)` and all entries to
    `entry_error(n)`, whatever the ratio of conductances.
    """
    # a tenth of a second to import, which `batch_diagonal` does without
    from scipy.linalg import lapack

    n = ground.size
    K = np.array(conductance, dtype=np.float64, order="F")
    g = np.array(ground, dtype=np.float64)
    d = np.empty(n)
    _eliminate(K, g, d, 0, n)
    # Below the diagonal K now holds the factor: Sigma = (I - N) D (I - N)' with N = K / d. N is
    # not negative, so inverting I - N only adds products.
    K /= -d
    np.fill_diagonal(K, 1.0)
    root, _ = lapack.dtrtri(K, lower=1, unitdiag=1, overwrite_c=1)
    root /= np.sqrt(d)[:, None]
    result: Floats
    result, _ = lapack.dlauum(root, lower=1, overwrite_c=1)
    # LAPACK fills the lower triangle; mirrored strip by strip, which stays in the cache
    for left in range(0, n, _STRIP):
        right = min(left + _STRIP, n)
        square = np.tril(result[left:right, left:right])
        result[left:right, left:right] = square + np.tril(square, -1).T
        result[left:right, right:] = result[right:, left:right].T
    return result


def _eliminate(K: Floats, g: Floats, d: Floats, start: int, stop: int) -> None:
    """Eliminates nodes start..stop-1, whose columns of K are up to date; their sums go into d.

    By halves, so that nearly all work is matrix products; by strips of columns, so that only
    entries below the diagonal are computed.
    """
    if stop - start <= _LEAF:
        for j in range(start, stop):
            below = K[j + 1 :, j]
            d[j] = g[j] + below.sum()
            share = below[: stop - j - 1] / d[j]
            g[j + 1 : stop] += share * g[j]
            for i in range(j + 1, stop):
                K[i:, i] += share[i - j - 1] * below[i - j - 1 :]
        return
    middle = (start + stop) // 2
    _eliminate(K, g, d, start, middle)
    share = K[middle:stop, start:middle] / d[start:middle]
    g[middle:stop] += share @ g[start:middle]
    for left in range(middle, stop, _STRIP):
        right = min(left + _STRIP, stop)
        K[left:, left:right] += (share[left - middle : right - middle] @ K[left:, start:middle].T).T
    _eliminate(K, g, d, middle, stop)


def batch_diagonal(conductance: Floats, ground: Floats) -> Floats:
    """Diagonals of small inverses: `conductance` is (..., n, n), `ground` (..., n).

    Guarantee: the same relative error as `inverse`.
    """
    n = ground.shape[-1]
    # One array [conductance | ground | inverse factor]: eliminating a node is one addition to all
    # rows below it.
    identity = np.broadcast_to(np.eye(n), conductance.shape)
    A = np.concatenate([conductance, ground[..., None], identity], axis=-1)
    d = np.empty(ground.shape)
    for j in range(n):
        row, below = A[..., j : j + 1, j + 1 :], A[..., j + 1 :, j : j + 1]
        total = row[..., n - j - 1 : n - j] + np.add.reduce(below, axis=-2, keepdims=True)
        A[..., j + 1 :, j + 1 :] += below / total * row
        d[..., j : j + 1] = total[..., 0]
    diagonal: Floats = (A[..., n + 1 :] ** 2 / d[..., None]).sum(axis=-2)
    return diagonal
