"""Losses with a fast path: each is the mean over records of what one record costs."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def logistic(output: Tensor, target: Tensor) -> Tensor:
    """log(1 + exp(-b z)) for one logit z a record and labels 0 or 1 (b = -1 or +1)."""
    return functional.binary_cross_entropy_with_logits(output.squeeze(-1), target.to(output.dtype))


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Softmax cross-entropy for one logit a class and labels 0 .. classes - 1."""
    return functional.cross_entropy(output, target)


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance to the target, summed within a record."""
    return (output - target).square().flatten(1).sum(1).mean() / 2
