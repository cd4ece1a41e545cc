"""The gossip weights W: how fast they reach consensus, and how much correlated noise one round
leaves.
"""

from __future__ import annotations

import numpy as np

from decor.arrays import Floats

from .spectrum import DENSE_LIMIT, extreme_eigenvalue, laplacian_spectrum
from .topology import Topology


def consensus_rate(topology: Topology) -> float:
    """p of the paper: one gossip round shrinks the squared distance to the average by 1 - p; 0 when
    disconnected.
    """
    return consensus_rate_within_components(topology) if topology.is_connected else 0.0


def consensus_rate_within_components(topology: Topology) -> float:
    """As `consensus_rate`, towards the average of each component: 1 when nobody has a neighbour."""
    if topology.edge_count == 0:
        return 1.0
    spectrum = laplacian_spectrum(topology)
    if spectrum is not None:  # regular: W = I - L / (degree + 1)
        w = 1.0 - spectrum[1:] / (1.0 + int(topology.degrees[0]))
        return float(1.0 - np.abs(w).max() ** 2)
    if topology.users <= DENSE_LIMIT:
        w = np.linalg.eigvalsh(topology.mixing.toarray())
        return float(1.0 - np.abs(w[: topology.users - topology.component_count]).max() ** 2)
    return float(1.0 - extreme_eigenvalue(topology.mixing, topology.components) ** 2)


def edge_heterogeneity(topology: Topology) -> Floats:
    """|W_i - W_j|^2 of every edge: what one gossip round leaves of that edge's noise, per unit of
    variance.
    """
    W = topology.mixing
    i, j = topology.edges.T
    if topology.users <= DENSE_LIMIT:
        dense = W.toarray()
        result: Floats = ((dense[i] - dense[j]) ** 2).sum(axis=1)
        return result
    result = np.asarray((W[i] - W[j]).power(2).sum(axis=1)).ravel()
    return result


def heterogeneity(topology: Topology) -> float:
    """H_G(W) of the paper; 0 when there is no edge."""
    return float(edge_heterogeneity(topology).mean() / 2) if topology.edge_count else 0.0


def distance_to_average(topology: Topology) -> float:
    """|W - J|_F^2, J averaging each component."""
    w, diagonal = topology.edge_weights, topology.self_weights
    return float(2 * (w**2).sum() + (diagonal**2).sum() - topology.component_count)
