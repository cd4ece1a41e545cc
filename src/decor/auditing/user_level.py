"""User level: canaries of all users in one run.

An attacker of one user knows all other users' data, as differential privacy assumes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from decor import progress
from decor.array_types import Array
from decor.privacy.plan import NoisePlan

from .attackers import Attacker, list_attackers, plan_covariance
from .canary_tasks import NORMS, PATTERNS, UserCanaries
from .claim import Claim
from .findings import SourceFindings
from .message_noise import CHECKS, Transcript, integers_without_first, without_first
from .mu_bound import Attack, count_errors, fit_linear, measure_mu
from .noise_law import Check, largest
from .sources import MessageSource, StepView

_AIM = 3.0
"""The mu of canaries against an eavesdropper: error rates of a few percent measure it best."""


def audit_users(
    source: MessageSource, plan: NoisePlan, canaries: int, steps: int, error: float, seed: int
) -> SourceFindings:
    """Runs canaries on the source, and attacks them as each attacker.

    Args:
        source: Where messages come from.
        plan: The plan under audit.
        canaries: How many to plant.
        steps: How many of the plan's steps to run.
        error: Probability that a correct source fails: one half for attacks, one for checks.
        seed: Of the canaries, and of simulated noise.
    """
    attackers = list_attackers(plan, source.has_secrets)
    users, rng = plan.topology.users, np.random.default_rng([seed, 1])
    # the clock has to be faster than the noise of any user
    max_noise = math.sqrt(float(plan_covariance(plan).diagonal().max()))
    width = min(canaries, source.max_canaries or canaries)
    seeds = [seed + k for k in range(math.ceil(canaries / width))]
    planted = UserCanaries.of(users, width, steps, _lengths(attackers, steps), max_noise, rng)
    exposure = replace(plan.exposure, clip=planted.clip, steps=steps)
    audited = replace(plan, exposure=exposure, budget=None)
    evidence = _Evidence(Transcript(source, audited, 1 + width), planted, len(seeds), source)
    problems = source.run(planted.task(), audited, seeds, evidence.on_step)
    if not source.receives_messages():  # the first process of the group has all messages
        return SourceFindings(source.name, (), ())
    # two kinds of attack for each pattern and attacker share the error
    each = error / 2 / (2 * len(PATTERNS) * len(attackers))
    training = rng.random(width * len(seeds)) < 0.5
    attacks = [a for attacker in attackers for a in evidence.attacks(attacker, training, each)]
    transcript = evidence.transcript
    checks = (evidence.clip_check(error / 2 / CHECKS), *transcript.checks(error / 2, problems))
    return SourceFindings(source.name, tuple(attacks), checks, last_bits=transcript.last_bits)


def _lengths(attackers: list[Attacker], steps: int) -> Array:
    """Lengths of canaries for the weakest attacker, the strongest, and some in between."""
    leverages = [attacker.leverage for attacker in attackers]
    least, most = min(leverages), max(leverages)
    # one length is enough within a factor of e^0.4; else they are about e^1.5 apart
    several = 1 + math.ceil(max(0.0, math.log(most / least) / 2 - 0.4) / 1.5)
    return _AIM / (2 * np.sqrt(steps * np.geomspace(least, most, several)))


@dataclass
class _Evidence:
    """All that attacks need: noise of users and of edges, summed with the patterns' signs."""

    transcript: Transcript
    canaries: UserCanaries
    runs: int
    source: MessageSource

    def __post_init__(self) -> None:
        topology = self.transcript.plan.topology
        count = self.canaries.signs.shape[1] * self.runs
        self.noise: Array = np.zeros((topology.users, count))
        edges = topology.edge_count if self.source.has_secrets else 0
        self.edges: Array = np.zeros((edges, count))
        self.excess, self.information = np.zeros((2, len(NORMS)))
        # the Fisher information about a common factor of all gradients, by pairs of users
        bare = self.canaries.signs * self.canaries.length
        self.products: Array = self.runs * self.transcript.law.inverse * (bare @ bare.T)

    def on_step(self, view: StepView) -> None:
        step, steps = view.step, self.transcript.plan.exposure.steps
        progress.report(f"auditing {self.source.name}", step, steps)
        noisy = self.transcript.noisy_gradients(view.messages)
        if step >= steps:
            return  # a message too many, which the check of messages reports
        gradients = np.tile(self.canaries.gradients(step), self.runs)
        # all gradients are known to the auditor: what is left is noise
        noise = without_first(noisy, self.runs) - gradients
        edges = None if view.edges is None else without_first(view.edges, self.runs)
        weighed = self.transcript.add_noise(noise, edges)
        self._add_excess(step, np.einsum("ij,ij->i", weighed, gradients))
        if view.integers is not None:
            integers = integers_without_first(view.integers, self.runs)
            self.transcript.low_bits.add(integers, gradients > 0)
        signs = np.tile(self.canaries.step_signs(step), self.runs)
        self.noise += noise * signs
        if edges is not None:
            self.edges += edges * signs

    def _add_excess(self, step: int, excess: Array) -> None:
        """Sums what is left of canaries in the noise, by how long gradients were."""
        norm = self.canaries.norm_index(step)
        for kind in range(len(NORMS)):
            users = np.flatnonzero(norm == kind)
            self.excess[kind] += excess[users].sum()
            self.information[kind] += self.products[np.ix_(users, users)].sum()

    def clip_check(self, least: float) -> Check:
        """The best estimate of the length that gradients were sent with, for each of NORMS."""
        # a score test: the excess over its standard deviation, for each norm
        seen = self.information > 0
        return largest("clip", self.excess[seen] / np.sqrt(self.information[seen]), least)

    def attacks(self, attacker: Attacker, training: Array, error: float) -> list[Attack]:
        canaries, plan, victim = self.canaries, self.transcript.plan, attacker.victim
        steps = plan.exposure.steps
        signs, patterns, lengths = (
            np.tile(each, self.runs)
            for each in (canaries.signs[victim], canaries.pattern, canaries.length)
        )
        known = self.transcript.coalition_noise(attacker, self.edges) if attacker.coalition else 0.0
        seen = self.noise - known
        # other users' gradients are known, and so not added; the victim's is the secret
        seen[victim] += steps * lengths * signs
        # the canaries whose mu is nearest to the one that measures best
        length = min(
            set(canaries.length.tolist()),
            key=lambda length: abs(math.log(_mu(length, steps, attacker) / _AIM)),
        )
        claim = Claim.of(replace(plan, exposure=replace(plan.exposure, clip=length)), attacker)
        honest = np.setdiff1d(np.arange(len(seen)), attacker.coalition)
        best = self.transcript.weights(attacker) @ seen
        attacks = []
        for number, pattern in enumerate(PATTERNS):
            chosen = (patterns == number) & (lengths == length)
            present, trained = signs[chosen] > 0, training[chosen]
            fitted, threshold = fit_linear(seen[np.ix_(honest, chosen)], present, trained)
            for kind, score, cut, among in (
                ("optimal", best[chosen], 0.0, slice(None)),
                # canaries that the weights were fitted to prove nothing
                ("fitted", fitted, threshold, ~trained),
            ):
                counts = count_errors(score[among], present[among], cut)
                measured, estimated = measure_mu(counts, error)
                # the accountant may claim less than the formula; the smaller claim counts
                held = counts.present + counts.absent
                claimed = min(
                    _mu(length, steps, attacker), claim.mu(counts.max_false_alarm_rate(error))
                )
                attacks.append(Attack(attacker, pattern, kind, held, claimed, measured, estimated))
        return attacks


def _mu(length: float, steps: int, attacker: Attacker) -> float:
    """What the plan allows: a shift of two lengths in each step, in the noise that is left."""
    return 2 * length * math.sqrt(steps * attacker.leverage)
