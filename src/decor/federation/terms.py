"""Terms: what all users of a federation have agreed on, ready to be run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from decor.choices import Dtype
from decor.errors import InputError
from decor.learning.definition import Definition
from decor.learning.recipe import Recipe
from decor.net.http_proxy import HttpProxy
from decor.net.neighbour import Neighbour
from decor.net.peer_config import RunLength
from decor.net.reach import Reach
from decor.noise.grid import Grid
from decor.noise.integer_gaussians import EDGE_SIGMA
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.training.release_grid import grid_of

from .federation import Federation, Member
from .member_graph import neighbours_of, reach_of
from .vector_kernels import LARGEST, Vector


@dataclass(frozen=True)
class Terms:
    """The same for all users. `delta` is the promised one; the noise tables' part is in it.

    `definition` is what the model learns, for run folders; None where no file says it.
    """

    name: str
    members: tuple[Member, ...]
    plan: NoisePlan
    delta: float
    recipe: Recipe
    learning_rate: float
    dtype: Dtype
    parameters: int
    digest: bytes
    digests: tuple[tuple[str, bytes], ...]
    timeout: float
    quorum: float
    patience: float
    liars: int = 1
    definition: Definition | None = None

    def __post_init__(self) -> None:
        # the largest parameter that a neighbour may send, and what a restart needs, are SGD's
        if self.recipe.adam is not None:
            raise InputError(
                'peers take SGD steps; drop optimizer="adam", or run Adam in an own loop '
                "(decor.join)"
            )
        # a restarted node has its last model in the ledger, and not those before
        if self.recipe.averaging:
            raise InputError(
                "peers end with their last model; drop averaging, or average in a simulator or a "
                "process group"
            )
        if self.recipe.gossip.rounds < 1:
            raise InputError(
                "a federation needs a round of gossip in every step: without it no user learns "
                "from another"
            )

    @staticmethod
    def of(federation: Federation) -> Terms:
        """The terms of a federation's file; loads torch."""
        return Terms(
            federation.name,
            federation.members,
            federation.plan,
            federation.budget.delta,
            federation.recipe,
            federation.learning_rate,
            federation.dtype,
            federation.parameters,
            federation.digest,
            federation.digests,
            federation.network.timeout,
            federation.network.quorum,
            federation.network.patience,
            federation.network.liars,
            federation.definition.without_start(),
        )

    @cached_property
    def grid(self) -> Grid:
        # the same at every user: it follows from the plan and the size of the model
        return grid_of(self.plan, self.parameters)

    @cached_property
    def promise(self) -> Guarantee:
        """What the whole plan promises, which holds however early a run stops."""
        return self.plan.guarantee_on_grid(self.grid.distance, self.delta)

    def guarantee_after(self, steps: int) -> Guarantee:
        """What so many messages of a user cost, if their number was fixed in advance."""
        return self.plan.guarantee_on_grid(self.grid.distance, self.delta, steps=steps)

    def largest_parameter(self, step: int, start: float) -> float:
        """The largest parameter that a user who follows the protocol can have after a step.

        Plain gossip and catching up are averages, which make nothing larger, so only local steps
        count. Accelerated rounds are no averages: then it is the largest that any model may have.

        Args:
            step: The step.
            start: The largest parameter, in absolute value, of the model that all begin with.
        """
        recipe = self.recipe
        # a batch of a user whose number of examples is private may have any size
        if self.plan.exposure.rate is not None:
            return LARGEST
        gossips = (recipe.gossip, recipe.final_gossip)
        if any(gossip.accelerate and gossip.rounds > 1 for gossip in gossips):
            return LARGEST
        # float32 rounds each of the sums and products of a step
        return float(min(LARGEST, 1.001 * (start + self._reach[step])))

    @cached_property
    def _reach(self) -> Vector:
        """How far a parameter can move up to each step."""
        exposure, recipe = self.plan.exposure, self.recipe
        clip = exposure.clip
        if exposure.sampling == "poisson":
            # a batch may have any size
            clip *= max(exposure.records_of(self.plan.topology)) / (exposure.batch_size or 1)
        users = range(len(self.members))
        noise = max(
            self.grid.largest_noise([*self.multiples(i).values(), self.own_multiple(i)])
            for i in users
        )
        return np.cumsum(np.abs(self.rates)) * (clip + noise) / (1 - recipe.momentum)

    @property
    def public_definition(self) -> dict[str, Any] | None:
        """What run folders say of the model."""
        return None if self.definition is None else self.definition.to_json()

    @property
    def run_length(self) -> RunLength:
        recipe = self.recipe
        steps = self.plan.exposure.steps
        return RunLength(steps, recipe.gossip.rounds, recipe.final_gossip.rounds)

    def neighbours(self, number: int) -> tuple[Neighbour, ...]:
        """The neighbours of a user, and which of them it dials."""
        return neighbours_of(self.plan.topology, self.members, number)

    def reach(
        self, number: int, listen: Sequence[str] | None = None, proxy: HttpProxy | None = None
    ) -> Reach:
        """Where a user can be reached, and how it reaches others.

        Args:
            number: The user.
            listen: Addresses to accept connections at; None: those in the file.
            proxy: For all its outgoing connections.
        """
        return reach_of(self.digest, self.members[number], listen, proxy)

    def own_multiple(self, number: int) -> int:
        """The factor of what this user draws beside its own noise; 0 if all have the same."""
        multiples = self.grid.own_multiples
        return multiples[number] if multiples else 0

    def multiples(self, number: int) -> dict[int, int]:
        """Neighbour -> the factor, with its sign, by which this user takes the edge's noise."""
        multiples = {}
        edges = self.plan.topology.edges.tolist()
        # edges are listed from the lower to the higher user
        for (low, high), multiple in zip(edges, self.grid.multiples, strict=True):
            if number == low:
                multiples[high] = multiple
            elif number == high:
                multiples[low] = -multiple  # opposite signs: the noise cancels in the average
        return multiples

    @cached_property
    def rates(self) -> Vector:
        """The step size of each step."""
        return np.asarray(self.recipe.rates(self.learning_rate, self.plan.exposure.steps))

    def noise_left(self, number: int, steps: Mapping[int, Sequence[int]]) -> float:
        """Noise in the average of all models over the planned noise, by one user's edges.

        Args:
            number: The user.
            steps: Neighbour -> the steps in which the noise of the edge to it does not cancel.

        Returns:
            1 if all noise of the edges cancels.
        """
        own = float(np.sum(self.plan.sigma_cdp_per_user**2))
        planned, left = own * float(np.sum(self.rates**2)), 0.0
        for neighbour, multiple in self.multiples(number).items():
            edge = self.grid.unit * multiple * EDGE_SIGMA
            over = list(steps.get(neighbour, ()))
            left += edge**2 * float(np.sum(self.rates[over] ** 2))
        return math.sqrt(1.0 + left / planned)
