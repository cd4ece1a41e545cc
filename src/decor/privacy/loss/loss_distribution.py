"""The privacy loss of one step of a subsampled Gaussian, as a law on a grid that dominates the true
one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from decor.arrays import Floats

ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""More than any function used here errs, relatively."""


@dataclass(frozen=True)
class Pair:
    """P = (1-rate) N(0) + rate N(up) against Q = (1-rate) N(0) + rate N(-down): the loss log P/Q
    grows with x.
    """

    rate: float
    up: float
    down: float

    def loss(self, x: Floats) -> Floats:
        return _log_mixture(self.rate, self.up, x) - _log_mixture(self.rate, self.down, -x)

    def where(self, loss: Floats) -> Floats:
        """The x of each loss; infinite beyond the losses that occur."""
        if self.down == 0:
            return _inverse_log_mixture(self.rate, self.up, loss)
        if self.up == 0:
            return -_inverse_log_mixture(self.rate, self.down, -loss)
        # sinh(mu x - L/2) = beta sinh(L/2), where beta = (1-q)/q e^(mu^2/2) may overflow: hence the
        # logarithms
        half = np.abs(loss) / 2
        with np.errstate(divide="ignore"):
            log_beta = np.log1p(-self.rate) - math.log(self.rate) + self.up**2 / 2
            a = log_beta + half + np.log(-np.expm1(-2 * half) / 2)
        large, small = np.maximum(a, 0.0), np.exp(np.minimum(a, 0.0))
        asinh = np.where(
            a > 0, large + np.log1p(np.sqrt(1 + np.exp(-2 * large))), np.arcsinh(small)
        )
        x: Floats = np.sign(loss) * (half + asinh) / self.up
        return x

    def masses(self, x: Floats) -> tuple[Floats, Floats]:
        """P and Q of the bins between consecutive x: each a row of masses over a row of bounds on
        their rounding errors.
        """
        still, moved_p, moved_q = (
            _normal_masses(x - shift) for shift in (0.0, self.up, -self.down)
        )
        return (1 - self.rate) * still + self.rate * moved_p, (
            1 - self.rate
        ) * still + self.rate * moved_q

    def below(self, x: Floats) -> Floats:
        mass: Floats = (1 - self.rate) * ndtr(x) + self.rate * ndtr(x - self.up)
        return mass

    def above(self, x: Floats) -> Floats:
        mass: Floats = (1 - self.rate) * ndtr(-x) + self.rate * ndtr(self.up - x)
        return mass


def _log_mixture(rate: float, shift: float, x: Floats) -> Floats:
    """log(1 - rate + rate e^(shift x - shift^2/2)) without overflow."""
    t = shift * x - shift**2 / 2
    if rate == 1:
        return t
    near = np.log1p(rate * np.expm1(np.minimum(t, 1.0)))
    return np.where(
        t < 1, near, math.log(rate) + t + np.log1p((1 - rate) / rate * np.exp(-np.maximum(t, 1.0)))
    )


def _inverse_log_mixture(rate: float, shift: float, loss: Floats) -> Floats:
    """The x at which `_log_mixture` is the loss; minus infinity at and below log(1 - rate)."""
    if rate == 1:
        return loss / shift + shift / 2
    # log(e^L - (1 - rate)) in the form that cancels least: far below zero, around it, and where e^L
    # would overflow
    near, far = np.minimum(loss, 1.0), np.maximum(loss, 1.0)
    difference = np.where(loss < -0.5, np.exp(near) - (1 - rate), rate + np.expm1(near))
    with np.errstate(divide="ignore"):
        log_difference = np.log(np.maximum(difference, 0.0))
    log_difference = np.where(loss > 1, far + np.log1p((rate - 1) * np.exp(-far)), log_difference)
    return (log_difference - math.log(rate)) / shift + shift / 2


def _normal_masses(x: Floats) -> Floats:
    """N(0, 1) of the bins between consecutive x, from the smaller tail, over bounds on the rounding
    errors.
    """
    # beyond, tails lose their digits to underflow; as masses of Q, zeros are safe
    t = np.clip(x, -37.0, 37.0)
    tails = ndtr(np.stack([t, -t]))
    errors = ROUNDING * (1 + t * t) * tails
    right = t[:-1] > 0
    mass = np.where(right, tails[1, :-1] - tails[1, 1:], tails[0, 1:] - tails[0, :-1])
    return np.stack(
        [mass, np.where(right, errors[1, :-1] + errors[1, 1:], errors[0, 1:] + errors[0, :-1])]
    )


@dataclass(frozen=True)
class Repeated:
    """A dominating pair, `steps` times: `negative` governs the losses below zero and `positive`
    those above.
    """

    negative: Pair
    positive: Pair
    steps: int

    def sketch(self, tail: float) -> Floats:
        """A short, uneven grid of losses around zero; P has at most twice the mass `tail` outside
        it.
        """
        far = -float(ndtri(tail))
        low, high = (
            pair.loss(np.linspace(-far, far + pair.up, 600))
            for pair in (self.negative, self.positive)
        )
        # one more above: where losses are bounded, rounding decides which x the last one stands for
        return np.unique(
            np.concatenate([low[low < 0], np.zeros(1), high[high > 0], high[-1:] * (1 + 1e-9)])
        )

    def law(self, grid: Floats) -> Law:
        """P of the loss on a grid with zero, the dots connected.

        Guarantee: dominates the pair. P and Q of a bin go to its two ends, and no law on the bin
        with the same mass and mean of e^-loss has larger divergences. Roundings add mass and raise
        it; mass below the grid goes to its start, above to infinity.
        """
        zero = int(np.searchsorted(grid, 0.0))
        probability = np.zeros(grid.size)
        for pair, part in (
            (self.negative, slice(0, zero + 1)),
            (self.positive, slice(zero, grid.size)),
        ):
            ends = grid[part]
            (p, p_error), (q, q_error) = pair.masses(pair.where(ends))
            scale = np.exp(np.minimum(ends[:-1], 700.0))
            p = p + p_error
            raised = np.clip((p - (q - q_error) * scale) / -np.expm1(-np.diff(ends)), 0.0, p)
            probability[part][1:] += raised
            probability[part][:-1] += p - raised
        start, left = self.negative.below(self.negative.where(grid[[0, zero]]))
        probability[0] += start
        probability[zero] += self.positive.below(self.positive.where(grid[[zero]]))[0] - left
        return Law(
            self, grid, probability, float(self.positive.above(self.positive.where(grid[-1:]))[0])
        )


@dataclass(frozen=True)
class Law:
    """P of the loss of one step of a phase; `beyond` is the probability of an infinite one."""

    phase: Repeated
    grid: Floats
    probability: Floats
    beyond: float

    def log_moments(self, orders: Floats) -> Floats:
        """log E e^(order loss) of one step."""
        occurs = self.probability > 0
        exponents = orders[:, None] * self.grid[occurs] + np.log(self.probability[occurs])
        top = exponents.max(axis=1)
        moments: Floats = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
        return moments

    def farthest(self) -> float:
        return float(np.abs(self.grid).max())

    def variance(self) -> float:
        return float(self.probability @ (self.grid - self.probability @ self.grid) ** 2)

    def misplacement(self) -> float:
        """Bound on the rounding errors of the losses at the ends of the bins."""
        pair = self.phase.positive
        return ROUNDING * (
            1 + self.farthest() + max(pair.up, pair.down) ** 2 - 2 * math.log(pair.rate)
        )
