"""The smallest noise multiplier of a subsampled Gaussian within a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count

from decor.choices import Relation, Sampling
from decor.errors import BudgetError, CannotBound

from . import gaussian, subsampled
from .subsampled import SubsampledStep, check_delta

_LEAST_MULTIPLIER, _MOST_MULTIPLIER = 0.01, 1e9
_STRIDE = math.log(4)  # of a search that has not yet seen both sides
_UNSPENT = 8e-4  # share of epsilon; it may fall five times as fast as the multiplier grows
_CLOSEST = 1e-7  # relative distance at which a jump of the accounted epsilon is accepted


def noise_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, sampling: Sampling, relation: Relation
) -> float:
    """The smallest noise multiplier found whose epsilon is within the budget.

    Args:
        epsilon: The budget's epsilon.
        delta: The budget's delta.
        rate: The sampling rate.
        steps: Number of steps.
        sampling: "poisson" or "fixed".
        relation: "add-remove" or "replace".

    Returns:
        The multiplier; 0.01 if even less would do.

    Guarantee: accounted again, the result is within the budget, and spends at least 1 - 8e-4 of its
    epsilon unless the accounted epsilon itself jumps there.
    """
    check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise BudgetError(f"epsilon must be a positive number, not {epsilon!r}")
    SubsampledStep(1.0, rate, sampling, relation, steps)  # validates the other arguments

    def accountant(fine: bool) -> Callable[[float], float]:
        def epsilon_of(z: float) -> float:
            step = SubsampledStep(z, rate, sampling, relation, steps)
            return subsampled.epsilon([step], delta, fine=fine)[0]

        return epsilon_of

    # first to 5 % on coarse grids, which take a fraction of the time of fine ones
    guess = _guess(epsilon, delta, rate, steps, relation)
    _, near, slope = _search(accountant(False), epsilon, guess, -1.0, 0.05, math.inf)
    return _search(accountant(True), epsilon, near, slope, 0.0005, _UNSPENT)[0]


def _guess(epsilon: float, delta: float, rate: float, steps: int, relation: Relation) -> float:
    """A first multiplier, from the central limit of many steps."""
    try:
        tilt = math.log1p((gaussian.mu(epsilon, delta) / rate) ** 2 / steps)
        guess = (1.0 if relation == "add-remove" else 2.0) / math.sqrt(tilt)
    except (ArithmeticError, BudgetError):  # beyond the range of floats: any start will do
        guess = 1.0
    return min(max(guess, _LEAST_MULTIPLIER), _MOST_MULTIPLIER)


def _search(
    epsilon_of: Callable[[float], float],
    epsilon: float,
    guess: float,
    slope: float,
    precision: float,
    unspent: float,
) -> tuple[float, float, float]:
    """The least multiplier seen within the budget, the likely least one, and the slope there.

    log epsilon is nearly a line over log z. With both sides of the budget bracketed in log z:

        log epsilon
          below  *                    (low, below): over the budget
                    \\
          goal  - - - - x - - - - -   x: where the line between both meets the budget
                            \\
          above               *       (high, above): within the budget

    The next z is x, moved a little towards the farther side, so that both sides close in. The
    search ends once they are a relative `precision` apart and at most the share `unspent` of
    epsilon is left.
    """
    goal, nudge, low, high = math.log(epsilon), precision / 3, -math.inf, math.inf
    below = above = goal
    z, least = guess, math.inf
    for tried in count(1):
        close = high - low <= precision
        z = min(_round_up(max(z, _LEAST_MULTIPLIER), 10 if close else 5), _MOST_MULTIPLIER)
        value = epsilon_of(z)
        x, y, holds = math.log(z), goal + math.log(max(value / epsilon, 1e-9)), value <= epsilon
        if holds:
            least, high, above = z, x, y
        else:
            low, below = x, y
        if math.isfinite(high - low):
            # on coarse grids two close multipliers may be in the wrong order
            slope = min((above - below) / (high - low), -0.1)
            x = min(max(low + (goal - below) / slope, low), high)
            close = high - low <= precision
            if close and (goal - above <= unspent or high - low <= _CLOSEST):
                break
            if close or tried % 5 == 0:  # bisection, where the line is too curved to close in
                x = (low + high) / 2
            else:
                x += nudge if high - x > x - low else -nudge
        elif z == least == _LEAST_MULTIPLIER:
            break
        else:
            if not holds and z == _MOST_MULTIPLIER:
                raise CannotBound(
                    f"no noise multiplier up to {_MOST_MULTIPLIER:g} is enough: allow a larger "
                    "epsilon or delta"
                )
            # one side only: follow the slope, and farther with each try
            farther = nudge * 2.0 ** (tried - 1)
            x += min(max((goal - y) / slope, -_STRIDE), _STRIDE) + (-farther if holds else farther)
        z = math.exp(x)
    return least, math.exp(x), slope


def _round_up(value: float, digits: int) -> float:
    """The value rounded up: the last digits, which differ between machines, must not decide."""
    digits -= 1 + math.floor(math.log10(value))
    return round(math.ceil(value * 10.0**digits) / 10.0**digits, digits)
