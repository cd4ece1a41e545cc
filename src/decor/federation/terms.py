"""Terms: what all users of a federation have agreed on, ready to be run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from decor.choices import Dtype
from decor.errors import InputError
from decor.learning.recipe import Recipe
from decor.net.link import Neighbour
from decor.net.peer import Course
from decor.noise.grid import Grid
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.training.release_grid import grid_of

from .federation import Federation, Member


@dataclass(frozen=True)
class Terms:
    """The same at every user. `delta` is what is promised, the tables' share included."""

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

    def __post_init__(self) -> None:
        if self.recipe.gossip.rounds < 1:
            raise InputError(
                "a federation needs a round of gossip in every step, or nobody would "
                "hear of anybody"
            )

    @staticmethod
    def of(federation: Federation) -> Terms:
        """A file's; loads torch."""
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
            federation.timeout,
            federation.quorum,
            federation.network.patience,
        )

    @cached_property
    def grid(self) -> Grid:
        return grid_of(self.plan, self.parameters)

    @cached_property
    def promise(self) -> Guarantee:
        """What the whole plan promises, which holds however early a run stops."""
        return self.plan.guarantee_on_grid(self.grid.distance, self.delta)

    def spent(self, steps: int) -> Guarantee:
        """What so many messages of a user have cost, if their number was fixed in advance."""
        return self.plan.guarantee_on_grid(self.grid.distance, self.delta, steps=steps)

    @property
    def course(self) -> Course:
        return Course(
            self.plan.exposure.steps, self.recipe.gossip.rounds, self.recipe.final_gossip.rounds
        )

    def neighbours(self, number: int) -> tuple[Neighbour, ...]:
        """Of two with addresses the higher number calls; who has none calls everybody."""
        found = []
        for j in self.plan.topology.neighbours(number):
            other, own = self.members[j], self.members[number]
            dials = not own.address if not (own.address and other.address) else number > j
            found.append(
                Neighbour(int(j), other.name, other.public, other.address, dials, bool(number < j))
            )
        return tuple(found)

    def multiples(self, number: int) -> dict[int, int]:
        """neighbour -> by how much, and with which sign, this user takes the edge's noise."""
        found = {}
        for (low, high), multiple in zip(
            self.plan.topology.edges.tolist(), self.grid.multiples, strict=True
        ):
            if number == low:
                found[high] = multiple
            elif number == high:
                found[low] = -multiple
        return found
