"""Calibration: a budget -> the noise pair (sigma_cdp, sigma_cor) that meets it.

With x = c^2 / s^2 and f_i(x) = ((I + x L_H)^-1)_ii, user i is within budget when
f_i(x) / s^2 <= allowed_i. So each ratio x has one smallest noise, s^2 = max_i f_i(x) / allowed_i:
the whole curve of noise pairs is closed-form, and only the ratio is left to choose. The default is
the ratio with the least predicted error (`theory.predicted_error`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np

from decor import checks, progress
from decor.choices import Acceleration, EdgeNoise, Method, OwnNoise, Rounds
from decor.errors import BudgetError, FragileGraphWarning, InputError
from decor.graph.gossip import ONE_ROUND, Gossip
from decor.graph.topology import Topology

from . import theory
from .adversary import Adversary
from .budget import Budget, Exposure
from .leverage.limit import LeverageLimit
from .plan import NoisePlan

_RATIOS = (1e-3, 1e9)
"""The range of the default ratio."""


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
    own: OwnNoise = "uniform",
    method: Method = "exact",
    gossip_rounds: Rounds = "auto",
    accelerate: Acceleration = False,
    any_delta: bool = False,
) -> NoisePlan:
    """The least noise within the budget.

    Args:
        topology: The graph of the users.
        exposure: What one run does with private data.
        adversary: Against whom.
        budget: The (epsilon, delta) to spend.
        ratio: Fixes sigma_cor^2 / sigma_cdp^2. By default the ratio with the least predicted
            error is chosen, unless `sigma_cdp` or `sigma_cor` is given; give at most one of them.
        sigma_cdp: Fixes the independent noise of each user; sigma_cor is then the least possible.
        sigma_cor: Fixes the noise on each edge; sigma_cdp is then the least possible.
        edges: "uniform", or "optimal" for one sigma_cor per edge, which pays on irregular graphs.
        own: "uniform", or "per-user" for one sigma_cdp per user, with one sigma_cor per edge: of
            all plans within the budget whose own variances are at least half of central DP's, one
            within 1 % of the least predicted error. It pays where some users have few neighbours:
            they add more noise, and the others need not. Takes no `ratio`, `sigma_cdp` or
            `sigma_cor`.
        method: "exact", or "paper" to spend the budget by the paper's conversion, for comparison.
        gossip_rounds: Rounds of gossip in each step. Gossip is post-processing: the rounds and
            `accelerate` choose the default ratio, or the own noise of each user, and change no
            guarantee. "auto", the default here and of `train`, takes the fewest designed rounds,
            16 at most, within 5 % of the predicted error of perfect averaging against the same
            adversary, without those that amplify what a missing neighbour leaves; and a default
            ratio at which one absent user costs at most a quarter of the run's noise.
            `decor.gossip_for(plan)` says which rounds.
        accelerate: Weights of the rounds, as in `decor.graph.gossip.Gossip`.
        any_delta: Accepts a delta above 0.001, or above one over the number of protected users (at
            example level: of all examples). Such a delta is refused by default, because the
            guarantee may fail for each of them with that probability.

    Returns:
        The plan. It spends all but a thousandth of epsilon.

    Raises:
        BudgetError: If the budget cannot be met, or delta is too large.
        InputError: If the arguments do not suit each other.
        CannotBound: If own noise per user was not shown to be within 1 % of the optimum.

    Guarantee: the plan, accounted again, is never above its budget, with a thousandth of delta left
    for the tables from which private runs draw their noise (not with `method="paper"`).
    """
    gossip = ONE_ROUND if gossip_rounds == "auto" else Gossip(gossip_rounds, accelerate)
    if gossip_rounds == "auto" and accelerate not in (False, "designed"):
        raise InputError(
            'gossip_rounds="auto" takes designed rounds; drop accelerate, or give the number of '
            "rounds too"
        )
    checks.one_of("edges", edges, ("uniform", "optimal"))
    checks.one_of("own", own, ("uniform", "per-user"))
    fixed = any(given is not None for given in (ratio, sigma_cdp, sigma_cor))
    if own == "per-user" and fixed:
        raise InputError(
            'own="per-user" chooses the noise of every user and every edge; drop ratio, sigma_cdp '
            "and sigma_cor"
        )
    if sum(given is not None for given in (ratio, sigma_cdp, sigma_cor)) > 1:
        raise InputError(
            "give at most one of ratio, sigma_cdp and sigma_cor: each of them fixes the noise pair"
        )
    limit = LeverageLimit.of(topology, exposure, adversary, budget, method)
    if not any_delta:
        budget.check_delta(exposure, topology)
    most = _RATIOS[1]
    # a noise pair that is given does not depend on the rounds
    if gossip_rounds == "auto" and not fixed and not adversary.average_only:
        from .gossip_choice import choose_gossip

        choice = choose_gossip(topology, exposure, adversary, budget, method, own)
        gossip, most = choice.gossip, choice.largest_ratio
    if own == "per-user" and not adversary.average_only:
        return _per_user(limit, gossip, most, budget, method)
    if ratio is not None:
        x = checks.not_negative("ratio", ratio, error=BudgetError)
    elif sigma_cdp is not None:
        x = _ratio_for_cdp(limit, checks.not_negative("sigma_cdp", sigma_cdp, error=BudgetError))
    elif sigma_cor is not None:
        x = _ratio_for_cor(limit, checks.not_negative("sigma_cor", sigma_cor, error=BudgetError))
    else:
        x = _default_ratio(limit, gossip, most)
    s, c = limit.noise_pair(x)
    # a given value stays exactly what it is: both replacements only add noise
    s, c = max(s, sigma_cdp or 0.0), max(c, sigma_cor or 0.0)
    plan = NoisePlan(topology, exposure, adversary, s, c, budget)
    if edges == "optimal" and c > 0 and topology.edge_count:
        from .edge_noise_design import design_edge_noise

        # per-edge noise may make any user the most exposed: all limits have to be sharp
        limit.sharpen(range(topology.users))
        progress.report("designing the noise of every edge")
        plan = design_edge_noise(plan, limit.allowed)
    return _enlarge_to_budget(plan, limit.budget, method)


def _per_user(
    limit: LeverageLimit, gossip: Gossip, most: float, budget: Budget, method: Method
) -> NoisePlan:
    """The plan with own noise per user; one noise pair where that is as good."""
    from .own_noise_design import design_own_noise

    with warnings.catch_warnings():
        # a user who can be isolated is no reason to warn: it alone adds the noise that it needs
        warnings.simplefilter("ignore", FragileGraphWarning)
        pair = limit.noise_pair(_default_ratio(limit, gossip, most))
    uniform = NoisePlan(limit.topology, limit.exposure, limit.adversary, *pair, budget)
    # any user may be the most exposed: all limits have to be sharp
    limit.sharpen(range(limit.topology.users))
    plan = design_own_noise(uniform, limit.allowed, gossip, most).plan
    return _enlarge_to_budget(plan, limit.budget, method)


def _default_ratio(limit: LeverageLimit, gossip: Gossip, most: float = _RATIOS[1]) -> float:
    """The ratio of least predicted error, up to `most`.

    It is 0, with a warning, where correlated noise cannot help the worst user.
    """
    topology, adversary = limit.topology, limit.adversary
    if adversary.colluders is None or adversary.average_only or topology.edge_count == 0:
        return 0.0
    isolated = topology.degrees <= adversary.colluders
    if isolated.any() and limit.rates is not None:
        limit.sharpen([int(np.where(isolated, limit.rates, 0.0).argmax())])
    if isolated.any() and limit.allowed[isolated].min() <= limit.allowed.min():
        warnings.warn(_fragile_graph_message(limit), FragileGraphWarning, stacklevel=3)
        return 0.0
    weights = theory.error_weights(topology, limit.exposure.steps, gossip)
    # against the coalition that is worst at one ratio: a search at every ratio would take too long
    if adversary.colluders:
        limit = limit.without(limit.worst_at(10.0).coalition)
    curve = limit.curve()
    if curve is None:
        return _minimise(
            lambda x: limit.sigma_cdp_squared(x) * (weights.average + float(weights.consensus(x))),
            most,
        )
    (low, high), least = np.log((min(_RATIOS[0], most), most)), math.inf
    # 64 ratios over twelve powers of ten are too coarse: the second round refines
    for _ in range(2):
        x = np.exp(np.linspace(low, high, 64))
        predicted = curve(x) * (weights.average + weights.consensus(x))
        least = min(least, float(predicted.min()))
        # of all ratios that are as good, the one with the least correlated noise
        k = int(np.argmax(predicted <= 1.001 * least))
        low, high = np.log(x[max(k - 1, 0)]), np.log(x[min(k + 1, 63)])
    return float(x[k])


def _minimise(predicted: Callable[[float], float], most: float) -> float:
    """The best ratio to within a tenth, in about a dozen evaluations; each may take seconds."""
    from scipy.optimize import minimize_scalar

    def evaluate(log_ratio: float) -> float:
        progress.report("looking for the best ratio")
        return predicted(math.exp(log_ratio))

    options = {"xatol": 0.1}
    result = minimize_scalar(
        evaluate,
        bounds=np.log((_RATIOS[0], max(most, 2 * _RATIOS[0]))),
        method="bounded",
        options=options,
    )
    return math.exp(result.x)


def _ratio_for_cdp(limit: LeverageLimit, sigma_cdp: float) -> float:
    """The smallest ratio at which sigma_cdp is enough."""
    if sigma_cdp >= limit.local_sigma:
        return 0.0
    least = limit.sigma_cdp(_RATIOS[1])
    if least > sigma_cdp:
        raise BudgetError(
            f"sigma_cdp {sigma_cdp:g} is too small for this budget on this graph, however large "
            f"sigma_cor: it takes more than {least:.6g}; raise it, or the budget"
        )
    # the end that is enough: the other one is just above the budget
    return _bisect(lambda x: limit.sigma_cdp(x) <= sigma_cdp, 1e-12, _RATIOS[1])[1]


def _ratio_for_cor(limit: LeverageLimit, sigma_cor: float) -> float:
    """The largest ratio whose noise pair needs no more than sigma_cor."""
    if sigma_cor == 0:
        return 0.0
    # sqrt(x) s(x) grows with x: the square is x f(x), and x (I + x L)^-1 grows in every eigenvalue
    if limit.noise_pair(_RATIOS[1])[1] <= sigma_cor:
        return _RATIOS[1]
    # the end that is not above: sigma_cor is then raised to the value given
    return _bisect(lambda x: limit.noise_pair(x)[1] > sigma_cor, 1e-18, _RATIOS[1])[0]


def _bisect(enough: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Two ratios a relative 1e-9 apart: the first is not enough, the second is."""
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low, high


