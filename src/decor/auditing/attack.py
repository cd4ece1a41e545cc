"""Attacks on canaries, and what their errors prove.

An attack guesses every canary's secret. If a run is mu-GDP, no guess has errors with Phi^-1(1 -
FPR) - Phi^-1(FNR) > mu; so upper bounds of the two error rates (Clopper and Pearson's) bound mu
from below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from decor.arrays import Array

from .attackers import Foe


@dataclass(frozen=True)
class Attack:
    """Who attacked whom, how, and what was reached."""

    by: Foe
    canary: str
    kind: str
    canaries: int
    claimed: float
    """The mu that the plan allows, for canaries of this length over the steps that were run."""
    measured: float
    """The mu that is proven, at the audit's confidence."""
    estimated: float

    @property
    def reached(self) -> float:
        """How much of the claim was measured; above 1 the claim is false."""
        return self.measured / self.claimed

    @property
    def passed(self) -> bool:
        return self.measured <= self.claimed


def proven(
    wrong_in: int, held_in: int, wrong_out: int, held_out: int, error: float
) -> tuple[float, float]:
    """(lower bound of mu, estimate): from the canaries guessed wrongly among those in and among
    those out.
    """
    most = [upper(wrong_in, held_in, error / 2), upper(wrong_out, held_out, error / 2)]
    guess = [(wrong_in + 0.5) / (held_in + 1), (wrong_out + 0.5) / (held_out + 1)]
    return max(0.0, _mu(*most)), max(0.0, _mu(*guess))


def upper(wrong: int, held: int, error: float) -> float:
    """Clopper and Pearson's upper bound of a probability, above it but for `error`."""
    return 1.0 if wrong >= held else float(stats.beta.ppf(1 - error, wrong + 1, held - wrong))


def _mu(one: float, other: float) -> float:
    return float(-stats.norm.ppf(one) - stats.norm.ppf(other))


def errors(score: Array, present: Array, threshold: float) -> tuple[int, int, int, int]:
    """Guesses "present" above the threshold: (wrong among present, present, wrong among absent,
    absent).
    """
    said = score > threshold
    return (
        int((present & ~said).sum()),
        int(present.sum()),
        int((~present & said).sum()),
        int((~present).sum()),
    )


def fitted(features: Array, present: Array, trained: Array) -> tuple[Array, float]:
    """A linear attack that knows nothing of the plan: weights by Fisher's discriminant from the
    canaries in `trained`.
    """
    some, kinds = features[:, trained], present[trained]
    means = some[:, kinds].mean(1), some[:, ~kinds].mean(1)
    centred = np.where(kinds, some - means[0][:, None], some - means[1][:, None])
    covariance = centred @ centred.T / centred.shape[1]
    ridge = 1e-9 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    weights = np.linalg.solve(covariance + ridge, means[0] - means[1])
    return weights @ features, float(weights @ (means[0] + means[1]) / 2)
