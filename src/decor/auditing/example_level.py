"""Example level: canary examples that a victim has or lacks, each in a coordinate of its own.

They are sampled as the plan says. The claim is not a Gaussian trade-off but the accountant's own,
point by point, from its epsilons.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy import stats

from decor import progress
from decor.array_types import Array
from decor.choices import Relation, Sampling
from decor.privacy.loss import subsampled
from decor.privacy.plan import NoisePlan

from .attackers import Attacker, list_attackers, plan_covariance
from .canary_tasks import NORMS, PATHS, ExampleCanaries
from .claim import DELTAS, Claim
from .findings import SourceFindings
from .message_noise import CHECKS, Transcript, integers_without_first, without_first
from .mu_bound import Attack, ErrorCounts, count_errors, measure_mu
from .noise_law import Check, largest
from .sources import MessageSource, RunProblems, StepView

_AIM = 3.0
"""The mu of canaries, about."""
_SAMPLED, _WIDE, _WIDEST = 4, 64, 8_000
"""Canaries of one run: enough that a step samples so many, at least and at most; more canaries
come from more seeds. Where a run has one seed it has as many as can be.
"""
_DENSE = 30_000_000
"""Values of all users' one-hot examples at most: 120 megabytes, which an engine holds several
times.
"""
_LOUD = np.array([1.5, 2.0, 2.5, 3.0])
"""Shares of one example, in clips, from which messages are counted."""
_MANY = 100
"""Sampled examples from which the sum of their scores is Gaussian, far out too."""
_REHEARSED = 10_000
"""Simulated canaries that give the optimal attack its threshold. So all real ones are evidence."""


def audit_examples(
    source: MessageSource, plan: NoisePlan, canaries: int, steps: int, error: float, seed: int
) -> SourceFindings:
    """Runs canaries on the source, and attacks them as each attacker.

    Arguments are those of `user_level.audit_users`.
    """
    users, rng = plan.topology.users, np.random.default_rng([seed, 2])
    victim = plan.guarantee(0.5).worst_user
    attackers = list_attackers(plan, source.has_secrets, victim)
    if source.max_canaries:
        few = math.ceil(_SAMPLED / plan.exposure.rates(plan.topology)[victim])
        width = max(_WIDE, min(few, _WIDEST))
    else:
        # one seed: as many canaries as may be one-hot, or more if runs are too few for that
        width = min(_WIDEST, max(math.isqrt(_DENSE // users), canaries // source.max_runs))
    width = min(canaries, width)
    audited = _plan_for_audit(plan, attackers[0], width, steps)
    paths, seeds = _paths(max(1, canaries // width), users * width**2, source)
    clip, replaced = audited.exposure.clip, plan.exposure.relation == "replace"
    reach = _reach(audited)
    parts = [
        ExampleCanaries.of(path, users, victim, width, clip, reach, replaced, rng) for path in paths
    ]
    transcript = Transcript(source, audited, 1 + width, len(parts))
    evidence = _Evidence(transcript, parts, attackers, seeds, source.name)
    # an empty tuple, not None: the sum then has entropy problems if the runs have them
    problems = RunProblems((), ())
    for k, part in enumerate(parts):
        evidence.begin(k)
        own_seeds = range(seed + k * seeds, seed + (k + 1) * seeds)
        with progress.share(k / len(parts), (k + 1) / len(parts)):
            problems += source.run(part.task(), audited, own_seeds, evidence.on_step)
    if not source.receives_messages():  # the first process of the group has all messages
        return SourceFindings(source.name, (), ())
    training = rng.random(len(evidence.amplitudes)) < 0.5
    # three kinds of attack for each attacker share the error
    each = error / 2 / (3 * len(attackers))
    attacks = [a for k in range(len(attackers)) for a in evidence.attacks(k, training, each)]
    sampling = evidence.sampling_checks(error / 2 / CHECKS)
    checks = (*sampling, *transcript.checks(error / 2, problems))
    used = tuple(dict.fromkeys(paths))
    return SourceFindings(source.name, tuple(attacks), checks, used, transcript.last_bits)


def _paths(runs: int, dense: int, source: MessageSource) -> tuple[tuple[str, ...], int]:
    """(the path of each run, seeds of each); one-hot examples would take `dense` values."""
    paths = PATHS if runs >= len(PATHS) and dense <= _DENSE else PATHS[:1]
    if source.max_canaries is None:
        runs = min(runs, source.max_runs)
        # one seed per run: runs take the paths in turn
        return (paths * runs)[:runs], 1
    return paths, runs // len(paths)


def _reach(plan: NoisePlan) -> float:
    """How far a coordinate moves: its noise, and its example in all steps."""
    exposure, steps = plan.exposure, plan.exposure.steps
    assert exposure.batch_size is not None
    noise = float(plan_covariance(plan).diagonal().max())
    return steps * exposure.clip / exposure.batch_size + 8 * math.sqrt(steps * noise)


def _plan_for_audit(plan: NoisePlan, attacker: Attacker, width: int, steps: int) -> NoisePlan:
    """The plan's noise and sampling rate, with `width` examples and the clip that measures best."""
    exposure = plan.exposure
    # the sampling rate of the plan, as near as a whole batch allows
    rate = exposure.rates(plan.topology)[attacker.victim]
    batch = max(1, round(rate * width))
    if exposure.rate is None:
        rate = batch / width
    # the central limit of subsampled Gaussians: mu = rate sqrt(T (exp(1 / z^2) - 1))
    multiplier = 1 / math.sqrt(math.log1p((_AIM / rate) ** 2 / steps))
    clip = batch / (multiplier * math.sqrt(attacker.leverage))
    # a common rate stays as it is, and numbers of examples stay unknown
    records = width if exposure.rate is None else None
    exposure = replace(
        exposure, clip=clip, steps=steps, batch_size=batch, records=records, weighting=None
    )
    return replace(plan, exposure=exposure, budget=None)


