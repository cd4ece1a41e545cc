"""The electrical network that is the noise: Sigma = diag(ground) + Laplacian(conductance);
(Sigma^-1)_ii is a resistance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from decor.arrays import Floats, Ints

UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True, eq=False)
class Network:
    """Every node has a conductance to ground (its independent variance), every edge one between its
    ends.

    `edges` is an (m, 2) array of node numbers, lower first, without repeats; all numbers are
    positive (an edge of conductance zero is left out by whoever builds the network).
    """

    ground: Floats
    edges: Ints
    conductance: Floats

    @property
    def nodes(self) -> int:
        return int(self.ground.size)

    def without(self, removed: Iterable[int]) -> tuple[Network, Ints]:
        """The network left when nodes are removed with their edges, and the old numbers of the
        nodes kept.
        """
        keep = np.ones(self.nodes, dtype=bool)
        keep[list(removed)] = False
        number = np.cumsum(keep) - 1
        stays = keep[self.edges].all(axis=1)
        left = Network(self.ground[keep], number[self.edges[stays]], self.conductance[stays])
        return left, np.flatnonzero(keep)

    def dense(self) -> Floats:
        """The symmetric matrix of conductances between nodes, zero on the diagonal."""
        K = np.zeros((self.nodes, self.nodes))
        i, j = self.edges.T
        K[i, j] = K[j, i] = self.conductance
        return K

    def neighbour_lists(self) -> list[tuple[Ints, Floats]]:
        """Every node's neighbours and the conductances to them."""
        i, j = self.edges.T
        ends, others, values = np.r_[i, j], np.r_[j, i], np.r_[self.conductance, self.conductance]
        order = np.lexsort((others, ends))
        cuts = np.searchsorted(ends[order], np.arange(1, self.nodes))
        return list(zip(np.split(others[order], cuts), np.split(values[order], cuts), strict=True))
