"""Ear: takes the messages of a run apart, step by step, into what the auditor knows and noise; and
looks at its law.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decor.arrays import Array
from decor.privacy.plan import NoisePlan

from .attackers import Foe, covariance, incidence
from .low_bits import Integers, Support
from .noise_law import Check, Columns, Law
from .sources import RATE, Outcome, Wire

_PARTS = 512
"""Users and edges up to which each one's noise is looked at by itself."""
CHECKS = 20
"""Eight of the noise at users, six of its parts, one of low bits, one of the clip, three of
records; and one to spare.
"""
CLIPPED = "what is longer than the clip, 1.2, 2 or 8 times, is sent as one clip"
_WHOLE = 1 - 1e-9
"""Of a planned deviation, but for rounding."""


def but_first(columns: Array, runs: int) -> Array:
    """All runs' columns, each without its first, which tells nothing."""
    found: Array = columns.reshape(len(columns), runs, -1)[:, :, 1:].reshape(len(columns), -1)
    return found


def integers_but_first(found: Integers, runs: int) -> Integers:
    return Integers(*(but_first(each, runs) for each in (found.steps, found.told, found.possible)))


class Ear:
    """Of one run or several: `own` and `shared` are the deviations of everybody's noise that this
    wire should have.
    """

    def __init__(self, wire: Wire, plan: NoisePlan, parameters: int, runs: int = 1) -> None:
        topology = plan.topology
        self.plan, self.steps, self.expected = plan, 0, runs * plan.exposure.steps
        self.own, self.shared = wire.deviations(plan, parameters)
        self.W, self.K = topology.mixing.toarray(), incidence(topology.users, topology.edges)
        self.model = np.zeros(1)
        self.is_private, self.support = wire.is_private, Support()
        self.law, self.every = Law(self.seen_by(()), self.own), Columns(self.seen_by(()), self.own)
        every = np.concatenate([np.full(topology.users, self.own), self.shared[self.shared > 0]])
        self.parts = (
            Law(np.diag(np.square(every))) if wire.secrets and len(every) <= _PARTS else None
        )

    def seen_by(self, coalition: tuple[int, ...]) -> Array:
        """The covariance of everybody's noise, but for what a coalition knows of it."""
        topology = self.plan.topology
        return covariance(topology.users, topology.edges, self.own, self.shared, coalition)

    def begin(self, model: Array) -> None:
        """A run in which everybody begins with this model."""
        self.model = model

    def noised(self, messages: Array) -> Array:
        """Everybody's gradient with noise: the local step backwards.

        Then gossip forwards, for the next.
        """
        before, self.model = self.model, self.W @ messages
        self.steps += 1
        found: Array = (before - messages) / RATE
        return found

    def known(self, foe: Foe, edges: Array) -> Array:
        """The noise of the coalition's edges, at whoever has it in a message."""
        of_theirs = np.isin(self.plan.topology.edges, foe.coalition).any(axis=1)
        found: Array = self.K[:, of_theirs] @ edges[of_theirs]
        return found

    def weights(self, foe: Foe) -> Array:
        """What the best attack makes of everybody's messages: an estimate of the victim's, with the
        least noise there can be.
        """
        honest = np.setdiff1d(np.arange(self.plan.topology.users), foe.coalition)
        row = np.linalg.inv(self.seen_by(foe.coalition)[np.ix_(honest, honest)])[
            np.searchsorted(honest, foe.victim)
        ]
        found = np.zeros(self.plan.topology.users)
        found[honest] = row / row[np.searchsorted(honest, foe.victim)]
        return found

    def look(self, noise: Array, edges: Array | None) -> Array:
        """Gives the noise times the inverse of its covariance: what the best attack weighs."""
        weighed = self.every.see(noise)
        self.law.see(noise)
        if self.parts is not None and edges is not None:
            self.parts.see(np.concatenate([noise - self.K @ edges, edges[self.shared > 0]]))
        return weighed

    @property
    def last_bits(self) -> str:
        """Whether messages hide their last bits, in words."""
        if not self.is_private:
            return (
                "not claimed: a simulation's noise is in floating point, whose last bits tell "
                "what it was added to"
            )
        if not self.support.is_enough:
            return (
                "not seen: messages are coarser than the grid, so that their last bits are not "
                "those of an integer"
            )
        return "looked at"

    def checks(self, error: float, outcome: Outcome) -> tuple[Check, ...]:
        """All of them; with four more at most they fail without cause with a probability of at most
        `error`.
        """
        least, problems = error / CHECKS, outcome.problems
        found = [*self.law.checks(least), self.every.check(least)] if self.law.steps else []
        if self.parts is not None and self.parts.steps:
            found += [
                replace(c, name=f"parts: {c.name}") for c in self.parts.checks(least, users=False)
            ]
        if self.is_private:
            found += self.support.checks(least)
        if outcome.entropy is not None:
            said = "every key is made from 32 bytes of the operating system, and no two are alike"
            found.append(
                Check(
                    "entropy",
                    outcome.entropy[0] if outcome.entropy else said,
                    float(not outcome.entropy),
                    0.5,
                )
            )
        enough = self.own >= self.plan.sigma_cdp * _WHOLE and bool(
            (self.shared >= np.array(self.plan.sigma_cor) * _WHOLE).all()
        )
        right = not problems and self.steps == self.expected
        said = (
            problems[0]
            if problems
            else f"{self.steps} messages of everybody for {self.expected} steps"
        )
        return (
            *found,
            Check(
                "deviations", "nobody's noise is meant to be less than planned", float(enough), 0.5
            ),
            Check("messages", said, float(right), 0.5),
        )
