"""Leverages once colluders are deleted: exactly for one of them, bounded by the flow of current for
several.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decor.arrays import Floats, Ints

from . import dense
from .network import UNIT_ROUNDOFF, Network
from .solve import diagonal

TOLERANCE = 1e-7
"""A certified upper bound this close to a value really attained is called exact."""


def after_deletion(
    G: Floats, network: Network, v: int, N: Ints, conductance: Floats, loose: float = 0.0
) -> Floats:
    """Upper bounds on the leverages once v is deleted, from the inverse G of the whole.

    Deleting v adds g' M^-1 g to G, with M = diag(1/c) + 11'/s_v - G_NN over v's neighbours N and g
    = G_N. An entrywise error e of G shifts the result by at most e (1 + |M^-1 g|_1)^2 to first
    order, so the error is known with the result. M is scaled to a unit diagonal first: weak edges
    make its entries differ by many orders. Where v is (nearly) a cut vertex M is (nearly) singular
    and the error too large (more than `loose`): then it starts from scratch.
    """
    n = G.shape[0]
    e = dense.entry_error(n) * float(G.diagonal().max())
    if N.size == 0:
        return np.asarray(G.diagonal() + e)
    M = 1.0 / network.ground[v] - G[np.ix_(N, N)]
    M[np.diag_indices_from(M)] += 1.0 / conductance
    e += 8 * UNIT_ROUNDOFF / network.ground[v]
    if not M.diagonal().min() > 0:
        return from_scratch(network, [v])
    scale = 1.0 / np.sqrt(M.diagonal())
    M *= np.multiply.outer(scale, scale)
    # of forming, scaling and solving, against a unit diagonal
    rounding = 16 * UNIT_ROUNDOFF * N.size
    if not e * float(scale @ scale) + rounding * N.size < 0.01 * float(np.linalg.eigvalsh(M)[0]):
        return from_scratch(network, [v])
    g = scale[:, None] * G[N]
    y = np.linalg.solve(M, g)
    error = 1.1 * (e * (1.0 + scale @ np.abs(y)) ** 2 + rounding * np.abs(y).sum(axis=0) ** 2)
    result: Floats = G.diagonal() + (g * y).sum(axis=0) + error
    tolerable = max(loose, 0.01 * TOLERANCE, 30 * dense.entry_error(n))
    return result if (error < tolerable * result).all() else from_scratch(network, [v])


def from_scratch(network: Network, removed: Sequence[int]) -> Floats:
    left, kept = network.without(removed)
    values = np.zeros(network.nodes)
    values[kept] = diagonal(left)
    return values


def bounds_within(network: Network, q: int, targets: Ints) -> Floats:
    """Upper bounds on the targets' leverages against any q colluders of a network small enough for
    a dense inverse.
    """
    if q >= network.nodes:
        return np.asarray(1.0 / network.ground[targets])
    if q == 0:
        return diagonal(network)[targets]
    G = dense.inverse(network.dense(), network.ground)
    if q > 1:
        return np.array([_flow_bound(G, network, int(i), q) for i in targets])
    neighbours, best = network.neighbour_lists(), np.zeros(targets.size)
    for v in range(network.nodes):
        values = after_deletion(G, network, v, *neighbours[v], loose=1e-3)[targets]
        best = np.maximum(best, np.where(targets == v, 0.0, values))
    return best


def _flow_bound(G: Floats, network: Network, i: int, q: int) -> float:
    """Upper bound on the leverage of i without any q others, from the current that one unit
    injected at i sends through each.

    What does not flow through the deleted ones is still a flow from i to ground; scaled back to one
    unit it has an energy of at most R_i / (1 - sum of their currents), and the resistance is the
    least energy of any flow (Thomson).
    """
    n = network.nodes
    error = dense.entry_error(n) * float(G.diagonal().max())
    a, b = network.edges.T
    drop = G[a, i] - G[b, i]
    into = np.where(drop > 0, b, a)
    through = np.bincount(into, network.conductance * (np.abs(drop) + 2 * error), n)
    through[i] = 0.0
    rest = 1.0 - float(np.sort(through)[-q:].sum())
    alone = 1.0 / float(network.ground[i])
    return min(alone, (float(G[i, i]) + error) / rest) if rest > 0 else alone
