"""Noise designed edge by edge: the least correlated noise after gossip within every user's limit.

With s fixed, (Sigma^-1)_ii is convex in the edge variances w, and the noise that one gossip round
leaves is linear in them: minimise sum_e |W_i - W_j|^2 w_e subject to (Sigma^-1)_ii <= allowed_i for
each user, against every coalition that matters. An interior-point method solves it, whose iterates
are always within budget; coalitions are added as they turn out worst.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from decor import progress
from decor.array_types import Floats, Ints
from decor.errors import InputError
from decor.graph.mixing import edge_heterogeneity

from .leverage.coalition import Phase, worst_leverages
from .leverage.solve import ScaledCovariance
from .plan import NoisePlan
from .threads import one_thread

EDGE_LIMIT = 3000
_COALITIONS = 60
"""Most coalitions that are added to the program."""
_GAP = 1e-6
"""Relative distance to the optimum at which the design stops."""


def design_edge_noise(plan: NoisePlan, allowed: Floats) -> NoisePlan:
    """The plan with one sigma_cor per edge.

    The uniform plan itself where that is no better, as on regular graphs.

    Args:
        plan: A plan with one sigma_cor for all edges.
        allowed: The largest leverage that each user may have.
    """
    if plan.topology.edge_count > EDGE_LIMIT:
        raise InputError(
            f'edges="optimal" is for up to {EDGE_LIMIT} edges, not '
            f'{plan.topology.edge_count}; use edges="uniform"'
        )
    try:
        with one_thread():
            return _design(plan, allowed)
    # the program loses its digits at extreme ratios: uniform noise is still right
    except np.linalg.LinAlgError:
        return plan


def _design(plan: NoisePlan, allowed: Floats) -> NoisePlan:
    topology = plan.topology
    assert isinstance(plan.sigma_cor, float) and isinstance(plan.sigma_cdp, float)
    cost = edge_heterogeneity(topology)
    # without a cost, noise that one gossip round removes would become infinite
    cost = np.maximum(cost, 1e-9 * max(cost.max(), 1e-9))
    uniform = np.full(topology.edge_count, (plan.sigma_cor / plan.sigma_cdp) ** 2)
    ceiling = allowed * plan.sigma_cdp**2
    coalitions: list[tuple[int, ...]] = [()]
    ratios = uniform
    for k in range(_COALITIONS):
        progress.report("designing the noise of every edge", k, _COALITIONS)
        phase = Phase(ScaledCovariance(topology, tuple(ratios.tolist())), 1.0)
        worst = worst_leverages((phase,), plan.adversary.colluders)
        if k and float((worst.per_user / ceiling).max()) <= 1 + 1e-9:
            ratios = ratios * (1 + 2e-9)  # what the comparison above allowed
            # so small a gain is not worth a plan with a number for every edge
            if cost @ ratios > (1 - 1e-4) * (cost @ uniform):
                return plan
            return replace(plan, sigma_cor=tuple((plan.sigma_cdp * np.sqrt(ratios)).tolist()))
        if worst.coalition in coalitions and k:
            # the program knows this coalition already: the excess is a bound that is not attained
            break
        coalitions.append(worst.coalition)
        # without repeats: the first coalition is empty, and may be the worst one too
        scenarios = [
            _Scenario.of(plan, set(c), ceiling, uniform) for c in dict.fromkeys(coalitions)
        ]
        ratios = _interior_point(scenarios, cost, uniform)
    return plan


@dataclass(frozen=True, eq=False)
class _Scenario:
    """One coalition deleted: the users and edges that are left."""

    kept: Ints  # the edges
    incidence: Floats
    ceiling: Floats
    unit: Floats  # the edges' ratios in the uniform solution

    @classmethod
    def of(
        cls, plan: NoisePlan, coalition: set[int], ceiling: Floats, uniform: Floats
    ) -> _Scenario:
        users, edges = plan.topology.users, plan.topology.edges
        honest = np.array([u not in coalition for u in range(users)])
        kept = np.flatnonzero(honest[edges].all(axis=1))
        incidence = np.zeros((users, kept.size))
        incidence[edges[kept, 0], np.arange(kept.size)] = 1.0
        incidence[edges[kept, 1], np.arange(kept.size)] = -1.0
        return cls(kept, incidence[honest], ceiling[honest], uniform[kept])

    def slack(self, w: Floats) -> tuple[Floats, Floats]:
        """Ceiling less leverage of each user, and Sigma^-1, at w times the uniform ratios."""
        K = self.incidence
        G = np.linalg.inv(np.eye(K.shape[0]) + (K * (w[self.kept] * self.unit)) @ K.T)
        return np.asarray(self.ceiling - G.diagonal()), np.asarray(G)


def _interior_point(scenarios: Sequence[_Scenario], cost: Floats, uniform: Floats) -> Floats:
    """Newton's method on a logarithmic barrier, in units of the uniform solution."""
    # scaled to a cost of 1 for the uniform solution
    a = cost * uniform / float(cost @ uniform)
    w = np.full(uniform.size, 1.02)  # strictly inside: more noise than the uniform solution
    while min(scenario.slack(w)[0].min() for scenario in scenarios) <= 0:
        w *= 1.1
        # own noise alone decides here: no noise of edges gets strictly inside the limits
        if w[0] > 1e6:
            return uniform
    constraints = w.size + sum(s.ceiling.size for s in scenarios)
    sharpness = float(constraints)
    # constraints / sharpness bounds the distance to the optimum on the central path
    while constraints / sharpness > _GAP:
        sharpness *= 6
        for _ in range(40):
            gradient, hessian = _barrier(scenarios, w)
            gradient += sharpness * a
            step = np.asarray(-np.linalg.solve(hessian, gradient))
            decrement = float(-gradient @ step)
            w = _line_search(scenarios, w, step, sharpness * a, decrement)
            if decrement < 1e-6:
                break
    return w * uniform


