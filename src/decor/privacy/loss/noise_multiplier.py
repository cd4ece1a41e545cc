"""The least noise of a subsampled Gaussian for a budget: a search over multipliers, each of them
accounted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count

from decor.choices import Relation, Sampling
from decor.errors import BudgetError, CannotBound

from . import gaussian, subsampled
from .subsampled import SubsampledStep, check

_LEAST_MULTIPLIER, _MOST_MULTIPLIER = 0.01, 1e9
_STRIDE = math.log(4)  # of a search that has not yet seen both sides
_UNSPENT = 8e-4  # of epsilon, at most; epsilon may fall five times as fast as the multiplier grows
_CLOSEST = 1e-7  # two multipliers between which the accounted epsilon jumps


def noise_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, sampling: Sampling, relation: Relation
) -> float:
    """The smallest noise multiplier found whose epsilon, accounted on the fine grid, is at most the
    given one.

    Guarantee: accounted again, the result is within the budget, and spends at least 1 - 8e-4 of its
    epsilon unless the accounted epsilon itself jumps there. Never below 0.01, which is the answer
    when less would do.
    """
    check(delta)
    if not 0 < epsilon < math.inf:
        raise BudgetError(f"epsilon must be a positive number, not {epsilon!r}")
    SubsampledStep(1.0, rate, sampling, relation, steps)  # refuses what is none

    def accounted(fine: bool) -> Callable[[float], float]:
        return lambda z: subsampled.epsilon(
            [SubsampledStep(z, rate, sampling, relation, steps)], delta, fine=fine
        )[0]

    near, slope = _least(
        accounted(False),
        epsilon,
        _guess(epsilon, delta, rate, steps, relation),
        -1.0,
        0.05,
        math.inf,
    )[1:]
    return _least(accounted(True), epsilon, near, slope, 0.0005, _UNSPENT)[0]


def _guess(epsilon: float, delta: float, rate: float, steps: int, relation: Relation) -> float:
    """By the central limit of many steps, within the multipliers that are looked at."""
    try:
        tilt = math.log1p((gaussian.mu(epsilon, delta) / rate) ** 2 / steps)
        guess = (1.0 if relation == "add-remove" else 2.0) / math.sqrt(tilt)
    except (ArithmeticError, BudgetError):  # beyond what numbers hold: anything will do
        guess = 1.0
    return min(max(guess, _LEAST_MULTIPLIER), _MOST_MULTIPLIER)


def _least(
    accounted: Callable[[float], float],
    epsilon: float,
    guess: float,
    slope: float,
    precision: float,
    unspent: float,
) -> tuple[float, float, float]:
    """The least multiplier seen to hold, a relative precision above one seen not to; the likely
    least, and the slope there.

    It leaves at most the share `unspent` of epsilon. Logarithms of epsilon over those of
    multipliers are nearly a line. Next is tried where that line meets the budget, and a little
    farther on the side about which less is known: so that both close in.
    """
    goal, beyond, low, high = math.log(epsilon), precision / 3, -math.inf, math.inf
    below = above = goal
    z, least = guess, math.inf
    for tried in count(1):
        close = high - low <= precision
        z = min(_rounded_up(max(z, _LEAST_MULTIPLIER), 10 if close else 5), _MOST_MULTIPLIER)
        found = accounted(z)
        x, y, holds = math.log(z), goal + math.log(max(found / epsilon, 1e-9)), found <= epsilon
        if holds:
            least, high, above = z, x, y
        else:
            low, below = x, y
        if math.isfinite(high - low):
            # rough grids may order two neighbours falsely
            slope = min((above - below) / (high - low), -0.1)
            x = min(max(low + (goal - below) / slope, low), high)
            close = high - low <= precision
            if close and (goal - above <= unspent or high - low <= _CLOSEST):
                break
            if close or tried % 5 == 0:  # a line that is bent
                x = (low + high) / 2
            else:
                x += beyond if high - x > x - low else -beyond
        elif z == least == _LEAST_MULTIPLIER:
            break
        else:
            if not holds and z == _MOST_MULTIPLIER:
                raise CannotBound(
                    f"no noise multiplier up to {_MOST_MULTIPLIER:g} is enough: "
                    "allow a larger epsilon or delta"
                )
            further = beyond * 2.0 ** (tried - 1)
            x += min(max((goal - y) / slope, -_STRIDE), _STRIDE) + (-further if holds else further)
        z = math.exp(x)
    return least, math.exp(x), slope


def _rounded_up(value: float, digits: int) -> float:
    """To so many digits: the last ones, which differ between machines, must not decide."""
    digits -= 1 + math.floor(math.log10(value))
    return round(math.ceil(value * 10.0**digits) / 10.0**digits, digits)
