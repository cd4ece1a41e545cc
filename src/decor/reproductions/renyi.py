"""Rényi accounting of sampled batches: the bound that the paper cites, composed and converted.

The bound is that of Wang, Balle and Kasiviswanathan (2019) for batches of fixed size without
replacement and neighbours that replace one example. It is a sum over j of binomial(order, j) rate^j
times the lesser of two bounds on a moment of order j: 2 E L^j (Theorem 9), and, from the same
paper's appendix, 4 E |L - 1|^j, which falls with more noise. L is the likelihood ratio of two
Gaussians. Without the second, the bound stays above some epsilon however large the noise is.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from decor.array_types import Floats

ORDERS = np.arange(2, 129)
_SPACING, _TAIL = 0.25, 40.0
"""Of the sum that stands for an integral over x, in standard deviations."""


def epsilon(multiplier: float, rate: float, steps: int, delta: float) -> tuple[float, int]:
    """(epsilon of all steps, the order that gives it), by the paper's conversion.

    Args:
        multiplier: b sigma_eff / C, the noise over one example's share of the average.
        rate: Sampling rate.
        steps: Number of steps.
        delta: Failure probability.
    """
    total = steps * step_divergence(multiplier, rate) + math.log(1 / delta) / (ORDERS - 1)
    # the conversion holds at each order, so the best one may be chosen
    best = int(np.argmin(total))
    return float(total[best]), int(ORDERS[best])


def step_divergence(multiplier: float, rate: float) -> Floats:
    """Bound of the Rényi divergence of one step, at each order of ORDERS."""
    j = np.arange(2, ORDERS[-1] + 1)
    shift = 2 / multiplier  # a replaced example moves the sum of a batch by two clips
    # log(2 E L^j) of a Gaussian: exp(j (j - 1) shift^2 / 2) is E L^j
    raised = math.log(2) + j * (j - 1) * shift**2 / 2
    even = _even_moments(shift, len(j) // 2 + 1)
    # odd moments by Cauchy and Schwarz
    centred = math.log(4) + (even[j // 2 - 1] + even[(j + 1) // 2 - 1]) / 2
    moments = np.minimum(raised, centred) + j * math.log(rate)
    a = ORDERS[:, None]
    binomials = gammaln(a + 1) - gammaln(j + 1) - gammaln(np.maximum(a - j, 0) + 1)
    # terms beyond the order are zero
    ways = np.where(j <= a, binomials, -np.inf)
    divergence = np.logaddexp(0.0, logsumexp(ways + moments, axis=1)) / (ORDERS - 1)
    return np.asarray(divergence, dtype=np.float64)


def _even_moments(shift: float, count: int) -> Floats:
    """log E (L - 1)^k for k = 2, 4, ..., 2 count; L = N(shift, 1) / N(0, 1)."""
    # a sum over equally spaced points is exact to rounding for such integrands; the usual
    # alternating sum of binomials loses all digits when there is much noise
    k = 2 * np.arange(1, count + 1)[:, None]
    x = np.arange(-_TAIL, 2 * count * shift + _TAIL, _SPACING)
    loss = shift * x - shift**2 / 2
    with np.errstate(divide="ignore"):  # L may be one at a point
        distance = np.maximum(loss, 0.0) + np.log(-np.expm1(-np.abs(loss)))
    density = -(x**2) / 2 - math.log(2 * math.pi) / 2
    moments = logsumexp(k * distance + density, axis=1) + math.log(_SPACING)
    return np.asarray(moments, dtype=np.float64)
