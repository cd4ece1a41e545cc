"""A Gaussian run is mu-GDP: exact conversions between mu, epsilon and delta, and the paper's.

delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2). Both terms share the normal density at
x = eps/mu - mu/2, so with Mills' ratio R(x) = Phi(-x) / phi(x) this is phi(x) (R(x) - R(x + mu)),
which neither overflows nor underflows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx

from decor.array_types import Floats
from decor.errors import BudgetError

_ROOT_HALF = math.sqrt(0.5)
_SLACK = 4e-12  # relative; covers the error of Newton's method
_LEAST_SLACK = 1e-13  # absolute; near zero no relative slack is enough
_UNIT = 2.0**-52
_MOST_MU = 1e6
"""Above, epsilon/mu - mu/2 has no digits left; the RDP conversion is within a relative 1e-5."""

_LEAST_MU = 1e-7
"""A smaller mu is rounded up to this: the difference of Mills' ratios would lose its digits."""


def log_delta(epsilon: Any, mu: Any) -> Any:
    """log of the exact delta of a mu-GDP mechanism, for epsilon/mu - mu/2 > -8 and mu > 0.

    Takes floats or arrays. A plain formula on purpose: on floats it costs microseconds.
    """
    x = epsilon / mu - mu / 2
    return np.log((erfcx(x * _ROOT_HALF) - erfcx((x + mu) * _ROOT_HALF)) / 2) - x * x / 2


def log_delta_tangent(epsilon: float, mu: float) -> tuple[float, float]:
    """An upper bound of log delta at mu > 0, and its slope there as a function of mu^2.

    The derivative of delta by mu is the density phi(x). So the slope is 1 / (2 mu (R(x) - R(x +
    mu))), and R(x) - R(x + mu) = 2 int_0^inf e^(-t eps/mu - t^2/2) sinh(t mu/2) dt grows with mu:
    log delta is concave in mu^2, and its tangents lie above it.

    Returns:
        (0, 0) where delta is nearly 1 or double precision does not suffice for a slope, which is a
        tangent of the bound delta <= 1.
    """
    at, half = epsilon / mu, mu / 2
    x = at - half
    if x < -8:
        return 0.0, 0.0
    low, high = float(erfcx(x * _ROOT_HALF)), float(erfcx((x + mu) * _ROOT_HALF))
    # relative errors: of the difference of Mills' ratios, and through the rounding of x
    doubt = 8 * _UNIT * low / max(low - high, _UNIT * low)
    doubt += 4 * _UNIT * (abs(x) + 2) * (at + half)
    if doubt > 1e-3:
        return 0.0, 0.0
    slope = 1 / (mu * math.sqrt(2 * math.pi) * (low - high))
    # a slope that is off by a share d is that of a point nearby: this costs the square of d
    return (
        math.log((low - high) / 2) - x * x / 2 + 2 * doubt + 8 * doubt**2 * slope * mu * mu,
        slope,
    )


def delta(epsilon: float, mu: float) -> float:
    """The smallest delta of mu-GDP at epsilon.

    Guarantee: never below the true value; above it by a relative 1e-6 at most for mu from 1e-7 to a
    million, unless it is below 1e-300.
    """
    if mu == 0:
        return 0.0
    # a mu so large that no digit of x is left: nothing is hidden
    if not mu <= _MOST_MU:
        return 1.0
    mu = max(mu, _LEAST_MU) * (1 + _UNIT)
    value, slope = log_delta_tangent(epsilon, mu)
    if slope == 0 and epsilon / mu - mu / 2 > 0:
        # without the second term: too much, and still next to nothing
        x = epsilon / mu * (1 - 4 * _UNIT) - mu / 2 * (1 + 4 * _UNIT)
        value = math.log(float(erfcx(x * _ROOT_HALF)) / 2) - x * x / 2 + 1e-9
    return min(1.0, max(math.exp(value), 1e-300))


