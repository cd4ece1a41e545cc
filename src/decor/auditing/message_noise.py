"""Splits the messages of a run into known gradients and noise, and checks the noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decor.array_types import Array
from decor.privacy.plan import NoisePlan

from .attackers import Attacker, covariance, incidence
from .low_bits import GridIntegers, LowBits
from .noise_law import Check, CoordinateLaw, NoiseLaw
from .sources import RATE, MessageSource, RunProblems

_PARTS = 512
"""Users and edges up to which the noise of each is tested alone."""
CHECKS = 20
"""Checks that share the error: eight of the users' noise, six of its parts, one of low bits, one of
the clip, three of examples; and one to spare.
"""
_WHOLE = 1 - 1e-9
"""A noise level counts as planned from this share on: the rest is rounding."""


def without_first(columns: Array, runs: int) -> Array:
    """The columns of all runs, each without its first, which has no canary."""
    kept: Array = columns.reshape(len(columns), runs, -1)[:, :, 1:].reshape(len(columns), -1)
    return kept


def integers_without_first(integers: GridIntegers, runs: int) -> GridIntegers:
    arrays = integers.steps, integers.known, integers.possible
    return GridIntegers(*(without_first(array, runs) for array in arrays))


class Transcript:
    """The messages of one or several runs, with the statistics of their noise."""

    def __init__(
        self, source: MessageSource, plan: NoisePlan, parameters: int, runs: int = 1
    ) -> None:
        """For `runs` runs, one after the other, of models with `parameters` parameters."""
        topology = plan.topology
        self.plan, self.steps, self.expected = plan, 0, runs * plan.exposure.steps
        self.own, self.shared = source.noise_levels(plan, parameters)
        self.W, self.K = topology.mixing.toarray(), incidence(topology.users, topology.edges)
        # models begin at zero, unless `begin` says otherwise
        self.model = np.zeros(1)
        self.is_private, self.low_bits = source.is_private, LowBits()
        sigma = self.covariance(())
        # the sum over users has the noise of users who all have the mean variance
        mean = float(np.sqrt(np.mean(self.own**2)))
        self.law, self.coordinates = NoiseLaw(sigma, mean), CoordinateLaw(sigma, mean)
        # independent parts of the noise: that of each user, then that of each edge
        parts = np.concatenate([self.own, self.shared[self.shared > 0]])
        can_split = source.has_secrets and len(parts) <= _PARTS
        self.parts = NoiseLaw(np.diag(np.square(parts))) if can_split else None

    def covariance(self, coalition: tuple[int, ...]) -> Array:
        """The covariance of all users' noise, given what a coalition knows of it."""
        topology = self.plan.topology
        return covariance(topology.users, topology.edges, self.own, self.shared, coalition)

    def begin(self, model: Array) -> None:
        """Begins a run in which all users have this model."""
        self.model = model

    def noisy_gradients(self, messages: Array) -> Array:
        """All users' gradients with noise, from the messages of the next step."""
        # undo the local step, then gossip, which gives the models of the next step
        before, self.model = self.model, self.W @ messages
        self.steps += 1
        gradients: Array = (before - messages) / RATE
        return gradients

    def coalition_noise(self, attacker: Attacker, edges: Array) -> Array:
        """The noise of the coalition's edges, in the message of each user that has it."""
        # an edge is known if one of its ends colludes
        of_coalition = np.isin(self.plan.topology.edges, attacker.coalition).any(axis=1)
        noise: Array = self.K[:, of_coalition] @ edges[of_coalition]
        return noise

    def weights(self, attacker: Attacker) -> Array:
        """Weights of the optimal attack: the estimate of the victim with the least variance."""
        honest = np.setdiff1d(np.arange(self.plan.topology.users), attacker.coalition)
        sigma, victim = (
            self.covariance(attacker.coalition),
            np.searchsorted(honest, attacker.victim),
        )
        # generalised least squares with the other gradients known: a row of the inverse covariance
        row = np.linalg.inv(sigma[np.ix_(honest, honest)])[victim]
        weights = np.zeros(self.plan.topology.users)
        weights[honest] = row / row[victim]
        return weights

    def add_noise(self, noise: Array, edges: Array | None) -> Array:
        """Adds noise to the statistics; returns it times its inverse covariance."""
        weighed = self.coordinates.add(noise)
        self.law.add(noise)
        if self.parts is not None and edges is not None:
            self.parts.add(np.concatenate([noise - self.K @ edges, edges[self.shared > 0]]))
        return weighed

    @property
    def last_bits(self) -> str:
        """Whether messages hide their last bits, in words."""
        if not self.is_private:
            return (
                "not claimed: a simulation draws floating-point noise, whose last bits reveal what "
                "it was added to"
            )
        if not self.low_bits.is_enough:
            return (
                "not tested: messages are coarser than the grid, so their last bits are not those "
                "of an integer"
            )
        return "tested"

    def checks(self, error: float, problems: RunProblems) -> tuple[Check, ...]:
        """All checks; with four more at most, one fails by chance with probability <= `error`."""
        least = error / CHECKS
        checks = [*self.law.checks(least), self.coordinates.check(least)] if self.law.steps else []
        if self.parts is not None and self.parts.steps:
            parts = self.parts.checks(least, users=False)
            checks += [replace(check, name=f"parts: {check.name}") for check in parts]
        if self.is_private:
            checks += self.low_bits.checks(least)
        if problems.entropy is not None:
            checks.append(Check.exact("entropy", not problems.entropy, *problems.entropy[:1]))
        edges_enough = self.shared >= np.array(self.plan.sigma_cor) * _WHOLE
        own_enough = self.own >= self.plan.sigma_cdp_per_user * _WHOLE
        enough = bool(own_enough.all()) and bool(edges_enough.all())
        # a protocol violation explains more than the count of messages
        failure = f"each user sent {self.steps} messages in {self.expected} steps"
        right = not problems.protocol and self.steps == self.expected
        return (
            *checks,
            Check.exact("deviations", enough),
            Check.exact("messages", right, (*problems.protocol, failure)[0]),
        )
