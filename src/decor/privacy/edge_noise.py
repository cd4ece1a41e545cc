"""Noise designed edge by edge: the least correlated noise left after gossip that keeps everybody
within budget.

With s fixed, (Sigma^-1)_ii is convex in the edge variances w, and what one gossip round leaves of
them is linear: minimise sum_e |W_i - W_j|^2 w_e subject to (Sigma^-1)_ii <= allowed_i for every
user, against every coalition that matters. Solved by an interior-point method, whose iterates are
within budget all the way; coalitions are added as they turn out worst.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from decor import progress
from decor.arrays import Floats, Ints
from decor.errors import InputError
from decor.graph.mixing import edge_heterogeneity

from .leverage.coalition import Phase, exposed
from .leverage.solve import Noise
from .plan import NoisePlan
from .threads import one_thread

EDGE_LIMIT = 3000
_ROUNDS = 60
_GAP = 1e-6
"""Relative distance to the optimum at which the design stops."""


def optimal(plan: NoisePlan, allowed: Floats) -> NoisePlan:
    """The plan with sigma_cor chosen per edge; the uniform plan itself where that is no better, as
    on regular graphs.
    """
    if plan.topology.edge_count > EDGE_LIMIT:
        raise InputError(
            f'edges="optimal" is for up to {EDGE_LIMIT} edges, not '
            f'{plan.topology.edge_count}; use edges="uniform"'
        )
    try:
        with one_thread():
            return _designed(plan, allowed)
    # ratios so extreme that the program loses its digits: uniform noise is still right
    except np.linalg.LinAlgError:
        return plan


def _designed(plan: NoisePlan, allowed: Floats) -> NoisePlan:
    topology = plan.topology
    assert isinstance(plan.sigma_cor, float)
    cost = edge_heterogeneity(topology)
    # noise that gossip removes at once still should not be infinite
    cost = np.maximum(cost, 1e-9 * max(cost.max(), 1e-9))
    uniform = np.full(topology.edge_count, (plan.sigma_cor / plan.sigma_cdp) ** 2)
    ceiling = allowed * plan.sigma_cdp**2
    coalitions: list[tuple[int, ...]] = [()]
    ratios = uniform
    for k in range(_ROUNDS):
        progress.report("designing the noise of every edge", k, _ROUNDS)
        found = exposed(
            (Phase(Noise(topology, tuple(ratios.tolist())), 1.0),), plan.adversary.colluders
        )
        over = float((found.per_user / ceiling).max())
        if k and over <= 1 + 1e-9:
            return _better(plan, uniform, ratios * (1 + 2e-9), cost)
        if found.coalition in coalitions and k:
            # what is left is not a coalition the program does not know, but a bound that is not
            # attained
            break
        coalitions.append(found.coalition)
        ratios = _interior_point(
            [_Scenario.of(plan, set(c), ceiling) for c in dict.fromkeys(coalitions)], cost, uniform
        )
    return plan


def _better(plan: NoisePlan, uniform: Floats, ratios: Floats, cost: Floats) -> NoisePlan:
    if cost @ ratios > (1 - 1e-4) * (cost @ uniform):
        return plan
    return replace(plan, sigma_cor=tuple((plan.sigma_cdp * np.sqrt(ratios)).tolist()))


@dataclass(frozen=True, eq=False)
class _Scenario:
    """One coalition deleted: the edges that are left, as columns of the incidence matrix of the
    users that are left.
    """

    kept: Ints
    incidence: Floats
    ceiling: Floats

    @classmethod
    def of(cls, plan: NoisePlan, coalition: set[int], ceiling: Floats) -> _Scenario:
        users, edges = plan.topology.users, plan.topology.edges
        honest = np.array([u not in coalition for u in range(users)])
        kept = np.flatnonzero(honest[edges].all(axis=1))
        incidence = np.zeros((users, kept.size))
        incidence[edges[kept, 0], np.arange(kept.size)] = 1.0
        incidence[edges[kept, 1], np.arange(kept.size)] = -1.0
        return cls(kept, incidence[honest], ceiling[honest])

    def slack(self, w: Floats) -> tuple[Floats, Floats]:
        K = self.incidence
        G = np.linalg.inv(np.eye(K.shape[0]) + (K * w[self.kept]) @ K.T)
        return np.asarray(self.ceiling - G.diagonal()), np.asarray(G)


def _interior_point(scenarios: Sequence[_Scenario], cost: Floats, uniform: Floats) -> Floats:
    """Newton's method on a logarithmic barrier, in units of the uniform solution."""
    a = cost * uniform / float(cost @ uniform)
    w = np.full(uniform.size, 1.02)
    while min(scenario.slack(w * uniform)[0].min() for scenario in scenarios) <= 0:
        w *= 1.1
        if w[0] > 1e6:
            return uniform
    constraints = w.size + sum(s.ceiling.size for s in scenarios)
    sharpness = float(constraints)
    while constraints / sharpness > _GAP:
        sharpness *= 6
        for _ in range(40):
            gradient, hessian = _barrier(scenarios, w, uniform)
            gradient += sharpness * a
            step = np.asarray(-np.linalg.solve(hessian, gradient))
            decrement = float(-gradient @ step)
            w = _line_search(scenarios, w, step, sharpness * a, decrement, uniform)
            if decrement < 1e-6:
                break
    return w * uniform


def _barrier(scenarios: Sequence[_Scenario], w: Floats, uniform: Floats) -> tuple[Floats, Floats]:
    """Gradient and Hessian of -sum log(w) - sum log(ceiling - (Sigma^-1)_ii)."""
    gradient, hessian = -1.0 / w, np.diag(1.0 / w**2)
    for scenario in scenarios:
        slack, G = scenario.slack(w * uniform)
        u = uniform[scenario.kept]
        P = scenario.incidence.T @ G  # d G_ii / d w_e = -P_ei^2
        Q = P**2 / slack * u[:, None]
        gradient[scenario.kept] -= Q.sum(axis=1)
        curvature = Q @ Q.T + 2 * ((P / slack) @ P.T) * (P @ scenario.incidence) * np.outer(u, u)
        hessian[np.ix_(scenario.kept, scenario.kept)] += curvature
    return gradient, hessian


def _line_search(
    scenarios: Sequence[_Scenario],
    w: Floats,
    step: Floats,
    linear: Floats,
    decrement: float,
    uniform: Floats,
) -> Floats:
    start = _objective(scenarios, w, linear, uniform)
    size = 1.0
    while size > 1e-12:
        candidate = w + size * step
        if _objective(scenarios, candidate, linear, uniform) <= start - 0.1 * size * decrement:
            return np.asarray(candidate)
        size /= 2
    return w


def _objective(scenarios: Sequence[_Scenario], w: Floats, linear: Floats, uniform: Floats) -> float:
    if w.min() <= 0:
        return math.inf
    value = float(linear @ w - np.log(w).sum())
    for scenario in scenarios:
        slack = scenario.slack(w * uniform)[0]
        if slack.min() <= 0:
            return math.inf
        value -= float(np.log(slack).sum())
    return value
