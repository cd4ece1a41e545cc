"""Vectorised: all users of all runs in one tensor, on one machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decor.choices import Dtype, GradientPath
from decor.errors import InputError
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.noise.secret import Secret
from decor.results.run import Run

from .channel import NoiseSource
from .engine import IN_MEMORY, Callback, Capabilities, Setting
from .share import Alone
from .simulation import Simulation
from .validation import check


@dataclass(frozen=True)
class Vectorised:
    """The simulator: exact Algorithm 1 for all users at once, without a loop over them.

    `seed` decides all that is random (a sweep names its own seeds), and anyone who knows it can
    subtract the noise: such a run is a simulation. `seed=None` is a private run, for models that
    may leave: noise and batches from 256 bits of the operating system that are kept nowhere, on the
    integer grid of docs/noise.md, and nothing about the data is kept but the models. With
    `private_metrics` it also measures the training loss, for `run.private_metrics` (private.jsonl)
    and callbacks: a run that a callback then stops has no guarantee. `threads` None takes as many
    cores as help. `path` "auto" takes the fast path for linear models and MLPs, "generic"
    torch.func for everything; both give the same numbers. `device` "cuda" is an NVIDIA card (or
    "cuda:1", ...): the same records, and noise of the same law. There `tf32` lets products take
    their operands to eleven bits, several times as fast; single records' clips are taken shorter by
    as much, so that what is added is never longer than the plan says. `noise` "edges" draws one
    Gaussian for every edge and one for every user, on every device and engine the same ones; a
    `NoiseSource` puts somebody else's noise on the gradients, and has to have the plan's law.
    `on_messages(step, messages)` sees every step's noised models as they are first sent, [users,
    seeds, settings, parameters].
    """

    seed: int | None = 0
    device: str = "cpu"
    dtype: Dtype = "float32"
    threads: int | None = None
    path: GradientPath = "auto"
    tf32: bool = False
    noise: NoiseSource | str | None = field(default=None, repr=False)
    private_metrics: bool = False
    on_messages: Callable[[int, Tensor], object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.seed is None and self.device != "cpu":
            raise InputError(
                'a private run draws its noise on the CPU; say device="cpu", or give '
                "a seed to simulate on a GPU"
            )
        check_device(self.device)
        if self.tf32 and (self.device == "cpu" or self.dtype != "float32"):
            raise InputError(
                'tf32 is a way to multiply float32 numbers on a card; say device="cuda", or drop it'
            )
        if isinstance(self.noise, str) and self.noise != "edges":
            raise InputError(
                f'noise must be "edges", a source of noise or None, not {self.noise!r}'
            )
        if self.dtype not in ("float32", "float64"):
            raise InputError(f'dtype must be "float32" or "float64", not {self.dtype!r}')
        if self.path not in ("auto", "generic"):
            raise InputError(f'path must be "auto" or "generic", not {self.path!r}')
        if self.seed is None and self.noise is not None:
            raise InputError(
                "a private run draws its own noise; drop noise, or give a seed to simulate"
            )
        if self.private_metrics and self.seed is not None:
            raise InputError(
                "a simulation keeps all its metrics; drop private_metrics, or say "
                "seed=None for a private run"
            )
        if self.threads is not None and (not isinstance(self.threads, int) or self.threads < 1):
            raise InputError(
                "threads must be a positive whole number, or None for automatic, "
                f"not {self.threads!r}"
            )

    def run(
        self,
        task: Task,
        settings: Sequence[Setting],
        recipe: Recipe,
        callbacks: Sequence[Callback] = (),
        resume: Run | None = None,
    ) -> list[Run]:
        """Settings must be a grid: the same plans and step sizes for every seed, seeds in the outer
        order.
        """
        secret = None
        if self.seed is None:
            secret = check_private(settings)
            task = check(task, settings[0].plan, recipe, allow_disconnected=True)
        return Simulation(
            self, Alone(task, self.noise, callbacks, secret), settings, recipe, resume
        ).finished()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    @property
    def parameters_at_once(self) -> int:
        return IN_MEMORY if self.device == "cpu" else torch.cuda.mem_get_info(self.device)[0] // 32


def check_private(
    settings: Sequence[Setting], random: Callable[[int], bytes] = os.urandom
) -> Secret:
    """A fresh secret, of `random`, for the one setting of a private run; refuses what it cannot be
    private for.
    """
    if len(settings) != 1:
        raise InputError(
            f"a private run is one run, not {len(settings)}: choosing among several by their "
            "results reveals more than the "
            "epsilon of one. Choose with simulations on public data, then train the chosen one "
            "privately"
        )
    (setting,) = settings
    if setting.seed is not None:
        raise InputError(
            f"a private run has no seed, and the setting has {setting.seed}; say "
            "Setting(plan, learning_rate, None)"
        )
    if setting.plan.adversary.average_only:
        raise InputError(
            "central DP protects the average alone, which a trusted server has to "
            "make; give a seed to simulate it"
        )
    if not setting.plan.sigma_cdp > 0:
        raise InputError(
            "a plan without sigma_cdp promises nothing, so there is nothing to keep secret; give "
            "a seed to simulate it"
        )
    return Secret(random)


def check_device(device: str) -> None:
    """Refuses what this machine does not have."""
    kind, _, number = device.partition(":")
    if device == "cpu":
        return
    if kind != "cuda" or (number and not number.isdecimal()):
        raise InputError(f'device must be "cpu", "cuda" or "cuda:1", ..., not {device!r}')
    if not torch.cuda.is_available():
        raise InputError(
            f"device {device!r} needs an NVIDIA card and a torch built for it, and "
            'there is none here; use "cpu"'
        )
    if int(number or 0) >= torch.cuda.device_count():
        raise InputError(
            f"there is no {device!r} here, only {torch.cuda.device_count()} of them; "
            "the first is cuda:0"
        )
