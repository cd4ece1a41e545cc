"""One user alone: its gradient on its own data, clipped so that no rounding makes it longer, and
its model as one vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from decor.choices import Dtype, Sampling
from decor.errors import InputError
from decor.learning.batches import Batch, secretly
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.clip import Blocks, lengths, limits
from decor.learning.gradients.module_randomness import WORDS, secret_coins
from decor.learning.gradients.modules import Modules
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.privacy.budget import Exposure

from .vector_kernels import Vector

_LARGEST_BATCH = 100_000


class Local:
    """The data of one user: `task` has one shard.

    `random(n)` gives n bytes from the operating system.

    Guarantee: at user level a gradient is at most `clip` long; at example level it is the sum of
    single records' gradients divided by the batch size, each at most `clip` long, and summed in
    double precision whatever the model's numbers are.
    """

    def __init__(
        self,
        task: Task,
        exposure: Exposure,
        recipe: Recipe,
        dtype: Dtype,
        random: Callable[[int], bytes],
    ) -> None:
        self.exposure, self.recipe, self.random = exposure, recipe, random
        self.dtype = np.dtype(dtype)
        self.example = exposure.unit == "example"
        kind = torch.float64 if self.example or dtype == "float64" else torch.float32
        self._gradients = choose_gradients(task, exposure.unit, recipe.batch_size, kind, exact=True)
        self._kind = np.dtype(np.float64) if self.example else self.dtype
        self._records = task.counts[0]
        if self.example and (exposure.batch_size or 0) > _LARGEST_BATCH:
            raise InputError(
                f"batches of {exposure.batch_size:,} records are too large to be summed up "
                "exactly enough; take smaller"
            )
        self._shapes = [block.shape for block in self._gradients.initial()]
        self.parameters = sum(shape.numel() for shape in self._shapes)

    def start(self) -> Vector:
        """The model that everybody begins with."""
        return np.concatenate(
            [block.numpy().ravel() for block in self._gradients.initial()]
        ).astype(self.dtype, copy=False)

    def gradient(self, model: Vector, rate: float) -> tuple[Vector, float]:
        """(g, factor): the clipped gradient of the model on a fresh batch is factor * g;
        `local_steps` walk with `rate`.
        """
        at = model.astype(self._kind, copy=False)
        with torch.no_grad(), self._dropout():
            return (self._of_records(at), 1.0) if self.example else self._of_user(at, rate)

    def state(self, model: Vector) -> dict[str, Tensor]:
        """The model by the names of its parameters, [1, ...]."""
        blocks = [block[:, 0, 0] for block in self._blocks(model.astype(self._kind))]
        named = self._gradients.state(blocks)
        named |= {name: named[own].clone() for name, own in self._gradients.tied.items()}
        return {name: value.to(getattr(torch, self.dtype.name)) for name, value in named.items()}

    def metrics(self, model: Vector) -> dict[str, float]:
        """Of public test data, if there are any.

        What is measured on the user's own data stays here.
        """
        blocks = [block[:, 0, 0] for block in self._blocks(model.astype(self._kind))]
        return {
            name: float(value)
            for name, value in self._gradients.evaluate(blocks, loss=False).items()
        }

    @property
    def fixed(self) -> dict[str, Tensor]:
        return self._gradients.fixed

    @contextmanager
    def _dropout(self) -> Iterator[None]:
        """What a module draws for a record is secret: were it known, whose turn it is would
        matter.
        """
        if not isinstance(self._gradients, Modules):
            yield
            return
        with secret_coins(np.frombuffer(self.random(4 * WORDS), "<u4")):
            yield

    def _of_records(self, model: Vector) -> Vector:
        total, size = np.zeros(self.parameters), self.exposure.batch_size or 1
        clip = torch.tensor([[self.exposure.clip]], dtype=torch.float64)
        one = torch.ones(1, 1, dtype=torch.float64)
        batch = self._batch(size, self.exposure.sampling or "poisson")
        self._gradients.add_records(
            self._blocks(total), self._blocks(model), batch, slice(0, 1), clip, one
        )
        return total

    def _of_user(self, model: Vector, rate: float) -> tuple[Vector, float]:
        total = self._mean(model)
        if self.recipe.local_steps > 1:
            walked = model - rate * total
            for _ in range(self.recipe.local_steps - 1):
                step = self._mean(walked)
                total += step
                walked -= rate * step
        length = float(lengths(torch.from_numpy(total)))
        if not math.isfinite(length):
            # as if there were no data: to stop here would tell others that these data, and not
            # others', made it overflow
            return np.zeros_like(total), 1.0
        # factor * gradient is taken in float64, whatever the gradient is in
        limit = float(
            limits(
                torch.tensor(self.exposure.clip, dtype=torch.float64),
                torch.float64,
                self.parameters,
            )
        )
        factor = 1.0 if length <= limit else limit / length
        # below the normal numbers a factor is rounded by more than the limit allows for
        return (
            (total, factor) if factor >= np.finfo(np.float64).tiny else (np.zeros_like(total), 1.0)
        )

    def _mean(self, model: Vector) -> Vector:
        batch = self._batch(self.recipe.batch_size, "fixed")
        found = [
            block.numpy().ravel()
            for block in self._gradients.mean(self._blocks(model), batch, slice(0, 1))
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _batch(self, size: int | None, sampling: Sampling) -> Batch:
        return secretly(self._records, size, sampling, self.random)

    def _blocks(self, flat: Vector) -> Blocks:
        """The vector's own memory, cut into the model's parts."""
        parts = torch.split(torch.from_numpy(flat), [shape.numel() for shape in self._shapes])
        return [part.view(1, 1, 1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]
