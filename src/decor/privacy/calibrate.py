"""Calibration: a budget -> the couple (sigma_cdp, sigma_cor) that meets it.

With x = c^2 / s^2 and f_i(x) = ((I + x L_H)^-1)_ii, user i is within budget when f_i(x) / s^2 <=
allowed_i. So every ratio x has its one smallest noise, s^2 = max_i f_i(x) / allowed_i: the whole
curve of couples is closed-form, and what is left to choose is the ratio. The default takes the one
with the least predicted error (`theory.predicted_error`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np

from decor import checks, progress
from decor.choices import Acceleration, EdgeNoise, Method
from decor.errors import BudgetError, FragileGraphWarning, InputError
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology

from . import theory
from .adversary import Adversary
from .budget import Budget, Exposure
from .leverage.limit import Need, curve_of
from .plan import NoisePlan

_RATIOS = (1e-3, 1e9)
"""Ratios among which the default looks."""


def calibrate(
    topology: Topology,
    exposure: Exposure,
    adversary: Adversary,
    budget: Budget,
    *,
    ratio: float | None = None,
    sigma_cdp: float | None = None,
    sigma_cor: float | None = None,
    edges: EdgeNoise = "uniform",
    method: Method = "exact",
    gossip_rounds: int = 1,
    accelerate: Acceleration = False,
    any_delta: bool = False,
) -> NoisePlan:
    """The least noise within the budget: of the default ratio, or of the ratio, sigma_cdp or
    sigma_cor given.

    `edges="optimal"` lets sigma_cor differ by edge, which pays on irregular graphs.
    `method="paper"` spends the budget by the paper's conversion, for comparison. `gossip_rounds`
    and `accelerate` say how models will be mixed in every step (`decor.graph.gossip.Gossip`): they
    choose the default ratio and change no guarantee, because gossip is post-processing. A delta
    above 0.001, or above one over the number of protected users (or of all records, at example
    level), is refused unless `any_delta` is True: with that probability the promise may fail for
    each of them. Guarantee: the plan, accounted again, is never above its budget, with a thousandth
    of delta left for the tables from which private runs draw their noise (not with
    `method="paper"`); and it spends all but a thousandth of epsilon.
    """
    gossip = Gossip(gossip_rounds, accelerate)
    if edges not in ("uniform", "optimal"):
        raise InputError(f'edges must be "uniform" or "optimal", not {edges!r}')
    if sum(given is not None for given in (ratio, sigma_cdp, sigma_cor)) > 1:
        raise InputError(
            "give at most one of ratio, sigma_cdp and sigma_cor: each of them fixes the couple"
        )
    need = Need.of(topology, exposure, adversary, budget, method)
    if not any_delta:
        budget.check_delta(exposure, topology)
    if ratio is not None:
        x = checks.not_negative("ratio", ratio, error=BudgetError)
    elif sigma_cdp is not None:
        x = _ratio_for_cdp(need, checks.not_negative("sigma_cdp", sigma_cdp, error=BudgetError))
    elif sigma_cor is not None:
        x = _ratio_for_cor(need, checks.not_negative("sigma_cor", sigma_cor, error=BudgetError))
    else:
        x = _default_ratio(need, gossip)
    s, c = need.couple(x)
    # what was given stays what it is: both replacements only add noise
    plan = NoisePlan(
        topology, exposure, adversary, max(s, sigma_cdp or 0.0), max(c, sigma_cor or 0.0), budget
    )
    if edges == "optimal" and c > 0 and topology.edge_count:
        from .edge_noise import optimal

        need.sharpen(range(topology.users))  # the design decides who decides
        progress.report("designing the noise of every edge")
        plan = optimal(plan, need.allowed)
    return _within(plan, need.budget, method)


def _default_ratio(need: Need, gossip: Gossip) -> float:
    """The ratio of least predicted error; zero, with a warning, where correlated noise cannot help
    the worst user.
    """
    if (
        need.adversary.colluders is None
        or need.topology.edge_count == 0
        or need.adversary.average_only
    ):
        return 0.0
    alone = need.topology.degrees <= need.adversary.colluders
    if alone.any() and need.rates is not None:
        need.sharpen([int(np.where(alone, need.rates, 0.0).argmax())])
    if alone.any() and need.allowed[alone].min() <= need.allowed.min():
        warnings.warn(_fragile(need), FragileGraphWarning, stacklevel=3)
        return 0.0
    error = theory.error_weights(need.topology, need.exposure.steps, gossip)
    # against the coalition that is worst at one ratio: choosing the ratio does not need a search at
    # every one
    seen = need.without(need.exposed(10.0).coalition) if need.adversary.colluders else need
    curve = curve_of(seen)
    if curve is None:
        return _cheaply_found(
            lambda x: seen.sigma_cdp_squared(x) * (error.average + float(error.consensus(x)))
        )
    (low, high), least = np.log(_RATIOS), math.inf
    for _ in range(2):
        x = np.exp(np.linspace(low, high, 64))
        predicted = curve(x) * (error.average + error.consensus(x))
        least = min(least, float(predicted.min()))
        # of all that are as good, the least correlated noise
        k = int(np.argmax(predicted <= 1.001 * least))
        low, high = np.log(x[max(k - 1, 0)]), np.log(x[min(k + 1, 63)])
    return float(x[k])


def _cheaply_found(predicted: Callable[[float], float]) -> float:
    """The best ratio to within a tenth, in about a dozen evaluations, each of which may take
    seconds.
    """
    from scipy.optimize import minimize_scalar

    def evaluated(log_ratio: float) -> float:
        progress.report("looking for the best ratio")
        return predicted(math.exp(log_ratio))

    return math.exp(
        minimize_scalar(
            evaluated, bounds=np.log(_RATIOS), method="bounded", options={"xatol": 0.1}
        ).x
    )


def _ratio_for_cdp(need: Need, sigma_cdp: float) -> float:
    """The smallest ratio at which sigma_cdp is enough."""
    if sigma_cdp >= need.local:
        return 0.0
    if need.sigma_at(_RATIOS[1]) > sigma_cdp:
        raise BudgetError(
            f"sigma_cdp {sigma_cdp:g} is too small for this budget on this graph, however large "
            "sigma_cor: "
            f"it takes more than {need.sigma_at(_RATIOS[1]):.6g}; raise it, or the budget"
        )
    return _bisect(lambda x: need.sigma_at(x) <= sigma_cdp, 1e-12, _RATIOS[1])[1]


def _ratio_for_cor(need: Need, sigma_cor: float) -> float:
    """The largest ratio whose couple asks no more than sigma_cor."""
    if sigma_cor == 0:
        return 0.0
    # sqrt(x) s(x) grows with x: the square is x f(x), and x (I + x L)^-1 grows in every eigenvalue
    if need.couple(_RATIOS[1])[1] <= sigma_cor:
        return _RATIOS[1]
    return _bisect(lambda x: need.couple(x)[1] > sigma_cor, 1e-18, _RATIOS[1])[0]


def _bisect(enough: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Where `enough` begins, between two ratios a relative 1e-9 apart: the first not enough, the
    second enough.
    """
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low, high


