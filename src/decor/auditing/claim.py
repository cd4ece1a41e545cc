"""Claims: the accountant's own epsilons at many deltas, as the errors that they allow an attack."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import stats

from decor.arrays import Array
from decor.privacy.adversary import Adversary
from decor.privacy.plan import NoisePlan

from .attackers import Foe

DELTAS = np.concatenate([np.geomspace(1e-3, 0.05, 5), np.linspace(0.1, 0.95, 18)])


class Claim:
    """An epsilon for each of DELTAS."""

    def __init__(self, epsilons: Array) -> None:
        self.grown = np.exp(np.minimum(epsilons, 700.0))

    @staticmethod
    def of(plan: NoisePlan, foe: Foe) -> Claim:
        """What `plan.guarantee` says of this victim: steps, clip, sampling, graph and all, as every
        report has it.
        """
        return Claim(_everybodys(plan, foe.adversary)[:, foe.victim])

    def mu(self, false_alarms: float) -> float:
        """Of the Gaussian that misses as few, at so many false alarms, as the claim allows."""
        false_alarms, rest = min(false_alarms, 1 - 1e-12), 1 - DELTAS
        missed = max(
            0.0,
            float((rest - self.grown * false_alarms).max()),
            float(((rest - false_alarms) / self.grown).max()),
        )
        return (
            float(-stats.norm.ppf(false_alarms) - stats.norm.ppf(missed))
            if missed > 0
            else math.inf
        )


@lru_cache(maxsize=64)
def _everybodys(plan: NoisePlan, adversary: str) -> Array:
    """[deltas, users]."""
    against = Adversary.parse(adversary)
    return np.stack([plan.guarantee(float(delta), against).per_user for delta in DELTAS])