def epsilon(mu: ArrayLike, delta: float) -> Floats:
    """The smallest epsilon of mu-GDP at delta, elementwise.

    It is 0 where mu is 0 or delta alone covers mu.

    Guarantee: never below the true value; above it by a relative 1e-11 plus an absolute 1e-12 at
    most (2e-6 for mu below 1e-7, which matters for delta below 4e-8 only; a relative 1e-5 for mu
    above a million).
    """
    mus = np.asarray(mu, dtype=np.float64)
    if not (mus >= 0).all():
        raise BudgetError(f"mu must be a number of at least 0, not {mus.min()!r}")
    if mus.ndim == 0:
        return np.float64(_epsilon_of(float(mus), delta))  # type: ignore[return-value]
    # most users of a large graph share a few values
    distinct, where = np.unique(mus, return_inverse=True)
    with np.errstate(over="ignore"):
        values = np.asarray(_rdp_epsilon(distinct, delta), dtype=np.float64)
    free = distinct <= _free_mu(delta)
    usual = (distinct <= _MOST_MU) & ~free
    values[usual] = _newton(np.maximum(distinct[usual], _LEAST_MU), delta)
    values[free] = 0.0
    return values[where].reshape(mus.shape)


def _epsilon_of(mu: float, delta: float) -> float:
    if mu <= _free_mu(delta):
        return 0.0
    return float(_newton(max(mu, _LEAST_MU), delta)) if mu <= _MOST_MU else _rdp_epsilon(mu, delta)


def _rdp_epsilon(mu: Any, delta: float) -> Any:
    """The RDP conversion, never below the truth."""
    return mu * (mu / 2 + math.sqrt(-2 * math.log(delta))) * (1 + _SLACK)


def _free_mu(delta: float) -> float:
    """A mu whose epsilon is 0: its delta at 0, 2 Phi(mu/2) - 1, is less than mu / sqrt(2 pi)."""
    return delta * math.sqrt(2 * math.pi)


def _newton(mu: Any, delta: float) -> Any:
    """Epsilon by Newton's method: log delta is concave, so the steps stay above the root."""
    target = math.log(min(delta, 1 - 1e-12))
    value = mu * mu / 2 + mu * math.sqrt(-2 * target)  # from above: the RDP conversion
    for _ in range(100):
        excess = log_delta(value, mu) - target
        x = value / mu + mu / 2
        # minus the inverse of the derivative of log delta: delta / (e^eps Phi(-x))
        slope = np.exp(target + excess + (x - mu) ** 2 / 2) * 2 / erfcx(x * _ROOT_HALF)
        step = excess * slope
        value = value + step
        settled = step > -1e-13 * value
        if settled.all() if settled.ndim else settled:
            break
    return np.maximum(value, 0.0) * (1 + _SLACK) + _LEAST_SLACK


def mu(epsilon: float, delta: float) -> float:
    """The largest mu whose epsilon at delta is at most the given one.

    Guarantee: the `epsilon` of the result is not above the one given, and the result is within a
    relative 1e-8 of the largest mu (for epsilon of 1e-4 and more).
    """
    target = math.log(min(delta, 1 - 1e-12))
    low, high = 0.0, 8.0 + math.sqrt(64.0 + 2 * epsilon)  # where x reaches -8
    if log_delta(epsilon, high) <= target:
        low = high
    while high - low > 1e-13 * high and high > _LEAST_MU:
        # a small mu is reached in steps of 32, not of 2
        middle = (low + high) / 2 if low > 1e-3 * high else high / 32
        if middle <= _free_mu(delta) or log_delta(epsilon, middle) <= target:
            low = middle
        else:
            high = middle
    # the conversion back has the last word: less until it is within epsilon
    cut = 1e-12
    while low > _LEAST_MU and _epsilon_of(low, delta) > epsilon:
        low *= 1 - cut
        cut *= 2
    if low <= min(_LEAST_MU, _free_mu(delta)):
        raise BudgetError(
            f"epsilon {epsilon!r} at delta {delta!r} is beyond what can be computed; raise one of "
            "them"
        )
    return low


def paper_epsilon(mu: ArrayLike, delta: float) -> Floats:
    """The paper's conversion: RDP of T steps, then its Lemma rdp-dp at the best order.

    Guarantee: never below `epsilon`.
    """
    rho = np.square(np.asarray(mu, dtype=np.float64)) / 2
    return np.asarray(rho + 2 * np.sqrt(rho * math.log(1 / delta)))


def paper_mu(epsilon: float, delta: float) -> float:
    """The mu at which the paper's conversion gives epsilon."""
    log = math.log(1 / delta)
    # the root of the quadratic in the form without a difference
    return math.sqrt(2) * epsilon / (math.sqrt(epsilon + log) + math.sqrt(log))
