"""Messages of a private run of the simulator, and, by its secret, what its users know.

Only an audit may see the secret.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from decor.array_types import Array
from decor.learning.task import Task
from decor.noise.private_noise import WORDS_PER_KEY
from decor.privacy.plan import NoisePlan
from decor.training import channel
from decor.training.engine import Setting
from decor.training.release_grid import grid_of
from decor.training.share import SingleProcess, batches_of
from decor.training.simulation import Simulation
from decor.training.vectorised import Vectorised, draw_secret

from .low_bits import grid_integers
from .sources import (
    RATE,
    RECIPE,
    MessageSource,
    OnStep,
    RunProblems,
    StepView,
    batch_members,
    grid_levels,
)

_SECRET_BYTES = 32


@dataclass(frozen=True)
class PrivateSource(MessageSource):
    """`Vectorised(seed=None)`: each run has its own secret, so more canaries take more runs."""

    engine: Vectorised
    name: str = "vectorised, private"
    has_secrets: bool = True
    max_canaries: int | None = None
    max_runs: int = 48
    is_private: bool = True

    def noise_levels(self, plan: NoisePlan, parameters: int) -> tuple[Array, Array]:
        return grid_levels(grid_of(plan, parameters, WORDS_PER_KEY), plan.topology.users)

    def run(
        self, task: Task, plan: NoisePlan, seeds: Sequence[int], on_step: OnStep
    ) -> RunProblems:
        """Does what `Vectorised.run` does, and keeps the secret. Seeds are the canaries' alone."""
        drawn: list[bytes] = []

        def random(count: int) -> bytes:
            drawn.append(os.urandom(count))
            return drawn[-1]

        settings = [Setting(plan, RATE, None)]
        share = SingleProcess(task, None, (), draw_secret(settings, random))
        # with one thread a gossip round can be repeated bit by bit from the messages
        # a lambda, because `listen` needs the simulation that this engine makes
        engine = replace(
            self.engine, threads=1, on_messages=lambda step, messages: listen(step, messages)
        )
        simulation = Simulation(engine, share, settings, RECIPE, None)
        descent = simulation.descent
        assert isinstance(descent.channel, channel.GridChannel)
        noise, dtype = descent.channel.source, np.dtype(engine.dtype)
        exposure, sizes = plan.exposure, [block[0].numel() for block in descent.models]
        sampling = exposure.sampling or "poisson"
        # batches from the run's secret, so the same as the engine draws
        drawn_batches = batches_of(share, plan, exposure.batch_size, sampling, [0])
        batches = batch_members(plan, drawn_batches)
        before = _flatten(descent.models)

        def resend(steps: Array) -> Array:
            # gradient and noise are rounded once to the models' type, then subtracted
            messages: Array = before - (noise.grid.unit * steps).astype(dtype)
            return messages

        def listen(step: int, messages: Tensor) -> None:
            nonlocal before
            received = messages.flatten(1).numpy().copy()
            integers = grid_integers(before, received, noise.grid.unit, resend)
            edges = [
                noise.edge_integers(step, size, sum(sizes[:k])) for k, size in enumerate(sizes)
            ]
            shared = noise.grid.unit * np.concatenate(edges, axis=1)
            on_step(StepView(step, received.astype(np.float64), shared, batches(step), integers))
            # the models of the next step, by the engine's own gossip
            models = [block.clone() for block in descent.models]
            before = _flatten(descent.channel.mix(models, RECIPE.gossip))

        simulation.run()
        return RunProblems((), _check_entropy(drawn))


def _check_entropy(drawn: list[bytes]) -> tuple[str, ...]:
    if len(drawn) == 1 and len(drawn[0]) == _SECRET_BYTES:
        return ()
    count = sum(map(len, drawn))
    return (
        f"the run's secret was made from {count} bytes of the operating system, not from "
        f"{_SECRET_BYTES}",
    )


def _flatten(blocks: list[Tensor]) -> Array:
    """All users' models as they are sent, in their own precision."""
    models: Array = torch.cat([block.flatten(1) for block in blocks], 1).numpy().copy()
    return models
