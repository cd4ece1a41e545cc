"""Share: the users of a run that this process has, and how what they have becomes everybody's.

A simulation knows its users by a share alone: `Alone` has all of them, and a team's `Teammate` some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from decor.learning.batches import Batches
from decor.learning.clip import Blocks
from decor.learning.task import Task
from decor.noise.secret import WORDS_PER_KEY, GridNoise, Secret, width_for
from decor.privacy.plan import NoisePlan
from decor.results.run import Run

from .channel import Channel, NoiseSource, Private, channel
from .engine import Callback, Moment
from .manifest import fingerprint
from .mixer import mixer
from .released import grid_of
from .resumption import Resumed


class Share(Protocol):
    @property
    def name(self) -> str:
        """Of the engine, as a run's manifest has it."""

    @property
    def task(self) -> Task:
        """Of the users here."""

    @property
    def whole(self) -> Task:
        """Of all users."""

    @property
    def fingerprint(self) -> str:
        """Of the whole task."""

    @property
    def salt(self) -> int:
        """Of what modules draw themselves, such as dropout."""

    @property
    def secret(self) -> Secret | None:
        """Of a private run: where this process's noise, batches and what modules draw come from."""

    @property
    def waits(self) -> bool:
        """Whether a step waits for other processes."""

    @property
    def is_alone(self) -> bool:
        """Whether all users are in this process."""

    def batches(self, size: int | None, sampling: str, seeds: Sequence[int], unit: int) -> Batches: ...

    def channel(self, plans: Sequence[NoisePlan], seeds: Sequence[int], dtype: torch.dtype, device: torch.device) -> Channel: ...

    def mean(self, block: Tensor) -> Tensor:
        """Of everybody's models."""

    def total(self, value: Tensor) -> Tensor:
        """What users here have in sum, over everybody."""

    def metrics(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """Over the users here -> over everybody."""

    def everybodys(self, blocks: Blocks) -> Blocks:
        """The numbers of the users here -> everybody's, or nothing where another process keeps them."""

    def resumed(self, find: Callable[[], Resumed | None], like: Blocks) -> Resumed | None:
        """What is found of everybody's -> of the users here, whose numbers have the form of `like`."""

    def asked(self, moments: dict[int, Moment], run: Callable[[int], Run]) -> dict[int, str]:
        """Which runs their callbacks stop, and why; `run(k)` is the run as it is now."""


@dataclass(frozen=True)
class Alone:
    """All users are here."""

    name: ClassVar[str] = "vectorised"
    salt: ClassVar[int] = 0
    waits: ClassVar[bool] = False
    is_alone: ClassVar[bool] = True

    task: Task
    noise: NoiseSource | str | None
    callbacks: Sequence[Callback]
    secret: Secret | None = None

    @property
    def whole(self) -> Task:
        return self.task

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.task)

    def batches(self, size: int | None, sampling: str, seeds: Sequence[int], unit: int) -> Batches:
        words = None if self.secret is None else self.secret.batch_words
        return Batches(self.task.counts, size, sampling, seeds, unit, words=words)

    def channel(self, plans: Sequence[NoisePlan], seeds: Sequence[int], dtype: torch.dtype, device: torch.device) -> Channel:
        if self.secret is None:
            return channel(plans, seeds, dtype, self.noise, self.task.parameters, device)
        (plan,) = plans
        topology, grid = plan.topology, grid_of(plan, self.task.parameters, WORDS_PER_KEY)
        width = width_for(topology.users, topology.edge_count)
        noise = GridNoise(grid, self.secret, topology.users, topology.edges, grid.multiples, width)
        return Private(mixer(topology, False, dtype), noise)

    def mean(self, block: Tensor) -> Tensor:
        return block.mean(0)

    def total(self, value: Tensor) -> Tensor:
        return value

    def metrics(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        return found

    def everybodys(self, blocks: Blocks) -> Blocks:
        return blocks

    def resumed(self, find: Callable[[], Resumed | None], like: Blocks) -> Resumed | None:
        return find()

    def asked(self, moments: dict[int, Moment], run: Callable[[int], Run]) -> dict[int, str]:
        return stopped(moments, self.callbacks)


def stopped(moments: dict[int, Moment], callbacks: Sequence[Callback]) -> dict[int, str]:
    """Runs that a callback does not let go on, with the reason; one that has ended is not stopped any more."""
    reasons = {}
    for k, moment in moments.items():
        for callback in callbacks:
            reason = callback(moment)
            if reason and moment.step < moment.setting.plan.exposure.steps:
                reasons[k] = reason if isinstance(reason, str) else f"stopped by a callback after step {moment.step}"
    return reasons
