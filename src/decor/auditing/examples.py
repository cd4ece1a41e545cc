"""Example level: records that are in a victim's data or not, each in a coordinate of its own, under the plan's sampling.

What is claimed here is no Gaussian's trade-off between errors but the accountant's own, point by point, from its epsilons.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from decor import progress
from decor.privacy import subsampled
from decor.privacy.plan import NoisePlan

from .adversaries import Foe, foes
from .attack import Attack, errors, proven, upper
from .canary import Inclusions
from .claim import DELTAS, Claim
from .ear import CHECKS, Ear
from .findings import Wired
from .law import Check, largest
from .wire import Wire

Array = NDArray[Any]

_AIM = 3.0
"""The mu that canaries are made for, about."""
_TAKEN, _WIDE, _WIDEST = 4, 64, 8_000
"""Canaries of one run: so many that a few are taken in a step, and more come from more seeds; or all that can be, in one run."""


def attacked(wire: Wire, plan: NoisePlan, canaries: int, steps: int, error: float, seed: int) -> Wired:
    exposure, users, rng = plan.exposure, plan.topology.users, np.random.default_rng([seed, 2])
    victim = plan.guarantee(0.5).worst_user
    against = foes(plan, wire.secrets, victim)
    few = math.ceil(_TAKEN / min(exposure.rates(users)))
    wide = min(canaries, max(_WIDE, min(few, _WIDEST)) if wire.widest else _WIDEST)
    loud = _loud(plan, against[0], wide, steps)
    inclusions = Inclusions.of(users, victim, wide, loud.exposure.clip, exposure.relation == "replace", rng)
    seeds = [seed + k for k in range(max(1, canaries // wide) if wire.widest else 1)]
    heard = _Evidence(Ear(wire, loud, wide), inclusions, against, len(seeds), wire.name)
    problems = wire.run(inclusions.task(), loud, seeds, heard.hear)
    if not progress.speaks():  # of several processes the first has heard everything
        return Wired(wire.name, (), ())
    trained = rng.random(wide * len(seeds)) < 0.5
    each = error / 2 / (2 * len(against))
    attacks = [attack for k in range(len(against)) for attack in heard.attacks(k, trained, each)]
    sampled = heard.sampled(error / 2 / CHECKS)
    return Wired(wire.name, tuple(attacks), (*sampled, *heard.ear.checks(error / 2, problems)))


def _loud(plan: NoisePlan, foe: Foe, wide: int, steps: int) -> NoisePlan:
    """The plan's noise and sampling rate, `wide` records for everybody, and clips at which few canaries tell much."""
    exposure = plan.exposure
    batch = max(1, round(exposure.rates(plan.topology.users)[foe.victim] * wide))
    # the central limit of subsampled Gaussians: mu = rate sqrt(T (exp(1 / z^2) - 1))
    multiplier = 1 / math.sqrt(math.log1p((_AIM * wide / batch) ** 2 / steps))
    clip = batch / (multiplier * math.sqrt(foe.leverage))
    return replace(plan, exposure=replace(exposure, clip=clip, steps=steps, batch_size=batch, records=wide), budget=None)


