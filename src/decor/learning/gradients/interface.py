"""Gradients: what all four ways to take the gradients of a task's models promise."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from decor.learning.batches import Batch

from .clip import Blocks


class Gradients(Protocol):
    """Gradients of all models of a task: `Linear`, `Layers`, `Quadratic` or `Modules`."""

    fixed: dict[str, Tensor]
    """What the module holds beside what is trained."""
    tied: dict[str, str]
    """Further names of what is trained."""

    def initial(self) -> Blocks: ...
    def state(self, blocks: Blocks) -> dict[str, Tensor]: ...
    def blocks(self, state: dict[str, Tensor]) -> Blocks: ...
    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks: ...
    def add_means(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None: ...
    def add_records(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None: ...
    def evaluate(self, blocks: Blocks, loss: bool = True) -> dict[str, Tensor]:
        """Metrics of models: the training loss, unless `loss` is False, and what is measured on
        test data.
        """
        ...
