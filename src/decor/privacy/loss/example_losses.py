"""What one example loses over steps of all kinds: a Gaussian, and sampled steps, composed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from decor.choices import Relation
from decor.errors import CannotBound

from . import gaussian, subsampled
from .subsampled import SubsampledStep

_ROUNDING = 1 + 2.0**-48
"""Covers the few roundings between noise and mu, as in the accountant."""
_LEAST_EPSILON, _LEAST_DELTA = 1e-6, 1e-240
"""Searches for a delta go no further: below, roundings weigh more than losses."""
_MOST = 48
"""Different sampled steps: with more of them, noise multipliers are rounded down."""


@dataclass(frozen=True)
class ExampleLosses:
    """All steps that one example was in, or may have been in.

    Attributes:
        mu_squared: Of all steps without sampling, together; infinite if nothing is hidden.
        phases: The sampled steps, by noise and sampling.
        relation: In what neighbours differ; phases of fixed size have "replace" with either.
    """

    mu_squared: float
    phases: tuple[SubsampledStep, ...]
    relation: Relation

    @classmethod
    def of(
        cls, mu_squared: float, sampled: Mapping[SubsampledStep, int], relation: Relation
    ) -> ExampleLosses:
        """Losses with one phase for all steps with the same noise and sampling.

        Args:
            mu_squared: Of all steps without sampling, together.
            sampled: Sampled steps, each with `steps=1`, and how many there were.
            relation: In what neighbours differ.
        """
        counts = Counter({step: count for step, count in sampled.items() if count})
        if len(counts) > _MOST:
            counts = _fewer_phases(counts)
        phases = tuple(replace(step, steps=count) for step, count in counts.items())
        return cls(mu_squared, phases, relation)

    def epsilon(self, delta: float, fine: bool = True) -> float:
        """Epsilon of all steps together; infinite if nothing is hidden.

        Args:
            delta: Failure probability, strictly between 0 and 1.
            fine: False for searches: several times faster, and often within 1 %.

        Raises:
            CannotBound: If no finite bound was found within double precision.

        Guarantee: never below the truth.
        """
        if not math.isfinite(self.mu_squared):
            return math.inf
        mu = math.sqrt(self.mu_squared) * _ROUNDING
        if not self.phases:
            return float(gaussian.epsilon(mu, delta))
        phases = self.phases
        if mu > 0:
            # without sampling the pair is a Gaussian shift: of 1/z, or of 2/z for a replacement
            z = (1 if self.relation == "add-remove" else 2) / mu
            phases = (*phases, SubsampledStep(z, 1.0, "poisson", self.relation, 1))
        return _epsilon_of_phases(phases, delta, fine)

    def delta(self, epsilon: float) -> float:
        """Delta of all steps together.

        Args:
            epsilon: Bound on the privacy loss; at least 0.

        Guarantee: never below the truth. It is above the least delta whose `epsilon` is within the
        given one by a relative 0.4 % at most, and 1e-6 where the given one is below that.
        """
        if not math.isfinite(self.mu_squared):
            return 1.0
        if not self.phases:
            return gaussian.delta(epsilon, math.sqrt(self.mu_squared) * _ROUNDING)
        # an epsilon of 0 is never reached exactly: delta falls by at most the change of e^epsilon
        goal = max(epsilon, _LEAST_EPSILON)
        # every delta whose epsilon is within the given one is a bound: look for the least
        low, high = math.log(_LEAST_DELTA), 0.0
        low, high = self._search(goal, low, high, 0.1, False)
        # finer grids may allow what coarse ones do not
        low = high - 0.25
        while low > math.log(_LEAST_DELTA) and self._holds(goal, low, True):
            low, high = low - 0.25, low
        low, high = self._search(goal, low, high, 0.004, True)
        beyond = math.expm1(goal) - math.expm1(epsilon) if goal > epsilon else 0.0
        return min(1.0, math.exp(high) + beyond)

    def _search(
        self, epsilon: float, low: float, high: float, width: float, fine: bool
    ) -> tuple[float, float]:
        """Logarithms of a delta that does not hold and of one that does, at most `width` apart."""
        while high - low > width:
            middle = (low + high) / 2
            low, high = (low, middle) if self._holds(epsilon, middle, fine) else (middle, high)
        return low, high

    def _holds(self, epsilon: float, log_delta: float, fine: bool) -> bool:
        try:
            return self.epsilon(math.exp(log_delta), fine) <= epsilon
        except CannotBound:
            return False


@lru_cache(maxsize=256)
def _epsilon_of_phases(phases: tuple[SubsampledStep, ...], delta: float, fine: bool) -> float:
    return subsampled.epsilon(phases, delta, fine=fine)[0]


def _fewer_phases(sampled: Counter[SubsampledStep]) -> Counter[SubsampledStep]:
    """Fewer phases: less noise and higher rates, by as little as it takes.

    Both only raise epsilon.
    """
    precision = 1000.0
    while True:
        fewer = Counter[SubsampledStep]()
        for each, steps in sampled.items():
            z = math.exp(math.floor(math.log(each.noise_multiplier) * precision) / precision)
            z = min(z, each.noise_multiplier)
            rate = math.exp(math.ceil(math.log(each.rate) * precision) / precision)
            rate = min(max(rate, each.rate), 1.0)
            fewer[SubsampledStep(z, rate, each.sampling, each.relation, 1)] += steps
        if len(fewer) <= _MOST:
            return fewer
        precision *= 0.95
