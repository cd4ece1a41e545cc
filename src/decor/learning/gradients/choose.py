"""Which gradient code fits a task: the fastest that knows its model, loss and batches."""

from __future__ import annotations

import torch

from decor.choices import Unit
from decor.learning.task import Task

from .interface import Gradients
from .layers import Layers
from .linear import Linear
from .modules import Modules
from .quadratic import Quadratic
from .stack import Stack


def choose_gradients(
    task: Task,
    unit: Unit,
    batch_size: int | None,
    dtype: torch.dtype,
    device: torch.device | None = None,
    *,
    generic: bool = False,
    exact: bool = False,
) -> Gradients:
    """The fastest gradient code that can train this task.

    Args:
        task: Model, loss and data.
        unit: What is clipped: the whole gradient of a "user", or that of each "example".
        batch_size: Examples a step, or None for all of them.
        dtype: The type of models and gradients.
        device: Where models are kept; the CPU by default.
        generic: Take torch.func whatever the model is.
        exact: Sums of examples that differ in one example differ by its clip at most, rounding
            included.
    """
    device = torch.device("cpu") if device is None else device
    if not generic:
        if unit == "user" and Quadratic.takes(task, batch_size):
            return Quadratic(task, dtype, device)
        stack = Stack.of(task.model, task.loss, task.shards[0][0].shape[1:])
        # classes as probabilities are rare enough to go the general way
        if stack is not None and not (
            stack.loss == "classes" and task.shards[0][1].is_floating_point()
        ):
            if Linear.takes(stack) and not (exact and unit == "example"):
                return Linear(task, stack, dtype, device)
            return Layers(task, stack, dtype, device, exact)
    return Modules(task, dtype, device, exact)
