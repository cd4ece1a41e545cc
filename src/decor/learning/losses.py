"""Losses with a fast path. Each is the mean over examples."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from decor.errors import InputError

# A run's fingerprint hashes the code and the constants of its loss, the docstring among them.
# Change neither: runs of earlier versions could not be resumed. More documentation is added below.


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


for _loss in (logistic, cross_entropy, squared):
    _loss.__doc__ = f"""{_loss.__doc__}

    Args:
        output: What the model gives, examples first.
        target: The labels or values to predict, one for every output of `logistic` and `squared`.
    """


def _like(output: Tensor, target: Tensor) -> Tensor:
    """The target in the shape of the output."""
    # torch would otherwise broadcast, and compare every output with every target
    if output.numel() != target.numel():
        raise InputError(
            f"the model gives {tuple(output.shape[1:])} values per example and the targets have "
            f"{tuple(target.shape[1:])}; give one target for every output"
        )
    return target.reshape(output.shape)
