"""The modes of gossip: the eigenvalues of W, and how much noise falls into each of them.

W's eigenvectors are modes of disagreement that gossip shrinks independently of each other. So
whatever a polynomial of W leaves of the noise is a sum over modes: of what the noise puts in, times
what gossip leaves of that mode. This predicts utility only; privacy never asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from decor.arrays import Floats

from .spectrum import DENSE_LIMIT, extreme_eigenvalue, laplacian_spectrum
from .topology import Topology

_LANCZOS_STEPS = 64
_PROBED_USERS = 200_000
"""Users times random starts of an estimate: one start of many users is worth many starts of few."""


@dataclass(frozen=True, eq=False)
class Modes:
    """Eigenvalues of W other than the 1 of every component, and the variance that unit noise puts
    into each.

    For every function F: `users @ F(eigenvalues)` is the trace of F(W)(I - J), J averaging each
    component, and `edges @ F(eigenvalues)` that of F(W) L. When not `exact` (irregular graphs of
    more than DENSE_LIMIT users) they are the nodes and weights of a quadrature with random starts
    of a fixed seed: traces of smooth F to a few percent, but only the order of size where F tells
    apart modes very close to 1 (graphs as long and thin as a path, runs of 100,000 steps).
    """

    eigenvalues: Floats
    users: Floats
    edges: Floats
    exact: bool = True


@lru_cache(maxsize=16)
def modes_of(topology: Topology) -> Modes:
    """Closed form for named families, dense up to DENSE_LIMIT users, otherwise estimated."""
    n, parts = topology.users, topology.component_count
    if topology.edge_count == 0:
        return Modes(np.empty(0), np.empty(0), np.empty(0))
    w = topology.edge_weights
    alike = bool(w.min() == w.max())  # then W = I - w L, and the two share their eigenvectors
    spectrum = _laplacian(topology) if alike else None
    if spectrum is None and alike and n <= DENSE_LIMIT:
        spectrum = np.linalg.eigvalsh(topology.laplacian.toarray())
    if spectrum is not None:
        return Modes(1.0 - w[0] * spectrum[parts:], np.ones(n - parts), spectrum[parts:])
    if n <= DENSE_LIMIT:
        values, vectors = _decomposed(topology)
        return Modes(
            values,
            np.ones(n - parts),
            (vectors * (topology.laplacian.toarray() @ vectors)).sum(axis=0),
        )
    return _estimated(topology)


def _estimated(topology: Topology) -> Modes:
    n, columns, rng = topology.users, _starts(topology.users), np.random.default_rng(0)
    nodes, weights = _quadrature(
        topology, rng.choice([-1.0, 1.0], (n, columns)), n - topology.component_count
    )
    spread = _spread(topology, np.ones(topology.edge_count), columns, rng)
    more_nodes, more_weights = _quadrature(topology, spread, 2 * topology.edge_count)
    zero = np.zeros_like(nodes)
    return Modes(
        np.concatenate([nodes, more_nodes]),
        np.concatenate([weights, zero]),
        np.concatenate([zero, more_weights]),
        exact=False,
    )


@lru_cache(maxsize=16)
def second_eigenvalue(topology: Topology) -> float:
    """The largest magnitude among W's eigenvalues other than the 1 of every component: 0 when
    nobody has a neighbour.

    On large irregular graphs Lanczos finds it from below, within its tolerance; it is raised by as
    much, though never by more than a sixteenth of its distance to 1.
    """
    spectrum = _laplacian(topology)
    if spectrum is not None or topology.users <= DENSE_LIMIT or topology.edge_count == 0:
        return float(np.abs(modes_of(topology).eigenvalues).max(initial=0.0))
    found = extreme_eigenvalue(topology.mixing, topology.components)
    return found + max(0.0, min(2e-8, (1.0 - found) / 16))


def function_of_mixing(topology: Topology, function: Callable[[Floats], Floats]) -> Floats:
    """F(W)(I - J), dense: for up to DENSE_LIMIT users."""
    values, vectors = _decomposed(topology)
    return np.asarray((vectors * function(values)) @ vectors.T)


def edges_estimated(
    topology: Topology, variances: Floats, function: Callable[[Floats], Floats]
) -> float:
    """The trace of F(W) K diag(variances) K', K the incidence matrix, for large graphs: an estimate
    as in `Modes`.
    """
    spread = _spread(
        topology, np.sqrt(variances), _starts(topology.users), np.random.default_rng(1)
    )
    nodes, weights = _quadrature(topology, spread, 2 * float(variances.sum()))
    return float(weights @ function(nodes))


def _laplacian(topology: Topology) -> Floats | None:
    """Every Laplacian eigenvalue, 0 first, where a closed form is known and all edges of W weigh
    the same.
    """
    name, n = topology.family.name if topology.family is not None else "", topology.users
    if name == "path":
        return np.asarray(4.0 * np.sin(np.pi * np.arange(n) / (2 * n)) ** 2)
    if name == "star":
        return np.concatenate([[0.0], np.ones(n - 2), [float(n)]]) if n > 1 else np.zeros(1)
    return laplacian_spectrum(topology)


def _decomposed(topology: Topology) -> tuple[Floats, Floats]:
    """W's eigenvalues and eigenvectors without those of consensus, which are the largest."""
    values, vectors = np.linalg.eigh(topology.mixing.toarray())
    kept = topology.users - topology.component_count
    return values[:kept], vectors[:, :kept]


