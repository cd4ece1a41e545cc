"""User level: canaries of everybody in one run; who attacks one user knows all others' data, as
differential privacy has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from decor import progress
from decor.arrays import Array
from decor.privacy.plan import NoisePlan

from .attack import Attack, errors, fitted, proven, upper
from .attackers import Foe, covariance, foes
from .canary import OVER, RHYTHMS, Signals
from .claim import Claim
from .findings import Wired
from .noise_law import Check, largest
from .sources import Seen, Wire
from .transcript import CHECKS, CLIPPED, Ear, but_first, integers_but_first

_AIM = 3.0
"""The mu that canaries are made for against an eavesdropper: errors of a few percent, which measure
it best.
"""


def attacked(
    wire: Wire, plan: NoisePlan, canaries: int, steps: int, error: float, seed: int
) -> Wired:
    against = foes(plan, wire.secrets)
    topology, rng = plan.topology, np.random.default_rng([seed, 1])
    shared = np.broadcast_to(plan.sigma_cor, topology.edge_count)
    largest = math.sqrt(
        float(covariance(topology.users, topology.edges, plan.sigma_cdp, shared).diagonal().max())
    )
    width = min(canaries, wire.widest or canaries)
    seeds = [seed + k for k in range(math.ceil(canaries / width))]
    signals = Signals.of(topology.users, width, steps, _lengths(against, steps), largest, rng)
    loud = replace(
        plan, exposure=replace(plan.exposure, clip=signals.clip, steps=steps), budget=None
    )
    heard = _Sums(Ear(wire, loud, 1 + width), signals, len(seeds), wire)
    outcome = wire.run(signals.task(), loud, seeds, heard.hear)
    if not wire.hears:  # the first process of the group has heard everything
        return Wired(wire.name, (), ())
    each = error / 2 / (2 * len(RHYTHMS) * len(against))
    trained = rng.random(width * len(seeds)) < 0.5
    attacks = [attack for foe in against for attack in heard.attacks(foe, trained, each)]
    checks = (heard.clipped(error / 2 / CHECKS), *heard.ear.checks(error / 2, outcome))
    return Wired(wire.name, tuple(attacks), checks, last_bits=heard.ear.last_bits)


def _lengths(against: list[Foe], steps: int) -> Array:
    """Canaries for the weakest adversary and for the strongest, and some for those between."""
    least, most = (choice(foe.leverage for foe in against) for choice in (min, max))
    several = 1 + math.ceil(max(0.0, math.log(most / least) / 2 - 0.4) / 1.5)
    return _AIM / (2 * np.sqrt(steps * np.geomspace(least, most, several)))


@dataclass
class _Sums:
    """Noise, and that of every edge, summed over the steps with the canaries' signs: all that an
    attack needs.
    """

    ear: Ear
    signals: Signals
    runs: int
    wire: Wire

    def __post_init__(self) -> None:
        topology, count = self.ear.plan.topology, self.signals.signs.shape[1] * self.runs
        self.noise: Array = np.zeros((topology.users, count))
        self.edges: Array = np.zeros((topology.edge_count if self.wire.secrets else 0, count))
        self.longer, self.sure = np.zeros((2, len(OVER)))
        bare = self.signals.signs * self.signals.length
        self.products: Array = self.runs * self.ear.law.inverse * (bare @ bare.T)

    def hear(self, seen: Seen) -> None:
        step, steps = seen.step, self.ear.plan.exposure.steps
        progress.report(f"auditing {self.wire.name}", step, steps)
        noised = self.ear.noised(seen.messages)
        if step >= steps:
            return  # one too many, which the checks will say
        gradients = np.tile(self.signals.gradients(step), self.runs)
        noise = but_first(noised, self.runs) - gradients
        own = None if seen.edges is None else but_first(seen.edges, self.runs)
        weighed = self.ear.look(noise, own)
        self._measure(step, np.einsum("ij,ij->i", weighed, gradients))
        if seen.integers is not None:
            self.ear.support.see(integers_but_first(seen.integers, self.runs), gradients > 0)
        beats = np.tile(self.signals.beats(step), self.runs)
        self.noise += noise * beats
        if own is not None:
            self.edges += own * beats

    def _measure(self, step: int, excess: Array) -> None:
        """How much of everybody's canaries is in what is left without them, by how much longer than
        the clip they were.
        """
        over = self.signals.over(step)
        for kind in range(len(OVER)):
            some = np.flatnonzero(over == kind)
            self.longer[kind] += excess[some].sum()
            self.sure[kind] += self.products[np.ix_(some, some)].sum()

    def clipped(self, least: float) -> Check:
        """The best estimate of the length at which gradients were sent, for each that they had
        before.
        """
        z = self.longer[self.sure > 0] / np.sqrt(self.sure[self.sure > 0])
        return largest("clip", CLIPPED, z, least)

    def attacks(self, foe: Foe, trained: Array, error: float) -> list[Attack]:
        signals, steps = self.signals, self.ear.plan.exposure.steps
        signs, rhythms, lengths = (
            np.tile(each, self.runs)
            for each in (signals.signs[foe.victim], signals.rhythm, signals.length)
        )
        seen = self.noise - self.ear.known(foe, self.edges) if foe.coalition else self.noise.copy()
        seen[foe.victim] += steps * lengths * signs
        length = min(
            set(signals.length.tolist()),
            key=lambda length: abs(math.log(_mu(length, steps, foe) / _AIM)),
        )
        claim = Claim.of(
            replace(self.ear.plan, exposure=replace(self.ear.plan.exposure, clip=length)), foe
        )
        honest = np.setdiff1d(np.arange(len(seen)), foe.coalition)
        best = self.ear.weights(foe) @ seen
        found = []
        for rhythm, name in enumerate(RHYTHMS):
            some = (rhythms == rhythm) & (lengths == length)
            present, first = signs[some] > 0, trained[some]
            learnt, threshold = fitted(seen[np.ix_(honest, some)], present, first)
            for kind, score, cut, among in (
                ("optimal", best[some], 0.0, slice(None)),
                ("fitted", learnt, threshold, ~first),
            ):
                counted = errors(score[among], present[among], cut)
                measured, estimated = proven(*counted, error)
                held = counted[1] + counted[3]
                claimed = min(
                    _mu(length, steps, foe), claim.mu(upper(counted[2], counted[3], error / 2))
                )
                found.append(Attack(foe, name, kind, held, claimed, measured, estimated))
        return found


def _mu(length: float, steps: int, foe: Foe) -> float:
    """What the plan allows: a shift of two lengths in every step, in the noise that is left."""
    return 2 * length * math.sqrt(steps * foe.leverage)
