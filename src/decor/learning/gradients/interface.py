"""Gradients: the interface of the four classes that compute gradients of a task's models."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from decor.learning.batches import Batch

from .clip import Blocks


class Gradients(Protocol):
    """Gradients of all models of a task: `Linear`, `Layers`, `Quadratic` or `Modules`.

    In all methods `models` and `to` hold blocks [users, seeds, settings, ...], `users` selects
    some of the users, and `clip` and `alpha` are [seeds, settings].
    """

    fixed: dict[str, Tensor]
    """Tensors of the module that are not trained, by name."""
    tied: dict[str, str]
    """Further names of trained parameters (tied weights): name -> the name in `state`."""

    def initial(self) -> Blocks:
        """The module's own weights, as blocks of one model."""
        ...

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        """Blocks under the module's parameter names and in its shapes."""
        ...

    def blocks(self, state: dict[str, Tensor]) -> Blocks:
        """The inverse of `state`."""
        ...

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        """The weighted mean gradients of some users."""
        ...

    def add_clipped_means(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * clipped mean gradient."""
        ...

    def add_clipped_examples(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * weighted sum of the gradients of examples, each clipped first."""
        ...

    def evaluate(self, blocks: Blocks, loss: bool = True) -> dict[str, Tensor]:
        """Metrics of models [count, ...]: training loss if `loss`, and metrics on test data."""
        ...
