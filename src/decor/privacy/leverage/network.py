"""The noise as an electrical network: Sigma = diag(ground) + Laplacian(conductance).

(Sigma^-1)_ii is then the resistance from node i to ground.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from decor.array_types import Floats, Ints

UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True, eq=False)
class Network:
    """A conductance from each node to ground, and one between the two ends of each edge.

    Attributes:
        ground: Each node's conductance to ground: the variance of its independent noise; positive.
        edges: An (m, 2) array of node numbers, the lower one first, without repeats.
        conductance: The variance of each edge's noise; positive. Leave out edges without noise.
    """

    ground: Floats
    edges: Ints
    conductance: Floats

    @property
    def nodes(self) -> int:
        return int(self.ground.size)

    @property
    def isolated(self) -> Floats:
        """Each node's resistance if it has no edges: exact for unit ground, else rounded up."""
        alone = 1.0 / self.ground
        return np.where(self.ground == 1.0, alone, np.nextafter(alone, np.inf))

    def without(self, removed: Iterable[int]) -> tuple[Network, Ints]:
        """The network without some nodes and their edges, and the old numbers of the nodes kept."""
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
        """Each node's neighbours, in ascending order, and the conductances to them."""
        i, j = self.edges.T
        ends, others, values = np.r_[i, j], np.r_[j, i], np.r_[self.conductance, self.conductance]
        order = np.lexsort((others, ends))
        # the last node's list ends with the arrays, so there is one cut fewer than nodes
        cuts = np.searchsorted(ends[order], np.arange(1, self.nodes))
        return list(zip(np.split(others[order], cuts), np.split(values[order], cuts), strict=True))
