"""Share: the users of a run that this process holds, and what all users have together.

A simulation sees its users only through a share: `SingleProcess` has all of them, and
`decor.distributed.rank_share.RankShare` those of one rank.
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
from decor.learning.batches import Batches, CommonRate, words_needed
from decor.learning.gradients.clip import Blocks
from decor.learning.task import Task
from decor.noise import root
from decor.noise.grid import Grid
from decor.noise.private_noise import WORDS_PER_KEY, GridNoise, Secret, own_noise, width_for
from decor.privacy.plan import NoisePlan
from decor.results.run import Run
from decor.results.stop_reason import StopReason

from . import channel
from .channel import Channel, NoiseSource
from .engine import Callback, Moment
from .manifest import fingerprint
from .mixer import DENSE_LIMIT, AverageMixer, choose_mixer
from .release_grid import grid_of
from .resume_state import ResumeState

_UNDERSTATED = 4
"""A private run has at most this many times the examples that its batch size declares."""


def choose_channel(
    plans: Sequence[NoisePlan],
    seeds: Sequence[int],
    dtype: torch.dtype,
    source: NoiseSource | str | None,
    parameters: int,
    device: torch.device,
) -> Channel:
    """The cheapest channel for plans on one graph; plan r is the noise of setting r.

    The choice does not depend on the number of settings, so that a run gives the same values alone
    and in a sweep.
    """
    topology, central = plans[0].topology, plans[0].adversary.average_only
    custom = None if isinstance(source, str) else source
    if device.type == "cuda":
        from .cuda.channel import GpuChannel  # loads Triton, which needs a GPU

        if custom is not None:
            raise InputError('a custom noise source works on the CPU; use device="cpu" with it')
        return GpuChannel(plans, seeds, dtype, device)
    mixer = choose_mixer(topology, central, dtype)
    if custom is not None:
        return channel.CustomChannel(mixer, custom, tuple(plans), tuple(seeds))
    # saves Gaussians that would be multiplied by zero
    if all(not np.any(plan.sigma_cor) and not plan.sigma_cdp for plan in plans):
        return channel.NoiselessChannel(mixer)
    users = topology.users
    # a complete graph has about n^2 / 2 edges, too many for a Gaussian each
    if users > DENSE_LIMIT and isinstance(mixer, AverageMixer) and not central:
        return channel.CompleteChannel(mixer, plans, seeds)
    # the Gaussians that GPUs and process groups draw, so that results can be compared
    if source == "edges":
        return channel.SparseChannel(mixer, plans, seeds, root.by_edges, users)
    # eigenvectors lose weak edges beside strong ones in rounding: uneven noise takes a sparse root
    levels = channel.edge_sigmas(plans[0]), channel.beyond_least(plans[0])
    is_uneven = root.uneven(np.concatenate(levels))
    if users > DENSE_LIMIT or channel.uses_band(plans[0], parameters) or is_uneven:
        return channel.SparseChannel(mixer, plans, seeds, root.sparse, users)
    return channel.DenseChannel(mixer, plans, seeds, dtype)


class Share(Protocol):
    """One process's users. Methods that combine users are collective: all ranks call them."""

    @property
    def name(self) -> str:
        """The engine's name in a run's manifest."""

    @property
    def task(self) -> Task:
        """The task of this process's users."""

    @property
    def full_task(self) -> Task:
        """The task of all users."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the full task."""

    @property
    def users(self) -> Sequence[int] | None:
        """The numbers of this process's users, if they are some of many."""

    @property
    def salt(self) -> int:
        """Added to the seed of what modules draw themselves, such as dropout."""

    @property
    def secret(self) -> Secret | None:
        """Of a private run: the source of this process's noise, batches and dropout."""

    @property
    def waits_for_ranks(self) -> bool:
        """Whether a step waits for other processes."""

    @property
    def has_all_users(self) -> bool:
        """Whether all users are in this process."""

    def channel(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Channel:
        """The channel of this process's users."""

    def mean_over_users(self, block: Tensor) -> Tensor:
        """The mean over all users of [users here, ...]."""

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """The sum over all processes."""

    def combine_metrics(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Metrics of the users here -> of all users."""

    def gather_users(self, blocks: Blocks) -> Blocks:
        """Arrays of the users here -> of all users; empty on all ranks but the first."""

    def resume_state(
        self, load: Callable[[], ResumeState | None], like: Blocks
    ) -> ResumeState | None:
        """The loaded state, with the rows of this process's users; their shapes are `like`'s."""

    def run_callbacks(
        self, moments: dict[int, Moment], run: Callable[[int], Run]
    ) -> dict[int, StopReason]:
        """Which runs their callbacks stop, and why; `run(k)` is run k as it is now."""


@dataclass(frozen=True)
class SingleProcess:
    """A share with all users."""

    name: ClassVar[str] = "vectorised"
    users: ClassVar[None] = None
    salt: ClassVar[int] = 0
    waits_for_ranks: ClassVar[bool] = False
    has_all_users: ClassVar[bool] = True

    task: Task
    noise: NoiseSource | str | None
    callbacks: Sequence[Callback]
    secret: Secret | None = None

    @property
    def full_task(self) -> Task:
        return self.task

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.task)

    def channel(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Channel:
        if self.secret is None:
            return choose_channel(plans, seeds, dtype, self.noise, self.task.parameters, device)
        # a private run is one setting
        (plan,) = plans
        return private_channel(plan, private_grid(plan, self.task), self.secret, dtype)

    def mean_over_users(self, block: Tensor) -> Tensor:
        return block.mean(0)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        return value

    def combine_metrics(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        return metrics

    def gather_users(self, blocks: Blocks) -> Blocks:
        return blocks

    def resume_state(
        self, load: Callable[[], ResumeState | None], like: Blocks
    ) -> ResumeState | None:
        return load()

    def run_callbacks(
        self, moments: dict[int, Moment], run: Callable[[int], Run]
    ) -> dict[int, StopReason]:
        return call_callbacks(moments, self.callbacks)


def private_channel(plan: NoisePlan, grid: Grid, secret: Secret, dtype: torch.dtype) -> Channel:
    """The channel of a private run whose users are all in this process."""
    topology = plan.topology
    width = width_for(topology.users, topology.edge_count)
    own = own_noise(grid.own_multiples, np.arange(topology.users), secret)
    # all edges are inside this process: none needs a key shared with another
    noise = GridNoise(grid, secret, topology.users, topology.edges, grid.multiples, width, own)
    return channel.GridChannel(choose_mixer(topology, False, dtype), noise)


def private_grid(plan: NoisePlan, task: Task) -> Grid:
    """The grid of a private run, whose noise and batches come from one secret per process."""
    exposure = plan.exposure
    # at user level batches do not amplify privacy, so their distribution is not part of the
    # guarantee
    words = 0
    if exposure.unit == "example":
        sampling = exposure.sampling or "poisson"
        words = words_needed(task.counts, exposure.batch_size, sampling)
        if exposure.rate is not None:
            words = _public_words(words, exposure.units(plan.topology))
    return grid_of(plan, task.parameters, WORDS_PER_KEY, words)


def _public_words(drawn: int, declared: int) -> int:
    """A bound on the words of a step's batches that is no function of private counts.

    Args:
        drawn: One word for each example.
        declared: The number of examples that the plan's batch size declares.
    """
    most = _UNDERSTATED * declared
    if drawn > most:
        raise InputError(
            f"batch_size declares about {declared:,} examples in all, and there are {drawn:,}; "
            "make it about rate x mean number of examples"
        )
    return most


def common_rate(plan: NoisePlan) -> CommonRate | None:
    """The rate at which all users sample, if the plan has one."""
    exposure = plan.exposure
    return CommonRate.of(exposure.rate, exposure.batch_size, plan.topology.users)


def batches_of(
    share: Share,
    plan: NoisePlan,
    size: int | None,
    sampling: Sampling,
    seeds: Sequence[int],
    unit: int = 1,
) -> Batches:
    """The batches of a share's users; arguments as of `Batches`."""
    common = common_rate(plan)
    words = None if share.secret is None else share.secret.batch_words
    return Batches(share.task.counts, size, sampling, seeds, unit, share.users, words, common)


def call_callbacks(
    moments: dict[int, Moment], callbacks: Sequence[Callback]
) -> dict[int, StopReason]:
    """Calls all callbacks for all runs; gives the runs to stop, with the reason."""
    reasons: dict[int, StopReason] = {}
    for k, moment in moments.items():
        for callback in callbacks:
            reason = callback(moment)
            # after its last step a run has ended by itself, and is not stopped
            if not reason or moment.step >= moment.setting.plan.exposure.steps:
                continue
            # a callback may return True or a sentence
            if not isinstance(reason, StopReason):
                default = f"stopped by a callback after step {moment.step}"
                text = reason if isinstance(reason, str) else default
                reason = StopReason(text, "callback")
            reasons[k] = reason
    return reasons
