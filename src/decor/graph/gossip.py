"""Gossip: what the communication of one training step does to the models.

In every round users replace their model by a weighted mean of their neighbours' (and, accelerated,
of their own of the round before). All rounds of a step together are a polynomial P(W) of the
Metropolis matrix with P(1) = 1: the average of all models stays, and every mode of disagreement
shrinks by P at its eigenvalue. Which polynomial is free to choose: it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from decor import checks
from decor.arrays import Floats
from decor.choices import Acceleration
from decor.errors import InputError

from .design import designed_roots
from .modes import edges_estimated, function_of_mixing, modes_of, second_eigenvalue
from .spectrum import DENSE_LIMIT, laplacian_spectrum
from .topology import Topology

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_ROUNDS = 10_000

_FILL = 5_000_000
"""Non-zeros of a sparse P beyond which its rows are bounded instead of computed."""


@dataclass(frozen=True)
class Gossip:
    """`rounds` of gossip in every training step: W^rounds, or `accelerate`d, a better polynomial of
    that degree.

    "designed" is the one that leaves least of the edges' noise on this very graph, nothing where
    there are rounds enough (`decor.graph.design`); it needs all eigenvalues. True (or "chebyshev")
    needs one: with l the second largest |eigenvalue| of W it is T_k(W/l) / T_k(1/l), which shrinks
    the worst mode in [-l, l] most. That is best for models that differ between far ends of the
    graph; of edges' noise, which sits in other modes, plain rounds leave less on rings. Should l be
    a little too small (on large irregular graphs it is found iteratively), a mode beyond it shrinks
    less than promised, and still shrinks: T_k grows beyond 1, so |P| < P(1) = 1 there.
    """

    rounds: int = 1
    accelerate: Acceleration = False

    def __post_init__(self) -> None:
        hint = "0 is no gossip, 1 the paper's; more rounds come closer to the average"
        rounds = checks.count("gossip rounds", self.rounds, 0, MAX_ROUNDS, hint=hint)
        named = {"chebyshev": True, "designed": "designed"}
        accelerate = (
            named.get(self.accelerate) if isinstance(self.accelerate, str) else self.accelerate
        )
        if accelerate != "designed" and not isinstance(accelerate, bool | np.bool_):
            raise InputError(
                'accelerate must be "chebyshev" (or True), "designed" or False, not '
                f"{self.accelerate!r}"
            )
        object.__setattr__(self, "rounds", rounds)
        object.__setattr__(
            self, "accelerate", accelerate if isinstance(accelerate, str) else bool(accelerate)
        )

    def steps(self, topology: Topology) -> tuple[tuple[float, float, float], ...]:
        """(a, b, c) of every round: the models become a W x + b y + c x, x being the models now and
        y those a round earlier.

        a + b + c = 1 in every round and b = 0 in the first, for which there is no y.
        """
        if not self.accelerate or self.rounds < 2:
            return ((1.0, 0.0, 0.0),) * self.rounds
        if self.accelerate == "designed":
            return tuple(
                (1 / (1 - r), 0.0, -r / (1 - r)) for r in designed_roots(topology, self.rounds)
            )
        l2 = second_eigenvalue(topology) ** 2
        # a = 2 T_k(1/l) / (l T_k+1(1/l)) by T's recurrence: never above 2, whatever l and k, and 1
        # where l = 0
        a = [1.0, 1.0 / (1.0 - l2 / 2)]
        while len(a) < self.rounds:
            a.append(1.0 / (1.0 - l2 * a[-1] / 4))
        return tuple((each, 1.0 - each, 0.0) for each in a)

    def apply(self, topology: Topology, models: ArrayLike) -> Floats:
        """P(W) models, one row for every user."""
        now = before = np.asarray(models, dtype=np.float64)
        W = topology.mixing
        for a, b, c in self.steps(topology):
            now, before = a * (W @ now) + b * before + c * now, now
        return now

    def matrix(self, topology: Topology) -> Floats:
        """P(W): symmetric, every row sums to 1. For up to DENSE_LIMIT users."""
        if topology.users > DENSE_LIMIT:
            raise InputError(
                f"the gossip matrix of {topology.users:,} users would be dense; for more than "
                f"{DENSE_LIMIT:,} use apply()"
            )
        P = self.apply(topology, np.eye(topology.users))
        return np.asarray((P + P.T) / 2)

    def shrinkage(self, topology: Topology) -> float:
        """The largest |P| over the modes of disagreement: a step shrinks disagreement by this at
        least.

        1 - shrinkage^2 is the paper's p when there is one round. 0 rounds shrink nothing; where
        nobody has a neighbour nobody disagrees with its component, so it is 0.
        """
        if self.accelerate == "designed":
            return float(np.abs(self.at(topology, modes_of(topology).eigenvalues)).max(initial=0.0))
        l = second_eigenvalue(topology)  # noqa: E741
        if not self.accelerate or l == 0:
            return l**self.rounds if topology.edge_count else 0.0
        # 1 / T_k(1/l), which P reaches at its eigenvalue of magnitude l
        r = (l / (1.0 + math.sqrt((1.0 - l) * (1.0 + l)))) ** self.rounds
        return 2 * r / (1.0 + r * r)

    def distance_to_average(self, topology: Topology, steps: int = 1) -> float:
        """|P - J|_F^2, J averaging each component; with `steps`, the sum of |P^k - J|_F^2 for k up
        to steps.

        That is the disagreement left of unit noise that every user added in each of the last
        `steps` steps. Exact, but for an estimate on irregular graphs of more than DENSE_LIMIT
        users: it predicts utility, and enters no privacy.
        """
        modes = modes_of(topology)
        return float(modes.users @ self._left(topology, modes.eigenvalues, steps))

    def left_on_edges(self, topology: Topology, steps: int = 1) -> Floats:
        """|P_i - P_j|^2 of every edge; with `steps`, the sum of |(P^k)_i - (P^k)_j|^2 for k up to
        steps.

        That is what is left of the unit noise which the two added, with opposite signs, in each of
        the last `steps` steps. Exact up to DENSE_LIMIT users and for vertex-transitive graphs, and
        for one step as long as P is sparse. Otherwise a bound from above, through `shrinkage`, for
        utility only.
        """
        if topology.vertex_transitive:
            return self._left_by_symmetry(topology, steps)
        i, j = topology.edges.T
        if topology.users <= DENSE_LIMIT:
            M = function_of_mixing(topology, lambda values: self._left(topology, values, steps))
            diagonal = M.diagonal()
            return np.asarray(diagonal[i] + diagonal[j] - 2 * M[i, j])
        P = self._sparse(topology)
        if P is not None:
            first = np.asarray((P[i] - P[j]).power(2).sum(axis=1)).ravel()
        else:
            first = np.full(topology.edge_count, 2 * self.shrinkage(topology) ** 2)
        return (
            first
            if steps == 1
            else first * float(_geometric(np.array([self.shrinkage(topology) ** 2]), steps)[0])
        )

    def left_of(self, topology: Topology, variances: ArrayLike, steps: int = 1) -> float:
        """The disagreement left of edges' noise: `left_on_edges` weighted by variances, one for all
        edges or one for each.

        On large irregular graphs the sum is known far better than its parts: an estimate as in
        `distance_to_average`.
        """
        variances = np.asarray(variances, dtype=np.float64)
        if topology.edge_count == 0:
            return 0.0
        if variances.ndim == 0:
            modes = modes_of(topology)
            return float(variances) * float(
                modes.edges @ self._left(topology, modes.eigenvalues, steps)
            )
        if topology.users <= DENSE_LIMIT or topology.vertex_transitive:
            return float(self.left_on_edges(topology, steps) @ variances)
        return edges_estimated(
            topology, variances, lambda values: self._left(topology, values, steps)
        )

    def at(self, topology: Topology, eigenvalues: Floats) -> Floats:
        """P at eigenvalues of W."""
        if not self.accelerate:
            return np.asarray(eigenvalues**self.rounds)
        now = before = np.ones_like(eigenvalues)
        for a, b, c in self.steps(topology):
            now, before = (a * eigenvalues + c) * now + b * before, now
        return now

    def _left(self, topology: Topology, eigenvalues: Floats, steps: int) -> Floats:
        """P^2 + P^4 + ... + P^(2 steps) at eigenvalues of W."""
        squared = self.at(topology, eigenvalues) ** 2
        return np.asarray(squared * _geometric(squared, steps))

    def _left_by_symmetry(self, topology: Topology, steps: int) -> Floats:
        """All edges are alike; on a torus, all that run along rows, and all that run along
        columns.
        """
        family = topology.family
        assert family is not None
        if family.name != "torus":
            return np.full(
                topology.edge_count,
                self.left_of(topology, 1.0, steps) / max(topology.edge_count, 1),
            )
        down, along = (_cycle(size) for size in family.sizes)
        w = 1.0 / (1.0 + int(topology.degrees[0]))
        left = self._left(topology, 1.0 - w * np.add.outer(down, along).ravel(), steps).reshape(
            family.sizes
        )
        left[0, 0] = 0.0
        between_rows, within_rows = float(down @ left.sum(axis=1)), float(left.sum(axis=0) @ along)
        rows = topology.edges // family.sizes[1]
        same = rows[:, 0] == rows[:, 1]
        within = int(same.sum())
        return np.where(same, within_rows / within, between_rows / (topology.edge_count - within))

    def _sparse(self, topology: Topology) -> csr_array | None:
        """P(W) as a sparse matrix, unless it fills up."""
        from scipy.sparse import eye_array

        W = topology.mixing
        now = before = eye_array(topology.users, format="csr")
        for a, b, c in self.steps(topology):
            if now.nnz * (W.nnz / topology.users) > max(4 * _FILL, W.nnz):
                return None
            now, before = a * (W @ now) + b * before + c * now, now
        return now


ONE_ROUND = Gossip()
"""The paper's: one plain round in every step."""


def _geometric(q: Floats, steps: int) -> Floats:
    """1 + q + ... + q^(steps - 1), for q from 0 to 1."""
    gap = np.clip(1.0 - q, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gap > 0, -np.expm1(steps * np.log1p(-gap)) / gap, float(steps))


def _cycle(size: int) -> Floats:
    """Laplacian eigenvalues of one direction of a torus, 0 first; of two users, of their
    one edge.
    """
    from .families import complete, ring

    spectrum = laplacian_spectrum(ring(size) if size > 2 else complete(2))
    assert spectrum is not None
    return spectrum
