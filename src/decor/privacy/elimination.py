"""Dense inverse of Sigma that never subtracts: star-mesh elimination (Grassmann, Taksar and Heyman) of an electrical network.

Why not Cholesky: Sigma is a tiny multiple of the identity plus a huge Laplacian, and its factorisation cancels. At a variance
ratio of 1e16 a plain inverse is six times too small, which would report a sixth of the truth. Here ground and edge conductances
are kept apart, every operation adds, multiplies or divides positive numbers, and each relative error is at most a few roundings.
"""

from __future__ import annotations

import numpy as np

from .network import UNIT_ROUNDOFF, Floats

_PANEL = 48


def relative_error(nodes: int) -> float:
    """Bound on the relative error of every entry of `inverse` (and of `batched_diagonal`).

    One elimination perturbs the remaining conductances by a relative (degree + 8) roundings. Resistances are homogeneous of
    degree -1 and monotone in the conductances, so these perturbations add up and are not amplified; the way back costs as much.
    """
    return 2.02 * UNIT_ROUNDOFF * (nodes * (nodes + 1) / 2 + 8 * nodes)


def inverse(conductance: Floats, ground: Floats) -> Floats:
    """(diag(ground) + Laplacian(conductance))^-1 as a full symmetric matrix.

    Guarantee: every entry has relative error at most `relative_error(n)`, whatever the ratio of conductances.
    """
    from scipy.linalg import lapack  # a tenth of a second to import, which `batched_diagonal` does without

    n = ground.size
    K = np.array(conductance, dtype=np.float64, order="F")
    g = np.array(ground, dtype=np.float64)
    d = np.empty(n)
    for start in range(0, n, _PANEL):
        stop = min(start + _PANEL, n)
        for j in range(start, stop):
            below = K[j + 1 :, j]
            d[j] = g[j] + below.sum()
            share = below[: stop - j - 1] / d[j]
            g[j + 1 : stop] += share * g[j]
            K[j + 1 :, j + 1 : stop] += np.multiply.outer(below, share)
        if stop < n:
            panel = K[stop:, start:stop]
            share = panel / d[start:stop]
            g[stop:] += share @ g[start:stop]
            K[stop:, stop:] += panel @ share.T
    # K below the diagonal now holds the factor: Sigma = (I - N) D (I - N)' with N = K / d, so its inverse only adds products.
    factor = K / -d
    np.fill_diagonal(factor, 1.0)
    root, _ = lapack.dtrtri(factor, lower=1, unitdiag=1, overwrite_c=1)
    root /= np.sqrt(d)[:, None]
    product, _ = lapack.dlauum(root, lower=1, overwrite_c=1)
    lower = np.tril(product)
    result: Floats = lower + np.tril(lower, -1).T
    return result


def batched_diagonal(conductance: Floats, ground: Floats) -> Floats:
    """Diagonals of many small inverses at once: `conductance` is (batch, n, n), `ground` (batch, n).

    Guarantee: the same relative error as `inverse`.
    """
    batch, n = ground.shape
    # One array [conductance | ground | inverse factor], so that eliminating a node is one addition to all rows below it.
    A = np.concatenate([conductance, ground[:, :, None], np.broadcast_to(np.eye(n), (batch, n, n))], axis=2)
    d = np.empty((batch, n))
    for j in range(n):
        below = A[:, j + 1 :, j]
        d[:, j] = A[:, j, n] + below.sum(axis=1)
        share = below / d[:, j, None]
        A[:, j + 1 :, j + 1 :] += share[:, :, None] * A[:, j, None, j + 1 :]
    diagonal: Floats = (A[:, :, n + 1 :] ** 2 / d[:, :, None]).sum(axis=1)
    return diagonal
