"""Share: the users of a run that this process has, and how what they have becomes everybody's.

A simulation knows its users by a share alone: `Alone` has all of them, and a team's `Teammate`
some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from decor.choices import Sampling
from decor.errors import InputError
from decor.learning.batches import Batches, words_needed
from decor.learning.gradients.clip import Blocks
from decor.learning.task import Task
from decor.noise import root
from decor.noise.grid import Grid
from decor.noise.secret import WORDS_PER_KEY, GridNoise, Secret, width_for
from decor.privacy.plan import NoisePlan
from decor.results.run import Run
from decor.results.stop_reason import StopReason

from .channel import (
    Channel,
    Complete,
    Dense,
    NoiseSource,
    Outside,
    Private,
    Silent,
    Sparse,
    banded,
    by_edge,
)
from .engine import Callback, Moment
from .manifest import fingerprint
from .mixer import DENSE, Average, mixer
from .release_grid import grid_of
from .resumption import Resumed


def choose_channel(
    plans: Sequence[NoisePlan],
    seeds: Sequence[int],
    dtype: torch.dtype,
    source: NoiseSource | str | None,
    parameters: int,
    device: torch.device,
) -> Channel:
    """The cheapest channel for plans on one graph; plan r is the noise of setting r.

    It does not depend on how many settings there are, so that a run has the same numbers alone and
    among others.
    """
    topology, central = plans[0].topology, plans[0].adversary.average_only
    if device.type == "cuda":
        from .cuda.channel import OnCard  # Triton is loaded where there is a GPU

        if source is not None and not isinstance(source, str):
            raise InputError(
                'noise from outside is made in the computer\'s memory; use device="cpu" with it'
            )
        return OnCard(plans, seeds, dtype, device)
    mixing = mixer(topology, central, dtype)
    if source is not None and not isinstance(source, str):
        return Outside(mixing, source, tuple(plans), tuple(seeds))
    if all(not np.any(plan.sigma_cor) and not plan.sigma_cdp for plan in plans):
        return Silent(mixing)
    users = topology.users
    if users > DENSE and isinstance(mixing, Average) and not central:
        return Complete(mixing, plans, seeds)
    if source == "edges":
        return Sparse(mixing, plans, seeds, root.by_edges, users)
    if users > DENSE or banded(plans[0], parameters) or root.uneven(by_edge(plans[0])):
        return Sparse(mixing, plans, seeds, root.sparse, users)
    return Dense(mixing, plans, seeds, dtype)


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

    def batches(
        self, size: int | None, sampling: Sampling, seeds: Sequence[int], unit: int
    ) -> Batches: ...

    def channel(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Channel: ...

    def mean(self, block: Tensor) -> Tensor:
        """Of everybody's models."""

    def total(self, value: Tensor) -> Tensor:
        """What users here have in sum, over everybody."""

    def metrics(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """Over the users here -> over everybody."""

    def everybodys(self, blocks: Blocks) -> Blocks:
        """The numbers of the users here -> everybody's, or nothing where another process keeps
        them.
        """

    def resumed(self, find: Callable[[], Resumed | None], like: Blocks) -> Resumed | None:
        """What is found of everybody's -> of the users here, whose numbers have the form of
        `like`.
        """

    def asked(self, moments: dict[int, Moment], run: Callable[[int], Run]) -> dict[int, StopReason]:
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

    def batches(
        self, size: int | None, sampling: Sampling, seeds: Sequence[int], unit: int
    ) -> Batches:
        words = None if self.secret is None else self.secret.batch_words
        return Batches(self.task.counts, size, sampling, seeds, unit, words=words)

    def channel(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Channel:
        if self.secret is None:
            return choose_channel(plans, seeds, dtype, self.noise, self.task.parameters, device)
        (plan,) = plans
        topology, grid = plan.topology, private_grid(plan, self.task)
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

    def asked(self, moments: dict[int, Moment], run: Callable[[int], Run]) -> dict[int, StopReason]:
        return stopped(moments, self.callbacks)


def private_grid(plan: NoisePlan, task: Task) -> Grid:
    """The grid of a private run, whose noise and batches come from one secret a process."""
    exposure = plan.exposure
    # at user level batches amplify nothing, so that their law is no part of the promise
    words = (
        words_needed(task.counts, exposure.batch_size, exposure.sampling or "poisson")
        if exposure.unit == "example"
        else 0
    )
    return grid_of(plan, task.parameters, WORDS_PER_KEY, words)


def stopped(moments: dict[int, Moment], callbacks: Sequence[Callback]) -> dict[int, StopReason]:
    """Runs that a callback does not let go on, with the reason; one that has ended is not stopped
    any more.
    """
    reasons: dict[int, StopReason] = {}
    for k, moment in moments.items():
        for callback in callbacks:
            reason = callback(moment)
            if reason and moment.step < moment.setting.plan.exposure.steps:
                if not isinstance(reason, StopReason):
                    text = (
                        reason
                        if isinstance(reason, str)
                        else f"stopped by a callback after step {moment.step}"
                    )
                    reason = StopReason(text, "callback")
                reasons[k] = reason
    return reasons
