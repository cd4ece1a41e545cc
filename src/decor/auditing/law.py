"""The law of the noise: what is on the wire has the planned covariance, no memory, no shape but a Gaussian's.

An attack finds what costs privacy; these find that something is not as planned, whichever way it went. All are two-sided, and
exact or nearly so for the many numbers of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[Any]

_SHAPED = 200_000
"""Numbers of a user whose shape is looked at."""
_BINS = np.concatenate([[1e-4, 1e-3, 1e-2], np.arange(0.05, 1.0, 0.05), [0.99, 0.999, 0.9999]])


@dataclass(frozen=True)
class Check:
    """One property of the noise: how surprising what was seen would be if it held."""

    name: str
    said: str
    probability: float
    least: float

    @property
    def passed(self) -> bool:
        return self.probability >= self.least


_LAW = 6_000
"""Columns that are looked at one by one; repetitions are looked for in all of them."""


class Law:
    """Looks at noise [parts, columns] step by step: columns independent, parts with the given covariance."""

    def __init__(self, covariance: Array) -> None:
        self.covariance = covariance
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
        noise = noise[:, :_LAW]
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
        power = sum(np.square(np.abs(np.fft.rfft(row))) / C for row, C in zip(noise, self.covariance.diagonal(), strict=True))
        self.power = power + (self.power if self.steps else 0.0)
        self.wide = noise.shape[1]

    def checks(self, least: float, users: bool = True) -> list[Check]:
        """`least`: the probability below which a check fails. `users`: whether parts are users, whose sum means something."""
        C, seen = self.covariance, self.steps * self.columns
        scale = np.sqrt(np.multiply.outer(C.diagonal(), C.diagonal()))
        spread = np.sqrt((np.square(C) + np.square(scale)) / seen)
        found = [
            largest("covariance", "the noise has the planned covariance", (self.moment / seen - C) / spread, least),
            largest("next step", "a step knows nothing of the last", self._over(self.next, scale, self.steps - 1), least),
            largest("memory", "a step knows nothing of all before", self._over(self.memory, scale, self.weight), least),
            largest("coordinates", "a coordinate knows nothing of another", self._apart(scale), least),
            self._square("all coordinates", "coordinates add up as independent ones", self.across, len(C) * self.steps, least),
            self._shape(least),
        ]
        if users:
            variance = float(C.sum())
            said = "everybody's noise adds up to everybody's own alone"
            found.append(self._square("sum of users", said, self.total / variance, seen, least))
        return found

    def _over(self, product: Array, scale: Array, pairs: float) -> Array:
        return product / (scale * math.sqrt(max(pairs, 1) * self.columns))

    def _apart(self, scale: Array) -> Array:
        """What coordinates have in common with those so many places on, around the circle, by the spectrum of their power."""
        found: Array = np.fft.irfft(self.power, self.wide)[1 : (self.wide + 1) // 2]
        return found / math.sqrt(self.steps * self.wide * float(np.square(self.covariance / scale).sum()))

    @staticmethod
    def _square(name: str, said: str, value: float, freedom: int, least: float) -> Check:
        law = stats.chi2(freedom)
        return Check(name, said, min(1.0, 2 * float(min(law.cdf(value), law.sf(value)))), least)

    def _shape(self, least: float) -> Check:
        expected = np.diff(np.concatenate([[0.0], _BINS, [1.0]])) * self.counts.sum(1, keepdims=True)
        surprise = (np.square(self.counts - expected) / expected).sum(1)
        probability = float(stats.chi2(len(_BINS)).sf(surprise.max())) * len(surprise)
        return Check("shape", "the noise is Gaussian", min(1.0, probability), least)


def largest(name: str, said: str, z: Array, least: float) -> Check:
    """Of many standard normal numbers the most surprising, which counts as often as there are numbers."""
    return Check(name, said, min(1.0, float(2 * stats.norm.sf(np.abs(z).max()) * z.size)), least)
