"""Example level: records that are in a victim's data or not, each in a coordinate of its own, under
the plan's sampling.

What is claimed here is no Gaussian's trade-off between errors but the accountant's own, point by
point, from its epsilons.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy import stats

from decor import progress
from decor.arrays import Array
from decor.choices import Relation, Sampling
from decor.privacy.loss import subsampled
from decor.privacy.plan import NoisePlan

from .attack import Attack, errors, proven, upper
from .attackers import Foe, covariance, foes
from .canary import OVER, PATHS, Inclusions
from .claim import DELTAS, Claim
from .findings import Wired
from .noise_law import Check, largest
from .sources import Outcome, Seen, Wire
from .transcript import CHECKS, CLIPPED, Ear, but_first, integers_but_first

_AIM = 3.0
"""The mu that canaries are made for, about."""
_TAKEN, _WIDE, _WIDEST = 4, 64, 8_000
"""Canaries of one run: so many that a few are taken in a step, and more come from more seeds; or
all that can be, in one run.
"""
_DENSE = 30_000_000
"""Numbers of all users' records up to which they may be one-hot: 120 megabytes, which an engine
holds some times.
"""
_LOUD = np.array([1.5, 2.0, 2.5, 3.0])
"""Clips of one record's share beyond which its messages are counted."""
_MANY = 100
"""Records taken in all from which the sum of what each tells is Gaussian, far out too."""
_REHEARSED = 10_000
"""Canaries by which the optimal attack chooses its threshold, before it sees any: so that all that
it sees are evidence.
"""


