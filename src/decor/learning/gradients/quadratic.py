"""The fast path for linear models with squared loss and full gradients.

One small matrix and one vector say everything about a user's data.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from decor.array_types import Array
from decor.learning import losses
from decor.learning.batches import Batch
from decor.learning.task import Task

from .clip import CPU, Blocks, absolute_slack, add_clipped, clip_factor, length_of, slack
from .dense_stack import is_plain


class Quadratic:
    """Gradients H x - h of users that hold mean |A x - b|^2 / 2: H = mean A'A, h = mean A'b."""

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device = CPU) -> None:
        assert isinstance(task.model, nn.Linear)
        self.layer, self.dtype, self.device = task.model, dtype, device
        self.fixed: dict[str, Tensor] = {}
        self.tied: dict[str, str] = {}
        features = task.model.in_features
        per_example = int(task.shards[0][0][0].numel()) // features

        def moments(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Mean A'A, A'b and b'b over examples, each of which may have several rows."""
            # copied: where data lie in memory may decide how a product adds, and other users' data
            # decide where these lie
            A, b = (
                part.to(torch.float64, copy=True).reshape(-1, width)
                for part, width in ((X, features), (y, 1))
            )
            if self.layer.bias is not None:
                A = torch.cat([A, torch.ones(len(A), 1, dtype=torch.float64)], 1)
            m = len(A) / per_example
            return A.T @ A / m, A.T @ b / m, b.square().sum() / m

        by_user = zip(*(moments(*shard) for shard in task.shards), strict=True)
        # float64 for metrics, where losses near the optimum cancel
        self.H64, self.h64, self.b64 = (torch.stack(part).to(device) for part in by_user)
        self.test = None
        if task.test is not None:
            self.test = tuple(part.unsqueeze(0).to(device) for part in moments(*task.test))
        self.H, self.h = self.H64.to(dtype), self.h64.transpose(1, 2).to(dtype)

    @staticmethod
    def takes(task: Task, batch_size: int | None) -> bool:
        return (
            type(task.model) is nn.Linear
            and task.model.out_features == 1
            and task.loss is losses.squared
            and batch_size is None
            and is_plain(task.model)
            and all(p.requires_grad for p in task.model.parameters())
        )

    def initial(self) -> Blocks:
        # the bias is the last parameter, as the ones are the last column of A
        bias = [self.layer.bias.detach()[:, None]] if self.layer.bias is not None else []
        return [torch.cat([self.layer.weight.detach(), *bias], 1).to(self.device, self.dtype)]

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        if self.layer.bias is None:
            return {"weight": blocks[0].contiguous()}
        return {"weight": blocks[0][..., :-1].contiguous(), "bias": blocks[0][..., -1].contiguous()}

    def blocks(self, state: dict[str, Tensor]) -> Blocks:
        bias = [state["bias"].unsqueeze(-1)] if self.layer.bias is not None else []
        return [torch.cat([state["weight"], *bias], -1).to(self.device, self.dtype)]

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        x = models[0][users]
        flat = x.view(len(x), -1, x.shape[-1])
        gradient = torch.baddbmm(self.h[users], flat, self.H[users], alpha=1.0, beta=-1.0)
        return [gradient.view(x.shape)]

    def add_clipped_means(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * clipped gradient."""
        if to[0].is_cuda:
            add_clipped([to[0][users]], self.mean(models, batch, users), clip, alpha)
            return
        x, out = models[0][users], to[0][users]
        flat, target = (block.view(len(x), -1, x.shape[-1]).numpy() for block in (x, out))
        H, h = self.H[users].numpy(), self.h[users].numpy()
        d, dtype = x.shape[-1], x.dtype
        clips, rates = clip.reshape(-1).numpy(), alpha.reshape(-1).numpy()
        bound = (slack(dtype, d), absolute_slack(dtype, d), torch.finfo(dtype).max)
        # gradient and clip in one pass: for models this small a product library costs more
        _add_clipped(target, flat, H, h, clips, rates, *bound)

    def add_clipped_examples(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        raise NotImplementedError(
            "examples are not kept apart here; at example level another class is chosen"
        )

    def evaluate(self, blocks: Blocks, loss: bool = True) -> dict[str, Tensor]:
        x = blocks[0].double().flatten(1)
        metrics = {"loss": _loss(x, self.H64, self.h64, self.b64)} if loss else {}
        return metrics if self.test is None else metrics | {"test_loss": _loss(x, *self.test)}


def _loss(x: Tensor, H: Tensor, h: Tensor, b: Tensor) -> Tensor:
    """The mean over users of their loss, for models [count, parameters]."""
    # mean |A x - b|^2 / 2 = x'Hx / 2 - x'h + mean b'b / 2
    Hx = torch.einsum("nij,rj->rni", H, x)
    return ((Hx * x[:, None]).sum(-1) / 2 - (x @ h.squeeze(-1).T) + b / 2).mean(1)


_TILE = 128
"""Settings computed side by side: long loops over them fill vector registers in any dimension."""


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"})
def _add_clipped(
    to: Array,
    models: Array,
    H: Array,
    h: Array,
    clip: Array,
    alpha: Array,
    slack: float,
    absolute: float,
    largest: float,
) -> None:
    users, count, d = models.shape
    x, g, factor = np.zeros((d, _TILE), to.dtype), np.empty((d, _TILE), to.dtype), np.empty(_TILE)
    for u in range(users):
        for first in range(0, count, _TILE):
            some = min(_TILE, count - first)
            for k in range(some):
                # transposed: the inner loops run over settings
                for j in range(d):
                    x[j, k] = models[u, first + k, j]
            for k in range(some):
                # first the squared length, then the clip factor
                factor[k] = 0
            for i in range(d):
                row, start = g[i], h[u, 0, i]
                for k in range(some):
                    # the gradient H x - h, one entry of all settings at a time
                    row[k] = -start
                for j in range(d):
                    weight, column = H[u, i, j], x[j]
                    for k in range(some):
                        row[k] += weight * column[k]
                for k in range(some):
                    factor[k] += np.float64(row[k]) * np.float64(row[k])
            for k in range(some):
                # `length_of` is slower, but its squares neither vanish nor overflow
                moderate = 1e-280 < factor[k] < 1e280
                length = np.sqrt(factor[k]) if moderate else length_of(g[:, k])
                factor[k] = alpha[first + k] * clip_factor(
                    length, clip[first + k], slack, absolute, largest
                )
            for k in range(some):
                by = to.dtype.type(factor[k])
                if by != 0:  # zero times what is not finite would not be zero
                    for i in range(d):
                        to[u, first + k, i] += by * g[i, k]
