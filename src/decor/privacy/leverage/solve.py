"""Leverage: (Sigma^-1)_ii of every user, which is all that privacy needs to know of graph and
noise.

A `Noise` is kept as one number and a ratio: Sigma = s^2 (I + x L), so leverages are those of the
network with unit ground and conductances x, divided by s^2. They only grow when x shrinks
(Rayleigh), so x may be rounded down and never up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decor import progress
from decor.arrays import Floats
from decor.errors import CannotBound
from decor.graph.spectrum import laplacian_spectrum
from decor.graph.topology import Topology

from . import dense
from .network import UNIT_ROUNDOFF, Network

SMALL = 64
DENSE = 1200
"""Up to SMALL users pure NumPy is quickest; up to DENSE a dense inverse is; above, sparse
elimination.
"""

_LARGEST_RATIO = 1e200
_BITS = 2.0**40


def rounded_down(ratio: float) -> float:
    """A ratio with 40 bits: a couple scaled up or down gives the same ratio again.

    Costs a relative 1e-12 at most.
    """
    mantissa, exponent = math.frexp(min(ratio, _LARGEST_RATIO))
    return math.ldexp(math.floor(mantissa * _BITS) / _BITS, exponent)


@dataclass(frozen=True)
class Noise:
    """One phase's covariance in units of s^2: the graph, and x = c^2 / s^2 (one ratio, or one for
    every edge).
    """

    topology: Topology
    ratio: float | tuple[float, ...]

    def __post_init__(self) -> None:
        given = self.ratio
        rounded = (
            rounded_down(given)
            if isinstance(given, float)
            else tuple(rounded_down(x) for x in given)
        )
        object.__setattr__(self, "ratio", rounded)

    @property
    def uniform(self) -> bool:
        return isinstance(self.ratio, float)

    @property
    def correlated(self) -> bool:
        most = self.ratio if isinstance(self.ratio, float) else max(self.ratio, default=0.0)
        return self.topology.edge_count > 0 and most > 0

    def network(self) -> Network:
        """Unit ground; edges without noise are left out."""
        edges, ground = self.topology.edges, np.ones(self.topology.users)
        if isinstance(self.ratio, float) and self.ratio > 0:
            return Network(ground, edges, np.full(edges.shape[0], self.ratio))
        x = np.broadcast_to(np.asarray(self.ratio, dtype=np.float64), (edges.shape[0],))
        return Network(ground, edges[x > 0], x[x > 0])


def leverages(noise: Noise) -> Floats:
    """Upper bounds on ((I + x L)^-1)_ii of every user, above the truth by rounding alone (a
    relative 1e-6 at the very most).

    Guarantee: never below the truth, whatever the ratio; `CannotBound` for a graph too large for
    direct elimination.
    """
    if isinstance(noise.ratio, float):
        spectrum = laplacian_spectrum(noise.topology)
        if spectrum is not None:
            return _closed_form(spectrum, noise.ratio, noise.topology.users)
    return diagonal(noise.network())


def diagonal(network: Network) -> Floats:
    """Upper bounds on the diagonal of Sigma^-1, by the elimination that suits the size."""
    n = network.nodes
    if network.edges.size == 0:
        return np.asarray(1.0 / network.ground)
    if n <= SMALL:
        values = dense.batched_diagonal(network.dense(), network.ground)
        return np.asarray(values * (1 + dense.relative_error(n)))
    if n <= DENSE:
        values = dense.inverse(network.dense(), network.ground).diagonal()
        return np.asarray(values * (1 + dense.relative_error(n)))
    progress.report(f"eliminating {n:,} users (the first time also compiles, about 10 s)")
    from . import sparse_inverse  # numba: a second to import

    values, error = sparse_inverse.diagonal(network)
    if not error < 1e-6:
        raise CannotBound(
            f"rounding in a graph of {n:,} users could reach a relative "
            f"{error:.1e}; use a sparser graph"
        )
    return np.asarray(values * (1 + error))


def _closed_form(spectrum: Floats, ratio: float, users: int) -> Floats:
    """On a vertex-transitive graph everybody has the mean of 1 / (1 + x lambda); each term is right
    to a few roundings.
    """
    value = float(np.mean(1.0 / (1.0 + ratio * spectrum)))
    return np.broadcast_to(
        np.float64(value * (1 + (64 + np.log2(users)) * UNIT_ROUNDOFF)), (users,)
    )
