"""The privacy loss of one step of a subsampled Gaussian, as a dominating distribution on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from decor.array_types import Floats

ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""Bound on the relative error of any function used here."""


@dataclass(frozen=True)
class DominatingPair:
    """P = (1-rate) N(0) + rate N(up) against Q = (1-rate) N(0) + rate N(-down).

    The loss log P/Q grows with x.
    """

    rate: float
    up: float
    down: float

    def loss(self, x: Floats) -> Floats:
        return _log_mixture(self.rate, self.up, x) - _log_mixture(self.rate, self.down, -x)

    def where(self, loss: Floats) -> Floats:
        """The x of each loss; infinite for losses that do not occur."""
        if self.down == 0:
            return _inverse_log_mixture(self.rate, self.up, loss)
        if self.up == 0:
            return -_inverse_log_mixture(self.rate, self.down, -loss)
        # sinh(mu x - L/2) = beta sinh(L/2), in logarithms: beta = (1-q)/q e^(mu^2/2) may overflow
        half = np.abs(loss) / 2
        with np.errstate(divide="ignore"):
            log_beta = np.log1p(-self.rate) - math.log(self.rate) + self.up**2 / 2
            a = log_beta + half + np.log(-np.expm1(-2 * half) / 2)
        # asinh(e^a), in a form that does not overflow
        large, small = np.maximum(a, 0.0), np.exp(np.minimum(a, 0.0))
        above_one = large + np.log1p(np.sqrt(1 + np.exp(-2 * large)))
        asinh = np.where(a > 0, above_one, np.arcsinh(small))
        x: Floats = np.sign(loss) * (half + asinh) / self.up
        return x

    def masses(self, x: Floats) -> tuple[Floats, Floats]:
        """P and Q of the bins between consecutive x: a row of masses, a row of error bounds."""
        shifts = (0.0, self.up, -self.down)
        unsampled, sampled_p, sampled_q = (_normal_masses(x - shift) for shift in shifts)
        p = (1 - self.rate) * unsampled + self.rate * sampled_p
        return p, (1 - self.rate) * unsampled + self.rate * sampled_q

    def below(self, x: Floats) -> Floats:
        """P of the losses below those of x."""
        mass: Floats = (1 - self.rate) * ndtr(x) + self.rate * ndtr(x - self.up)
        return mass

    def above(self, x: Floats) -> Floats:
        """P of the losses above those of x; 1 - below would lose the digits of a small tail."""
        mass: Floats = (1 - self.rate) * ndtr(-x) + self.rate * ndtr(self.up - x)
        return mass


def _log_mixture(rate: float, shift: float, x: Floats) -> Floats:
    """log(1 - rate + rate e^(shift x - shift^2/2)) without overflow."""
    t = shift * x - shift**2 / 2
    if rate == 1:
        return t
    near = np.log1p(rate * np.expm1(np.minimum(t, 1.0)))
    tail = np.log1p((1 - rate) / rate * np.exp(-np.maximum(t, 1.0)))
    return np.where(t < 1, near, math.log(rate) + t + tail)


def _inverse_log_mixture(rate: float, shift: float, loss: Floats) -> Floats:
    """The x at which `_log_mixture` is the loss; minus infinity at and below log(1 - rate)."""
    if rate == 1:
        return loss / shift + shift / 2
    # log(e^L - (1 - rate)) in the form that cancels least: below zero, around it, and for large L
    near, far = np.minimum(loss, 1.0), np.maximum(loss, 1.0)
    difference = np.where(loss < -0.5, np.exp(near) - (1 - rate), rate + np.expm1(near))
    with np.errstate(divide="ignore"):
        log_difference = np.log(np.maximum(difference, 0.0))
    log_difference = np.where(loss > 1, far + np.log1p((rate - 1) * np.exp(-far)), log_difference)
    return (log_difference - math.log(rate)) / shift + shift / 2


