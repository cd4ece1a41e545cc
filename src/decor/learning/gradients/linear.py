"""The fast path for linear models with one output: all settings of a seed are one product with that
seed's records.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from decor.arrays import Array
from decor.learning.batches import Batch
from decor.learning.task import Task

from .clip import CPU, Blocks, add_clipped, limits
from .records import Records
from .stack import Stack


class Linear:
    """Logistic and linear regression; one block [users, seeds, settings, inputs + 1, 1]."""

    def __init__(
        self, task: Task, stack: Stack, dtype: torch.dtype, device: torch.device = CPU
    ) -> None:
        self.stack, self.dtype, self.device = stack, dtype, device
        self.fixed: dict[str, Tensor] = {}
        self.tied: dict[str, str] = {}
        self.data = Records(task, stack.loss, 1, stack.bias[0], dtype, device)

    @staticmethod
    def takes(stack: Stack) -> bool:
        return (
            len(stack.layers) == 1
            and stack.layers[0][1].out_features == 1
            and stack.loss != "classes"
        )

    def initial(self) -> Blocks:
        return [block.to(self.device) for block in self.stack.initial(self.dtype)]

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        return self.stack.state(blocks)

    def blocks(self, state: dict[str, Tensor]) -> Blocks:
        return [block.to(self.device) for block in self.stack.blocks(state, self.dtype)]

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        """Some users' weighted mean gradients."""
        x = models[0][users]
        rows, weights = self.data.taken(batch, models[0], users)
        A, e = self._derivatives(x, rows)
        if isinstance(weights, Tensor):
            e = e.mul_(weights.to(self.dtype).unsqueeze(-1))
            return [torch.bmm(e.transpose(1, 2), A).view(x.shape)]
        # beta = 0 ignores what the output held
        found = torch.empty_like(x)
        found.view(len(A), -1, A.shape[-1]).baddbmm_(e.transpose(1, 2), A, beta=0.0, alpha=weights)
        return [found]

    def add_means(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * clipped mean gradient."""
        add_clipped([to[0][users]], self.mean(models, batch, users), clip, alpha)

    def add_records(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * sum of weighted gradients of single records, each clipped first.

        Guarantee: as `Layers.add_records` without `exact`, which at example level takes the place
        of this class.
        """
        x = models[0][users]
        rows, weights = self.data.taken(batch, models[0], users)
        A, e = self._derivatives(x, rows)  # [B, b, count]
        size = self.data.size.index_select(0, rows.reshape(-1)).view(*rows.shape, 1)
        # [B or 1, 1, count]
        limit, rate = (_by_group(value, len(rows), x).double() for value in (clip, alpha))
        limit = limits(limit, self.dtype, x.shape[-2])
        if isinstance(weights, float):
            weights = torch.full((1, 1), weights, dtype=torch.float64, device=rows.device)
        e = _clipped(e, size, limit, rate, weights.unsqueeze(-1))
        A = A if self.data.fits else torch.where(torch.isfinite(size), A, 0.0)
        to[0][users].view(len(A), -1, A.shape[-1]).baddbmm_(e.transpose(1, 2), A)

    def evaluate(self, blocks: Blocks, loss: bool = True) -> dict[str, Tensor]:
        return self.data.metrics(
            blocks, lambda models, X: (X @ models[0].squeeze(-1).T).T.unsqueeze(-1), loss
        )

    def _derivatives(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        A, y = self.data.gathered(rows)
        return A, self.data.derivative(
            torch.bmm(A, x.view(len(A), -1, A.shape[-1]).transpose(1, 2)), y
        )


def _by_group(value: Tensor, B: int, block: Tensor) -> Tensor:
    """[seeds, settings] for every one of the B groups of models that share their records."""
    return value.reshape(1, 1, -1) if B == len(block) else value.repeat(len(block), 1).unsqueeze(1)


def _clipped(e: Tensor, size: Tensor, limit: Tensor, rate: Tensor, weights: Tensor) -> Tensor:
    """e times rate, weight and the clip factor min(1, limit / (|e| size)), in float64; what is not
    finite becomes zero.

    So does what is below the smallest normal number, which would be rounded by more than a relative
    bound allows.
    """
    tiny = torch.finfo(e.dtype).smallest_normal
    if e.is_cuda:
        return _clip_by_torch(e, size, limit, rate, weights, tiny)
    _clip(e.numpy(), size.numpy(), limit.numpy(), rate.numpy(), weights.numpy(), tiny)
    return e


def _clip_by_torch(
    e: Tensor, size: Tensor, limit: Tensor, rate: Tensor, weights: Tensor, tiny: float
) -> Tensor:
    shrunk = torch.minimum(e.abs(), limit / size).mul_(e.sign()).mul_(rate).mul_(weights)
    kept = torch.isfinite(e) & torch.isfinite(size) & (shrunk.abs() >= tiny)
    return torch.where(kept, shrunk, 0.0).to(e.dtype)


@njit(cache=True, nogil=True, error_model="numpy")
def _clip(e: Array, size: Array, limit: Array, rate: Array, weights: Array, tiny: float) -> None:
    groups, records, count = e.shape
    for b in range(groups):
        limits, rates = limit[b % len(limit), 0], rate[b % len(rate), 0]
        for r in range(records):
            row, length, weight = (
                e[b, r],
                size[b, r, 0],
                weights[b % len(weights), r % weights.shape[1], 0],
            )
            if not length < np.inf:
                row[:] = 0
                continue
            for k in range(count):
                value = np.float64(row[k])
                kept = min(abs(value), limits[k] / length) * rates[k] * weight
                fits = abs(value) < np.inf and abs(kept) >= tiny
                row[k] = row.dtype.type(kept if value > 0 else -kept) if fits else 0