def _enlarge_to_budget(plan: NoisePlan, budget: Budget, method: Method) -> NoisePlan:
    """The plan, with as much more noise as rounding takes to be within budget when accounted."""
    more = 1e-12
    # not <= rather than >: an epsilon of NaN is not within the budget
    while not plan.guarantee(budget.delta, method=method).epsilon <= budget.epsilon:
        plan = plan.scaled(1 + more)
        # the excess is rounding, but nobody knows how much: a factor ends the search soon
        more *= 4
    return plan


def _fragile_graph_message(limit: LeverageLimit) -> str:
    """What the adversary can do on this graph, and what would help."""
    topology, q, n = limit.topology, limit.adversary.colluders or 0, limit.topology.users
    user = int(np.argmin(topology.degrees))
    names = [topology.name(int(v)) for v in topology.neighbours(user)]
    shown = " and ".join(names) if len(names) < 6 else f"{len(names)} users"
    plural = "s" if 1 < len(names) < 6 else ""
    able = (
        f"user{plural} {shown} can isolate user" if names else "no user shares a secret with user"
    )
    better = f"Give every user at least {q + 2} neighbours" if q + 2 < n else "Take more users"
    fewer = int(topology.degrees.min()) - 1
    lesser = f", or plan for {Adversary(fewer)}" if fewer >= 0 else ""
    return (
        f"{topology.description}, against {limit.adversary.sentence}: "
        f"{able} {topology.name(user)}, so correlated noise buys nothing there and the plan is "
        f"local DP. {better}{lesser}."
    )
