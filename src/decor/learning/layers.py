"""The fast path for stacks of dense layers: all users, seeds and settings together, with gradients written out by hand.

Clipping single records never builds their gradients: a record's gradient of a dense layer is the outer product of what went
in, h, and what flows back, g, so that its norm is |h| |g|; scaling g by the clip factor before the one product with all h is
then the same as clipping every record and adding up.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .batches import Batch
from .clip import CPU, Blocks, add_clipped
from .records import Records
from .stack import Stack
from .task import Task

_REPEATED = 20_000
"""Numbers of a first layer up to which settings share a product with repeated records; above, each takes its own turn."""


_NARROW = 32
"""Outputs up to which products are taken transposed: libraries are slow with few columns and fast with few rows."""


class Layers:
    """Multinomial regression and MLPs; a block [users, seeds, settings, inputs + 1, outputs] for every layer."""

    def __init__(self, task: Task, stack: Stack, dtype: torch.dtype, device: torch.device = CPU) -> None:
        self.stack, self.dtype, self.device, self.bias = stack, dtype, device, stack.bias
        # on a card the first layer's bias is kept out of its product, which is slow with an odd number of rows
        self.apart = device.type == "cuda" and stack.bias[0]
        self.fixed: dict[str, Tensor] = {}
        self.tied: dict[str, str] = {}
        self.data = Records(task, stack.loss, stack.layers[-1][1].out_features, self.bias[0], dtype, device)

    def initial(self) -> Blocks:
        return [block.to(self.device) for block in self.stack.initial(self.dtype)]

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        return self.stack.state(blocks)

    def blocks(self, state: dict[str, Tensor]) -> Blocks:
        return [block.to(self.device) for block in self.stack.blocks(state, self.dtype)]

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        """Some users' weighted mean gradients."""
        rows, weights = self.data.taken(batch, models[0], users)
        found = [torch.empty_like(block[users]) for block in models]
        targets, held = (_by_group(side, len(rows)) for side in (found, [block[users] for block in models]))
        scale = weights if isinstance(weights, float) else 1.0
        for _, to, W, A, y, some in self._settings(targets, held, rows):
            into, back = self._passes(W, A, y)
            for k, (h, g) in enumerate(zip(into, back, strict=True)):
                if isinstance(weights, Tensor):
                    g.mul_(weights.repeat_interleave(some, 0).unsqueeze(-1))
                self._outer(to[k], k, h, g, scale, 0.0)
        return found

    def add_means(self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor) -> None:
        """to[users] += alpha * clipped mean gradient."""
        add_clipped([block[users] for block in to], self.mean(models, batch, users), clip, alpha)

    def add_records(self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor) -> None:
        """to[users] += alpha * sum of weighted gradients of single records, each clipped first."""
        rows, weights = self.data.taken(batch, models[0], users)
        targets, held = (_by_group([block[users] for block in side], len(rows)) for side in (to, models))
        limits, rates = (_by_model(value, len(rows), models[0][users]) for value in (clip, alpha))
        first = self.data.size.index_select(0, rows.reshape(-1)).view(rows.shape)
        for group, target, W, A, y, some in self._settings(targets, held, rows):
            into, back = self._passes(W, A, y)
            limit, rate = (value[:, group].reshape(-1, 1) for value in (limits, rates))
            # norms over the limit, squared: how often the clip fits into a record's gradient
            times = (first.repeat_interleave(some, 0) * self._norm(back[0])).div_(limit).square_()
            for k in range(1, len(back)):
                inputs = into[k].square().sum(-1).add_(float(self.bias[k])).sqrt_()
                times.add_(inputs.mul_(self._norm(back[k])).div_(limit).square_())
            factor = times.clamp_(min=1.0).rsqrt_().mul_(rate)
            factor.mul_(weights if isinstance(weights, float) else weights.repeat_interleave(some, 0))
            for k, (h, g) in enumerate(zip(into, back, strict=True)):
                self._outer(target[k], k, h, g.mul_(factor.unsqueeze(-1)), 1.0, 1.0)

    def _norm(self, g: Tensor) -> Tensor:
        if self.stack.loss != "squared":
            return torch.linalg.vector_norm(g, dim=-1) if g.is_cuda else g.square().sum(-1).sqrt_()
        # residuals may be so small that their squares vanish, differences of probabilities not
        norm: Tensor = torch.linalg.vector_norm(g, dim=-1, dtype=torch.float64)
        return norm.to(self.dtype)

    def evaluate(self, blocks: Blocks, loss: bool = True) -> dict[str, Tensor]:
        return self.data.metrics(blocks, self._outputs, loss)

    def _outputs(self, models: Blocks, X: Tensor) -> Tensor:
        X = X[..., :-1] if self.apart else X
        return self._forward(models, X.expand(len(models[0]), *X.shape))[-1]

    def _settings(self, to: Blocks, models: Blocks, rows: Tensor) -> Iterator[tuple[slice, Blocks, Blocks, Tensor, Tensor, int]]:
        """Settings that are worked on together: which, their targets and models [B * some, inputs + 1, outputs], and records."""
        A, y = self.data.gathered(rows)
        A = A[..., :-1] if self.apart else A
        count = models[0].shape[1]
        some = count if A.is_cuda or models[0].shape[-1] * models[0].shape[-2] <= _REPEATED else 1
        for first in range(0, count, some):
            group = slice(first, first + some)
            sides = [[block[:, group].flatten(0, 1) for block in side] for side in (to, models)]
            if some > 1:
                yield group, sides[0], sides[1], A.repeat_interleave(some, 0), y.repeat_interleave(some, 0), some
            else:
                yield group, sides[0], sides[1], A, y, 1

    def _passes(self, W: Blocks, A: Tensor, y: Tensor) -> tuple[Blocks, Blocks]:
        """What goes into every layer, and what flows back out of it."""
        *into, output = self._forward(W, A)
        back = [self.data.derivative(output, y)]
        for k in range(len(W) - 1, 0, -1):
            h = into[k]
            g = torch.bmm(back[0], W[k][:, : h.shape[-1]].transpose(1, 2))
            if self.stack.activations[k - 1] is nn.ReLU:
                g = torch.ops.aten.threshold_backward(g, h, 0)
            else:
                g.mul_(1 - h * h)
            back.insert(0, g)
        return into, back

    def _forward(self, W: Blocks, A: Tensor) -> Blocks:
        """The inputs of every layer, and the last output."""
        into = [A]
        h = _product(A, W[0][:, : A.shape[-1]])
        if self.apart:
            h.add_(W[0][:, -1:])
        for k in range(1, len(W)):
            h = h.relu_() if self.stack.activations[k - 1] is nn.ReLU else h.tanh_()
            into.append(h)
            h = _product(h, W[k][:, : h.shape[-1]])
            if self.bias[k]:
                h.add_(W[k][:, -1:])
        return [*into, h]

    def _outer(self, to: Tensor, k: int, h: Tensor, g: Tensor, alpha: float, beta: float) -> None:
        """to = beta to + alpha [h, 1]' g for all models; the first layer's h may have its ones already."""
        weight = to[:, : h.shape[-1]]
        if g.shape[-1] > _NARROW:
            weight.baddbmm_(h.transpose(1, 2), g, beta=beta, alpha=alpha)
        elif beta:
            weight.add_(torch.bmm(g.transpose(1, 2), h).transpose(1, 2), alpha=alpha)
        else:
            torch.mul(torch.bmm(g.transpose(1, 2), h).transpose(1, 2), alpha, out=weight)
        if (k or self.apart) and self.bias[k]:
            if beta:
                to[:, -1].add_(g.sum(1), alpha=alpha)
            else:
                torch.mul(g.sum(1), alpha, out=to[:, -1])


def _product(h: Tensor, weight: Tensor) -> Tensor:
    """h W for all models."""
    if weight.shape[-1] > _NARROW:
        return torch.bmm(h, weight)
    return torch.bmm(weight.transpose(1, 2), h.transpose(1, 2)).transpose(1, 2).contiguous()


def _by_group(blocks: Blocks, B: int) -> Blocks:
    """Blocks [users, seeds, settings, ...] as [B, settings that share records, ...]."""
    return [block.view(B, -1, *block.shape[3:]) for block in blocks]


def _by_model(value: Tensor, B: int, block: Tensor) -> Tensor:
    """[seeds, settings] as [B, settings that share records]."""
    return value.reshape(1, -1).expand(B, -1) if B == len(block) else value.repeat(len(block), 1)
