"""The fast path for stacks of dense layers: all users, seeds and settings together, with gradients
written out by hand.

Clipping single records never builds their gradients: a record's gradient of a dense layer is the
outer product of what went in, h, and what flows back, g, so that its norm is |h| |g|; scaling g by
the clip factor before the one product with all h is then the same as clipping every record and
adding up. With `exact` records are columns of tiles (see `tiles`), so that h and g have the same
bits whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from decor.learning.batches import Batch
from decor.learning.task import Task

from .clip import CPU, Blocks, add_clipped, factors, lengths, limits, scale
from .records import Records
from .stack import Stack
from .tiles import (
    add_into,
    alike,
    column_lengths,
    expected_sizes,
    fixed_tile,
    light_sizes,
    place,
    scale_columns,
    stand_in,
    sum_slack,
)

_REPEATED = 20_000
"""Numbers of a first layer up to which settings share a product with repeated records; above, each
takes its own turn.
"""


_NARROW = 32
"""Outputs up to which products are taken transposed: libraries are slow with few columns and fast
with few rows.
"""


class Layers:
    """Multinomial regression and MLPs; a block [users, seeds, settings, inputs + 1, outputs] for
    every layer.

    `exact`: `add_records` takes tiles and sums in float64, so that removing a record changes a sum
    by its clip at most.
    """

    def __init__(
        self,
        task: Task,
        stack: Stack,
        dtype: torch.dtype,
        device: torch.device = CPU,
        exact: bool = False,
    ) -> None:
        self.stack, self.dtype, self.device, self.bias, self.exact = (
            stack,
            dtype,
            device,
            stack.bias,
            exact,
        )
        self.parameters = sum(p.numel() for _, layer in stack.layers for p in layer.parameters())
        self.tiles: dict[object, tuple[int, bool]] = {}
        self.products: dict[object, Tensor] = {}
        # on a card the first layer's bias is kept out of its product, which is slow with an odd
        # number of rows
        self.apart = device.type == "cuda" and stack.bias[0] and not exact
        self.fixed: dict[str, Tensor] = {}
        self.tied: dict[str, str] = {}
        self.data = Records(
            task, stack.loss, stack.layers[-1][1].out_features, self.bias[0], dtype, device
        )

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
        targets, held = (
            _by_group(side, len(rows)) for side in (found, [block[users] for block in models])
        )
        scale = weights if isinstance(weights, float) else 1.0
        for _, to, W, A, y, some in self._settings(targets, held, rows):
            into, back = self._passes(W, A, y)
            for k, (h, g) in enumerate(zip(into, back, strict=True)):
                if isinstance(weights, Tensor):
                    g.mul_(weights.to(self.dtype).repeat_interleave(some, 0).unsqueeze(-1))
                self._outer(to[k], k, h, g, scale, 0.0)
        return found

    def add_means(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * clipped mean gradient."""
        add_clipped([block[users] for block in to], self.mean(models, batch, users), clip, alpha)

    def add_records(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * sum of weighted gradients of single records, each clipped first.

        Guarantee: what one record adds to zeros with alpha one is at most its weight times `clip`
        long in exact arithmetic; a record whose gradient is not finite adds nothing. With `exact`
        two sums over batches that differ in one record are no farther apart than that; without,
        sums are rounded as they come.
        """
        rows, weights = self.data.taken(batch, models[0], users)
        targets, held = (
            _by_group([block[users] for block in side], len(rows)) for side in (to, models)
        )
        caps, rates = (
            _by_model(value, len(rows), models[0][users]).double() for value in (clip, alpha)
        )
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
            factor.mul_(
                weights if isinstance(weights, float) else weights.repeat_interleave(some, 0)
            )
            # zero times what is not finite would not be zero; to look is to wait for the card
            finite = torch.isfinite(found)
            if found.is_cuda or not bool(finite.all()):
                into = [
                    h if h is A and self.data.fits else torch.where(finite.unsqueeze(-1), h, 0.0)
                    for h in into
                ]
            for k, (h, g) in enumerate(zip(into, back, strict=True)):
                self._outer(target[k], k, h, scale(g, factor), 1.0, 1.0)

    def _length(self, k: int, inputs: Tensor) -> Tensor:
        """Of what goes into layer k, with the one that its bias is multiplied with."""
        return torch.hypot(inputs, torch.ones_like(inputs)) if self.bias[k] else inputs

    def _add_tiles(
        self,
        to: Blocks,
        models: Blocks,
        rows: Tensor,
        weights: float | Tensor,
        caps: Tensor,
        rates: Tensor,
    ) -> None:
        """The same for blocks [B, settings, ...], in tiles of records side by side, summed in
        float64.
        """
        if isinstance(weights, float):
            weights = torch.full(rows.shape, weights, dtype=torch.float64, device=rows.device)
        sizes = expected_sizes(weights)
        bounds = limits(
            caps,
            self.dtype,
            self.parameters,
            sum_slack(sizes, self.dtype, to[0].dtype).unsqueeze(1),
        )
        heavy: list[int] = []
        if self.dtype is torch.float32:
            heavy = ((weights > 0).sum(1) > light_sizes(sizes)).nonzero().flatten().tolist()
        for setting in range(models[0].shape[1]):
            W = [block[:, setting] for block in models]
            targets = [block[:, setting] for block in to]
            width, columns = self._tile(W, float(sizes.max()))
            # one tile is no sum: it may go where it belongs at once
            single = rows.shape[1] <= width and not heavy
            direct = (single or to[0].dtype is torch.float64) and all(
                block.is_contiguous() for block in targets
            )
            sums = (
                targets
                if direct
                else [torch.zeros_like(block, dtype=torch.float64) for block in targets]
            )
            for first in range(0, rows.shape[1], width):
                some, shares = rows[:, first : first + width], weights[:, first : first + width]
                missing = width - some.shape[1]
                some = torch.nn.functional.pad(some, (0, missing), value=self.data.null)
                shares = torch.nn.functional.pad(shares, (0, missing)) * rates[:, setting, None]
                self._add_tile(sums, W, some, shares, bounds[:, setting, None], heavy, columns)
            if not direct:
                for block, total in zip(targets, sums, strict=True):
                    block.add_(total.to(block.dtype))

    def _add_tile(
        self,
        sums: Blocks,
        W: Blocks,
        rows: Tensor,
        shares: Tensor,
        limit: Tensor,
        heavy: list[int],
        columns: bool,
    ) -> None:
        """One tile [B, width]: nothing here but the last sums knows of more than one record, or of
        more than one user.
        """
        A, y = self.data.gathered_columns(rows) if columns else self.data.gathered(rows)
        into, back = self._column_passes(W, A, y) if columns else self._passes(W, A, y)
        measured, scaled = (column_lengths, scale_columns) if columns else (lengths, scale)
        found = self.data.size.index_select(0, rows.reshape(-1)).view(rows.shape) * measured(
            back[0]
        )
        for k in range(1, len(back)):
            found = torch.hypot(found, self._length(k, measured(into[k])) * measured(back[k]))
        factor = factors(found, limit).mul_(shares)
        finite = torch.isfinite(found)
        if not bool(finite.all()):
            into = [torch.where(finite.unsqueeze(1 if columns else -1), h, 0.0) for h in into]
        for total, h, g in zip(sums, into, back, strict=True):
            g = scaled(g, factor)
            h, g = (h, g.transpose(1, 2)) if columns else (h.transpose(1, 2), g)
            for user in heavy:
                self._add_outer(
                    total[user : user + 1], h[user : user + 1].double(), g[user : user + 1].double()
                )
                g[user] = 0.0
            if len(heavy) < len(g):
                self._add_outer(total, h, g)

    def _add_outer(self, total: Tensor, h: Tensor, g: Tensor) -> None:
        """total += [h, 1] g, [B, inputs, width] times [B, width, outputs], summed in the type of
        `total`.
        """
        key = (total.shape, h.dtype)
        if key not in self.products:  # kept, because fresh memory costs as much as the sum
            self.products[key] = torch.empty(total.shape, dtype=h.dtype, device=h.device)
        product = self.products[key]
        inner = product[:, : h.shape[1]]
        if g.shape[2] > _NARROW:
            inner.baddbmm_(h, g, beta=0.0)
        else:
            inner.copy_(torch.bmm(g.transpose(1, 2), h.transpose(1, 2)).transpose(1, 2))
        if total.shape[1] > h.shape[1]:
            torch.sum(g, 1, out=product[:, -1])
        add_into(total, product)

    def _tile(self, W: Blocks, expected: float) -> tuple[int, bool]:
        """Records of a tile, and whether they are its columns: so that all get the same bits, for
        blocks that lie as these.
        """
        key = (expected, *(place(block) for block in W))
        if key not in self.tiles:
            self.tiles[key] = fixed_tile(
                expected, lambda width, columns: self._same(W, width, columns)
            )
        return self.tiles[key]

    def _same(self, W: Blocks, width: int, columns: bool) -> bool:
        """Whether random records, each at all places, show no difference."""
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            blocks = [stand_in(block, generator) for block in W]
            drawn = [
                torch.randn(len(W[0]), 1, size, generator=generator, dtype=self.dtype)
                .to(self.device)
                .repeat(1, width, 1)
                for size in (self.data.columns, self.data.outputs)
            ]
            if columns:
                found = self._column_passes(
                    blocks, *(part.transpose(1, 2).contiguous() for part in drawn)
                )
            else:
                found = self._passes(blocks, *drawn)
            if not all(alike(part, -1 if columns else 1) for side in found for part in side):
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

    def _settings(
        self, to: Blocks, models: Blocks, rows: Tensor
    ) -> Iterator[tuple[slice, Blocks, Blocks, Tensor, Tensor, int]]:
        """Settings that are worked on together: which, their targets and models [B * some, inputs +
        1, outputs], and records.
        """
        A, y = self.data.gathered(rows)
        A = A[..., :-1] if self.apart else A
        count = models[0].shape[1]
        some = count if A.is_cuda or models[0].shape[-1] * models[0].shape[-2] <= _REPEATED else 1
        for first in range(0, count, some):
            group = slice(first, first + some)
            sides = [[block[:, group].flatten(0, 1) for block in side] for side in (to, models)]
            if some > 1:
                yield (
                    group,
                    sides[0],
                    sides[1],
                    A.repeat_interleave(some, 0),
                    y.repeat_interleave(some, 0),
                    some,
                )
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
        """to = beta to + alpha [h, 1]' g for all models; the first layer's h may have its ones
        already.
        """
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
