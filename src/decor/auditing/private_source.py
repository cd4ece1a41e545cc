"""A private run of the simulator: its messages, and by its secret, which only an audit may see,
what its users know.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from decor.arrays import Array
from decor.learning.task import Task
from decor.noise.secret import WORDS_PER_KEY
from decor.noise.stream import EDGE_SIGMA, OWN_SIGMA
from decor.privacy.plan import NoisePlan
from decor.training import channel
from decor.training.engine import Setting
from decor.training.release_grid import grid_of
from decor.training.share import Alone
from decor.training.simulation import Simulation
from decor.training.vectorised import Vectorised, check_private

from .low_bits import integers
from .sources import RATE, RECIPE, Hear, Outcome, Seen, drawn

_SECRET = 32
"""Bytes of a run's secret."""


@dataclass(frozen=True)
class Private:
    """`Vectorised(seed=None)`: every run has a secret of its own, so that more canaries come from
    more runs.
    """

    engine: Vectorised
    name: str = "vectorised, private"
    secrets: bool = True
    widest: int | None = None
    repeated: int = 48
    is_private: bool = True
    hears: bool = True

    def deviations(self, plan: NoisePlan, parameters: int) -> tuple[float, Array]:
        """The grid's, which are those planned or a little more."""
        grid = grid_of(plan, parameters, WORDS_PER_KEY)
        return grid.unit * OWN_SIGMA, grid.unit * EDGE_SIGMA * np.array(grid.multiples, dtype=float)

    def run(self, task: Task, plan: NoisePlan, seeds: Sequence[int], hear: Hear) -> Outcome:
        """What `Vectorised.run` does, with the secret in hand.

        The seeds are the canaries' alone.
        """
        asked: list[bytes] = []

        def random(count: int) -> bytes:
            asked.append(os.urandom(count))
            return asked[-1]

        settings = [Setting(plan, RATE, None)]
        share = Alone(task, None, (), check_private(settings, random))
        # on one thread a round of gossip can be taken again, bit by bit, by whoever has heard the
        # messages
        engine = replace(
            self.engine, threads=1, on_messages=lambda step, messages: listen(step, messages)
        )
        simulation = Simulation(engine, share, settings, RECIPE, None)
        descent = simulation.descent
        assert isinstance(descent.channel, channel.Private)
        noise, dtype = descent.channel.source, np.dtype(engine.dtype)
        exposure, sizes = plan.exposure, [block[0].numel() for block in descent.models]
        batches = drawn(
            plan, share.batches(exposure.batch_size, exposure.sampling or "poisson", [0], 1)
        )
        before = _flat(descent.models)

        def sent(steps: Array) -> Array:
            """A gradient with noise is rounded once to the models' type, and then taken from the
            model.
            """
            found: Array = before - (noise.grid.unit * steps).astype(dtype)
            return found

        def listen(step: int, messages: Tensor) -> None:
            nonlocal before
            heard = messages.flatten(1).numpy().copy()
            found = integers(before, heard, noise.grid.unit, sent)
            edges = [
                noise.edge_integers(step, size, sum(sizes[:k])) for k, size in enumerate(sizes)
            ]
            shared = noise.grid.unit * np.concatenate(edges, axis=1)
            hear(Seen(step, heard.astype(np.float64), shared, batches(step), found))
            before = _flat(
                descent.channel.mix([block.clone() for block in descent.models], RECIPE.gossip)
            )

        simulation.finished()
        return Outcome((), _short(asked))


def _short(asked: list[bytes]) -> tuple[str, ...]:
    if len(asked) == 1 and len(asked[0]) == _SECRET:
        return ()
    return (
        f"a run's secret was made from {sum(map(len, asked))} bytes of the operating system, "
        f"not from {_SECRET}",
    )


def _flat(blocks: list[Tensor]) -> Array:
    """Everybody's model as it is sent, in its own precision."""
    found: Array = torch.cat([block.flatten(1) for block in blocks], 1).numpy().copy()
    return found
