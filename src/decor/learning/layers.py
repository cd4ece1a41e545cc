"""The fast path for stacks of dense layers: all users, seeds and settings together, with gradients written out by hand.

Clipping single records never builds their gradients: a record's gradient of a dense layer is the outer product of what went
in, h, and what flows back, g, so that its norm is |h| |g|; scaling g by the clip factor before the one product with all h is
then the same as clipping every record and adding up. With `exact` records are columns of tiles (see `tiles`), so that h and g
have the same bits whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .batches import Batch
from .clip import CPU, Blocks, add_clipped, factors, lengths, limits, scale
from .records import Records
from .stack import Stack
from .task import Task
from .tiles import (
    add_double,
    alike,
    column_lengths,
    expected_sizes,
    fixed_width,
    light_sizes,
    place,
    scale_columns,
    stand_in,
    sum_slack,
)

_REPEATED = 20_000
"""Numbers of a first layer up to which settings share a product with repeated records; above, each takes its own turn."""


_NARROW = 32
"""Outputs up to which products are taken transposed: libraries are slow with few columns and fast with few rows."""


class Layers:
    """Multinomial regression and MLPs; a block [users, seeds, settings, inputs + 1, outputs] for every layer.

    `exact`: `add_records` takes tiles and sums in float64, so that removing a record changes a sum by its clip at most.
    """

    def __init__(self, task: Task, stack: Stack, dtype: torch.dtype, device: torch.device = CPU, exact: bool = False) -> None:
        self.stack, self.dtype, self.device, self.bias, self.exact = stack, dtype, device, stack.bias, exact
        self.parameters = sum(p.numel() for _, layer in stack.layers for p in layer.parameters())
        self.widths: dict[object, int] = {}
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
                    g.mul_(weights.to(self.dtype).repeat_interleave(some, 0).unsqueeze(-1))
                self._outer(to[k], k, h, g, scale, 0.0)
        return found

    def add_means(self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor) -> None:
        """to[users] += alpha * clipped mean gradient."""
        add_clipped([block[users] for block in to], self.mean(models, batch, users), clip, alpha)

    def add_records(self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor) -> None:
        """to[users] += alpha * sum of weighted gradients of single records, each clipped first.

        Guarantee: what one record adds to zeros with alpha one is at most its weight times `clip` long in exact arithmetic; a
        record whose gradient is not finite adds nothing. With `exact` two sums over batches that differ in one record are no
        farther apart than that; without, sums are rounded as they come.
        """
        rows, weights = self.data.taken(batch, models[0], users)
        targets, held = (_by_group([block[users] for block in side], len(rows)) for side in (to, models))
        caps, rates = (_by_model(value, len(rows), models[0][users]).double() for value in (clip, alpha))
        if self.exact:
            self._add_tiles(targets, held, rows, weights, caps, rates)
            return
        bounds = limits(caps, self.dtype, self.parameters)
        first = self.data.size.index_select(0, rows.reshape(-1)).view(rows.shape)
        for group, target, W, A, y, some in self._settings(targets, held, rows):
            into, back = self._passes(W, A, y)
            limit, rate = (value[:, group].reshape(-1, 1) for value in (bounds, rates))
            found = first.repeat_interleave(some, 0) * lengths(back[0])
            for k in range(1, len(back)):
                found = torch.hypot(found, self._length(k, lengths(into[k])) * lengths(back[k]))
            factor = factors(found, limit).mul_(rate)
            factor.mul_(weights if isinstance(weights, float) else weights.repeat_interleave(some, 0))
            # zero times what is not finite would not be zero; to look is to wait for the card
            finite = torch.isfinite(found)
            if found.is_cuda or not bool(finite.all()):
                into = [h if h is A and self.data.fits else torch.where(finite.unsqueeze(-1), h, 0.0) for h in into]
            for k, (h, g) in enumerate(zip(into, back, strict=True)):
                self._outer(target[k], k, h, scale(g, factor), 1.0, 1.0)

    def _length(self, k: int, inputs: Tensor) -> Tensor:
        """Of what goes into layer k, with the one that its bias is multiplied with."""
        return torch.hypot(inputs, torch.ones_like(inputs)) if self.bias[k] else inputs

    def _add_tiles(self, to: Blocks, models: Blocks, rows: Tensor, weights: float | Tensor, caps: Tensor, rates: Tensor) -> None:
        """The same for blocks [B, settings, ...], in tiles of records side by side, summed in float64."""
        if isinstance(weights, float):
            weights = torch.full(rows.shape, weights, dtype=torch.float64, device=rows.device)
        sizes = expected_sizes(weights)
        bounds = limits(caps, self.dtype, self.parameters, sum_slack(sizes, self.dtype, to[0].dtype).unsqueeze(1))
        heavy: list[int] = []
        if self.dtype is torch.float32:
            heavy = ((weights > 0).sum(1) > light_sizes(sizes)).nonzero().flatten().tolist()
        for setting in range(models[0].shape[1]):
            W = [block[:, setting] for block in models]
            targets = [block[:, setting] for block in to]
            direct = to[0].dtype is torch.float64 and all(block.is_contiguous() for block in targets)
            sums = targets if direct else [torch.zeros_like(block, dtype=torch.float64) for block in targets]
            width = self._width(W, float(sizes.max()))
            for first in range(0, rows.shape[1], width):
                some, shares = rows[:, first : first + width], weights[:, first : first + width]
                missing = width - some.shape[1]
                some = torch.nn.functional.pad(some, (0, missing), value=self.data.null)
                shares = torch.nn.functional.pad(shares, (0, missing)) * rates[:, setting, None]
                self._add_tile(sums, W, some, shares, bounds[:, setting, None], heavy)
            if not direct:
                for block, total in zip(targets, sums, strict=True):
                    block.add_(total.to(block.dtype))

    def _add_tile(self, sums: Blocks, W: Blocks, rows: Tensor, shares: Tensor, limit: Tensor, heavy: list[int]) -> None:
        """One tile [B, width]: nothing here but the last sums knows of more than one record, or of more than one user."""
        A, y = self.data.columns_of(rows)
        into, back = self._column_passes(W, A, y)
        found = self.data.size.index_select(0, rows.reshape(-1)).view(rows.shape) * column_lengths(back[0])
        for k in range(1, len(back)):
            found = torch.hypot(found, self._length(k, column_lengths(into[k])) * column_lengths(back[k]))
        factor = factors(found, limit).mul_(shares)
        finite = torch.isfinite(found)
        if not bool(finite.all()):
            into = [torch.where(finite.unsqueeze(1), h, 0.0) for h in into]
        for total, h, g in zip(sums, into, back, strict=True):
            g = scale_columns(g, factor)
            for user in heavy:
                _add_outer(total[user : user + 1], h[user : user + 1].double(), g[user : user + 1].double())
                g[user] = 0.0
            if len(heavy) < len(g):
                _add_outer(total, h, g)

    def _width(self, W: Blocks, expected: float) -> int:
        """Records of a tile, all of which get the same bits, as random ones show for blocks that lie as these do."""
        key = (expected, *(place(block) for block in W))
        if key not in self.widths:
            self.widths[key] = fixed_width(expected, lambda width: self._same(W, width))
        return self.widths[key]

    def _same(self, W: Blocks, width: int) -> bool:
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            blocks = [stand_in(block, generator) for block in W]
            A, y = (
                torch.randn(len(W[0]), size, 1, generator=generator, dtype=self.dtype).to(self.device).repeat(1, 1, width)
                for size in (self.data.columns, self.data.outputs)
            )
            into, back = self._column_passes(blocks, A, y)
            if not all(alike(part) for part in (*into, *back)):
                return False
        return True

    def _column_passes(self, W: Blocks, A: Tensor, y: Tensor) -> tuple[Blocks, Blocks]:
        """What goes into every layer and what flows back out of it, [B, numbers, records]."""
        into = [A]
        h = torch.bmm(W[0].transpose(1, 2), A)
        for k in range(1, len(W)):
            h = h.relu_() if self.stack.activations[k - 1] is nn.ReLU else h.tanh_()
            into.append(h)
            h = torch.bmm(W[k][:, : h.shape[1]].transpose(1, 2), h)
            if self.bias[k]:
                h.add_(W[k][:, -1].unsqueeze(-1))
        back = [self.data.derivative(h, y, 1)]
        for k in range(len(W) - 1, 0, -1):
            h = into[k]
            g = torch.bmm(W[k][:, : h.shape[1]], back[0])
            if self.stack.activations[k - 1] is nn.ReLU:
                g = torch.ops.aten.threshold_backward(g, h, 0)
            else:
                g.mul_(1 - h * h)
            back.insert(0, g)
        return into, back

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


def _add_outer(total: Tensor, h: Tensor, g: Tensor) -> None:
    """total += [h, 1] g' for all models, [B, inputs (+ 1), outputs]: the product in the type of h and g, the sum in float64."""
    product = torch.empty(total.shape, dtype=h.dtype, device=h.device)
    inner = product[:, : h.shape[1]]
    if g.shape[1] > _NARROW:
        inner.baddbmm_(h, g.transpose(1, 2), beta=0.0)
    else:
        inner.copy_(torch.bmm(g, h.transpose(1, 2)).transpose(1, 2))
    if total.shape[1] > h.shape[1]:
        torch.sum(g, 2, out=product[:, -1])
    add_double(total, product)