def _within(plan: NoisePlan, budget: Budget, method: Method) -> NoisePlan:
    """The plan itself, or (rounding) the next larger one that is within the budget when accounted
    again.
    """
    more = 1e-12
    while not plan.guarantee(budget.delta, method=method).epsilon <= budget.epsilon:
        plan = plan.scaled(1 + more)
        more *= 4
    return plan


def _fragile(need: Need) -> str:
    """What the adversary can do on this graph, and what would help."""
    topology, q, n = need.topology, need.adversary.colluders or 0, need.topology.users
    user = int(np.argmin(topology.degrees))
    who = [topology.name(int(v)) for v in topology.neighbours(user)]
    shown = " and ".join(who) if len(who) < 6 else f"{len(who)} users"
    plural = "s" if len(who) > 1 and len(who) < 6 else ""
    able = f"user{plural} {shown} can isolate user" if who else "nobody shares a secret with user"
    degree = q + 2 + (q * n) % 2
    better = f"random_regular({n}, degree={degree})" if degree < n else f"more than {n} users"
    fewer = int(topology.degrees.min()) - 1
    lesser = f", or plan for {Adversary(fewer)}" if fewer >= 0 else ""
    return (
        f"{topology!r} against {need.adversary.sentence}: {able} {topology.name(user)}, so "
        "correlated noise buys nothing there "
        f"and the plan is local DP. Use {better}{lesser}."
    )
