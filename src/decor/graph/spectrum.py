"""Laplacian eigenvalues: closed forms of the families, and how well a graph stays connected."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from decor.arrays import Floats, Ints
from decor.errors import GraphError

from .topology import Family, Topology

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DENSE_LIMIT = 1500
"""Up to this many users a dense eigenvalue problem takes about a second."""

SUBSET_LIMIT = 200_000


def laplacian_spectrum(topology: Topology) -> Floats | None:
    """Every eigenvalue, smallest (exactly 0) first, of a vertex-transitive family; None for other
    graphs.
    """
    family = topology.family
    if family is None or not family.vertex_transitive:
        return None
    return np.sort(_transitive(family))


def _transitive(family: Family) -> Floats:
    n = family.sizes[0]
    match family.name:
        case "ring":
            return _closed(n)
        case "torus":
            return np.asarray(np.add.outer(_closed(n), _closed(family.sizes[1])).ravel())
        case "complete":
            return np.concatenate([np.zeros(1), np.full(n - 1, float(n))])
        case "hypercube":
            return np.asarray(
                np.repeat(2.0 * np.arange(n + 1), [math.comb(n, k) for k in range(n + 1)]),
                dtype=np.float64,
            )
    raise AssertionError(family.name)


def _closed(n: int) -> Floats:
    """Of a cycle; of two users, of their one edge.

    4 sin^2 of small angles keeps every digit, 2 - 2 cos does not.
    """
    k = np.arange(n)
    values: Floats = 4.0 * np.sin(np.pi * np.minimum(k, n - k) / n) ** 2
    return values if n > 2 else np.array([0.0, 2.0])


def algebraic_connectivity(topology: Topology, deletions: int = 0) -> float:
    """a(G), the second smallest Laplacian eigenvalue, or a_q(G): its minimum over all deletions of
    q users.

    a_q takes every subset in turn, so it is for small graphs; a single user left counts as 0.
    """
    if deletions:
        return _worst_connectivity(topology, deletions)
    n = topology.users
    if n == 1 or not topology.is_connected:
        return 0.0
    spectrum = laplacian_spectrum(topology)
    if spectrum is not None:
        return float(spectrum[1])
    if topology.family is not None:
        sizes = {"star": (), "path": (n,), "grid": topology.family.sizes}.get(topology.family.name)
        if sizes is not None:
            return (
                4 * math.sin(math.pi / (2 * max(sizes))) ** 2 if sizes else (1.0 if n > 2 else 2.0)
            )
    if n <= DENSE_LIMIT:
        return max(0.0, float(np.linalg.eigvalsh(topology.laplacian.toarray())[1]))
    from scipy.sparse.linalg import eigsh

    return max(
        0.0, float(np.sort(eigsh(topology.laplacian.tocsc(), k=2, sigma=-1e-4, which="LM")[0])[1])
    )


def _worst_connectivity(topology: Topology, deletions: int) -> float:
    n = topology.users
    if not 0 < deletions < n:
        raise GraphError(
            f"{deletions} of {n} users cannot be deleted; delete between 0 and {n - 1}"
        )
    if deletions == n - 1:
        return 0.0
    subsets = math.comb(n, deletions)
    if subsets > SUBSET_LIMIT:
        raise GraphError(
            f"a_{deletions} of {n} users would take {subsets:,} eigenvalue problems, more than "
            f"{SUBSET_LIMIT:,}; "
            "use a smaller graph"
        )
    A = topology.adjacency.toarray()
    some = 1 if topology.vertex_transitive and deletions == 1 else subsets
    sets = itertools.islice(itertools.combinations(range(n), deletions), some)
    worst = math.inf
    while chunk := list(itertools.islice(sets, max(1, 2_000_000 // n**2))):
        keep = np.array([np.delete(np.arange(n), gone) for gone in chunk])
        part = A[keep[:, :, None], keep[:, None, :]]
        L = -part
        k = np.arange(n - deletions)
        L[:, k, k] += part.sum(axis=2)
        worst = min(worst, float(np.linalg.eigvalsh(L)[:, 1].min()))
    return max(0.0, worst)


def vertex_connectivity(topology: Topology) -> int:
    """The least number of users whose deletion disconnects the graph (or leaves one user)."""
    n = topology.users
    if n == 1 or not topology.is_connected:
        return 0
    # these lose connection first around one user
    if topology.family is not None and topology.family.name != "grid":
        return int(topology.degrees.min())
    import networkx as nx

    return int(nx.node_connectivity(topology.to_networkx()))


def extreme_eigenvalue(W: csr_array, components: Ints) -> float:
    """The largest magnitude among the eigenvalues of a mixing matrix other than the 1 of every
    component (Lanczos).
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    sizes = np.bincount(components)

    def remainder(x: Floats) -> Floats:
        x = x.ravel()
        x = x - (np.bincount(components, x) / sizes)[components]
        return np.asarray(W @ x)

    n = W.shape[0]
    # fixed, so that the same graph gives the same plan every time
    start = np.cos(np.arange(n, dtype=float) ** 2)
    return float(
        abs(
            eigsh(
                LinearOperator((n, n), matvec=remainder, dtype=float),
                k=1,
                which="LM",
                v0=start,
                tol=1e-8,
            )[0][0]
        )
    )