class _Evidence:
    """Every canary's likelihood ratio, and its plain sum, as each foe sees them."""

    def __init__(self, ear: Ear, inclusions: Inclusions, against: list[Foe], runs: int, name: str) -> None:
        self.ear, self.against, self.name = ear, against, name
        self.amplitudes = np.tile(inclusions.amplitudes, runs)
        self.silent = np.flatnonzero(np.tile(inclusions.silent, runs))
        self.asked = np.tile(~inclusions.silent, runs)
        self.replaced = inclusions.replaced
        exposure = ear.plan.exposure
        assert exposure.batch_size is not None and isinstance(exposure.records, int)
        self.unit, self.rate = exposure.clip / exposure.batch_size, exposure.batch_size / exposure.records
        self.weights = [ear.weights(foe) for foe in against]
        self.ratios, self.sums = (np.zeros((len(against), len(self.amplitudes))) for _ in range(2))
        self.squares, self.loudest = np.zeros(len(self.amplitudes)), 0.0

    def multiplier(self, foe: Foe) -> float:
        """Of the noise that is left against a foe, in clips of one record's share."""
        return 1 / (self.unit * math.sqrt(foe.leverage))

    def hear(self, step: int, messages: Array, edges: Array | None) -> None:
        steps = self.ear.plan.exposure.steps
        progress.report(f"auditing {self.name}", step, steps)
        noised = self.ear.noised(messages)
        if step >= steps:
            return  # one too many, which the checks will say
        self.ear.look(noised[:, self.silent], None if edges is None else edges[:, self.silent])
        for k, foe in enumerate(self.against):
            seen = self.weights[k] @ noised
            if foe.coalition:
                assert edges is not None
                seen -= self.weights[k] @ self.ear.known(foe, edges)
            seen /= self.unit
            self.sums[k] += seen
            self.ratios[k] += self._ratio(seen, self.multiplier(foe))
            if k == 0:
                self.loudest = float(np.maximum(self.loudest, np.abs(seen).max()))  # what is no number stays
                self.squares += np.square(self.amplitudes * seen - self.rate)

    def _ratio(self, seen: Array, z: float) -> Array:
        found: Array = np.log1p(self.rate * np.expm1((seen - 0.5) / z**2))
        if self.replaced:
            found -= np.log1p(self.rate * np.expm1((-seen - 0.5) / z**2))
        return found

    def sampled(self, least: float) -> list[Check]:
        """What sampling owes to the claim: a record's share, its rate, a fresh draw in every step; in an eavesdropper's eyes."""
        z, steps, there = self.multiplier(self.against[0]), self.ear.plan.exposure.steps, self.amplitudes != 0
        count, variance = int(there.sum()), z**2 + self.rate * (1 - self.rate)
        # every record that is there, less what is expected of it in all steps
        excess = (self.amplitudes * self.sums[0])[there] - steps * self.rate
        pairs = float((np.square(excess) - self.squares[there]).sum()) / 2
        looks = 2 * steps * len(self.amplitudes)
        loud = looks * float(stats.norm.sf((self.loudest - 1) / z))
        taken = np.array([excess.sum() / math.sqrt(steps * count * variance)])
        again = np.array([pairs / (variance * math.sqrt(max(1, steps * (steps - 1) // 2) * count))])
        return [
            Check.of("share", "no record moves a message by more than its part of a batch", loud, least),
            largest("rate", "records are taken at their rate", taken, least),
            largest("draws", "who is taken in a step is not known from the others", again, least),
        ]

    def attacks(self, k: int, trained: Array, error: float) -> list[Attack]:
        foe, exposure = self.against[k], self.ear.plan.exposure
        exact = Claim(_epsilons(self.multiplier(foe), self.rate, str(exposure.sampling), str(exposure.relation), exposure.steps))
        claims = exact, Claim.of(self.ear.plan, foe)
        present, first = (self.amplitudes > 0)[self.asked], trained[self.asked]
        found = []
        for kind, scores in (("optimal", self.ratios[k]), ("linear", self.sums[k])):
            score = scores[self.asked]
            cuts = np.quantile(score[first], np.linspace(0.02, 0.98, 25))
            tried = [_measured(errors(score[first], present[first], cut), claims, error) for cut in cuts]
            cut = cuts[int(np.argmax([measured / claimed for measured, _, claimed in tried]))]
            counted = errors(score[~first], present[~first], cut)
            measured, estimated, claimed = _measured(counted, claims, error)
            held = counted[1] + counted[3]
            found.append(Attack(foe, "inclusion", kind, held, claimed, measured, estimated))
        return found


@lru_cache(maxsize=256)
def _epsilons(multiplier: float, rate: float, sampling: str, relation: str, steps: int) -> Array:
    step = subsampled.SubsampledStep(multiplier, rate, sampling, relation, steps)
    return np.array([subsampled.epsilon([step], float(delta), fine=False)[0] for delta in DELTAS])


def _measured(counted: tuple[int, int, int, int], claims: tuple[Claim, ...], error: float) -> tuple[float, float, float]:
    """(lower bound of mu, estimate, what is allowed at as many false alarms)."""
    measured, estimated = proven(*counted, error)
    return measured, estimated, min(claim.mu(upper(counted[2], counted[3], error / 2)) for claim in claims)
