"""The paper's closed-form bounds, and its predicted error terms with their mistakes corrected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from decor.array_types import Floats
from decor.errors import BudgetError
from decor.graph.gossip import ONE_ROUND, Gossip
from decor.graph.laplacian import algebraic_connectivity
from decor.graph.topology import Topology

from .budget import Budget, Exposure, validate_delta
from .plan import NoisePlan


def step_epsilon_bound(
    topology: Topology,
    clip: float,
    sigma_cdp: float,
    sigma_cor: float,
    colluders: int = 0,
    connectivity: float | None = None,
) -> float:
    """Theorem privacy: one step is (alpha, alpha eps)-SecRDP with eps at most this.

    Args:
        topology: The graph.
        clip: Norm to which gradients are clipped.
        sigma_cdp: Standard deviation of each user's independent noise.
        sigma_cor: Standard deviation of the noise on each edge.
        colluders: Number of users who pool their secrets.
        connectivity: a_q(G) or any lower bound of it; by default it is computed by trying every
            subset.
    """
    # noise of edges cancels in the sum of all messages, which then shows the gradients' sum
    if not sigma_cdp > 0:
        return math.inf
    n = topology.users - colluders
    a = algebraic_connectivity(topology, colluders) if connectivity is None else connectivity
    # the average of the n honest users, and the other modes, whose eigenvalues are a or more
    s2, c2 = sigma_cdp**2, sigma_cor**2
    return 2 * clip**2 * (1 / (n * s2) + (1 - 1 / n) / (s2 + a * c2))


def leverage_bound(
    topology: Topology, sigma_cdp: float, sigma_cor: float, colluders: int = 0
) -> float:
    """Theorem privacy as a bound on the largest leverage.

    Args:
        topology: The graph.
        sigma_cdp: Standard deviation of each user's independent noise.
        sigma_cor: Standard deviation of the noise on each edge.
        colluders: Number of users who pool their secrets.
    """
    # a step's eps is 2 C^2 times the leverage
    return step_epsilon_bound(topology, 1.0, sigma_cdp, sigma_cor, colluders) / 2


def epsilon_bound(plan: NoisePlan, delta: float) -> float:
    """Theorem privacy composed over the plan's steps and converted as in the paper.

    Args:
        plan: A plan at user level with one sigma_cor, against the paper's adversaries I to III.
        delta: Failure probability.

    Guarantee: never below the exact epsilon.
    """
    delta = validate_delta(delta)
    colluders, exposure = plan.adversary.colluders, plan.exposure
    if not isinstance(plan.sigma_cor, float) or colluders is None or exposure.unit != "user":
        raise BudgetError(
            "the paper's theorem is for one sigma_cor on all edges, user level, and adversaries I "
            "to III"
        )
    noise = plan.uniform_sigma_cdp("the paper's theorem"), plan.sigma_cor
    total = exposure.steps * step_epsilon_bound(plan.topology, exposure.clip, *noise, colluders)
    # Lemma rdp-dp at the best order
    return total + 2 * math.sqrt(total * math.log(1 / delta))


def corollary_noise(
    topology: Topology, exposure: Exposure, budget: Budget, colluders: int = 0
) -> tuple[float, float]:
    """The closed-form (sigma_cdp, sigma_cor) of Corollary tradeoff.

    Args:
        topology: A graph that stays connected without any `colluders` users.
        exposure: What one run does with private data; user level.
        budget: The (epsilon, delta) to spend, with epsilon at most log(1/delta).
        colluders: Number of users who pool their secrets.
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
    if a <= 1e-12:  # zero but for rounding
        raise BudgetError(
            f"the paper's corollary needs a graph that stays connected without any {colluders} "
            "users"
        )
    # s^2 = common / (n - q), c^2 = common / a_q(G)
    common = 32 * exposure.clip**2 * exposure.steps * log / budget.epsilon**2
    return math.sqrt(common / (topology.users - colluders)), math.sqrt(common / a)


@dataclass(frozen=True)
class ErrorWeights:
    """Predicted squared error per coordinate, in units of sigma_cdp^2 and the squared step size.

    The error at ratio x is `average + consensus(x)`.

    Attributes:
        average: Error of the average model.
        constant: Disagreement of the models due to the independent noise.
        slope: Disagreement due to the noise on edges, per unit of the ratio.
    """

    average: float
    constant: float
    slope: float

    def consensus(self, ratio: ArrayLike) -> Floats:
        """Disagreement of the models at each `ratio` sigma_cor^2 / sigma_cdp^2."""
        return np.asarray(self.constant + self.slope * np.asarray(ratio))


@lru_cache(maxsize=256)
def error_weights(topology: Topology, steps: int, gossip: Gossip = ONE_ROUND) -> ErrorWeights:
    """The error terms of noise after T steps X <- P (X - step size x noise), with the gossip's P.

    The average of all models accumulates s^2/n in every step and forgets nothing. The disagreement
    accumulates the noise's part in every mode of P and forgets each mode at its own rate:
    tr(sum_k (P - J)^2k (s^2 I + c^2 L)) / n over k = 1..T, where J averages each component. That is
    Lemma consensus with equality (and without its extra factor n); the lemma bounds all modes by
    the slowest.

    Args:
        topology: The graph. Exact up to DENSE_LIMIT users and on named families; on other graphs
            an estimate to a few percent.
        steps: Number of steps T.
        gossip: The gossip of each step; by default one round.
    """
    n = topology.users
    return ErrorWeights(
        steps / n,
        gossip.distance_to_average(topology, steps) / n,
        gossip.residual(topology, 1.0, steps) / n,
    )


def average_error(plan: NoisePlan) -> float:
    """The error of the average model, which no gossip can reduce: all the error of central DP.

    Args:
        plan: The plan.
    """
    variance = float(np.mean(plan.sigma_cdp_per_user**2))
    return plan.exposure.steps / plan.topology.users * variance


def predicted_error(plan: NoisePlan, gossip: Gossip = ONE_ROUND) -> float:
    """The plan's predicted squared error per coordinate, in units of the squared step size.

    Of the noise alone, as if gradients did not pull the models back. Lower is better; only
    comparisons between plans are meaningful.

    Args:
        plan: The plan.
        gossip: The gossip of each step; by default one round.
    """
    n, steps = plan.topology.users, plan.exposure.steps
    weights = error_weights(plan.topology, steps, gossip)
    if isinstance(plan.sigma_cor, float):
        correlated = weights.slope * plan.sigma_cor**2
    else:
        correlated = gossip.residual(plan.topology, np.square(plan.sigma_cor), steps) / n
    if isinstance(plan.sigma_cdp, float):
        return (weights.average + weights.constant) * plan.sigma_cdp**2 + correlated
    own, _ = error_prices(plan.topology, steps, gossip)
    return float(own @ plan.sigma_cdp_per_user**2) + correlated


def error_prices(topology: Topology, steps: int, gossip: Gossip) -> tuple[Floats, Floats]:
    """How much the predicted error grows with each user's sigma_cdp^2 and each edge's sigma_cor^2.

    Args:
        topology: The graph, of up to DENSE_LIMIT users.
        steps: Number of steps.
        gossip: The gossip of each step.
    """
    n = topology.users
    own = steps / n**2 + gossip.own_residuals(topology, steps) / n
    return own, gossip.edge_residuals(topology, steps) / n
