"""The modes of gossip: the eigenvalues of W, and how much noise falls into each of them.

The eigenvectors of W are modes of disagreement, which gossip shrinks independently of each other.
So what a polynomial of W leaves of the noise is a sum over modes: the noise in a mode, times what
gossip leaves of that mode. This predicts utility only; no privacy bound uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from decor.array_types import Floats

from .laplacian import DENSE_LIMIT, extreme_eigenvalue, laplacian_spectrum
from .topology import Topology

_LANCZOS_STEPS = 64
_PROBED_USERS = 200_000
"""Users times random starts of an estimate: one start on many users is worth many on few users."""


@dataclass(frozen=True, eq=False)
class Modes:
    """Eigenvalues of W except the 1 of each component, and the unit noise variance in each mode.

    For every function F, `users @ F(eigenvalues)` is the trace of F(W)(I - J), where J averages
    each component, and `edges @ F(eigenvalues)` is the trace of F(W) L.

    Attributes:
        eigenvalues: Of W, one per mode; nodes of a quadrature if not `exact`.
        users: The variance in each mode if every user adds unit noise.
        edges: The variance in each mode if every edge adds unit noise, with opposite signs at its
            two ends.
        exact: False for irregular graphs of more than DENSE_LIMIT users. Then these are the nodes
            and weights of a quadrature with random starts of a fixed seed: traces of smooth F to
            a few percent, but only the order of magnitude if F distinguishes modes very close to 1
            (graphs as long and thin as a path, runs of 100,000 steps).
    """

    eigenvalues: Floats
    users: Floats
    edges: Floats
    exact: bool = True


@lru_cache(maxsize=16)
def modes_of(topology: Topology) -> Modes:
    """Closed form for named families, dense up to DENSE_LIMIT users, otherwise an estimate."""
    n, parts = topology.users, topology.component_count
    if topology.edge_count == 0:
        return Modes(np.empty(0), np.empty(0), np.empty(0))
    w = topology.edge_weights
    uniform = bool(w.min() == w.max())  # then W = I - w L, and the two share their eigenvectors
    spectrum = _laplacian_spectrum(topology) if uniform else None
    # eigenvalues alone are much cheaper than eigenvectors
    if spectrum is None and uniform and n <= DENSE_LIMIT:
        spectrum = np.linalg.eigvalsh(topology.laplacian.toarray())
    if spectrum is not None:
        return Modes(1.0 - w[0] * spectrum[parts:], np.ones(n - parts), spectrum[parts:])
    if n <= DENSE_LIMIT:
        values, vectors = _eigenvectors(topology)
        per_edge = (vectors * (topology.laplacian.toarray() @ vectors)).sum(axis=0)
        return Modes(values, np.ones(n - parts), per_edge)
    return _estimate(topology)


def _estimate(topology: Topology) -> Modes:
    n, columns, rng = topology.users, _start_count(topology.users), np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (n, columns))
    nodes, weights = _quadrature(topology, signs, n - topology.component_count)
    edge_starts = _edge_starts(topology, np.ones(topology.edge_count), columns, rng)
    edge_nodes, edge_weights = _quadrature(topology, edge_starts, 2 * topology.edge_count)
    # one rule for both traces: each set of nodes has weight zero in the other trace
    zero = np.zeros_like(nodes)
    return Modes(
        np.concatenate([nodes, edge_nodes]),
        np.concatenate([weights, zero]),
        np.concatenate([zero, edge_weights]),
        exact=False,
    )


@lru_cache(maxsize=16)
def second_eigenvalue(topology: Topology) -> float:
    """The largest |eigenvalue| of W except the 1 of each component; 0 if there is no edge.

    On large irregular graphs Lanczos approaches it from below, within its tolerance. The result is
    raised by that tolerance, but never by more than a sixteenth of its distance to 1.
    """
    spectrum = _laplacian_spectrum(topology)
    if spectrum is not None or topology.users <= DENSE_LIMIT or topology.edge_count == 0:
        return float(np.abs(modes_of(topology).eigenvalues).max(initial=0.0))
    estimate = extreme_eigenvalue(topology.mixing, topology.components)
    return estimate + max(0.0, min(2e-8, (1.0 - estimate) / 16))


def function_of_mixing(topology: Topology, function: Callable[[Floats], Floats]) -> Floats:
    """F(W)(I - J) as a dense matrix, for up to DENSE_LIMIT users."""
    values, vectors = _eigenvectors(topology)
    return np.asarray((vectors * function(values)) @ vectors.T)


def estimate_edge_trace(
    topology: Topology, variances: Floats, function: Callable[[Floats], Floats]
) -> float:
    """The trace of F(W) K diag(variances) K' for large graphs, K the incidence matrix.

    Args:
        topology: The graph.
        variances: The noise variance of each edge.
        function: F, on arrays of eigenvalues.

    Returns:
        An estimate as in `Modes`.
    """
    columns, rng = _start_count(topology.users), np.random.default_rng(1)
    starts = _edge_starts(topology, np.sqrt(variances), columns, rng)
    nodes, weights = _quadrature(topology, starts, 2 * float(variances.sum()))
    return float(weights @ function(nodes))


def _laplacian_spectrum(topology: Topology) -> Floats | None:
    """All Laplacian eigenvalues, 0 first, if known in closed form and W's edges weigh the same."""
    name, n = topology.family.name if topology.family is not None else "", topology.users
    if name == "path":
        return np.asarray(4.0 * np.sin(np.pi * np.arange(n) / (2 * n)) ** 2)
    if name == "star":
        return np.concatenate([[0.0], np.ones(n - 2), [float(n)]]) if n > 1 else np.zeros(1)
    return laplacian_spectrum(topology)


