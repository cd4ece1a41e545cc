"""Own noise designed user by user, with that of every edge: the least predicted error.

The predicted error is linear in the variances x = (s_i^2, c_e^2). By Dirichlet's principle user i
is within its limit against a coalition iff

    sum_j s_j^2 h_j^2 + sum_e c_e^2 (h_u - h_v)^2 >= 1 / allowed_i

over honest users and edges, for every h with h_i = 1. Each h is one linear inequality that every
plan within the budget satisfies: a cut. So a linear program over some cuts bounds the error of all
such plans from below, and a plan that is scaled up to the limit bounds the optimum from above. Cuts
are taken half-way between the program's solution and the best plan so far, at the coalitions that
are worst there, until the two bounds meet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from decor import progress
from decor.array_types import Floats, Ints
from decor.errors import CannotBound, InputError
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology

from . import theory
from .plan import NoisePlan
from .threads import one_thread

TOLERANCE = 0.01
"""Relative distance between the two bounds at which the design stops."""
LEAST_OWN = 0.5
"""Each user's own variance is at least this share of what central DP takes."""
WORK_LIMIT = 2e10
"""Largest coalitions x users^3: about ten seconds for each of a dozen searches."""
EDGE_LIMIT = 3000

_LEAST_PRICE = 1e-6
"""Least price of an edge's noise, relative to a user's own: where gossip removes all of it, noise
without a price would have no limit.
"""
_ROUNDS = 400
_VALUES = 2_000_000
"""Values of the inverses that are held at a time."""
_WORST = 3
"""Coalitions per user that are taken from a search, and cuts per user in a round."""
_UNUSED = 6
"""Rounds after which a cut that does not bind is dropped."""


@dataclass(frozen=True)
class OwnNoiseDesign:
    """A plan with own noise per user, and how good any plan could be.

    Attributes:
        plan: The plan; the one that was given where that is within 1 % of the bound.
        bound: No plan within the same limits, with own variances of at least half of central DP's,
            and with no edge's variance above `largest_ratio` of that half, has a lower predicted
            error.
    """

    plan: NoisePlan
    bound: float


def design_own_noise(
    plan: NoisePlan, allowed: Floats, gossip: Gossip, largest_ratio: float = math.inf
) -> OwnNoiseDesign:
    """The plan with one sigma_cdp per user and one sigma_cor per edge.

    Args:
        plan: A plan within the limits with one noise pair, to begin with.
        allowed: The largest leverage that each user may have.
        gossip: The gossip of each step, for the predicted error.
        largest_ratio: sigma_cor^2 / sigma_cdp^2 is at most this, for every edge and user.

    Raises:
        InputError: If the graph or the coalitions are too many to try.
        CannotBound: If the plan was not shown to be within 1 % of the optimum.
    """
    topology, adversary = plan.topology, plan.adversary
    coalitions = _Coalitions(topology, adversary.colluders)
    coalitions.check()
    # in units of central DP's variance, against which the noise of all users is of order one
    unit = 1 / (topology.users * float(allowed.min()))
    own, edges = theory.error_prices(topology, plan.exposure.steps, gossip)
    prices = np.concatenate([own, np.maximum(edges, _LEAST_PRICE * own.max())])
    start = np.concatenate([plan.sigma_cdp_per_user, _edge_sigmas(plan)]) ** 2 / unit
    with one_thread():
        search = _Search(coalitions, prices * unit, allowed * unit, start, largest_ratio)
        best, bound = search.run()
    # the same object: the search never found anything cheaper, and numbers stay unrounded
    if best is start:
        return OwnNoiseDesign(plan, bound)
    sigmas = np.sqrt(best * unit)
    s, c = np.split(sigmas, [topology.users])
    made = replace(plan, sigma_cdp=tuple(s.tolist()), sigma_cor=tuple(c.tolist()))
    return OwnNoiseDesign(made, bound)


def _edge_sigmas(plan: NoisePlan) -> Floats:
    # one number stands for all edges; the program has a variance for each
    return np.broadcast_to(np.asarray(plan.sigma_cor), plan.topology.edge_count)


