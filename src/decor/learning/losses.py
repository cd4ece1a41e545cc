"""Losses with a fast path: each is the mean over records of what one record costs."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from decor.errors import InputError


def logistic(output: Tensor, target: Tensor) -> Tensor:
    """log(1 + exp(-b z)) for one logit z a record and labels 0 or 1 (b = -1 or +1)."""
    return functional.binary_cross_entropy_with_logits(
        output, _like(output, target).to(output.dtype)
    )


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Softmax cross-entropy for one logit a class and labels 0 .. classes - 1."""
    return functional.cross_entropy(output, target)


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance to the target, summed within a record."""
    return (output - _like(output, target)).square().flatten(1).sum(1).mean() / 2


def _like(output: Tensor, target: Tensor) -> Tensor:
    """One target for every output: torch would otherwise compare every output with every target."""
    if output.numel() != target.numel():
        raise InputError(
            f"the model gives {tuple(output.shape[1:])} numbers a record and the targets have "
            f"{tuple(target.shape[1:])}; "
            "give one target for every output"
        )
    return target.reshape(output.shape)