def _eigenvectors(topology: Topology) -> tuple[Floats, Floats]:
    """W's eigenvalues and eigenvectors, without those of consensus."""
    values, vectors = np.linalg.eigh(topology.mixing.toarray())
    # in ascending order: the 1 of each component comes last
    kept = topology.users - topology.component_count
    return values[:kept], vectors[:, :kept]


def _start_count(users: int) -> int:
    return max(2, min(64, _PROBED_USERS // users))


def _edge_starts(
    topology: Topology, scales: Floats, columns: int, rng: np.random.Generator
) -> Floats:
    """Noise of random signs on the edges, as it falls on the users; one draw per column."""
    i, j = topology.edges.T
    starts = []
    for _ in range(columns):
        noise = scales * rng.choice([-1.0, 1.0], topology.edge_count)
        starts.append(np.bincount(i, noise, topology.users) - np.bincount(j, noise, topology.users))
    return np.column_stack(starts)


def _quadrature(topology: Topology, starts: Floats, total: float) -> tuple[Floats, Floats]:
    """Nodes and weights with sum w F(node) = mean over columns z of z' F(W)(I - J) z.

    This is Gauss's rule, by Lanczos. It is scaled to the `total` that is known for F = 1, which
    cancels most of the randomness of the starts. Without reorthogonalisation nodes may appear
    twice and share their weight, which leaves the sum as good.
    """
    from scipy.sparse import csr_array

    W, columns, components = topology.mixing, starts.shape[1], topology.components
    sizes = np.bincount(components)
    means = csr_array((1.0 / sizes[components], (components, np.arange(topology.users))))
    tridiagonal = np.zeros((columns, _LANCZOS_STEPS, _LANCZOS_STEPS))
    ahead = starts - (means @ starts)[components]
    v, squared = np.zeros_like(starts), (ahead**2).sum(axis=0)
    beta = np.sqrt(squared)
    for k in range(_LANCZOS_STEPS):
        before, v = v, np.where(beta > 0, ahead / np.maximum(beta, 1e-300), 0.0)
        ahead = W @ v - (beta if k else 0.0) * before
        alpha = (v * ahead).sum(axis=0)
        ahead -= alpha * v
        # rounding would bring consensus back, and it would grow
        ahead -= (means @ ahead)[components]
        beta = np.sqrt((ahead**2).sum(axis=0))
        beta[beta < 1e-12] = 0.0  # this start has no further modes
        tridiagonal[:, k, k] = alpha
        if k + 1 < _LANCZOS_STEPS:
            tridiagonal[:, k, k + 1] = tridiagonal[:, k + 1, k] = beta
    nodes, vectors = np.linalg.eigh(tridiagonal)
    # Golub and Welsch: weights are the squared first components of the eigenvectors
    weights = vectors[:, 0, :] ** 2 * squared[:, None]
    scale = total / max(float(weights.sum()), 1e-300)
    return np.clip(nodes, -1.0, 1.0).ravel(), weights.ravel() * scale