def _starts(users: int) -> int:
    return max(2, min(64, _PROBED_USERS // users))


def _spread(topology: Topology, scales: Floats, columns: int, rng: np.random.Generator) -> Floats:
    """Noise of random signs on the edges, as it falls on the users; a column each."""
    i, j = topology.edges.T
    signs = [scales * rng.choice([-1.0, 1.0], topology.edge_count) for _ in range(columns)]
    return np.column_stack(
        [np.bincount(i, s, topology.users) - np.bincount(j, s, topology.users) for s in signs]
    )


def _quadrature(topology: Topology, starts: Floats, total: float) -> tuple[Floats, Floats]:
    """Nodes and weights with sum w F(node) = mean over columns z of z' F(W)(I - J) z: Gauss's rule,
    by Lanczos.

    Scaled to the `total` that is known for F = 1, which makes most of the chance in the starts
    cancel. Without reorthogonalisation: nodes may then come twice and share their weight, which
    leaves the sum as good.
    """
    from scipy.sparse import csr_array

    W, columns = topology.mixing, starts.shape[1]
    sizes = np.bincount(topology.components)
    means = csr_array(
        (1.0 / sizes[topology.components], (topology.components, np.arange(topology.users)))
    )
    tridiagonal = np.zeros((columns, _LANCZOS_STEPS, _LANCZOS_STEPS))
    ahead = starts - (means @ starts)[topology.components]
    v, squared = np.zeros_like(starts), (ahead**2).sum(axis=0)
    beta = np.sqrt(squared)
    for k in range(_LANCZOS_STEPS):
        before, v = v, np.where(beta > 0, ahead / np.maximum(beta, 1e-300), 0.0)
        ahead = W @ v - (beta if k else 0.0) * before
        alpha = (v * ahead).sum(axis=0)
        ahead -= alpha * v
        # consensus would creep back by rounding, and grow
        ahead -= (means @ ahead)[topology.components]
        beta = np.sqrt((ahead**2).sum(axis=0))
        beta[beta < 1e-12] = 0.0  # the start has no more modes than these
        tridiagonal[:, k, k] = alpha
        if k + 1 < _LANCZOS_STEPS:
            tridiagonal[:, k, k + 1] = tridiagonal[:, k + 1, k] = beta
    nodes, vectors = np.linalg.eigh(tridiagonal)
    weights = vectors[:, 0, :] ** 2 * squared[:, None]
    return np.clip(nodes, -1.0, 1.0).ravel(), weights.ravel() * (
        total / max(float(weights.sum()), 1e-300)
    )
