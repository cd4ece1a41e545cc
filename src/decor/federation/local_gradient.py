"""One user's gradient on its own data, clipped so that no rounding exceeds the clip."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from decor.choices import Dtype, Sampling
from decor.errors import InputError
from decor.learning.batches import (
    LARGEST_BATCH,
    Batch,
    CommonRate,
    check_size,
    secret_batch,
)
from decor.learning.frozen import body_parameters
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.clip import Blocks, lengths, limits
from decor.learning.gradients.module_randomness import STATE_WORDS, torch_generator_from
from decor.learning.gradients.modules import Modules
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.privacy.budget import Exposure

from .vector_kernels import Vector


class LocalGradient:
    """Clipped gradients of one user; models are flat vectors.

    Guarantee: at user level a gradient is at most `clip` long. At example level it is the sum of
    the gradients of single examples, each at most `clip` long, divided by the batch size; the sum
    is in double precision whatever the model's dtype.

    Args:
        task: The user's data: one shard.
        exposure: Clip, unit and sampling.
        recipe: Local steps and, at user level, the batch size.
        dtype: The model's.
        random: `random(n)` returns n bytes from the operating system.
        users: The number of all users, as of `CommonRate.of`.
    """

    waits = False
    """Whether a gradient may take long without computing: it is computed at once."""

    def __init__(
        self,
        task: Task,
        exposure: Exposure,
        recipe: Recipe,
        dtype: Dtype,
        random: Callable[[int], bytes],
        users: int | None = None,
    ) -> None:
        self.exposure, self.recipe, self.random = exposure, recipe, random
        self.dtype = np.dtype(dtype)
        self.example = exposure.unit == "example"
        kind = torch.float64 if dtype == "float64" else torch.float32
        self._gradients = choose_gradients(task, exposure.unit, recipe.batch_size, kind, exact=True)
        self._task, self._records = task, task.counts[0]
        self._has_public_test = task.test is not None and task.test_public
        if self.example and (exposure.batch_size or 0) > LARGEST_BATCH:
            raise InputError(
                f"a batch of {exposure.batch_size:,} examples is too large to be summed exactly "
                f"enough; take at most {LARGEST_BATCH:,}"
            )
        self._common = CommonRate.of(exposure.rate, exposure.batch_size, users)
        if self._common is not None:
            check_size([self._records], exposure.batch_size, self._common)
        self._shapes = [block.shape for block in self._gradients.initial()]
        self.parameters = sum(shape.numel() for shape in self._shapes)

    def start(self) -> Vector:
        """The model that all users begin with."""
        blocks = [block.numpy().ravel() for block in self._gradients.initial()]
        return np.concatenate(blocks).astype(self.dtype, copy=False)

    def gradient(self, model: Vector, rate: float, step: int = 0) -> tuple[Vector, float]:
        """(g, factor): factor * g is the clipped gradient on a fresh batch.

        Args:
            model: Where the gradient is taken.
            rate: Step size of local steps.
            step: Not used: data give gradients without regard to the step.
        """
        at = model.astype(self.dtype, copy=False)
        # gradients are computed by hand or by torch.func, without autograd's tape
        with torch.no_grad(), self._dropout():
            return (self._of_records(at), 1.0) if self.example else self._of_user(at, rate)

    def state(self, model: Vector) -> dict[str, Tensor]:
        """The model by the names of its parameters, each of shape [1, ...]."""
        named = self._gradients.state(self._own_blocks(model))
        # tied parameters are stored under each of their names
        named |= {name: named[own].clone() for name, own in self._gradients.tied.items()}
        return {name: value.to(getattr(torch, self.dtype.name)) for name, value in named.items()}

    def metrics(self, model: Vector) -> dict[str, float]:
        """Metrics on public test data; nothing is measured on the user's own data."""
        # private test data stay unmeasured: a metric would reveal something of them
        if not self._has_public_test:
            return {}
        metrics = self._gradients.evaluate(self._own_blocks(model), loss=False)
        return {name: float(value) for name, value in metrics.items()}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """What the module holds beside parameters."""
        frozen = body_parameters(self.module)
        return {name: each for name, each in self._gradients.fixed.items() if name not in frozen}

    @property
    def module(self) -> torch.nn.Module:
        """The module that all users start from."""
        return self._task.model

    @contextmanager
    def _dropout(self) -> Iterator[None]:
        """Seeds what a module draws, such as dropout masks, from secret bytes.

        With known masks, one example less would pass its mask to the next, and move the others'.
        """
        if not isinstance(self._gradients, Modules):
            yield
            return
        with torch_generator_from(np.frombuffer(self.random(4 * STATE_WORDS), "<u4")):
            yield

    def _of_records(self, model: Vector) -> Vector:
        # in double precision: the rounding of sums over examples is part of the guarantee
        total, size = np.zeros(self.parameters), self.exposure.batch_size or 1
        clip = torch.tensor([[self.exposure.clip]], dtype=torch.float64)
        # clipped gradients are added with weight one
        one = torch.ones(1, 1, dtype=torch.float64)
        batch = self._batch(size, self.exposure.sampling or "poisson")
        self._gradients.add_clipped_examples(
            self._blocks(total), self._blocks(model), batch, slice(0, 1), clip, one
        )
        return total

    def _of_user(self, model: Vector, rate: float) -> tuple[Vector, float]:
        total = self._mean(model)
        # the sum of several steps is clipped as one gradient
        if self.recipe.local_steps > 1:
            walked = model - rate * total
            for _ in range(self.recipe.local_steps - 1):
                step = self._mean(walked)
                total += step
                walked -= rate * step
        return clip_factor(total, self.exposure.clip)

    def _mean(self, model: Vector) -> Vector:
        size = self.recipe.batch_size
        # a user with fewer examples takes all of them: how many it has is private at user level, so
        # it must not be refused
        batch = self._batch(size and min(size, self._records), "fixed")
        means = self._gradients.mean(self._blocks(model), batch, slice(0, 1))
        flat = [block.numpy().ravel() for block in means]
        return flat[0] if len(flat) == 1 else np.concatenate(flat)

    def _batch(self, size: int | None, sampling: Sampling) -> Batch:
        return secret_batch(self._records, size, sampling, self.random, self._common)

    def _own_blocks(self, model: Vector) -> Blocks:
        """A copy of the model as blocks [1, ...], without the axes of settings and batches."""
        return [block[:, 0, 0] for block in self._blocks(model.astype(self.dtype))]

    def _blocks(self, flat: Vector) -> Blocks:
        """Views of the vector, one per parameter of the model."""
        parts = torch.split(torch.from_numpy(flat), [shape.numel() for shape in self._shapes])
        return [part.view(1, 1, 1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]


def clip_factor(total: Vector, clip: float) -> tuple[Vector, float]:
    """(g, factor): factor * g is `total`, at most `clip` long in exact arithmetic; else zero.

    Args:
        total: What one user's data would add, in the model's dtype; any values.
        clip: The longest that it may be.
    """
    length = float(lengths(torch.from_numpy(total)))
    if not math.isfinite(length):
        # as if there were no data: stopping here would reveal that these data overflow
        return np.zeros_like(total), 1.0
    # factor * gradient is computed in float64, whatever the gradient's dtype
    limit = float(limits(torch.tensor(clip, dtype=torch.float64), torch.float64, total.size))
    factor = 1.0 if length <= limit else limit / length
    # a subnormal factor is rounded by more than the limit allows for
    if factor < np.finfo(np.float64).tiny:
        return np.zeros_like(total), 1.0
    return total, factor
