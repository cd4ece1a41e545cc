"""Message sources: an engine runs canaries, and an audit gets each step's messages and secrets.

There are three kinds of noise: the simulator's in floating point, a private run's on the grid, and
that of real peers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from decor.array_types import Array
from decor.distributed.process_group import ProcessGroup
from decor.distributed.world import World
from decor.learning.batches import Batches
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.noise import root
from decor.noise.grid import Grid
from decor.noise.integer_gaussians import EDGE_SIGMA, OWN_SIGMA
from decor.privacy.plan import NoisePlan
from decor.training.channel import SparseChannel
from decor.training.engine import Setting
from decor.training.mixer import choose_mixer
from decor.training.share import common_rate
from decor.training.vectorised import Vectorised

from .low_bits import GridIntegers

# no metrics: an audit needs the messages alone
# attacks follow one plain round from the messages of a step to the models of the next one
RECIPE = Recipe(gossip_rounds=1, evaluate_every=10**9)
SMALL_MODEL, LARGE_MODEL = 8_000, 1_000_000
"""Canaries in one run of a small model, and of a large one."""
_REPEATED_STEPS = 2
"""Steps that are run again without a listener."""
RATE = 1.0
"""Step size: a message is the model minus gradient and noise."""


@dataclass(frozen=True)
class StepView:
    """All that any attacker sees or knows of one step.

    Attributes:
        step: Its number.
        messages: [users, columns], as first sent.
        edges: [edges, columns], the noise of each edge; None where no user draws it edge by edge.
        batches: [users, examples of all runs], whether a user sampled its example; None where all
            are used.
        integers: The messages in steps of the grid, where there is one.
    """

    step: int
    messages: Array
    edges: Array | None = None
    batches: Array | None = None
    integers: GridIntegers | None = None


@dataclass(frozen=True)
class RunProblems:
    """Violations that no noise excuses, a sentence for each.

    Attributes:
        protocol: Two messages for a step, missing secrets, an engine that behaves differently
            without a listener.
        entropy: Keys that are too short, or not secret; None where nothing is secret.
    """

    protocol: tuple[str, ...] = ()
    entropy: tuple[str, ...] | None = None

    def __add__(self, other: RunProblems) -> RunProblems:
        protocol = self.protocol + other.protocol
        if self.entropy is None or other.entropy is None:
            return RunProblems(protocol)
        return RunProblems(protocol, self.entropy + other.entropy)


OnStep = Callable[[StepView], object]


class MessageSource(ABC):
    """One way in which an engine makes noise.

    Attributes:
        name: For reports.
        has_secrets: Whether users know the noise of their edges, so that coalitions can use it.
        max_canaries: In one run; more canaries take more seeds. None: a run has one seed, and as
            many canaries as fit.
        max_runs: Where each run has one seed.
        is_private: Whether keys are secret and all bits of a message are hidden.
    """

    name: str
    has_secrets: bool
    max_canaries: int | None
    max_runs: int
    is_private: bool

    def receives_messages(self) -> bool:
        """Whether this process gets the messages; known once a run has joined its process group."""
        return True

    def close(self) -> None:  # noqa: B027
        """Ends what runs have left for the next."""

    @abstractmethod
    def noise_levels(self, plan: NoisePlan, parameters: int) -> tuple[Array, Array]:
        """(standard deviation of a user's own noise, those of all edges) in this engine."""

    @abstractmethod
    def run(
        self, task: Task, plan: NoisePlan, seeds: Sequence[int], on_step: OnStep
    ) -> RunProblems:
        """Runs the task, calls `on_step` for each step, and returns violations of the protocol."""


def grid_levels(grid: Grid, users: int) -> tuple[Array, Array]:
    """The noise levels of users and edges on a grid: those planned, or a little more."""
    beside = np.broadcast_to(np.array(grid.own_multiples or (0,), dtype=float), users)
    own = grid.unit * np.hypot(OWN_SIGMA, EDGE_SIGMA * beside)
    return own, grid.unit * EDGE_SIGMA * np.array(grid.multiples, dtype=float)


@dataclass(frozen=True)
class SimulatedSource(MessageSource):
    """The simulator, in one process or in several."""

    engine: Vectorised | ProcessGroup
    name: str
    has_secrets: bool
    max_canaries: int = LARGE_MODEL
    max_runs: int = 1
    is_private: bool = False

    def receives_messages(self) -> bool:
        return isinstance(self.engine, Vectorised) or World.current().is_first

    def noise_levels(self, plan: NoisePlan, parameters: int) -> tuple[Array, Array]:
        shared = np.broadcast_to(np.array(plan.sigma_cor), plan.topology.edge_count)
        return plan.sigma_cdp_per_user, shared

    def run(
        self, task: Task, plan: NoisePlan, seeds: Sequence[int], on_step: OnStep
    ) -> RunProblems:
        sizes = [weights.numel() for weights in task.model.parameters()]
        edges = _EdgeNoise(plan, seeds, sizes) if self.has_secrets else None
        exposure = plan.exposure
        sampling = exposure.sampling or "poisson"
        drawn = Batches(task.counts, exposure.batch_size, sampling, seeds, common=common_rate(plan))
        batches = batch_members(plan, drawn)
        first_steps: list[Array] = []

        def listen(step: int, messages: Tensor) -> None:
            # in double precision, which holds each float32 value exactly
            received = messages.double().cpu().flatten(1).numpy()
            if step < min(_REPEATED_STEPS, exposure.steps):
                first_steps.append(received)
            noise = None if edges is None else edges.noise(step)
            on_step(StepView(step, received, noise, batches(step)))

        settings = [Setting(plan, RATE, seed) for seed in seeds]
        replace(self.engine, on_messages=listen).run(task, settings, RECIPE)
        return RunProblems(self._repeat(task, plan, seeds, first_steps))

    def _repeat(
        self, task: Task, plan: NoisePlan, seeds: Sequence[int], first_steps: list[Array]
    ) -> tuple[str, ...]:
        """Repeats the first steps without a listener, and compares the models.

        Without one an engine may run other code, such as noise and gossip in one kernel.
        """
        steps = min(_REPEATED_STEPS, plan.exposure.steps)
        # the same seeds: the same noise, if the engine is right
        short = replace(plan, exposure=replace(plan.exposure, steps=steps))
        settings = [Setting(short, RATE, seed) for seed in seeds]
        runs = replace(self.engine, on_messages=None).run(task, settings, RECIPE)
        if not self.receives_messages():
            return ()
        if not first_steps:
            return ("the engine sent no message",)
        blocks = [_as_sent(weights) for run in runs for weights in run.models.values()]
        models = torch.cat(blocks, 1).numpy()
        expected = plan.topology.mixing @ first_steps[-1]
        # relative to each value too: the clock's values are the largest, with larger roundings
        tolerance = 1e-4 * (np.abs(expected) + first_steps[-1].std())
        if (np.abs(models - expected) > tolerance).any():
            return ("without a listener the engine trains other models than the messages make",)
        return ()


def _as_sent(weights: Tensor) -> Tensor:
    """Layers [users, outputs, inputs] are sent input by input."""
    return (weights.transpose(1, 2) if weights.dim() == 3 else weights).double().flatten(1)


def batch_members(plan: NoisePlan, batches: Batches) -> Callable[[int], Array | None]:
    """step -> the examples that each user samples, [users, examples of all runs].

    A user knows its own row. At user level all examples are used, and the result is None.
    """
    if plan.exposure.unit == "user":
        return lambda step: None
    # an audit gives each user the same number of examples
    runs, records = len(batches.seeds), int(batches.records[0])

    def members(step: int) -> Array:
        rows = batches.draw(step).rows.numpy()
        is_member = np.zeros((len(batches.records), runs, records), bool)
        row, place = np.nonzero(rows < batches.null)  # the others are padding
        is_member.reshape(-1, records)[row, rows[row, place] - batches.starts[row // runs]] = True
        return is_member.reshape(len(batches.records), -1)

    return members


class _EdgeNoise:
    """The noise of each edge in the simulator, as both of its ends draw it."""

    def __init__(self, plan: NoisePlan, seeds: Sequence[int], sizes: Sequence[int]) -> None:
        edges = plan.topology.edge_count
        self.shapes = [(edges, len(seeds), 1, size) for size in sizes]
        mixing = choose_mixer(plan.topology, False, torch.float64)
        # the engine's own code draws the noise, but one row per edge instead of two per edge
        self.channel = SparseChannel(mixing, [plan], seeds, _rows_of_edges, edges)

    def noise(self, step: int) -> Array:
        blocks = [torch.zeros(shape, dtype=torch.float64) for shape in self.shapes]
        self.channel.noise(blocks, torch.ones(self.shapes[0][1], 1, dtype=torch.float64), step)
        edges: Array = torch.cat(blocks, -1).flatten(1).numpy()
        return edges


def _rows_of_edges(users: int, edges: Array, own: Array, shared: Array) -> root.SparseRoot:
    """The columns of `root.by_edges` that are edges, each in a row of its own."""
    kept = np.flatnonzero(shared > 0)
    return root.SparseRoot.of(np.arange(len(kept) + 1), kept, shared[kept])
