"""Leverages (Sigma^-1)_ii: all that privacy needs to know of the graph and the noise.

The covariance is Sigma = s^2 (diag(g) + x L), with s the least own noise of any user, so the
leverages are those of the network with ground g and conductances x, divided by s^2. They only grow
when g or x shrinks (Rayleigh's monotonicity law), so both may be rounded down and never up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decor import progress
from decor.array_types import Floats
from decor.errors import CannotBound
from decor.graph.laplacian import laplacian_spectrum
from decor.graph.topology import Topology

from . import dense
from .network import UNIT_ROUNDOFF, Network

SMALL = 64
"""Up to this many users pure NumPy is fastest."""
DENSE = 1200
"""Up to this many users a dense inverse is fastest; above, sparse elimination."""

_LARGEST_RATIO = 1e200
_BITS = 2.0**40


def round_down_ratio(ratio: float) -> float:
    """The ratio in 40 bits: a noise pair that is scaled gives the same ratio again.

    Costs a relative 1e-12 at most.
    """
    # larger ratios change nothing: the leverages are 1/n of the component to rounding
    mantissa, exponent = math.frexp(min(ratio, _LARGEST_RATIO))
    return math.ldexp(math.floor(mantissa * _BITS) / _BITS, exponent)


@dataclass(frozen=True)
class ScaledCovariance:
    """The covariance diag(g) + x L of one phase's noise, in units of the least sigma_cdp^2.

    Attributes:
        topology: The graph.
        ratio: x = sigma_cor^2 / sigma_cdp^2, one for all edges or one per edge; rounded down.
        own: g, each user's sigma_cdp^2 in units of the least one, so from 1; rounded down. None
            where all users have the same.
    """

    topology: Topology
    ratio: float | tuple[float, ...]
    own: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        x = self.ratio
        rounded = round_down_ratio(x) if isinstance(x, float) else tuple(map(round_down_ratio, x))
        object.__setattr__(self, "ratio", rounded)
        if self.own is not None:
            object.__setattr__(self, "own", tuple(map(round_down_ratio, self.own)))

    @property
    def uniform(self) -> bool:
        return isinstance(self.ratio, float) and self.own is None

    @property
    def ground(self) -> Floats:
        """Each user's own noise: g."""
        return np.ones(self.topology.users) if self.own is None else np.array(self.own)

    @property
    def correlated(self) -> bool:
        largest = self.ratio if isinstance(self.ratio, float) else max(self.ratio, default=0.0)
        return self.topology.edge_count > 0 and largest > 0

    def network(self) -> Network:
        """The network of own noise to ground; edges without noise are left out."""
        edges, ground = self.topology.edges, self.ground
        if isinstance(self.ratio, float) and self.ratio > 0:
            return Network(ground, edges, np.full(edges.shape[0], self.ratio))
        x = np.broadcast_to(np.asarray(self.ratio, dtype=np.float64), (edges.shape[0],))
        return Network(ground, edges[x > 0], x[x > 0])


def leverages(noise: ScaledCovariance) -> Floats:
    """Upper bounds on ((diag(g) + x L)^-1)_ii of each user, above the truth by rounding alone.

    Guarantee: never below the truth, and above it by a relative 1e-6 at most, whatever the ratio.
    Raises CannotBound for a graph too large for direct elimination.
    """
    # rings, tori, complete graphs and hypercubes have a closed form, at any size
    if isinstance(noise.ratio, float) and noise.own is None:
        spectrum = laplacian_spectrum(noise.topology)
        if spectrum is not None:
            return _transitive_leverages(spectrum, noise.ratio, noise.topology.users)
    return diagonal(noise.network())


def diagonal(network: Network) -> Floats:
    """Upper bounds on the diagonal of Sigma^-1, by the elimination that suits the size."""
    n = network.nodes
    if network.edges.size == 0:
        return network.isolated
    if n <= SMALL:
        values = dense.batch_diagonal(network.dense(), network.ground)
        return np.asarray(values * (1 + dense.relative_error(n)))
    if n <= DENSE:
        values = dense.inverse(network.dense(), network.ground).diagonal()
        return np.asarray(values * (1 + dense.relative_error(n)))
    progress.report(f"eliminating {n:,} users (the first time also compiles, about 10 s)")
    from . import sparse_inverse  # numba takes a second to import

    values, error = sparse_inverse.diagonal(network)
    if not error < 1e-6:
        raise CannotBound(
            f"rounding in a graph of {n:,} users could reach a relative {error:.1e}; use a "
            "sparser graph"
        )
    return np.asarray(values * (1 + error))


def _transitive_leverages(spectrum: Floats, ratio: float, users: int) -> Floats:
    """On a vertex-transitive graph each user has the mean of 1 / (1 + x lambda)."""
    value = float(np.mean(1.0 / (1.0 + ratio * spectrum)))
    # a few roundings per term, and those of a pairwise sum
    raised = np.float64(value * (1 + (64 + np.log2(users)) * UNIT_ROUNDOFF))
    return np.broadcast_to(raised, (users,))
