"""Claims: the accountant's epsilons at many deltas, as the errors that they allow an attack."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import stats

from decor.array_types import Array
from decor.privacy.adversary import Adversary
from decor.privacy.plan import NoisePlan

from .attackers import Attacker

DELTAS = np.concatenate([np.geomspace(1e-3, 0.05, 5), np.linspace(0.1, 0.95, 18)])


class Claim:
    """A trade-off between false alarms and misses, from one epsilon for each of DELTAS."""

    def __init__(self, epsilons: Array) -> None:
        self._exp_epsilons = np.exp(np.minimum(epsilons, 700.0))  # exp overflows from 710

    @staticmethod
    def of(plan: NoisePlan, attacker: Attacker) -> Claim:
        """What `plan.guarantee` says about this victim: the same numbers as in every report."""
        return Claim(_epsilons(plan, attacker.adversary)[:, attacker.victim])

    def mu(self, false_alarms: float) -> float:
        """mu of the Gaussian trade-off with as few misses at this false alarm rate."""
        # a rate of 1 would have an infinite quantile
        false_alarms, rest = min(false_alarms, 1 - 1e-12), 1 - DELTAS
        # (epsilon, delta)-DP bounds the errors of a test in both directions
        misses = max(
            0.0,
            float((rest - self._exp_epsilons * false_alarms).max()),
            float(((rest - false_alarms) / self._exp_epsilons).max()),
        )
        if not misses > 0:
            return math.inf
        return float(-stats.norm.ppf(false_alarms) - stats.norm.ppf(misses))


@lru_cache(maxsize=64)
def _epsilons(plan: NoisePlan, adversary: str) -> Array:
    """[deltas, users]."""
    against = Adversary.parse(adversary)
    return np.stack([plan.guarantee(float(delta), against).per_user for delta in DELTAS])
