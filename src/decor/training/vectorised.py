"""Vectorised: all users of all runs in one tensor, on one machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor

from decor import checks
from decor.choices import Dtype, GradientPath
from decor.errors import InputError
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.noise.private_noise import Secret
from decor.results.run import Run

from .channel import NoiseSource
from .engine import IN_MEMORY, Callback, Capabilities, Setting
from .share import SingleProcess
from .simulation import Simulation
from .validation import check


@dataclass(frozen=True)
class Vectorised:
    """The simulator: exact Algorithm 1 for all users at once, without a loop over them.

    Attributes:
        seed: Decides all that is random; a sweep names its own seeds. Anyone who knows the seed can
            subtract the noise, so such a run is a simulation. None: a private run, whose models may
            be published. Its noise and batches come from 256 bits of the operating system that are
            not kept, and lie on the integer grid of docs/noise.md.
        device: "cpu", or "cuda" ("cuda:1", ...): an NVIDIA GPU. It draws the same batches, and
            noise of the same distribution.
        dtype: Precision of models, "float32" or "float64".
        threads: Threads to use; None tries how many help.
        path: "auto" takes the fastest gradient code for the model, "generic" torch.func for every
            model; both give the same results.
        tf32: On a GPU, lets products cut their operands to eleven bits, several times as fast. The
            clip of single examples is shortened to match, so that no contribution is longer than
            the plan says.
        bf16: Computes gradients from operands of eight bits (autocast to bfloat16), on a GPU faster
            still; also on a CPU, where it shows what a GPU will give. Models, lengths, sums of
            products and noise stay float32, and the clip is shortened to match, as with `tf32`.
            Dense models then take the path of other modules. Not for private runs.
        noise: None draws the noise in the fastest way. "edges" draws one Gaussian for every edge
            and one for every user, the same ones on every device and engine. A `NoiseSource` adds
            custom noise to the gradients; it must have the plan's distribution.
        private_metrics: Of a private run: also measures the training loss, for
            `run.private_metrics` (private.jsonl) and callbacks.
        on_messages: Called as on_messages(step, messages) with every step's noised models as they
            are first sent, [users, seeds, settings, parameters].

    Guarantee: a private run keeps nothing about the data but the models and metrics on public data.
    With `private_metrics`, a run that a callback stops has no guarantee.
    """

    seed: int | None = 0
    device: str = "cpu"
    dtype: Dtype = "float32"
    threads: int | None = None
    path: GradientPath = "auto"
    tf32: bool = False
    bf16: bool = False
    noise: NoiseSource | str | None = field(default=None, repr=False)
    private_metrics: bool = False
    on_messages: Callable[[int, Tensor], object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # before the device is looked for: the refusal must not depend on the machine
        if self.seed is None and self.device != "cpu":
            raise InputError(
                'a private run draws its noise on the CPU; say device="cpu", or give a seed to '
                "simulate on a GPU"
            )
        check_device(self.device)
        if self.tf32 and (self.device == "cpu" or self.dtype != "float32"):
            raise InputError(
                'tf32 is a way to multiply float32 values on a GPU; say device="cuda", or drop it'
            )
        if self.bf16 and self.tf32:
            raise InputError("bf16 and tf32 are two ways to multiply float32 values; drop one")
        if self.bf16 and self.dtype != "float32":
            raise InputError(
                f"bf16 is a way to multiply float32 values, and dtype is {self.dtype!r}; drop one"
            )
        # sums that differ in one example must differ by at most its clip, rounding included: that
        # is shown for products in float32 and float64 only
        if self.bf16 and self.seed is None:
            raise InputError(
                "bf16 is for simulations: the exact sums of a private run are in full precision; "
                "drop bf16, or give a seed to simulate"
            )
        if isinstance(self.noise, str) and self.noise != "edges":
            raise InputError(f'noise must be "edges", a NoiseSource or None, not {self.noise!r}')
        checks.one_of("dtype", self.dtype, get_args(Dtype))
        checks.one_of("path", self.path, get_args(GradientPath))
        if self.seed is None and self.noise is not None:
            raise InputError(
                "a private run draws its own noise; drop noise, or give a seed to simulate"
            )
        # a simulation's history has them all: the option would promise a difference
        if self.private_metrics and self.seed is not None:
            raise InputError(
                "a simulation keeps all its metrics; drop private_metrics, or say seed=None for a "
                "private run"
            )
        if self.threads is not None:
            checks.count("threads", self.threads, hint="or None for automatic")

    def run(
        self,
        task: Task,
        settings: Sequence[Setting],
        recipe: Recipe,
        callbacks: Sequence[Callback] = (),
        resume: Run | None = None,
    ) -> list[Run]:
        """Runs all settings at once; called by `train` and `sweep`.

        Args:
            task: Model, loss and each user's data.
            settings: A grid: the same plans and learning rates for every seed, seed by seed.
            recipe: How to train.
            callbacks: Called after each measurement; each can stop a run.
            resume: A run that stopped early, to be continued; only with one setting.

        Returns:
            One run for every setting, in their order.
        """
        secret = None
        if self.seed is None:
            secret = draw_secret(settings)
            # again, as an engine can be called without `train`, which checks before
            task = check(task, settings[0].plan, recipe, allow_disconnected=True)
        share = SingleProcess(task, self.noise, callbacks, secret)
        return Simulation(self, share, settings, recipe, resume).run()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    @property
    def parameters_at_once(self) -> int:
        # on a GPU an eighth of the free memory as float32 values: the rest is workspace
        return IN_MEMORY if self.device == "cpu" else torch.cuda.mem_get_info(self.device)[0] // 32


def draw_secret(settings: Sequence[Setting], random: Callable[[int], bytes] = os.urandom) -> Secret:
    """A fresh secret for the one setting of a private run.

    Args:
        settings: Must be one setting that can be private.
        random: Gives n random bytes that are never used again; an audit passes its own.

    Raises:
        InputError: If the settings cannot be a private run.
    """
    # settings of one secret would share noise, and the difference of two runs would have none
    if len(settings) != 1:
        raise InputError(
            f"a private run is one run, not {len(settings)}: choosing among several by their "
            "results reveals more than the epsilon of one. Choose with simulations on public data, "
            "then train the chosen one privately"
        )
    (setting,) = settings
    if setting.seed is not None:
        raise InputError(
            f"a private run has no seed, and the setting has {setting.seed}; say "
            "Setting(plan, learning_rate, None)"
        )
    if setting.plan.adversary.average_only:
        raise InputError(
            "central DP protects only the average, which a trusted server has to compute; give a "
            "seed to simulate it"
        )
    # edge noise cancels in the sum over users: only sigma_cdp protects that sum
    if not setting.plan.least_sigma_cdp > 0:
        raise InputError(
            "a plan without sigma_cdp promises nothing, so there is nothing to keep secret; give "
            "a seed to simulate it"
        )
    return Secret(random)


def check_device(device: str) -> None:
    """Refuses a device that this machine does not have."""
    kind, _, number = device.partition(":")
    if device == "cpu":
        return
    if kind != "cuda" or (number and not number.isdecimal()):
        raise InputError(f'device must be "cpu", "cuda" or "cuda:1", ..., not {device!r}')
    if not torch.cuda.is_available():
        raise InputError(
            f"device {device!r} needs an NVIDIA GPU and a torch built for it, and there is none "
            'here; use "cpu"'
        )
    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        raise InputError(f"there is no {device!r} here, only {count} of them; the first is cuda:0")