@dataclass(frozen=True, eq=False)
class _Coalitions:
    """Every set of users who may collude; None: everyone else."""

    topology: Topology
    colluders: int | None

    @property
    def size(self) -> int:
        return self.topology.users - 1 if self.colluders is None else self.colluders

    def check(self) -> None:
        n, m, q = self.topology.users, self.topology.edge_count, self.size
        if m > EDGE_LIMIT:
            raise InputError(
                f'own="per-user" is for up to {EDGE_LIMIT:,} edges, not {m:,}; use own="uniform"'
            )
        # a dense inverse for each coalition, and each takes about n^3 operations
        if math.comb(n, q) * n**3 > WORK_LIMIT:
            raise InputError(
                f'own="per-user" tries every coalition, and the {math.comb(n, q):,} of {q} among '
                f'{n} users are too many; plan for fewer colluders, or use own="uniform"'
            )

    @cached_property
    def sets(self) -> Ints:
        sets = list(itertools.combinations(range(self.topology.users), self.size))
        return np.array(sets, dtype=np.int64).reshape(len(sets), self.size)

    def honest(self, sets: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        mask = np.ones((len(sets), self.topology.users), dtype=bool)
        mask[np.arange(len(sets))[:, None], sets] = False
        return mask

    def inverses(self, x: Floats, sets: Ints) -> Floats:
        """Sigma^-1 of the honest users for each set; zero for colluders.

        Plain inverses: rounding makes a cut a little weaker, and never wrong; what a plan
        guarantees is computed by the accountant.
        """
        n, (i, j) = self.topology.users, self.topology.edges.T
        L = np.zeros((n, n))
        L[i, j] = L[j, i] = -x[n:]
        honest, users = self.honest(sets), np.arange(n)
        sigma = np.where(honest[:, :, None] & honest[:, None, :], L, 0.0)
        # off-diagonal entries are -c_e^2: taking their sum away adds the weighted degree
        sigma[:, users, users] = np.where(honest, x[:n] - sigma.sum(axis=2), 1.0)
        G = np.linalg.inv(sigma)
        # colluders got a one on the diagonal only so that the matrix has an inverse
        G[:, users, users] *= honest
        return np.asarray(G)

    def leverages(self, x: Floats, sets: Ints) -> Floats:
        """[sets, users]."""
        parts = [
            self.inverses(x, sets[some]).diagonal(axis1=1, axis2=2)
            for some in self._parts(len(sets))
        ]
        return np.concatenate(parts)

    def cuts(self, x: Floats, sets: Ints, users: Ints) -> Floats:
        """The cut of the potential of each user against the set beside it."""
        i, j = self.topology.edges.T
        cuts = []
        for some in self._parts(len(sets)):
            row, user = np.arange(len(users[some])), users[some]
            G = self.inverses(x, sets[some])
            # the h that attains the minimum in Dirichlet's principle, scaled to h_i = 1
            h = G[row, :, user] / G[row, user, user][:, None]
            honest = self.honest(sets[some])
            # colluders know the noise of their edges, so that it hides nobody
            apart = np.where(honest[:, i] & honest[:, j], (h[:, i] - h[:, j]) ** 2, 0.0)
            cuts.append(np.concatenate([h**2, apart], axis=1))
        return np.concatenate(cuts)

    def _parts(self, count: int) -> Iterator[slice]:
        # each set takes an inverse of users x users: some at a time bound the memory
        size = max(1, _VALUES // self.topology.users**2)
        for first in range(0, count, size):
            yield slice(first, first + size)


class _Search:
    """Cuts between the best plan so far and the solution of the linear program."""

    def __init__(
        self,
        coalitions: _Coalitions,
        prices: Floats,
        limits: Floats,
        start: Floats,
        largest_ratio: float,
    ) -> None:
        self.coalitions, self.prices, self.limits = coalitions, prices, limits
        users = limits.size
        edges = prices.size - users
        self.least = np.concatenate([np.full(users, LEAST_OWN), np.zeros(edges)])
        # relative to the least own noise: scaled together, no ratio ever becomes larger
        self.most = np.concatenate(
            [np.full(users, np.inf), np.full(edges, largest_ratio * LEAST_OWN)]
        )
        self.best, self.bound = start, 0.0
        self.pool: dict[int, None] = {}
        self.cuts, self.unused = np.zeros((0, prices.size)), np.zeros(0, dtype=np.int64)

    def run(self) -> tuple[Floats, float]:
        """The best variances, and a bound on what any cost."""
        x = self.best
        self._survey(x)
        for k in range(_ROUNDS):
            progress.report("own noise for every user", k, _ROUNDS)
            worst = self._add_cuts(x)
            solution = self._solve()
            if self.prices @ self.best <= (1 + TOLERANCE) * self.bound:
                return self.best, self.bound
            # not at the program's own corner, as Kelley's method: corners jump far between rounds
            x = (self.best + solution) / 2
            # the pool knows most coalitions that matter; from time to time all are tried
            if k % 4 == 3 or worst < 1:
                self._improve(x, self._survey(x))
        raise CannotBound(
            f"own noise per user was not shown to be within {TOLERANCE:.0%} of the optimum in "
            f'{_ROUNDS} rounds; use own="uniform"'
        )

    def _survey(self, x: Floats) -> float:
        """The worst leverage over its limit at x; its coalitions enter the pool."""
        shares = self.coalitions.leverages(x, self.coalitions.sets) / self.limits
        # for each user: the coalitions that are worst for one may not touch another
        for row in np.argsort(-shares, axis=0)[:_WORST].ravel().tolist():
            self.pool[row] = None
        return float(shares.max())

    def _improve(self, x: Floats, worst: float) -> None:
        # all noise scaled by the excess is within the limits
        scaled = np.maximum(x * worst, self.least)
        if self.prices @ scaled < self.prices @ self.best:
            self.best = scaled

    def _add_cuts(self, x: Floats) -> float:
        """Adds cuts of each user's worst coalitions at x; returns the worst share of a limit."""
        sets = self.coalitions.sets[list(self.pool)]
        shares = self.coalitions.leverages(x, sets) / self.limits
        worst = float(shares.max())
        order = np.argsort(-shares, axis=0)[:_WORST]
        at, users = order.ravel(), np.tile(np.arange(self.limits.size), len(order))
        # a coalition far from its limit would only make the program larger
        near = shares[at, users] > 0.9 * min(worst, 1.0)
        at, users = at[near], users[near]
        # a cut holds for the limit's inverse: divided by it, every right side is one
        cuts = self.coalitions.cuts(x, sets[at], users) * self.limits[users][:, None]
        self.cuts = np.concatenate([self.cuts, cuts])
        self.unused = np.concatenate([self.unused, np.zeros(len(cuts), dtype=np.int64)])
        return worst

    def _solve(self) -> Floats:
        """The cheapest variances that satisfy all cuts; raises the bound."""
        from scipy.optimize import linprog

        # in units of what each costs: the solver's tolerance is absolute, and edges may cost a
        # millionth of what users do, so that their weighted cuts would be far above their price
        bounds = np.column_stack([self.least, self.most]) * self.prices[:, None]
        cuts, ones = self.cuts / self.prices, np.ones(len(self.cuts))
        result = linprog(np.ones_like(self.prices), A_ub=-cuts, b_ub=-ones, bounds=bounds)
        if result.x is None:
            raise CannotBound(
                f"the linear program of own noise per user has no solution ({result.message}); use "
                'own="uniform"'
            )
        # marginals of <= rows are at most zero; rounding may leave some of the other sign
        weights = np.maximum(-result.ineqlin.marginals, 0.0)
        self.bound = max(self.bound, self._dual_bound(weights))
        self.unused = np.where(weights > 0, 0, self.unused + 1)
        kept = self.unused < _UNUSED
        self.cuts, self.unused = self.cuts[kept], self.unused[kept]
        return np.asarray(result.x) / self.prices

    def _dual_bound(self, weights: Floats) -> float:
        """What these weights of the cuts prove, whatever the solver's tolerance.

        Every x that satisfies the cuts costs at least the weights' sum, and what the prices have
        left: at the least noise, or at the most where the weighted cuts are above the price. Where
        noise has no limit they may not be above it: the weights shrink until they are not.
        """
        covered, bounds = weights @ self.cuts, []
        fits = self.prices / np.maximum(covered, self.prices)
        # a limit may be so far away that noise at it costs more than smaller weights for all
        for limited in (np.isfinite(self.most), np.zeros(self.most.size, dtype=bool)):
            fit = float(fits[~limited].min())
            left = self.prices - fit * covered
            # below zero by rounding alone, but where noise has a limit
            left = np.where(limited, left, np.maximum(left, 0.0))
            costs = left * np.where(left < 0, self.most, self.least)
            bounds.append(float(fit * weights.sum() + costs.sum()))
        return max(bounds)
