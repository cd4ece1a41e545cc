"""What an engine's users send: the messages of a run of canaries, step by step, and what its users
know beside them.

There are three ways: the simulator's floating-point noise, a private run's on the grid, and real
peers'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from decor.arrays import Array
from decor.distributed.process_group import ProcessGroup
from decor.distributed.world import World
from decor.learning.batches import Batches
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.noise import root
from decor.privacy.plan import NoisePlan
from decor.training.channel import Sparse
from decor.training.engine import Setting
from decor.training.mixer import mixer
from decor.training.vectorised import Vectorised

from .low_bits import Integers

if TYPE_CHECKING:
    pass

RECIPE = Recipe(evaluate_every=10**9)
SMALL_MODEL, LARGE_MODEL = 8_000, 1_000_000
"""Canaries of a small model, and of a large one."""
_UNHEARD = 2
"""Steps that are taken once more without a listener."""
RATE = 1.0
"""Step size: a message is the model less gradient and noise."""


@dataclass(frozen=True)
class Seen:
    """All that any adversary sees or knows of one step."""

    step: int
    messages: Array
    """[users, columns], as first sent."""
    edges: Array | None = None
    """The noise of every edge, [edges, columns]; None where nobody draws noise edge by edge."""
    batches: Array | None = None
    """[users, records of all runs], whether a user has taken its record; None where all records are
    taken.
    """
    integers: Integers | None = None
    """The messages in steps of the grid, where there is one."""


@dataclass(frozen=True)
class Outcome:
    """What must not happen on any wire, whatever the noise: a sentence for everything that did."""

    problems: tuple[str, ...] = ()
    entropy: tuple[str, ...] | None = None
    """About keys that are shorter, or not as secret, as they must be; None where nothing is
    secret.
    """

    def __add__(self, other: Outcome) -> Outcome:
        entropy = (
            None if self.entropy is None or other.entropy is None else self.entropy + other.entropy
        )
        return Outcome(self.problems + other.problems, entropy)


Hear = Callable[[Seen], object]


class Wire(Protocol):
    """One way in which an engine makes noise."""

    @property
    def name(self) -> str: ...

    @property
    def secrets(self) -> bool:
        """Whether users know the noise of their edges, so that some of them can be curious."""
        ...

    @property
    def widest(self) -> int | None:
        """Canaries of one run at most; more come from more seeds in it.

        None: it has one, and as many canaries as can be.
        """
        ...

    @property
    def repeated(self) -> int:
        """Runs at most, where each has one seed."""
        ...

    @property
    def is_private(self) -> bool:
        """Whether a promise is made: secret keys, and noise that hides all bits of a message."""
        ...

    @property
    def hears(self) -> bool:
        """Whether this process is the one that is told the messages: known once a run has joined
        its process group.
        """
        ...

    def deviations(self, plan: NoisePlan, parameters: int) -> tuple[float, Array]:
        """Of everybody's own noise and of every edge's, as they really are."""
        ...

    def run(self, task: Task, plan: NoisePlan, seeds: Sequence[int], hear: Hear) -> Outcome: ...


@dataclass(frozen=True)
class Simulated:
    """The simulator, in one process or in several."""

    engine: Vectorised | ProcessGroup
    name: str
    secrets: bool
    widest: int = LARGE_MODEL
    repeated: int = 1
    is_private: bool = False

    @property
    def hears(self) -> bool:
        return isinstance(self.engine, Vectorised) or World.joined().is_first

    def deviations(self, plan: NoisePlan, parameters: int) -> tuple[float, Array]:
        return plan.sigma_cdp, np.broadcast_to(np.array(plan.sigma_cor), plan.topology.edge_count)

    def run(self, task: Task, plan: NoisePlan, seeds: Sequence[int], hear: Hear) -> Outcome:
        sizes = [weights.numel() for weights in task.model.parameters()]
        edges = _Edges(plan, seeds, sizes) if self.secrets else None
        batches = drawn(
            plan,
            Batches(
                task.counts, plan.exposure.batch_size, plan.exposure.sampling or "poisson", seeds
            ),
        )
        early: list[Array] = []

        def listen(step: int, messages: Tensor) -> None:
            heard = messages.double().cpu().flatten(1).numpy()
            if step < min(_UNHEARD, plan.exposure.steps):
                early.append(heard)
            hear(Seen(step, heard, None if edges is None else edges.noise(step), batches(step)))

        replace(self.engine, on_messages=listen).run(
            task, [Setting(plan, RATE, seed) for seed in seeds], RECIPE
        )
        return Outcome(self._unheard(task, plan, seeds, early))

    def _unheard(
        self, task: Task, plan: NoisePlan, seeds: Sequence[int], early: list[Array]
    ) -> tuple[str, ...]:
        """An engine that nobody listens to may take another way, such as noise and gossip in one
        kernel: to the same models.
        """
        short = replace(
            plan, exposure=replace(plan.exposure, steps=min(_UNHEARD, plan.exposure.steps))
        )
        runs = replace(self.engine, on_messages=None).run(
            task, [Setting(short, RATE, seed) for seed in seeds], RECIPE
        )
        if not self.hears:
            return ()
        if not early:
            return ("no message was heard",)
        models = torch.cat(
            [_as_sent(weights) for run in runs for weights in run.models.values()], 1
        ).numpy()
        expected = plan.topology.mixing @ early[-1]
        # the clock's numbers are the largest, and have roundings of their own
        apart = np.abs(models - expected) > 1e-4 * (np.abs(expected) + early[-1].std())
        return (
            ("who is not listened to trains other models than the messages make",)
            if apart.any()
            else ()
        )


def _as_sent(weights: Tensor) -> Tensor:
    """Layers [users, outputs, inputs] are sent input by input."""
    return (weights.transpose(1, 2) if weights.dim() == 3 else weights).double().flatten(1)


def drawn(plan: NoisePlan, batches: Batches) -> Callable[[int], Array | None]:
    """step -> the records that everybody takes in it, as each user knows of its own; at user level
    everybody takes all.
    """
    if plan.exposure.unit == "user":
        return lambda step: None
    runs, records = len(batches.seeds), int(batches.records[0])  # an audit gives everybody as many

    def of(step: int) -> Array:
        rows = batches.draw(step).rows.numpy()
        found = np.zeros((len(batches.records), runs, records), bool)
        row, place = np.nonzero(rows < batches.null)  # the others are padding
        found.reshape(-1, records)[row, rows[row, place] - batches.starts[row // runs]] = True
        return found.reshape(len(batches.records), -1)

    return of


class _Edges:
    """Every edge's noise, as both of its ends draw it."""

    def __init__(self, plan: NoisePlan, seeds: Sequence[int], sizes: Sequence[int]) -> None:
        self.shapes = [(plan.topology.edge_count, len(seeds), 1, size) for size in sizes]
        mixing = mixer(plan.topology, False, torch.float64)
        self.channel = Sparse(mixing, [plan], seeds, _rows_of_edges, plan.topology.edge_count)

    def noise(self, step: int) -> Array:
        found = [torch.zeros(shape, dtype=torch.float64) for shape in self.shapes]
        self.channel.noise(found, torch.ones(self.shapes[0][1], 1, dtype=torch.float64), step)
        edges: Array = torch.cat(found, -1).flatten(1).numpy()
        return edges


def _rows_of_edges(users: int, edges: Array, own: float, shared: Array) -> root.Columns:
    """The columns of `root.by_edges` that are edges, each in a row of its own."""
    kept = np.flatnonzero(shared > 0)
    return root.Columns.of(np.arange(len(kept) + 1), kept, shared[kept])