class _Evidence:
    """The likelihood ratio of each canary, and its plain sum, as each attacker sees them."""

    def __init__(
        self,
        transcript: Transcript,
        parts: list[ExampleCanaries],
        attackers: list[Attacker],
        runs: int,
        name: str,
    ) -> None:
        """`runs`: of each part."""
        self.transcript, self.parts, self.attackers = transcript, parts, attackers
        self.runs, self.name = runs, name
        self.amplitudes = np.concatenate([np.tile(part.amplitudes, runs) for part in parts])
        self.silent = np.concatenate([np.tile(part.silent, runs) for part in parts])
        self.norm_index = np.concatenate([np.tile(part.norm_index, runs) for part in parts])
        exposure = transcript.plan.exposure
        self.replaced = exposure.relation == "replace"
        assert exposure.batch_size is not None
        self.unit = exposure.clip / exposure.batch_size
        self.rate = exposure.rates(transcript.plan.topology)[0]
        self.weights = [transcript.weights(attacker) for attacker in attackers]
        count = len(self.amplitudes)
        # scores of the three kinds of attack
        self.ratios, self.sums, self.own_batch = (
            np.zeros((len(attackers), count)) for _ in range(3)
        )
        self.squares, self.loudest = np.zeros(count), 0.0
        self.lengths, self.louder = np.zeros(count), np.zeros(len(_LOUD), int)

    def begin(self, k: int) -> None:
        """The next messages are those of this part's runs."""
        width = len(self.amplitudes) // len(self.parts)
        self.columns = slice(k * width, (k + 1) * width)
        self.transcript.begin(np.tile(self.parts[k].initial, self.runs))

    def multiplier(self, attacker: Attacker) -> float:
        """The noise that is left against an attacker, in shares of one example."""
        return 1 / (self.unit * math.sqrt(attacker.leverage))

    def on_step(self, view: StepView) -> None:
        step, steps = view.step, self.transcript.plan.exposure.steps
        progress.report(f"auditing {self.name}", step, steps)
        noisy = self.transcript.noisy_gradients(view.messages)
        if step >= steps:
            return  # a message too many, which the check of messages reports
        noisy = without_first(noisy, self.runs)
        edges = None if view.edges is None else without_first(view.edges, self.runs)
        here, amplitudes = self.columns, self.amplitudes[self.columns]
        if view.integers is not None:
            integers = integers_without_first(view.integers, self.runs)
            signs = np.broadcast_to(amplitudes > 0, integers.known.shape)
            self.transcript.low_bits.add(integers, signs)
        # only silent coordinates are pure noise: the others depend on secret batches
        silent = np.flatnonzero(self.silent[here])
        self.transcript.add_noise(noisy[:, silent], None if edges is None else edges[:, silent])
        for k, attacker in enumerate(self.attackers):
            seen = self.weights[k] @ noisy
            if attacker.coalition:
                assert edges is not None
                seen -= self.weights[k] @ self.transcript.coalition_noise(attacker, edges)
            seen /= self.unit
            self.sums[k, here] += seen
            self.ratios[k, here] += self._ratio(seen, self.multiplier(attacker))
            if attacker.coalition and view.batches is not None:
                # a member's own batch says nothing about the victim's, unless the two are related
                own = view.batches[attacker.coalition[0]]
                self.own_batch[k, here] += own * (2 * seen if self.replaced else seen - 0.5)
            if k == 0:
                self._add_shares(amplitudes, seen)

    def _add_shares(self, amplitudes: Array, seen: Array) -> None:
        """Statistics of the sampling checks, from what the eavesdropper sees."""
        share, here = amplitudes * seen, self.columns
        self.lengths[here] += self._length_score(share)
        self.louder += (share[:, None] > _LOUD)[amplitudes != 0].sum(0)
        # np.maximum, not max: nan stays, and fails the check
        self.loudest = float(np.maximum(self.loudest, np.abs(seen).max()))
        self.squares[here] += np.square(share - self.rate)

    def _ratio(self, seen: Array, z: float) -> Array:
        """Log likelihood ratio of present to absent, for one step of a subsampled Gaussian."""
        ratio: Array = np.log1p(self.rate * np.expm1((seen - 0.5) / z**2))
        if self.replaced:
            ratio -= np.log1p(self.rate * np.expm1((-seen - 0.5) / z**2))
        return ratio

    def _length_score(self, seen: Array) -> Array:
        """Derivative of the log likelihood by an example's length, at one clip."""
        z = self.multiplier(self.attackers[0])
        # odds that the step did not sample the example; clipped because exp overflows from 710
        odds = np.exp(np.clip((0.5 - seen) / z**2, -500.0, 500.0)) * (1 - self.rate) / self.rate
        score: Array = (seen - 1) / (1 + odds)
        return score

    def _clip_check(self, least: float) -> Check:
        """Whether examples of each of NORMS, and all together, are sent once, as one clip."""
        z, steps = self.multiplier(self.attackers[0]), self.transcript.plan.exposure.steps
        there = self.amplitudes != 0
        seen = np.linspace(-12 * z, 1 + 12 * z, 40_001)
        sampled, others = stats.norm.pdf(seen, 1, z), stats.norm.pdf(seen, 0, z)
        density = (1 - self.rate) * others + self.rate * sampled
        # the variance of one score, by integration over what is seen
        squares = np.square(self._length_score(seen)) * density
        variance = float(squares.sum()) * (seen[1] - seen[0])
        kinds = [there & (self.norm_index == kind) for kind in range(len(NORMS))]
        scores = [
            self.lengths[kind].sum() / math.sqrt(steps * kind.sum() * variance)
            for kind in (*kinds, there)
            if self.rate * steps * kind.sum() >= _MANY
        ]
        return largest("clip", np.array(scores), least) if scores else Check.of("clip", 1.0, least)

    def sampling_checks(self, least: float) -> list[Check]:
        """What the claim needs of sampling: clip, share, rate, and fresh batches in each step."""
        z, steps = self.multiplier(self.attackers[0]), self.transcript.plan.exposure.steps
        there = self.amplitudes != 0
        count, variance = int(there.sum()), z**2 + self.rate * (1 - self.rate)
        # each present example, less its expectation over all steps
        excess = (self.amplitudes * self.sums[0])[there] - steps * self.rate
        # products of two steps: zero in the mean if batches are independent
        pairs = float((np.square(excess) - self.squares[there]).sum()) / 2
        # two-sided, over all values that were seen
        looks = 2 * steps * len(self.amplitudes)
        loud = looks * float(stats.norm.sf((self.loudest - 1) / z))
        # a present example is sampled or not; if twice in a step, loud messages are too frequent
        beyond = self.rate * stats.norm.sf((_LOUD - 1) / z) + (1 - self.rate) * stats.norm.sf(
            _LOUD / z
        )
        often = len(_LOUD) * float(stats.binom.sf(self.louder - 1, steps * count, beyond).min())
        rate = np.array([excess.sum() / math.sqrt(steps * count * variance)])
        step_pairs = max(1, steps * (steps - 1) // 2)
        again = np.array([pairs / (variance * math.sqrt(step_pairs * count))])
        return [
            self._clip_check(least),
            Check.of("share", 2 * min(loud, often), least),
            largest("rate", rate, least),
            largest("draws", again, least),
        ]

    def attacks(self, k: int, training: Array, error: float) -> list[Attack]:
        attacker, exposure = self.attackers[k], self.transcript.plan.exposure
        sampling, relation = exposure.sampling or "poisson", exposure.relation or "replace"
        z = self.multiplier(attacker)
        exact = Claim(_epsilons(z, self.rate, sampling, relation, exposure.steps))
        claims = exact, Claim.of(self.transcript.plan, attacker)
        has_example = ~self.silent
        present, trained = (self.amplitudes > 0)[has_example], training[has_example]

        def split(scores: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
            """Canaries to choose the threshold by, and canaries to attack."""
            scores = scores[has_example]
            return (scores[trained], present[trained]), (scores[~trained], present[~trained])

        trials = [
            ("optimal", (self._rehearse(z), (self.ratios[k][has_example], present))),
            ("linear", split(self.sums[k])),
        ]
        if attacker.coalition:
            trials.append(("own batch", split(self.own_batch[k])))
        attacks = []
        for kind, ((tried, truth), (scores, secret)) in trials:
            # the threshold that proves most where the truth is known
            cuts = np.quantile(tried, np.linspace(0.02, 0.98, 25))
            likely = [_measure(count_errors(tried, truth, cut), claims, error) for cut in cuts]
            best = int(np.argmax([measured / claimed for measured, _, claimed in likely]))
            counts = count_errors(scores, secret, cuts[best])
            measured, estimated, claimed = _measure(counts, claims, error)
            attacks.append(
                Attack(attacker, "inclusion", kind, len(scores), claimed, measured, estimated)
            )
        return attacks

    def _rehearse(self, z: float) -> tuple[Array, Array]:
        """(likelihood ratios, which examples are present) of a simulated correct run."""
        rng, steps = np.random.default_rng(0), self.transcript.plan.exposure.steps
        present = np.arange(_REHEARSED) % 2 == 0
        ratios = np.zeros(_REHEARSED)
        amplitudes = np.where(present, 1.0, -1.0 if self.replaced else 0.0)
        for _ in range(steps):
            sampled = rng.random(_REHEARSED) < self.rate
            ratios += self._ratio(amplitudes * sampled + z * rng.standard_normal(_REHEARSED), z)
        return ratios, present


@lru_cache(maxsize=256)
def _epsilons(
    multiplier: float, rate: float, sampling: Sampling, relation: Relation, steps: int
) -> Array:
    step = subsampled.SubsampledStep(multiplier, rate, sampling, relation, steps)
    return np.array([subsampled.epsilon([step], float(delta), fine=False)[0] for delta in DELTAS])


def _measure(
    counts: ErrorCounts, claims: tuple[Claim, ...], error: float
) -> tuple[float, float, float]:
    """(lower bound of mu, estimate, the mu that is allowed at as many false alarms)."""
    rate = counts.max_false_alarm_rate(error)
    return *measure_mu(counts, error), min(claim.mu(rate) for claim in claims)
