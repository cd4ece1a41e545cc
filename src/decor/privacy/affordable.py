"""How many steps of given noise a budget pays for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from decor import checks, progress
from decor.choices import Method
from decor.errors import BudgetError

from .budget import Budget
from .plan import NoisePlan

MOST_STEPS = 10**9
"""Steps beyond this are not counted: no training takes them."""


def affordable_plan(plan: NoisePlan, budget: Budget, method: Method = "exact") -> NoisePlan:
    """The plan with as many steps as the budget pays for, up to a billion.

    Args:
        plan: Noise, graph, exposure and adversary; its number of steps does not matter.
        budget: What the whole run may spend.
        method: How epsilon is computed.

    Raises:
        BudgetError: If the budget does not pay for a single step.

    Guarantee: the plan, accounted again, is within its budget, with a thousandth of delta left for
    the tables of private runs; one step more is not.
    """
    checks.one_of("method", method, ("exact", "paper"))
    # the paper's method is for comparison, and leaves nothing for the noise tables
    delta = budget.accounted.delta if method == "exact" else budget.delta

    def epsilon(steps: int) -> float:
        progress.report(f"trying {steps:,} steps")
        of_steps = replace(plan, exposure=replace(plan.exposure, steps=steps))
        return of_steps.guarantee(delta, method=method).epsilon

    steps = _most_steps(epsilon, budget.epsilon)
    if steps == 0:
        raise BudgetError(
            f"one step with this noise costs epsilon {epsilon(1):.4g}, more than the budget of "
            f"{budget.epsilon:g}; take more noise or a larger epsilon"
        )
    return replace(plan, exposure=replace(plan.exposure, steps=steps), budget=budget)


def _most_steps(epsilon: Callable[[int], float], limit: float) -> int:
    """The largest number of steps within the limit; epsilon grows with them."""
    # not <= rather than >: an epsilon of NaN is not within the limit
    low, high, spent = 0, MOST_STEPS + 1, epsilon(1)
    if not spent <= limit:
        return 0
    low = 1
    for tried in range(200):
        if high - low <= 1:
            break
        # epsilon grows about as the square root of the number of steps; every third try halves
        # what is left, whatever the law
        factor = min(limit / max(spent, 1e-300), 1e6) ** 2
        guess = low * factor if tried % 3 < 2 else math.sqrt(low * high)
        # strictly between the two, so that every try narrows them
        middle = min(max(math.ceil(min(guess, 2e9)), low + 1), high - 1)
        value = epsilon(middle)
        if value <= limit:
            low, spent = middle, value
        else:
            high = middle
    return low
