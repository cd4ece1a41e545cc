"""The gossip weights W: their consensus rate, and how much correlated noise one round leaves."""

from __future__ import annotations

import numpy as np

from decor.array_types import Floats

from .laplacian import DENSE_LIMIT, extreme_eigenvalue, laplacian_spectrum
from .topology import Topology


def consensus_rate(topology: Topology) -> float:
    """The paper's p: a round shrinks the squared distance to the average by 1 - p; 0 if split."""
    return consensus_rate_within_components(topology) if topology.is_connected else 0.0


def consensus_rate_within_components(topology: Topology) -> float:
    """As `consensus_rate`, towards the average of each component; 1 if there is no edge."""
    if topology.edge_count == 0:
        return 1.0
    spectrum = laplacian_spectrum(topology)
    if spectrum is not None:  # regular: W = I - L / (degree + 1)
        w = 1.0 - spectrum[1:] / (1.0 + int(topology.degrees[0]))
        return float(1.0 - np.abs(w).max() ** 2)
    if topology.users <= DENSE_LIMIT:
        # in ascending order, so the 1 of each component comes last
        w = np.linalg.eigvalsh(topology.mixing.toarray())
        return float(1.0 - np.abs(w[: topology.users - topology.component_count]).max() ** 2)
    return float(1.0 - extreme_eigenvalue(topology.mixing, topology.components) ** 2)


def edge_heterogeneity(topology: Topology) -> Floats:
    """|W_i - W_j|^2 of each edge: the share of its noise variance that one round leaves."""
    i, j = topology.edges.T
    if topology.users <= DENSE_LIMIT:
        dense = topology.mixing.toarray()
        return np.asarray(((dense[i] - dense[j]) ** 2).sum(axis=1))
    W = topology.mixing
    return np.asarray((W[i] - W[j]).power(2).sum(axis=1)).ravel()


def heterogeneity(topology: Topology) -> float:
    """H_G(W) of the paper; 0 if there is no edge."""
    return float(edge_heterogeneity(topology).mean() / 2) if topology.edge_count else 0.0


def distance_to_average(topology: Topology) -> float:
    """|W - J|_F^2, where J averages each component."""
    w, diagonal = topology.edge_weights, topology.self_weights
    # W J = J, so |W - J|^2 = |W|^2 - |J|^2, and |J|^2 is the number of components
    return float(2 * (w**2).sum() + (diagonal**2).sum() - topology.component_count)
