"""Chooses the gradient code for a task: the fastest that supports its model, loss and batches."""

from __future__ import annotations

import warnings

import torch

from decor.choices import Unit
from decor.errors import InputError
from decor.learning.task import Task

from .book_keeping import BookKeeping
from .dense_stack import Stack
from .interface import Gradients
from .layers import Layers
from .linear import Linear
from .modules import Modules
from .quadratic import Quadratic


def choose_gradients(
    task: Task,
    unit: Unit,
    batch_size: int | None,
    dtype: torch.dtype,
    device: torch.device | None = None,
    *,
    generic: bool = False,
    exact: bool = False,
    bf16: bool = False,
) -> Gradients:
    """The fastest gradient code that can train this task.

    Args:
        task: Model, loss and data.
        unit: What is clipped: the whole gradient of a "user", or that of each "example".
        batch_size: Examples per step, or None for all.
        dtype: The type of models and gradients.
        device: Where models are kept; the CPU by default.
        generic: Use torch.func for every model.
        exact: Sums over batches that differ in one example differ by at most its clip, rounding
            included.
        bf16: Compute gradients from operands of eight bits, as of `Modules`.
    """
    device = torch.device("cpu") if device is None else device
    if generic:
        return Modules(task, dtype, device, exact, bf16)
    # the other paths have no rule for short operands
    if bf16:
        return _any_module(task, unit, dtype, device, exact, bf16)
    if unit == "user" and Quadratic.takes(task, batch_size):
        return Quadratic(task, dtype, device)
    X, y = task.shards[0]
    stack = Stack.of(task.model, task.loss, X.shape[1:])
    # targets that are probabilities of classes are too rare for a fast path
    if stack is None or (stack.loss == "classes" and y.is_floating_point()):
        return _any_module(task, unit, dtype, device, exact, bf16)
    # `Linear` sums in no fixed order
    if Linear.takes(stack) and not (exact and unit == "example"):
        return Linear(task, stack, dtype, device)
    return Layers(task, stack, dtype, device, exact)


def _any_module(
    task: Task, unit: Unit, dtype: torch.dtype, device: torch.device, exact: bool, bf16: bool
) -> Modules:
    """`BookKeeping`, or torch.func for a module that it cannot record."""
    try:
        return BookKeeping(task, dtype, device, exact, unit, bf16)
    except InputError:
        raise
    except Exception as error:  # a user's module may do anything; torch.func takes more of them
        general = Modules(task, dtype, device, exact, bf16)
        # what torch.func cannot take either is refused, so no warning of slow steps comes first
        general.check()
        warnings.warn(
            "the layers of this model cannot be recorded, so gradients of its examples are "
            f"computed one by one, which is slower ({type(error).__name__}: {error})",
            UserWarning,
            stacklevel=2,
        )
        return general
