"""Leverages once colluders are deleted: exact for one colluder, a flow bound for several."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from decor.array_types import Floats, Ints

from . import dense
from .network import UNIT_ROUNDOFF, Network
from .solve import diagonal

TOLERANCE = 1e-7
"""A certified upper bound this close to an attained value is called exact."""


def after_deletion(
    G: Floats, network: Network, v: int, N: Ints, conductance: Floats, loose: float = 0.0
) -> Floats:
    """Upper bounds on the leverages once v is deleted, from the inverse G of the whole network.

    Deleting v adds g' M^-1 g to G (Woodbury), with M = diag(1/c) + 11'/s_v - G_NN over v's
    neighbours N, and g = G_N. An entrywise error e of G shifts the result by at most
    e (1 + |M^-1 g|_1)^2 to first order, so the error is known with the result. If v is (nearly) a
    cut vertex, M is (nearly) singular and the error is larger than `loose`: then the result comes
    from a new elimination.
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
    # scaled to a unit diagonal: weak edges make the entries of M differ by many orders
    scale = 1.0 / np.sqrt(M.diagonal())
    M *= np.multiply.outer(scale, scale)
    # of forming, scaling and solving, against a unit diagonal
    rounding = 16 * UNIT_ROUNDOFF * N.size
    if not e * float(scale @ scale) + rounding * N.size < 0.01 * float(np.linalg.eigvalsh(M)[0]):
        return from_scratch(network, [v])
    g = scale[:, None] * G[N]
    y = np.linalg.solve(M, g)
    # 1.1 covers the second order: the check above keeps the perturbation below a hundredth of M
    error = 1.1 * (e * (1.0 + scale @ np.abs(y)) ** 2 + rounding * np.abs(y).sum(axis=0) ** 2)
    result: Floats = G.diagonal() + (g * y).sum(axis=0) + error
    tolerable = max(loose, 0.01 * TOLERANCE, 30 * dense.entry_error(n))
    return result if (error < tolerable * result).all() else from_scratch(network, [v])


def from_scratch(network: Network, removed: Sequence[int]) -> Floats:
    """The leverages of a new elimination without some nodes; zero for these."""
    left, kept = network.without(removed)
    values = np.zeros(network.nodes)
    values[kept] = diagonal(left)
    return values


def pad(coalition: Sequence[int], user: int, q: int, n: int) -> tuple[int, ...]:
    """The coalition filled up to q of n users, without its target: more colluders never hurt it."""
    others = (v for v in range(n) if v != user and v not in coalition)
    return tuple(sorted((*coalition, *itertools.islice(others, q - len(coalition)))))


def bounds_within(network: Network, q: int, targets: Ints) -> Floats:
    """Upper bounds on the targets' leverages against any q colluders, by a dense inverse."""
    if q >= network.nodes:
        return np.asarray(1.0 / network.ground[targets])
    if q == 0:
        return diagonal(network)[targets]
    G = dense.inverse(network.dense(), network.ground)
    if q > 1:
        return np.array([_flow_bound(G, network, int(i), q) for i in targets])
    neighbours, best = network.neighbour_lists(), np.zeros(targets.size)
    for v in range(network.nodes):
        # a bound within a piece is loose anyway: an error of a thousandth costs nothing
        values = after_deletion(G, network, v, *neighbours[v], loose=1e-3)[targets]
        best = np.maximum(best, np.where(targets == v, 0.0, values))
    return best


def _flow_bound(G: Floats, network: Network, i: int, q: int) -> float:
    """Upper bound on the leverage of i without any q others, from the current through each.

    Inject one unit of current at i. The part that does not flow through the deleted nodes is still
    a flow from i to ground. Scaled back to one unit, its energy is at most
    R_i / (1 - sum of the deleted currents), and the resistance is the least energy of any flow
    (Thomson's principle).
    """
    n = network.nodes
    error = dense.entry_error(n) * float(G.diagonal().max())
    a, b = network.edges.T
    drop = G[a, i] - G[b, i]
    downhill = np.where(drop > 0, b, a)  # current flows to the lower potential
    through = np.bincount(downhill, network.conductance * (np.abs(drop) + 2 * error), n)
    through[i] = 0.0
    rest = 1.0 - float(np.sort(through)[-q:].sum())
    isolated = 1.0 / float(network.ground[i])
    return min(isolated, (float(G[i, i]) + error) / rest) if rest > 0 else isolated