def _normal_masses(x: Floats) -> Floats:
    """N(0, 1) of the bins between consecutive x, and bounds on their rounding errors."""
    # beyond 37, tails lose their digits to underflow; as masses of Q, zeros are safe
    t = np.clip(x, -37.0, 37.0)
    tails = ndtr(np.stack([t, -t]))
    errors = ROUNDING * (1 + t * t) * tails
    right = t[:-1] > 0  # from the smaller tail: a difference of large ones would cancel
    mass = np.where(right, tails[1, :-1] - tails[1, 1:], tails[0, 1:] - tails[0, :-1])
    error = np.where(right, errors[1, :-1] + errors[1, 1:], errors[0, 1:] + errors[0, :-1])
    return np.stack([mass, error])


@dataclass(frozen=True)
class RepeatedPair:
    """A dominating pair, composed `steps` times.

    `negative` gives the losses below zero, and `positive` those above: fixed-size sampling needs
    two pairs (see `subsampled`).
    """

    negative: DominatingPair
    positive: DominatingPair
    steps: int

    def sketch(self, tail: float) -> Floats:
        """A short, uneven grid of losses; P has at most twice the mass `tail` outside it."""
        far = -float(ndtri(tail))
        pairs = (self.negative, self.positive)
        low, high = (pair.loss(np.linspace(-far, far + pair.up, 600)) for pair in pairs)
        # one more above: where losses are bounded, rounding decides the x of the last one
        last = high[-1:] * (1 + 1e-9)
        return np.unique(np.concatenate([low[low < 0], np.zeros(1), high[high > 0], last]))

    def distribution(self, grid: Floats) -> LossDistribution:
        """P of the loss of one step on a grid that contains zero.

        Guarantee: dominates the pair ("connect the dots"). The mass of a bin goes to its two ends,
        and no distribution on the bin with the same mass and mean of e^-loss has larger
        divergences. Roundings add mass and raise the losses; mass below the grid goes to its start,
        mass above it to infinity.
        """
        zero = int(np.searchsorted(grid, 0.0))
        probability = np.zeros(grid.size)
        halves = (self.negative, slice(0, zero + 1)), (self.positive, slice(zero, grid.size))
        for pair, part in halves:
            ends = grid[part]
            (p, p_error), (q, q_error) = pair.masses(pair.where(ends))
            scale = np.exp(np.minimum(ends[:-1], 700.0))
            p = p + p_error
            # the mass at the upper end that keeps the bin's mean of e^-loss: more P, less Q is safe
            raised = np.clip((p - (q - q_error) * scale) / -np.expm1(-np.diff(ends)), 0.0, p)
            probability[part][1:] += raised
            probability[part][:-1] += p - raised
        start, left = self.negative.below(self.negative.where(grid[[0, zero]]))
        probability[0] += start
        probability[zero] += self.positive.below(self.positive.where(grid[[zero]]))[0] - left
        beyond = float(self.positive.above(self.positive.where(grid[-1:]))[0])
        return LossDistribution(self, grid, probability, beyond)


@dataclass(frozen=True)
class LossDistribution:
    """P of the loss of one step of a phase; `beyond` is the probability of an infinite loss."""

    phase: RepeatedPair
    grid: Floats
    probability: Floats
    beyond: float

    def log_moments(self, orders: Floats) -> Floats:
        """log E e^(order loss) of one step."""
        occurs = self.probability > 0
        exponents = orders[:, None] * self.grid[occurs] + np.log(self.probability[occurs])
        top = exponents.max(axis=1)  # log-sum-exp: the largest term outside, against overflow
        moments: Floats = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
        return moments

    def farthest(self) -> float:
        """The largest magnitude of a loss."""
        return float(np.abs(self.grid).max())

    def variance(self) -> float:
        return float(self.probability @ (self.grid - self.probability @ self.grid) ** 2)

    def misplacement(self) -> float:
        """Bound on the rounding errors of the losses at the ends of the bins."""
        pair = self.phase.positive
        terms = 1 + self.farthest() + max(pair.up, pair.down) ** 2 - 2 * math.log(pair.rate)
        return ROUNDING * terms
