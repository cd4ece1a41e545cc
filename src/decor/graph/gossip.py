"""Gossip: what the communication of one training step does to the models.

In each round users replace their model by a weighted mean of their neighbours' models and, if
accelerated, of their own model of the round before. All rounds of a step together are a polynomial
P(W) of the Metropolis matrix with P(1) = 1: the average of all models stays, and every mode of
disagreement shrinks by P at its eigenvalue. The choice of the polynomial costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from decor import checks
from decor.array_types import Floats
from decor.choices import Acceleration
from decor.errors import InputError
from decor.text import amount

from .eigenmodes import estimate_edge_trace, function_of_mixing, modes_of, second_eigenvalue
from .gossip_polynomial import design_roots
from .laplacian import DENSE_LIMIT, cycle_spectrum
from .topology import Topology

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_ROUNDS = 10_000

_FILL = 5_000_000
"""Non-zeros of a sparse P beyond which its rows are bounded instead of computed."""


@dataclass(frozen=True)
class Gossip:
    """The gossip rounds of every training step: W^rounds, or a better polynomial of that degree.

    "designed" leaves least of the edges' noise on this graph, and nothing if there are enough
    rounds (`decor.graph.gossip_polynomial`); it needs all eigenvalues. Chebyshev rounds need one:
    with l the second largest |eigenvalue| of W, P is T_k(W/l) / T_k(1/l), which shrinks the worst
    mode in [-l, l] most. That is best for models that differ between distant parts of the graph.
    Edge noise sits in other modes; on rings, plain rounds leave less of it. If l is a little too
    small (on large irregular graphs it is iterative), a mode beyond l shrinks less than promised,
    but still shrinks: T_k grows beyond 1, so |P| < P(1) = 1 there.

    Attributes:
        rounds: Rounds per step; 0 is no gossip, 1 is the paper's.
        accelerate: False for plain rounds, True or "chebyshev", or "designed".
    """

    rounds: int = 1
    accelerate: Acceleration = False

    def __post_init__(self) -> None:
        hint = "0 is no gossip, 1 the paper's; more rounds come closer to the average"
        rounds = checks.count("gossip rounds", self.rounds, 0, MAX_ROUNDS, hint=hint)
        accelerate = self.accelerate
        if isinstance(accelerate, bool | np.bool_) or accelerate == "chebyshev":
            accelerate = bool(accelerate)
        elif accelerate != "designed":
            raise InputError(
                f'accelerate must be "chebyshev" (or True), "designed" or False, not {accelerate!r}'
            )
        object.__setattr__(self, "rounds", rounds)
        object.__setattr__(self, "accelerate", accelerate)

    @property
    def description(self) -> str:
        """The rounds in words, such as "4 designed rounds"."""
        # one accelerated round is a plain one
        kinds = {False: "", True: "Chebyshev ", "designed": "designed "}
        kind = kinds[self.accelerate] if self.rounds > 1 else ""
        return amount(self.rounds, f"{kind}round")

    def steps(self, topology: Topology) -> tuple[tuple[float, float, float], ...]:
        """(a, b, c) of each round: models x become a W x + b y + c x, y being those before x.

        a + b + c = 1 in every round, and b = 0 in the first, which has no y.
        """
        if not self.accelerate or self.rounds < 2:
            return ((1.0, 0.0, 0.0),) * self.rounds
        if self.accelerate == "designed":
            roots = design_roots(topology, self.rounds)
            return tuple((1 / (1 - r), 0.0, -r / (1 - r)) for r in roots)
        l2 = second_eigenvalue(topology) ** 2
        # a = 2 T_k(1/l) / (l T_k+1(1/l)) by T's recurrence: at most 2 for all l and k, 1 for l = 0
        a = [1.0, 1.0 / (1.0 - l2 / 2)]
        while len(a) < self.rounds:
            a.append(1.0 / (1.0 - l2 * a[-1] / 4))
        return tuple((each, 1.0 - each, 0.0) for each in a)

    def apply(self, topology: Topology, models: ArrayLike) -> Floats:
        """P(W) models, one row per user."""
        now = before = np.asarray(models, dtype=np.float64)
        W = topology.mixing
        for a, b, c in self.steps(topology):
            now, before = a * (W @ now) + b * before + c * now, now
        return now

    def matrix(self, topology: Topology) -> Floats:
        """P(W), symmetric with rows that sum to 1, for up to DENSE_LIMIT users."""
        if topology.users > DENSE_LIMIT:
            raise InputError(
                f"the gossip matrix of {topology.users:,} users would be dense; for more than "
                f"{DENSE_LIMIT:,} use apply()"
            )
        P = self.apply(topology, np.eye(topology.users))
        # symmetric in exact arithmetic: removes the rounding of the product
        return np.asarray((P + P.T) / 2)

    def shrinkage(self, topology: Topology) -> float:
        """The largest |P| over the modes: a step shrinks disagreement at least by this factor.

        1 - shrinkage^2 is the paper's p for one round. 0 rounds shrink nothing. Without edges it is
        0, since no user disagrees with its component.
        """
        if self.accelerate == "designed":
            # a designed P has no closed form for its largest value
            values = self.value_at(topology, modes_of(topology).eigenvalues)
            return float(np.abs(values).max(initial=0.0))
        l = second_eigenvalue(topology)  # noqa: E741
        if not self.accelerate or l == 0:
            return l**self.rounds if topology.edge_count else 0.0
        # 1 / T_k(1/l), which P reaches at its eigenvalue of magnitude l
        r = (l / (1.0 + math.sqrt((1.0 - l) * (1.0 + l)))) ** self.rounds
        return 2 * r / (1.0 + r * r)

    def distance_to_average(self, topology: Topology, steps: int = 1) -> float:
        """The sum of |P^k - J|_F^2 for k = 1 to `steps`, where J averages each component.

        That is the disagreement left if every user added unit noise in each of the last `steps`
        steps. Exact, except for an estimate on irregular graphs of more than DENSE_LIMIT users. It
        predicts utility only; no privacy bound uses it.
        """
        modes = modes_of(topology)
        return float(modes.users @ self._residual_at(topology, modes.eigenvalues, steps))

    def own_residuals(self, topology: Topology, steps: int = 1) -> Floats:
        """The sum of |(P^k - J)_i|^2 for k = 1 to `steps`, for each user i.

        That is the disagreement left if the user added unit noise in each of the last `steps`
        steps; `distance_to_average` is the sum over users. Up to DENSE_LIMIT users.
        """
        if topology.users > DENSE_LIMIT:
            raise InputError(
                f"what gossip leaves of each user's noise is computed for up to {DENSE_LIMIT:,} "
                f"users, not {topology.users:,}; take one sigma_cdp for all"
            )
        M = function_of_mixing(topology, lambda w: self._residual_at(topology, w, steps))
        return np.asarray(M.diagonal())

    def edge_residuals(self, topology: Topology, steps: int = 1) -> Floats:
        """The sum of |(P^k)_i - (P^k)_j|^2 for k = 1 to `steps`, for each edge i-j.

        That is what is left if the two users added unit noise with opposite signs in each of the
        last `steps` steps. Exact up to DENSE_LIMIT users and for vertex-transitive graphs, and for
        one step if P is sparse. Otherwise an upper bound through `shrinkage`, for utility only.
        """
        if topology.vertex_transitive:
            return self._residuals_by_symmetry(topology, steps)
        i, j = topology.edges.T
        if topology.users <= DENSE_LIMIT:
            # with M = sum of P^2k, the sum of |(P^k)_i - (P^k)_j|^2 is M_ii + M_jj - 2 M_ij
            M = function_of_mixing(topology, lambda w: self._residual_at(topology, w, steps))
            diagonal = M.diagonal()
            return np.asarray(diagonal[i] + diagonal[j] - 2 * M[i, j])
        P = self._sparse(topology)
        if P is not None:
            first = np.asarray((P[i] - P[j]).power(2).sum(axis=1)).ravel()
        else:
            first = np.full(topology.edge_count, 2 * self.shrinkage(topology) ** 2)
        if steps == 1:
            return first
        # each further step shrinks what is left by the worst mode's factor at least
        return first * float(_geometric(np.array([self.shrinkage(topology) ** 2]), steps)[0])

    def residual(self, topology: Topology, variances: ArrayLike, steps: int = 1) -> float:
        """The disagreement left of the edges' noise: `edge_residuals` weighted by variances.

        Args:
            topology: The graph.
            variances: Of the noise, one for all edges or one for each.
            steps: As in `edge_residuals`.

        Returns:
            The sum. On large irregular graphs it is an estimate as in `distance_to_average`, far
            more precise than the bounds on its parts.
        """
        variances = np.asarray(variances, dtype=np.float64)
        if topology.edge_count == 0:
            return 0.0
        if variances.ndim == 0:
            modes = modes_of(topology)
            residuals = self._residual_at(topology, modes.eigenvalues, steps)
            return float(variances) * float(modes.edges @ residuals)
        if topology.users <= DENSE_LIMIT or topology.vertex_transitive:
            return float(self.edge_residuals(topology, steps) @ variances)
        return estimate_edge_trace(
            topology, variances, lambda w: self._residual_at(topology, w, steps)
        )

    def value_at(self, topology: Topology, eigenvalues: Floats) -> Floats:
        """P at eigenvalues of W."""
        if not self.accelerate:
            return np.asarray(eigenvalues**self.rounds)
        now = before = np.ones_like(eigenvalues)
        for a, b, c in self.steps(topology):
            now, before = (a * eigenvalues + c) * now + b * before, now
        return now

    def _residual_at(self, topology: Topology, eigenvalues: Floats, steps: int) -> Floats:
        """P^2 + P^4 + ... + P^(2 steps) at eigenvalues of W."""
        squared = self.value_at(topology, eigenvalues) ** 2
        return np.asarray(squared * _geometric(squared, steps))

    def _residuals_by_symmetry(self, topology: Topology, steps: int) -> Floats:
        """All edges are equivalent, except on a torus: there are those along rows and columns."""
        family, edges = topology.family, topology.edge_count
        assert family is not None
        if family.name != "torus":
            return np.full(edges, self.residual(topology, 1.0, steps) / max(edges, 1))
        down, along = (np.sort(cycle_spectrum(size)) for size in family.sizes)
        # regular: W = I - L / (degree + 1)
        w = 1.0 / (1.0 + int(topology.degrees[0]))
        eigenvalues = 1.0 - w * np.add.outer(down, along).ravel()
        left = self._residual_at(topology, eigenvalues, steps).reshape(family.sizes)
        left[0, 0] = 0.0  # consensus, which is no disagreement
        between_rows, within_rows = float(down @ left.sum(axis=1)), float(left.sum(axis=0) @ along)
        rows = topology.edges // family.sizes[1]
        same = rows[:, 0] == rows[:, 1]
        within = int(same.sum())
        return np.where(same, within_rows / within, between_rows / (edges - within))

    def _sparse(self, topology: Topology) -> csr_array | None:
        """P(W) as a sparse matrix, or None if it would have too many non-zeros."""
        from scipy.sparse import eye_array

        W = topology.mixing
        now = before = eye_array(topology.users, format="csr")
        for a, b, c in self.steps(topology):
            # the next product has at most this many non-zeros
            if now.nnz * (W.nnz / topology.users) > max(4 * _FILL, W.nnz):
                return None
            now, before = a * (W @ now) + b * before + c * now, now
        return now


ONE_ROUND = Gossip()
"""One plain round per step, as in the paper."""


def _geometric(q: Floats, steps: int) -> Floats:
    """1 + q + ... + q^(steps - 1), for q from 0 to 1."""
    # (1 - q^steps) / (1 - q) through log1p and expm1 keeps its digits for q close to 1
    gap = np.clip(1.0 - q, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gap > 0, -np.expm1(steps * np.log1p(-gap)) / gap, float(steps))
