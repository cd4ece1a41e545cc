"""The paper's closed-form bounds beside the exact values, and its predicted error terms, with their
mistakes mended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from decor.arrays import Floats
from decor.errors import BudgetError
from decor.graph.gossip import ONE_ROUND, Gossip
from decor.graph.spectrum import algebraic_connectivity
from decor.graph.topology import Topology

from .budget import Budget, Exposure, checked_delta
from .plan import NoisePlan


def step_epsilon_bound(
    topology: Topology,
    clip: float,
    sigma_cdp: float,
    sigma_cor: float,
    colluders: int = 0,
    connectivity: float | None = None,
) -> float:
    """Theorem privacy: one step is (alpha, alpha eps)-SecRDP with eps at most this, against
    `colluders` users.

    `connectivity` is a_q(G) or any lower bound of it; without it, it is computed by taking every
    subset in turn.
    """
    if not sigma_cdp > 0:
        return math.inf
    n = topology.users - colluders
    a = algebraic_connectivity(topology, colluders) if connectivity is None else connectivity
    s2, c2 = sigma_cdp**2, sigma_cor**2
    return 2 * clip**2 * (1 / (n * s2) + (1 - 1 / n) / (s2 + a * c2))


def leverage_bound(
    topology: Topology, sigma_cdp: float, sigma_cor: float, colluders: int = 0
) -> float:
    """The same theorem as a bound on the largest leverage."""
    return step_epsilon_bound(topology, 1.0, sigma_cdp, sigma_cor, colluders) / 2


def epsilon_bound(plan: NoisePlan, delta: float) -> float:
    """Theorem privacy composed over the plan's steps and converted as in the paper: never below the
    exact epsilon.
    """
    delta = checked_delta(delta)
    if (
        not isinstance(plan.sigma_cor, float)
        or plan.adversary.colluders is None
        or plan.exposure.unit != "user"
    ):
        raise BudgetError(
            "the paper's theorem is for one sigma_cor on all edges, user level, and "
            "adversaries I to III"
        )
    step = step_epsilon_bound(
        plan.topology, plan.exposure.clip, plan.sigma_cdp, plan.sigma_cor, plan.adversary.colluders
    )
    total = plan.exposure.steps * step
    return total + 2 * math.sqrt(total * math.log(1 / delta))


def corollary_noise(
    topology: Topology, exposure: Exposure, budget: Budget, colluders: int = 0
) -> tuple[float, float]:
    """Corollary tradeoff's (sigma_cdp, sigma_cor): closed form, for epsilon <= log(1/delta) and a
    (q+1)-connected graph.
    """
    if exposure.unit != "user":
        raise BudgetError("the paper's corollary is for user level")
    log = math.log(1 / budget.delta)
    if budget.epsilon > log:
        raise BudgetError(
            f"the paper's corollary needs epsilon <= log(1/delta) = {log:.4g}, not "
            f"{budget.epsilon:g}"
        )
    a = algebraic_connectivity(topology, colluders)
    if a <= 1e-12:
        raise BudgetError(
            "the paper's corollary needs a graph that stays connected without any "
            f"{colluders} users"
        )
    common = 32 * exposure.clip**2 * exposure.steps * log / budget.epsilon**2
    return math.sqrt(common / (topology.users - colluders)), math.sqrt(common / a)


@dataclass(frozen=True)
class ErrorWeights:
    """Predicted squared error per coordinate over sigma_cdp^2 and squared step size: `average +
    consensus(x)`.
    """

    average: float
    constant: float
    slope: float

    def consensus(self, ratio: ArrayLike) -> Floats:
        return np.asarray(self.constant + self.slope * np.asarray(ratio))


@lru_cache(maxsize=256)
def error_weights(topology: Topology, steps: int, gossip: Gossip = ONE_ROUND) -> ErrorWeights:
    """The two terms through which noise hurts, after T steps X <- P (X - step size x noise) with
    the gossip's P.

    The average of all models collects s^2/n in every step and forgets nothing. The disagreement
    collects the noise's part in every mode of P and forgets each at its own rate: tr(sum_k (P -
    J)^2k (s^2 I + c^2 L)) / n over k = 1..T. That is Lemma consensus with equality (and without its
    extra factor n), where the lemma bounds all modes by the slowest. Exact up to DENSE_LIMIT users
    and on named families, an estimate to a few percent on other graphs; J averages each component.
    """
    n = topology.users
    return ErrorWeights(
        steps / n,
        gossip.distance_to_average(topology, steps) / n,
        gossip.left_of(topology, 1.0, steps) / n,
    )


def average_error(plan: NoisePlan) -> float:
    """The part of `predicted_error` that no gossip can mend: the noise of the average model,
    central DP's whole error.
    """
    return plan.exposure.steps / plan.topology.users * plan.sigma_cdp**2


def predicted_error(plan: NoisePlan, gossip: Gossip = ONE_ROUND) -> float:
    """The plan's predicted squared error per coordinate and squared step size, with this gossip in
    every step.

    Of the noise alone, as if gradients did not pull the models back: lower is better, only
    comparisons mean much.
    """
    n, steps = plan.topology.users, plan.exposure.steps
    weights = error_weights(plan.topology, steps, gossip)
    if isinstance(plan.sigma_cor, float):
        correlated = weights.slope * plan.sigma_cor**2
    else:
        correlated = gossip.left_of(plan.topology, np.square(plan.sigma_cor), steps) / n
    return (weights.average + weights.constant) * plan.sigma_cdp**2 + correlated
