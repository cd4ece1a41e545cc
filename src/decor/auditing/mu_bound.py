"""Attacks on canaries, and the lower bound on mu that their error counts prove.

An attack guesses the secret of each canary. If a run is mu-GDP, no guess has error rates with
Phi^-1(1 - FPR) - Phi^-1(FNR) > mu. Upper confidence bounds of the two error rates (Clopper and
Pearson) therefore bound mu from below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from decor.array_types import Array

from .attackers import Attacker


@dataclass(frozen=True)
class Attack:
    """One attack and the mu that it proves. Its fields are keys of the JSON report.

    Attributes:
        attacker: The coalition, and the user that it attacks.
        canary: The sign pattern of the canaries, or "inclusion" at example level.
        kind: How canaries are scored: "optimal", "fitted", "linear" or "own batch".
        canaries: How many canaries were guessed.
        claimed: The mu that the plan allows for canaries of this length, over the steps run.
        measured: The mu that is proven, at the audit's confidence.
        estimated: The mu that the error rates suggest, without a confidence bound.
    """

    attacker: Attacker
    canary: str
    kind: str
    canaries: int
    claimed: float
    measured: float
    estimated: float

    @property
    def reached(self) -> float:
        """The share of the claim that was measured; above 1 the claim is false."""
        return self.measured / self.claimed

    @property
    def passed(self) -> bool:
        return self.measured <= self.claimed


class ErrorCounts(NamedTuple):
    """Errors of an attack: misses among the present canaries, false alarms among the absent."""

    misses: int
    present: int
    false_alarms: int
    absent: int

    def max_false_alarm_rate(self, error: float) -> float:
        return clopper_pearson(self.false_alarms, self.absent, error / 2)


def count_errors(score: Array, present: Array, threshold: float) -> ErrorCounts:
    """Guesses "present" above the threshold, and counts the errors."""
    guess = score > threshold
    misses, false_alarms = int((present & ~guess).sum()), int((~present & guess).sum())
    return ErrorCounts(misses, int(present.sum()), false_alarms, int((~present).sum()))


def measure_mu(counts: ErrorCounts, error: float) -> tuple[float, float]:
    """(lower bound of mu, estimate); the bound exceeds mu with probability `error` at most."""
    misses, present, false_alarms, absent = counts
    # both rates have to be below their bounds, so each bound takes half of the error
    most = [clopper_pearson(misses, present, error / 2), counts.max_false_alarm_rate(error)]
    # half an error more: a rate of zero would give an infinite estimate
    estimate = [(misses + 0.5) / (present + 1), (false_alarms + 0.5) / (absent + 1)]
    return max(0.0, _mu(*most)), max(0.0, _mu(*estimate))


def clopper_pearson(errors: int, trials: int, error: float) -> float:
    """Clopper and Pearson's upper bound of a probability; it is too low with chance `error`."""
    return (
        1.0 if errors >= trials else float(stats.beta.ppf(1 - error, errors + 1, trials - errors))
    )


def _mu(one: float, other: float) -> float:
    return float(-stats.norm.ppf(one) - stats.norm.ppf(other))


def fit_linear(features: Array, present: Array, training: Array) -> tuple[Array, float]:
    """(scores, threshold) of Fisher's discriminant, fitted to the canaries in `training`.

    It uses nothing of the plan, so it also finds linear leaks that no formula predicts.
    """
    known, labels = features[:, training], present[training]
    means = known[:, labels].mean(1), known[:, ~labels].mean(1)
    centred = np.where(labels, known - means[0][:, None], known - means[1][:, None])
    covariance = centred @ centred.T / centred.shape[1]
    # edge noise far above the users' own makes the covariance nearly singular
    ridge = 1e-9 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    # the best linear test for two Gaussians with one covariance
    weights = np.linalg.solve(covariance + ridge, means[0] - means[1])
    # the threshold is half-way between the two means
    return weights @ features, float(weights @ (means[0] + means[1]) / 2)