def attacked(
    wire: Wire, plan: NoisePlan, canaries: int, steps: int, error: float, seed: int
) -> Wired:
    exposure, users, rng = plan.exposure, plan.topology.users, np.random.default_rng([seed, 2])
    victim = plan.guarantee(0.5).worst_user
    against = foes(plan, wire.secrets, victim)
    few = math.ceil(_TAKEN / exposure.rates(plan.topology)[victim])
    wide = min(
        canaries,
        max(_WIDE, min(few, _WIDEST)) if wire.widest else _width(canaries, users, wire.repeated),
    )
    loud = _loud(plan, against[0], wide, steps)
    paths, each = _shared_out(max(1, canaries // wide), users * wide**2, wire)
    replaced, outcome = exposure.relation == "replace", Outcome((), ())
    parts = [
        Inclusions.of(path, users, victim, wide, loud.exposure.clip, _reach(loud), replaced, rng)
        for path in paths
    ]
    heard = _Evidence(Ear(wire, loud, 1 + wide, len(parts)), parts, against, each, wire.name)
    for k, part in enumerate(parts):
        heard.begin(k)
        with progress.share(k / len(parts), (k + 1) / len(parts)):
            outcome += wire.run(
                part.task(), loud, range(seed + k * each, seed + (k + 1) * each), heard.hear
            )
    if not wire.hears:  # the first process of the group has heard everything
        return Wired(wire.name, (), ())
    trained = rng.random(len(heard.amplitudes)) < 0.5
    allowed = error / 2 / (3 * len(against))
    attacks = [attack for k in range(len(against)) for attack in heard.attacks(k, trained, allowed)]
    sampled = heard.sampled(error / 2 / CHECKS)
    checks = (*sampled, *heard.ear.checks(error / 2, outcome))
    return Wired(
        wire.name, tuple(attacks), checks, tuple(dict.fromkeys(paths)), heard.ear.last_bits
    )


def _shared_out(runs: int, dense: int, wire: Wire) -> tuple[tuple[str, ...], int]:
    """The paths that are taken one after the other, and the seeds of each; one-hot records would
    take `dense` numbers.
    """
    paths = PATHS if runs >= len(PATHS) and dense <= _DENSE else PATHS[:1]
    if wire.widest is None:
        runs = min(runs, wire.repeated)
        return (paths * runs)[:runs], 1
    return paths, runs // len(paths)


def _width(canaries: int, users: int, repeated: int) -> int:
    """Canaries of a run that has one seed: as many as may be one-hot, if so many runs are
    enough.
    """
    return min(_WIDEST, max(math.isqrt(_DENSE // users), canaries // repeated))


def _reach(plan: NoisePlan) -> float:
    """How far a coordinate comes: its noise, and its record in all steps."""
    topology, steps = plan.topology, plan.exposure.steps
    assert plan.exposure.batch_size is not None
    noise = covariance(
        topology.users,
        topology.edges,
        plan.sigma_cdp,
        np.broadcast_to(plan.sigma_cor, topology.edge_count),
    )
    return steps * plan.exposure.clip / plan.exposure.batch_size + 8 * math.sqrt(
        steps * float(noise.diagonal().max())
    )


def _loud(plan: NoisePlan, foe: Foe, wide: int, steps: int) -> NoisePlan:
    """The plan's noise and sampling rate, `wide` records for everybody, and clips at which few
    canaries tell much.
    """
    exposure = plan.exposure
    batch = max(1, round(exposure.rates(plan.topology)[foe.victim] * wide))
    # the central limit of subsampled Gaussians: mu = rate sqrt(T (exp(1 / z^2) - 1))
    multiplier = 1 / math.sqrt(math.log1p((_AIM * wide / batch) ** 2 / steps))
    clip = batch / (multiplier * math.sqrt(foe.leverage))
    return replace(
        plan,
        exposure=replace(exposure, clip=clip, steps=steps, batch_size=batch, records=wide),
        budget=None,
    )


class _Evidence:
    """Every canary's likelihood ratio, and its plain sum, as each foe sees them."""

    def __init__(
        self, ear: Ear, parts: list[Inclusions], against: list[Foe], runs: int, name: str
    ) -> None:
        """Of as many runs of every part."""
        self.ear, self.parts, self.against, self.runs, self.name = ear, parts, against, runs, name
        self.amplitudes, self.silent = (
            np.concatenate([np.tile(each, runs) for each in those])
            for those in ([part.amplitudes for part in parts], [part.silent for part in parts])
        )
        exposure = ear.plan.exposure
        self.replaced = exposure.relation == "replace"
        assert exposure.batch_size is not None and isinstance(exposure.records, int)
        self.unit, self.rate = (
            exposure.clip / exposure.batch_size,
            exposure.batch_size / exposure.records,
        )
        self.weights = [ear.weights(foe) for foe in against]
        self.ratios, self.sums, self.told = (
            np.zeros((len(against), len(self.amplitudes))) for _ in range(3)
        )
        self.squares, self.loudest = np.zeros(len(self.amplitudes)), 0.0
        self.longer, self.louder = np.zeros(len(self.amplitudes)), np.zeros(len(_LOUD), int)
        self.over = np.concatenate([np.tile(part.over, runs) for part in parts])

    def begin(self, k: int) -> None:
        """What is heard next are the runs of this part."""
        wide = len(self.amplitudes) // len(self.parts)
        self.columns = slice(k * wide, (k + 1) * wide)
        self.ear.begin(np.tile(self.parts[k].initial, self.runs))

    def multiplier(self, foe: Foe) -> float:
        """Of the noise that is left against a foe, in clips of one record's share."""
        return 1 / (self.unit * math.sqrt(foe.leverage))

    def hear(self, heard: Seen) -> None:
        step, steps = heard.step, self.ear.plan.exposure.steps
        progress.report(f"auditing {self.name}", step, steps)
        noised = self.ear.noised(heard.messages)
        if step >= steps:
            return  # one too many, which the checks will say
        noised = but_first(noised, self.runs)
        edges = None if heard.edges is None else but_first(heard.edges, self.runs)
        if heard.integers is not None:
            found = integers_but_first(heard.integers, self.runs)
            self.ear.support.see(
                found, np.broadcast_to(self.amplitudes[self.columns] > 0, found.told.shape)
            )
        here, silent = self.columns, np.flatnonzero(self.silent[self.columns])
        self.ear.look(noised[:, silent], None if edges is None else edges[:, silent])
        for k, foe in enumerate(self.against):
            seen = self.weights[k] @ noised
            if foe.coalition:
                assert edges is not None
                seen -= self.weights[k] @ self.ear.known(foe, edges)
            seen /= self.unit
            self.sums[k, here] += seen
            self.ratios[k, here] += self._ratio(seen, self.multiplier(foe))
            if foe.coalition and heard.batches is not None:
                # what a member has taken itself says nothing of the victim's batch, unless they are
                # drawn together
                own = heard.batches[foe.coalition[0]]
                self.told[k, here] += own * (2 * seen if self.replaced else seen - 0.5)
            if k == 0:
                share = self.amplitudes[here] * seen
                self.longer[here] += self._longer(share)
                self.louder += (share[:, None] > _LOUD)[self.amplitudes[here] != 0].sum(0)
                # what is no number stays
                self.loudest = float(np.maximum(self.loudest, np.abs(seen).max()))
                self.squares[here] += np.square(self.amplitudes[here] * seen - self.rate)

    def _ratio(self, seen: Array, z: float) -> Array:
        found: Array = np.log1p(self.rate * np.expm1((seen - 0.5) / z**2))
        if self.replaced:
            found -= np.log1p(self.rate * np.expm1((-seen - 0.5) / z**2))
        return found

    def _longer(self, seen: Array) -> Array:
        """The score of a record's length at one clip: how much longer it is, where it seems to have
        been taken.
        """
        z = self.multiplier(self.against[0])
        odds = np.exp(np.clip((0.5 - seen) / z**2, -500.0, 500.0)) * (1 - self.rate) / self.rate
        found: Array = (seen - 1) / (1 + odds)
        return found

    def _clipped(self, least: float) -> Check:
        """Whether records are sent as one clip, whatever they were before, and once: three kinds of
        them, and all together.
        """
        z, steps, there = (
            self.multiplier(self.against[0]),
            self.ear.plan.exposure.steps,
            self.amplitudes != 0,
        )
        seen = np.linspace(-12 * z, 1 + 12 * z, 40_001)
        density = (1 - self.rate) * stats.norm.pdf(seen, 0, z) + self.rate * stats.norm.pdf(
            seen, 1, z
        )
        spread = float((np.square(self._longer(seen)) * density).sum()) * (seen[1] - seen[0])
        kinds = [there & (self.over == kind) for kind in range(len(OVER))]
        many = [some for some in (*kinds, there) if self.rate * steps * some.sum() >= _MANY]
        scores = np.array(
            [self.longer[some].sum() / math.sqrt(steps * some.sum() * spread) for some in many]
        )
        return (
            largest("clip", CLIPPED, scores, least)
            if len(scores)
            else Check("clip", CLIPPED, 1.0, least)
        )

    def sampled(self, least: float) -> list[Check]:
        """What sampling owes to the claim: a record's share, its rate, a fresh draw in every step;
        in an eavesdropper's eyes.
        """
        z, steps, there = (
            self.multiplier(self.against[0]),
            self.ear.plan.exposure.steps,
            self.amplitudes != 0,
        )
        count, variance = int(there.sum()), z**2 + self.rate * (1 - self.rate)
        # every record that is there, less what is expected of it in all steps
        excess = (self.amplitudes * self.sums[0])[there] - steps * self.rate
        pairs = float((np.square(excess) - self.squares[there]).sum()) / 2
        looks = 2 * steps * len(self.amplitudes)
        loud = looks * float(stats.norm.sf((self.loudest - 1) / z))
        # of one that is there: taken, or not; twice, and it is counted more often than chance
        # allows
        beyond = self.rate * stats.norm.sf((_LOUD - 1) / z) + (1 - self.rate) * stats.norm.sf(
            _LOUD / z
        )
        often = len(_LOUD) * float(stats.binom.sf(self.louder - 1, steps * count, beyond).min())
        taken = np.array([excess.sum() / math.sqrt(steps * count * variance)])
        again = np.array([pairs / (variance * math.sqrt(max(1, steps * (steps - 1) // 2) * count))])
        return [
            self._clipped(least),
            Check.of(
                "share",
                "no record moves a message by more than its part of a batch",
                2 * min(loud, often),
                least,
            ),
            largest("rate", "records are taken at their rate", taken, least),
            largest("draws", "who is taken in a step is not known from the others", again, least),
        ]

    def attacks(self, k: int, trained: Array, error: float) -> list[Attack]:
        foe, exposure = self.against[k], self.ear.plan.exposure
        exact = Claim(
            _epsilons(
                self.multiplier(foe),
                self.rate,
                exposure.sampling or "poisson",
                exposure.relation or "replace",
                exposure.steps,
            )
        )
        claims = exact, Claim.of(self.ear.plan, foe)
        present, first, ratios, sums = (
            each[~self.silent]
            for each in (self.amplitudes > 0, trained, self.ratios[k], self.sums[k])
        )
        told = self.told[k][~self.silent]
        tried_out = [
            ("optimal", self._rehearsed(self.multiplier(foe)), (ratios, present)),
            ("linear", (sums[first], present[first]), (sums[~first], present[~first])),
        ]
        if foe.coalition:
            tried_out.append(
                ("own batch", (told[first], present[first]), (told[~first], present[~first]))
            )
        found = []
        for kind, (tried, kinds), (held, secret) in tried_out:
            cuts = np.quantile(tried, np.linspace(0.02, 0.98, 25))
            likely = [_measured(errors(tried, kinds, cut), claims, error) for cut in cuts]
            best = int(np.argmax([measured / claimed for measured, _, claimed in likely]))
            measured, estimated, claimed = _measured(
                errors(held, secret, cuts[best]), claims, error
            )
            found.append(Attack(foe, "inclusion", kind, len(held), claimed, measured, estimated))
        return found

    def _rehearsed(self, z: float) -> tuple[Array, Array]:
        """What a run as it should be would give: likelihood ratios, and whose record was there.

        They say where to cut.
        """
        rng, steps = np.random.default_rng(0), self.ear.plan.exposure.steps
        present = np.arange(_REHEARSED) % 2 == 0
        ratios = np.zeros(_REHEARSED)
        for _ in range(steps):
            drawn = rng.random(_REHEARSED) < self.rate
            amplitudes = np.where(present, 1.0, -1.0 if self.replaced else 0.0)
            ratios += self._ratio(amplitudes * drawn + z * rng.standard_normal(_REHEARSED), z)
        return ratios, present


@lru_cache(maxsize=256)
def _epsilons(
    multiplier: float, rate: float, sampling: Sampling, relation: Relation, steps: int
) -> Array:
    step = subsampled.SubsampledStep(multiplier, rate, sampling, relation, steps)
    return np.array([subsampled.epsilon([step], float(delta), fine=False)[0] for delta in DELTAS])


def _measured(
    counted: tuple[int, int, int, int], claims: tuple[Claim, ...], error: float
) -> tuple[float, float, float]:
    """(lower bound of mu, estimate, what is allowed at as many false alarms)."""
    measured, estimated = proven(*counted, error)
    return (
        measured,
        estimated,
        min(claim.mu(upper(counted[2], counted[3], error / 2)) for claim in claims),
    )
