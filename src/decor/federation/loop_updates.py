"""LoopUpdates: what an own loop shares, in the place of a gradient of data (`LocalGradient`).

The node computes in its own thread, and the loop in the caller's. For each message the node offers
the model and waits; the loop answers with the model that it has trained, or with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor, nn

from decor.choices import Dtype
from decor.learning.gradients.flat_model import FlatModel
from decor.learning.task import Loss
from decor.privacy.budget import Exposure
from decor.training.turn import check_unit, difference

from .local_gradient import clip_factor
from .vector_kernels import Vector


class LoopClosed(Exception):
    """The loop has ended for good; the step that waited for it has no message."""


@dataclass(frozen=True)
class Offer:
    """A step that waits for the loop.

    Attributes:
        step: Its number.
        model: The user's model, a vector in float64.
        rate: The step size.
    """

    step: int
    model: Tensor
    rate: float


class LoopUpdates:
    """Differences that an own loop shares, clipped as the gradient of one user's data is.

    Guarantee: what `gradient` returns is at most `clip` long, whatever is shared, by whatever
    training. It is zero where nothing is shared, or the difference is not finite.

    Args:
        model: The module that all users start from.
        loss: Its loss, or None (`FlatModel`).
        exposure: The clip; the unit is "user".
        dtype: The type of models.

    Raises:
        InputError: If the unit is "example", or an own loop cannot share this model.
    """

    waits = True
    """Whether a gradient may take long without computing: it waits for the loop."""

    def __init__(
        self, model: nn.Module, loss: Loss | None, exposure: Exposure, dtype: Dtype
    ) -> None:
        check_unit(exposure)
        self.flat = FlatModel(model, loss, getattr(torch, dtype))
        self.dtype, self._clip = np.dtype(dtype), exposure.clip
        self.parameters = self.flat.parameters
        self.offers: SimpleQueue[Offer | None] = SimpleQueue()
        """Steps that wait for the loop; None after the last."""
        self._answers: SimpleQueue[Tensor | None | LoopClosed] = SimpleQueue()

    def start(self) -> Vector:
        """The model that all users begin with."""
        start: Vector = self.flat.start().numpy().astype(self.dtype)
        return start

    def gradient(self, model: Vector, rate: float, step: int) -> tuple[Vector, float]:
        """(g, factor): factor * g is the clipped difference over the step size.

        Args:
            model: The user's model.
            rate: The step size: a message is the model minus `rate` times what is returned, with
                noise.
            step: Its number.

        Raises:
            LoopClosed: The loop has ended.
        """
        before = torch.from_numpy(model.astype(np.float64))
        self.offers.put(Offer(step, before, rate))
        shared = self._answers.get()
        if isinstance(shared, LoopClosed):
            raise shared
        # beyond the model's type it becomes infinite, and counts as zero
        with np.errstate(over="ignore"):
            update = difference(before, shared, rate).numpy().astype(self.dtype)
        return clip_factor(update, self._clip)

    def answer(self, shared: Tensor | None) -> None:
        """Gives the step that waits its model; None: the one it began with."""
        self._answers.put(shared)

    def close(self) -> None:
        """Ends the loop: a step that waits, or would wait later, has no message."""
        self._answers.put(LoopClosed())

    def read(self, shared: nn.Module | Mapping[str, Tensor]) -> Tensor:
        """As `FlatModel.read`."""
        return self.flat.read(shared)

    def state(self, model: Vector) -> dict[str, Tensor]:
        """The model by the names of its parameters, each of shape [1, ...]."""
        # a copy: the model may be read-only memory
        return self.flat.state(torch.from_numpy(model[None].copy()))

    def metrics(self, model: Vector) -> dict[str, float]:
        """None: an own loop's metrics are its own."""
        return {}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """What the module holds beside parameters."""
        return self.flat.buffers

    @property
    def module(self) -> nn.Module:
        """The module that all users start from."""
        return self.flat.template
