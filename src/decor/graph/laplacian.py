"""Laplacian eigenvalues: closed forms of the families, and how well a graph stays connected."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from decor.array_types import Floats, Ints
from decor.errors import GraphError

from .topology import Topology

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DENSE_LIMIT = 1500
"""Up to this many users a dense eigenvalue problem takes about a second."""

SUBSET_LIMIT = 200_000
"""Most subsets that `algebraic_connectivity` tries."""


def laplacian_spectrum(topology: Topology) -> Floats | None:
    """All eigenvalues of a vertex-transitive family, exactly 0 first; None for other graphs."""
    family = topology.family
    if family is None or not family.vertex_transitive:
        return None
    n = family.sizes[0]
    match family.name:
        case "ring":
            return np.sort(cycle_spectrum(n))
        case "torus":
            rows, columns = (cycle_spectrum(size) for size in family.sizes)
            return np.sort(np.add.outer(rows, columns).ravel())
        case "complete":
            return np.concatenate([np.zeros(1), np.full(n - 1, float(n))])
        case "hypercube":
            multiplicities = [math.comb(n, k) for k in range(n + 1)]
            return np.asarray(np.repeat(2.0 * np.arange(n + 1), multiplicities), dtype=np.float64)
    raise AssertionError(family.name)


def cycle_spectrum(n: int) -> Floats:
    """Laplacian eigenvalues of a cycle in the order of its Fourier modes; for n = 2, of an edge."""
    if n == 2:
        return np.array([0.0, 2.0])
    k = np.arange(n)
    # 2 - 2 cos would lose the digits of small eigenvalues
    return np.asarray(4.0 * np.sin(np.pi * np.minimum(k, n - k) / n) ** 2)


def algebraic_connectivity(topology: Topology, deletions: int = 0) -> float:
    """a(G), the second smallest Laplacian eigenvalue, or a_q(G), its minimum over deletions.

    Args:
        topology: The graph.
        deletions: q, the number of users to delete. Every subset is tried, so this is for small
            graphs. A single remaining user counts as 0.
    """
    if deletions:
        return _worst_connectivity(topology, deletions)
    n = topology.users
    if n == 1 or not topology.is_connected:
        return 0.0
    spectrum = laplacian_spectrum(topology)
    if spectrum is not None:
        return float(spectrum[1])
    family = topology.family
    if family is not None and family.name == "star":
        return 1.0 if n > 2 else 2.0
    if family is not None and family.name in ("path", "grid"):
        # the slowest mode runs along the longer side
        return 4 * math.sin(math.pi / (2 * max(family.sizes))) ** 2
    if n <= DENSE_LIMIT:
        return max(0.0, float(np.linalg.eigvalsh(topology.laplacian.toarray())[1]))
    from scipy.sparse.linalg import eigsh

    # shift and invert just below 0, the smallest eigenvalue, where L is singular
    smallest = eigsh(topology.laplacian.tocsc(), k=2, sigma=-1e-4, which="LM")[0]
    return max(0.0, float(np.sort(smallest)[1]))


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
            f"{SUBSET_LIMIT:,}; use a smaller graph"
        )
    A = topology.adjacency.toarray()
    # by symmetry it does not matter which single user is deleted
    tried = 1 if topology.vertex_transitive and deletions == 1 else subsets
    sets = itertools.islice(itertools.combinations(range(n), deletions), tried)
    worst = math.inf
    # batches of subsets whose matrices take about 16 MB
    while batch := list(itertools.islice(sets, max(1, 2_000_000 // n**2))):
        keep = np.array([np.delete(np.arange(n), deleted) for deleted in batch])
        part = A[keep[:, :, None], keep[:, None, :]]
        L = -part
        k = np.arange(n - deletions)
        L[:, k, k] += part.sum(axis=2)
        worst = min(worst, float(np.linalg.eigvalsh(L)[:, 1].min()))
    return max(0.0, worst)


def vertex_connectivity(topology: Topology) -> int:
    """The least number of users whose deletion disconnects the graph, or leaves one user."""
    n = topology.users
    if n == 1 or not topology.is_connected:
        return 0
    # in these families the cheapest cut isolates one user of least degree
    if topology.family is not None and topology.family.name != "grid":
        return int(topology.degrees.min())
    import networkx as nx

    return int(nx.node_connectivity(topology.to_networkx()))


def extreme_eigenvalue(W: csr_array, components: Ints) -> float:
    """The largest |eigenvalue| of a mixing matrix other than each component's 1, by Lanczos."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    sizes = np.bincount(components)

    def without_consensus(x: Floats) -> Floats:
        x = x.ravel()
        x = x - (np.bincount(components, x) / sizes)[components]
        return np.asarray(W @ x)

    n = W.shape[0]
    # a fixed start, so that the same graph always gives the same plan
    start = np.cos(np.arange(n, dtype=float) ** 2)
    operator = LinearOperator((n, n), matvec=without_consensus, dtype=float)
    return float(abs(eigsh(operator, k=1, which="LM", v0=start, tol=1e-8)[0][0]))
