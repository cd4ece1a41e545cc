"""Chooses the gradient code for a task: the fastest that supports its model, loss and batches."""

from __future__ import annotations

import time
import warnings
from contextlib import suppress

import torch

from decor.choices import Unit
from decor.errors import InputError
from decor.learning.task import Task

from .book_keeping import BookKeeping
from .dense_layers import Layers
from .dense_stack import Stack
from .interface import Gradients
from .linear import Linear
from .modules import Modules
from .quadratic import Quadratic

_CLEARLY = 2.0
"""How many times faster torch.func must be than a recording with copies."""
_TIMED = 8_000_000
"""Most values of gradients that are computed to see which is."""


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
    """`BookKeeping`, or torch.func for a module that it cannot record, or only slowly."""
    try:
        recorded = BookKeeping(task, dtype, device, exact, unit, bf16)
        # a whole batch at user level has one copy alone
        if unit == "example" and recorded.copied:
            return _cheaper(recorded, Modules(task, dtype, device, exact, bf16))
        return recorded
    except InputError:
        raise
    except Exception as error:  # a user's module may do anything; torch.func takes more of them
        general = Modules(task, dtype, device, exact, bf16)
        # what torch.func cannot take either is refused, so no warning of slow steps comes first
        general.check(unit)
        warnings.warn(
            "the layers of this model cannot be recorded, so gradients of its examples are "
            f"computed one by one, which is slower ({type(error).__name__}: {error})",
            UserWarning,
            stacklevel=2,
        )
        return general


def _cheaper(recorded: BookKeeping, general: Modules) -> Modules:
    """Of a module with parameters that examples have copies of, and says which these are."""
    uses = ", ".join(f"{name} ({function})" for name, function in recorded.copied.items())
    chosen: Modules = recorded
    # as many as in a small batch: some functions take longer for each example, the more there are
    width = max(1, min(32, _TIMED // recorded.initial()[0].numel()))
    # both round differently, so a small difference does not decide: the same run takes the same
    # path again
    with suppress(Exception):  # torch.func takes fewer modules
        chosen = (
            general if _CLEARLY * _seconds(general, width) < _seconds(recorded, width) else recorded
        )
    how = "computed one by one" if chosen is general else "made with copies of them"
    warnings.warn(
        f"no rule covers how the model uses {uses}, so gradients of its examples are {how}, which "
        "is slower; docs/training.md lists what is fast",
        UserWarning,
        stacklevel=4,
    )
    return chosen


def _seconds(path: Modules, width: int) -> float:
    """Of so many artificial examples of two users: private data must not choose."""
    on_gpu = path.device.type == "cuda"
    # other processes do not count
    clock = time.perf_counter if on_gpu else time.process_time
    found = []
    with torch.random.fork_rng(devices=[path.device] if on_gpu else []), torch.no_grad():
        for _ in range(2):
            began = clock()
            path.clip_artificial_examples(2, width)
            if on_gpu:
                torch.cuda.synchronize(path.device)
            found.append(clock() - began)
    # the first also loads what torch needs
    return min(found)
