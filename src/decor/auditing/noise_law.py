"""Checks of the noise: planned covariance, independent steps and coordinates, Gaussian shape.

An attack finds what costs privacy. These checks find any departure from the plan, in either
direction. All are two-sided, and exact or nearly so for the many values of a run.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from decor.array_types import Array

_TESTED, _BLOCK = 6_000, 100
"""Columns whose distribution is tested, in blocks of so many neighbours. Repetitions are searched
for in all columns.
"""
_SHAPE_VALUES = 200_000
"""Values of each user whose shape is tested."""
_TAIL_VALUES = 100
"""Values in a tail from which a sum of squares over bins is chi-square, far out too."""
_BINS = np.concatenate([[1e-4, 1e-3, 1e-2], np.arange(0.05, 1.0, 0.05), [0.99, 0.999, 0.9999]])

_TEXTS = {
    "covariance": "the noise {has|does not have} the planned covariance",
    "next step": "the noise {does not depend|depends} on that of the step before",
    "memory": "the noise {does not depend|depends} on that of earlier steps",
    "coordinates": "the noise of coordinates {is|is not} independent",
    "all coordinates": "sums over coordinates {have|do not have} the variance of independent noise",
    "shape": "the noise {is|is not} Gaussian",
    "sum of users": "the sum over users {has|does not have} the variance of the users' own noise",
    "every coordinate": "{each|some} coordinate {has|does not have} the planned noise",
    "clip": "gradients longer than the clip {are|are not} sent with the length of the clip",
    "share": "{no|an} example moves a message by more than its part of a batch",
    "rate": "examples {are|are not} sampled at the planned rate",
    "draws": "batches of steps {are|are not} independent",
    "support": "{all|not all} messages are possible on the grid, to the last bit",
    "low bits": "the last bits of messages {are|are not} uniform, whatever the data",
    "entropy": "{each key has|not all keys have} 32 bytes of their own from the operating system",
    "deviations": "the engine's noise levels {are not|are} below the planned ones",
    "messages": "each user {sent|did not send} one message in each step",
}
"""What each check states: {if it passes|if it fails}."""
_ALTERNATIVES = re.compile(r"\{(.*?)\|(.*?)\}")


@dataclass(frozen=True)
class Check:
    """One property of a run, and how probable what was seen is if the property holds.

    Attributes:
        name: A key of _TEXTS, or that with a prefix.
        text: _TEXTS of the check, or what exactly is wrong.
        probability: The p-value; 0 or 1 where chance has no part.
        least: The check fails below this probability.
    """

    name: str
    text: str
    probability: float
    least: float

    @staticmethod
    def of(name: str, probability: float, least: float) -> Check:
        """A statistical check."""
        # nan: the noise had values that are not finite, so the check must not pass
        p = 0.0 if math.isnan(probability) else min(1.0, float(probability))
        return Check(name, _TEXTS[name], p, least)

    @staticmethod
    def exact(name: str, holds: bool, failure: str = "") -> Check:
        """A check without chance; `failure` says what exactly is wrong if it does not hold."""
        return Check(name, _TEXTS[name] if holds or not failure else failure, float(holds), 0.5)

    @property
    def passed(self) -> bool:
        return self.probability >= self.least

    @property
    def sentence(self) -> str:
        """What is so, or what is wrong."""
        return _ALTERNATIVES.sub(r"\1" if self.passed else r"\2", self.text)


class NoiseLaw:
    """Statistics of noise [parts, columns], added step by step: columns are independent, parts
    have the given covariance.
    """

    def __init__(self, covariance: Array, own: float = 1.0) -> None:
        """`own`: standard deviation of one user's own noise, all that is left in the sum."""
        self.covariance, self.own = covariance, own
        self.inverse = np.linalg.inv(covariance)
        self.steps = self.columns = 0
        size = len(covariance)
        self.moment, self.next, self.memory = (np.zeros((size, size)) for _ in range(3))
        self.power: Array = np.zeros(0)
        self.across, self.weight = 0.0, 0.0
        self.counts = np.zeros((size, len(_BINS) + 1))
        self.total = 0.0

    def add(self, noise: Array) -> None:
        """The noise of one step."""
        self._add_all_columns(noise)
        noise = noise[:, _spread(noise.shape[1])]
        size, columns = noise.shape
        if not self.steps:
            self.sum, self.last, self.columns = np.zeros_like(noise), np.zeros_like(noise), columns
        self.moment += noise @ noise.T
        self.next += noise @ self.last.T
        self.memory += noise @ self.sum.T
        # the number of pairs of steps that `memory` sums over
        self.weight += self.steps
        self.total += float(np.square(noise.sum(0)).sum())
        # enough values for the shape are in the first steps; binning all would be slow
        if self.counts[0].sum() < _SHAPE_VALUES:
            # what the other users do not explain of a user's noise, with variance 1
            white = self.inverse @ noise / np.sqrt(self.inverse.diagonal())[:, None]
            bins = np.searchsorted(stats.norm.ppf(_BINS), white)
            for part in range(size):
                self.counts[part] += np.bincount(bins[part], minlength=len(_BINS) + 1)
        self.sum += noise
        self.last[:] = noise
        self.steps += 1

    def _add_all_columns(self, noise: Array) -> None:
        """Relations between columns: all of them count, because a fault may repeat any."""
        # a Gaussian that many columns share shows in their sum, however weak in each pair
        along = noise.sum(1)
        self.across += float(along @ self.inverse @ along) / noise.shape[1]
        # the power spectrum has the correlations at all lags (Wiener and Khinchin)
        power = sum(
            np.square(np.abs(np.fft.rfft(row))) / C
            for row, C in zip(noise, self.covariance.diagonal(), strict=True)
        )
        self.power = power + (self.power if self.steps else 0.0)
        self.width = noise.shape[1]

    def checks(self, least: float, users: bool = True) -> list[Check]:
        """All checks.

        Args:
            least: The probability below which a check fails.
            users: Whether parts are users, whose sum has a known variance.
        """
        C, seen = self.covariance, self.steps * self.columns
        scale = np.sqrt(np.multiply.outer(C.diagonal(), C.diagonal()))
        # Isserlis: products of two Gaussians have the variance C_ij^2 + C_ii C_jj
        spread = np.sqrt((np.square(C) + np.square(scale)) / seen)
        checks = [
            largest("covariance", (self.moment / seen - C) / spread, least),
            largest("next step", self._over(self.next, scale, self.steps - 1), least),
            largest("memory", self._over(self.memory, scale, self.weight), least),
            largest("coordinates", self._autocorrelations(scale), least),
            self._chi_square("all coordinates", self.across, len(C) * self.steps, least),
            self._shape(least),
        ]
        if users:
            variance = len(C) * self.own**2
            checks.append(self._chi_square("sum of users", self.total / variance, seen, least))
        return checks

    def _over(self, product: Array, scale: Array, pairs: float) -> Array:
        return product / (scale * math.sqrt(max(pairs, 1) * self.columns))

    def _autocorrelations(self, scale: Array) -> Array:
        """Circular autocorrelations of the columns at all lags, from their power spectrum."""
        # lag 0 is the variance, and lags above half the width repeat those below
        lags: Array = np.fft.irfft(self.power, self.width)[1 : (self.width + 1) // 2]
        correlations = float(np.square(self.covariance / scale).sum())
        return lags / math.sqrt(self.steps * self.width * correlations)

    @staticmethod
    def _chi_square(name: str, value: float, freedom: int, least: float) -> Check:
        return Check.of(name, float(_two_sided(stats.chi2(freedom), value)), least)

    def _shape(self, least: float) -> Check:
        """Each bin alone, whose count is binomial however rare it is; and all that are not rare."""
        parts, seen = len(self.counts), self.counts[0].sum()
        bins = stats.binom(seen, np.diff([0.0, *_BINS, 1.0]))
        rarest = np.minimum(bins.cdf(self.counts), bins.sf(self.counts - 1)).min()
        alone = 2 * rarest * self.counts.size
        # bins with few values are merged: there a sum of squares is not chi-square
        cuts = np.flatnonzero(np.minimum(_BINS, 1 - _BINS) * seen >= _TAIL_VALUES)
        expected = np.diff([0.0, *_BINS[cuts], 1.0]) * seen
        counted = np.add.reduceat(self.counts, [0, *(cuts + 1)], axis=1)
        surprise = (np.square(counted - expected) / expected).sum(1).max()
        together = stats.chi2(len(cuts)).sf(surprise) * parts if len(cuts) else 1.0
        return Check.of("shape", 2 * min(alone, together), least)


class CoordinateLaw:
    """Statistics per coordinate, which reveal a few noiseless coordinates among very many."""

    def __init__(self, covariance: Array, own: float) -> None:
        self.inverse, self.own, self.steps = np.linalg.inv(covariance), own, 0

    def add(self, noise: Array) -> Array:
        """Returns what the optimal attack weighs: the noise times its inverse covariance."""
        if not self.steps:
            self.white, self.total = np.zeros((2, noise.shape[1]))
        weighed: Array = self.inverse @ noise
        self.white += np.einsum("ij,ij->j", noise, weighed)
        self.total += np.square(noise.sum(0))
        self.steps += 1
        return weighed

    def check(self, least: float) -> Check:
        users = len(self.inverse)
        all_users = _two_sided(stats.chi2(users * self.steps), self.white)
        summed = _two_sided(stats.chi2(self.steps), self.total / (users * self.own**2))
        # Bonferroni over coordinates and the two statistics
        probability = 2 * np.minimum(all_users, summed).min() * len(self.white)
        return Check.of("every coordinate", probability, least)


def _spread(count: int) -> Array:
    """Blocks of columns from the first to the last, or all: faults may be at the end."""
    if count <= _TESTED:
        return np.arange(count)
    first = np.linspace(0, count - _BLOCK, _TESTED // _BLOCK).astype(int)
    columns: Array = (first[:, None] + np.arange(_BLOCK)).ravel()
    return columns


def _two_sided(law: Any, value: Any) -> Any:
    return 2 * np.minimum(law.cdf(value), law.sf(value))


def largest(name: str, z: Array, least: float) -> Check:
    """The most surprising of many standard normal values, with Bonferroni's correction."""
    return Check.of(name, 2 * stats.norm.sf(np.abs(z).max()) * z.size, least)
