"""The fast path for linear models with one output.

All settings of a seed are one product with that seed's examples.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from decor.array_types import Array
from decor.learning.batches import Batch

from .clip import Blocks, limits
from .dense_stack import Stack, StackGradients


class Linear(StackGradients):
    """Logistic and linear regression; one block [users, seeds, settings, inputs + 1, 1]."""

    @staticmethod
    def takes(stack: Stack) -> bool:
        one_output = len(stack.layers) == 1 and stack.layers[0][1].out_features == 1
        return one_output and stack.loss != "classes"

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        x = models[0][users]
        rows, weights = self.data.select(batch, models[0], users)
        A, e = self._derivatives(x, rows)
        if isinstance(weights, Tensor):
            e = e.mul_(weights.to(self.dtype).unsqueeze(-1))
            return [torch.bmm(e.transpose(1, 2), A).view(x.shape)]
        gradient = torch.empty_like(x)
        # beta = 0 ignores the content of the uninitialised output
        gradient.view(len(A), -1, A.shape[-1]).baddbmm_(
            e.transpose(1, 2), A, beta=0.0, alpha=weights
        )
        return [gradient]

    def add_clipped_examples(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * weighted sum of the gradients of examples, each clipped first.

        Guarantee: as `Layers.add_clipped_examples` without `exact`. With `exact`, `Layers` is used
        instead of this class at example level.
        """
        x = models[0][users]
        rows, weights = self.data.select(batch, models[0], users)
        A, e = self._derivatives(x, rows)  # [B, b, count]
        # an example's gradient is e times its row, so its length is |e| times the row's
        size = self.data.sizes(rows).unsqueeze(-1)
        # [B or 1, 1, count]
        limit, rate = (_by_group(value, len(rows), x).double() for value in (clip, alpha))
        limit = limits(limit, self.dtype, x.shape[-2])
        if isinstance(weights, float):
            weights = torch.full((1, 1), weights, dtype=torch.float64, device=rows.device)
        e = _clip_examples(e, size, limit, rate, weights.unsqueeze(-1))
        # zero times what is not finite would not be zero
        A = A if self.data.fits else torch.where(torch.isfinite(size), A, 0.0)
        to[0][users].view(len(A), -1, A.shape[-1]).baddbmm_(e.transpose(1, 2), A)

    def evaluate(self, blocks: Blocks, loss: bool = True) -> dict[str, Tensor]:
        return self.data.metrics(
            blocks, lambda models, X: (X @ models[0].squeeze(-1).T).T.unsqueeze(-1), loss
        )

    def _derivatives(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Examples, and the derivative of each loss by the output, for each setting."""
        A, y = self.data.gather(rows)
        outputs = torch.bmm(A, x.view(len(A), -1, A.shape[-1]).transpose(1, 2))
        return A, self.data.derivative(outputs, y)


def _by_group(value: Tensor, B: int, block: Tensor) -> Tensor:
    """[seeds, settings] for each of the B groups of models that share their examples."""
    return value.reshape(1, 1, -1) if B == len(block) else value.repeat(len(block), 1).unsqueeze(1)


def _clip_examples(e: Tensor, size: Tensor, limit: Tensor, rate: Tensor, weights: Tensor) -> Tensor:
    """e times rate, weight and min(1, limit / (|e| size)) in float64; zero if not finite."""
    # zero also below the smallest normal number: the relative bound on roundings does not hold
    tiny = torch.finfo(e.dtype).smallest_normal
    if e.is_cuda:
        return _clip_by_torch(e, size, limit, rate, weights, tiny)
    _clip(e.numpy(), size.numpy(), limit.numpy(), rate.numpy(), weights.numpy(), tiny)
    return e


def _clip_by_torch(
    e: Tensor, size: Tensor, limit: Tensor, rate: Tensor, weights: Tensor, tiny: float
) -> Tensor:
    # |e| min(1, limit / (|e| size)) without a division by |e| = 0
    shrunk = torch.minimum(e.abs(), limit / size).mul_(e.sign()).mul_(rate).mul_(weights)
    kept = torch.isfinite(e) & torch.isfinite(size) & (shrunk.abs() >= tiny)
    return torch.where(kept, shrunk, 0.0).to(e.dtype)


@njit(cache=True, nogil=True, error_model="numpy")
def _clip(e: Array, size: Array, limit: Array, rate: Array, weights: Array, tiny: float) -> None:
    groups, examples, count = e.shape
    for b in range(groups):
        limits, rates = limit[b % len(limit), 0], rate[b % len(rate), 0]
        for r in range(examples):
            row, length = e[b, r], size[b, r, 0]
            weight = weights[b % len(weights), r % weights.shape[1], 0]
            # also true for NaN
            if not length < np.inf:
                row[:] = 0
                continue
            for k in range(count):
                value = np.float64(row[k])
                kept = min(abs(value), limits[k] / length) * rates[k] * weight
                fits = abs(value) < np.inf and abs(kept) >= tiny
                row[k] = row.dtype.type(kept if value > 0 else -kept) if fits else 0
