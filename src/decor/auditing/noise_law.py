"""The law of the noise: what is on the wire has the planned covariance, no memory, no shape but a
Gaussian's.

An attack finds what costs privacy; these find that something is not as planned, whichever way it
went. All are two-sided, and exact or nearly so for the many numbers of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from decor.arrays import Array

_LAW, _BESIDE = 6_000, 100
"""Columns whose law is looked at, in runs of so many that are neighbours; repetitions are looked
for in all of them.
"""
_SHAPED = 200_000
"""Numbers of a user whose shape is looked at."""
_MANY = 100
"""Numbers in a tail from which a sum of squares over bins has chi-square's law, far out too."""
_BINS = np.concatenate([[1e-4, 1e-3, 1e-2], np.arange(0.05, 1.0, 0.05), [0.99, 0.999, 0.9999]])


@dataclass(frozen=True)
class Check:
    """One property of the noise: how surprising what was seen would be if it held."""

    name: str
    said: str
    probability: float
    least: float

    @staticmethod
    def of(name: str, said: str, probability: float, least: float) -> Check:
        """What is not a number is no chance: numbers that are not finite have passed by."""
        return Check(
            name, said, 0.0 if math.isnan(probability) else min(1.0, float(probability)), least
        )

    @property
    def passed(self) -> bool:
        return self.probability >= self.least


class Law:
    """Looks at noise [parts, columns] step by step: columns independent, parts with the given
    covariance.
    """

    def __init__(self, covariance: Array, own: float = 1.0) -> None:
        """`own`: the deviation of one user's own noise, of which alone everybody's sum is made."""
        self.covariance, self.own = covariance, own
        self.inverse = np.linalg.inv(covariance)
        self.steps = self.columns = 0
        size = len(covariance)
        self.moment, self.next, self.memory = (np.zeros((size, size)) for _ in range(3))
        self.power: Array = np.zeros(0)
        self.across, self.weight = 0.0, 0.0
        self.counts = np.zeros((size, len(_BINS) + 1))
        self.total = 0.0

    def see(self, noise: Array) -> None:
        self._all(noise)
        noise = noise[:, _spread(noise.shape[1])]
        size, columns = noise.shape
        if not self.steps:
            self.sum, self.last, self.columns = np.zeros_like(noise), np.zeros_like(noise), columns
        self.moment += noise @ noise.T
        self.next += noise @ self.last.T
        self.memory += noise @ self.sum.T
        self.weight += self.steps
        self.total += float(np.square(noise.sum(0)).sum())
        if self.counts[0].sum() < _SHAPED:
            white = self.inverse @ noise / np.sqrt(self.inverse.diagonal())[:, None]
            places = np.searchsorted(stats.norm.ppf(_BINS), white)
            for part in range(size):
                self.counts[part] += np.bincount(places[part], minlength=len(_BINS) + 1)
        self.sum += noise
        self.last[:] = noise
        self.steps += 1

    def _all(self, noise: Array) -> None:
        """All columns, however many, for what they have to do with each other."""
        along = noise.sum(1)
        self.across += float(along @ self.inverse @ along) / noise.shape[1]
        power = sum(
            np.square(np.abs(np.fft.rfft(row))) / C
            for row, C in zip(noise, self.covariance.diagonal(), strict=True)
        )
        self.power = power + (self.power if self.steps else 0.0)
        self.wide = noise.shape[1]

    def checks(self, least: float, users: bool = True) -> list[Check]:
        """`least`: the probability below which a check fails.

        `users`: whether parts are users, whose sum means something.
        """
        C, seen = self.covariance, self.steps * self.columns
        scale = np.sqrt(np.multiply.outer(C.diagonal(), C.diagonal()))
        spread = np.sqrt((np.square(C) + np.square(scale)) / seen)
        found = [
            largest(
                "covariance",
                "the noise has the planned covariance",
                (self.moment / seen - C) / spread,
                least,
            ),
            largest(
                "next step",
                "a step knows nothing of the last",
                self._over(self.next, scale, self.steps - 1),
                least,
            ),
            largest(
                "memory",
                "a step knows nothing of all before",
                self._over(self.memory, scale, self.weight),
                least,
            ),
            largest(
                "coordinates", "a coordinate knows nothing of another", self._apart(scale), least
            ),
            self._square(
                "all coordinates",
                "coordinates add up as independent ones",
                self.across,
                len(C) * self.steps,
                least,
            ),
            self._shape(least),
        ]
        if users:
            variance = len(C) * self.own**2
            said = "everybody's noise adds up to everybody's own alone"
            found.append(self._square("sum of users", said, self.total / variance, seen, least))
        return found

    def _over(self, product: Array, scale: Array, pairs: float) -> Array:
        return product / (scale * math.sqrt(max(pairs, 1) * self.columns))

    def _apart(self, scale: Array) -> Array:
        """What coordinates have in common with those so many places on, around the circle, by the
        spectrum of their power.
        """
        found: Array = np.fft.irfft(self.power, self.wide)[1 : (self.wide + 1) // 2]
        return found / math.sqrt(
            self.steps * self.wide * float(np.square(self.covariance / scale).sum())
        )

    @staticmethod
    def _square(name: str, said: str, value: float, freedom: int, least: float) -> Check:
        return Check.of(name, said, float(_two_sided(stats.chi2(freedom), value)), least)

    def _shape(self, least: float) -> Check:
        """Every bin by itself, whose count is binomial however rare it is; and together those that
        are not rare.
        """
        parts, seen = len(self.counts), self.counts[0].sum()
        bins = stats.binom(seen, np.diff([0.0, *_BINS, 1.0]))
        alone = (
            2 * np.minimum(bins.cdf(self.counts), bins.sf(self.counts - 1)).min() * self.counts.size
        )
        cuts = np.flatnonzero(np.minimum(_BINS, 1 - _BINS) * seen >= _MANY)
        expected = np.diff([0.0, *_BINS[cuts], 1.0]) * seen
        counted = np.add.reduceat(self.counts, [0, *(cuts + 1)], axis=1)
        surprise = (np.square(counted - expected) / expected).sum(1).max()
        together = stats.chi2(len(cuts)).sf(surprise) * parts if len(cuts) else 1.0
        return Check.of("shape", "the noise is Gaussian", 2 * min(alone, together), least)


class Columns:
    """Every coordinate by itself, so that a few without noise among very many are seen."""

    def __init__(self, covariance: Array, own: float) -> None:
        self.inverse, self.own, self.steps = np.linalg.inv(covariance), own, 0

    def see(self, noise: Array) -> Array:
        """Gives what the best attack weighs: the noise times the inverse of its covariance."""
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
        probability = 2 * np.minimum(all_users, summed).min() * len(self.white)
        return Check.of(
            "every coordinate", "every coordinate has the planned noise", probability, least
        )


def _spread(count: int) -> Array:
    """Runs of columns from the first to the last, or all: what is wrong may be at the end."""
    if count <= _LAW:
        return np.arange(count)
    first = np.linspace(0, count - _BESIDE, _LAW // _BESIDE).astype(int)
    found: Array = (first[:, None] + np.arange(_BESIDE)).ravel()
    return found


def _two_sided(law: Any, value: Any) -> Any:
    return 2 * np.minimum(law.cdf(value), law.sf(value))


def largest(name: str, said: str, z: Array, least: float) -> Check:
    """Of many standard normal numbers the most surprising, which counts as often as there are
    numbers.
    """
    return Check.of(name, said, 2 * stats.norm.sf(np.abs(z).max()) * z.size, least)
