"""Whether targets are classes or values, as the loss and their type tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from . import losses

_OF_CLASSES: tuple[Any, ...] = (
    losses.logistic,
    losses.cross_entropy,
    functional.cross_entropy,
    functional.nll_loss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
)
_MODULES_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
_OF_VALUES: tuple[Any, ...] = (
    losses.squared,
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.poisson_nll_loss,
)
_MODULES_OF_VALUES = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.PoissonNLLLoss,
)


def has_classes(loss: Callable[[Tensor, Tensor], Tensor], targets: Tensor) -> bool:
    """Whether targets are classes: by the loss if it is a known one, else if they are integers.

    Args:
        loss: (model output, target) -> the mean over examples.
        targets: Of any user.
    """
    if isinstance(loss, _MODULES_OF_CLASSES) or loss in _OF_CLASSES:
        return True
    if isinstance(loss, _MODULES_OF_VALUES) or loss in _OF_VALUES:
        return False
    return not targets.is_floating_point()