def _barrier(scenarios: Sequence[_Scenario], w: Floats) -> tuple[Floats, Floats]:
    """Gradient and Hessian of -sum log(w) - sum log(ceiling - (Sigma^-1)_ii)."""
    gradient, hessian = -1.0 / w, np.diag(1.0 / w**2)
    for scenario in scenarios:
        slack, G = scenario.slack(w)
        u = scenario.unit
        P = scenario.incidence.T @ G  # d G_ii / d w_e = -P_ei^2
        Q = P**2 / slack * u[:, None]
        gradient[scenario.kept] -= Q.sum(axis=1)
        # of -log(slack): slopes times slopes, and the second derivatives of G_ii over slack
        curvature = Q @ Q.T + 2 * ((P / slack) @ P.T) * (P @ scenario.incidence) * np.outer(u, u)
        hessian[np.ix_(scenario.kept, scenario.kept)] += curvature
    return gradient, hessian


def _line_search(
    scenarios: Sequence[_Scenario], w: Floats, step: Floats, linear: Floats, decrement: float
) -> Floats:
    """w after the largest step, halved from 1, that lowers the objective enough (Armijo's rule)."""
    start = _objective(scenarios, w, linear)
    size = 1.0
    while size > 1e-12:
        candidate = w + size * step
        if _objective(scenarios, candidate, linear) <= start - 0.1 * size * decrement:
            return np.asarray(candidate)
        size /= 2
    return w


def _objective(scenarios: Sequence[_Scenario], w: Floats, linear: Floats) -> float:
    """The linear cost plus the barrier; infinite outside the feasible region."""
    if w.min() <= 0:
        return math.inf
    value = float(linear @ w - np.log(w).sum())
    for scenario in scenarios:
        slack = scenario.slack(w)[0]
        if slack.min() <= 0:
            return math.inf
        value -= float(np.log(slack).sum())
    return value
