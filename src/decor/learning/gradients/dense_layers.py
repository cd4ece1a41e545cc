"""The fast path for stacks of dense layers: all users, seeds and settings together.

Gradients are written out by hand. Clipping single examples never builds their gradients: an
example's gradient of a dense layer is the outer product of its input h and what flows back g, so
its norm is |h| |g|. Scaling g by the clip factor before the one product with all h is then the same
as clipping each example and adding up. With `exact`, examples are in tiles (see `tiles`), so that h
and g have the same bits whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from decor.learning.batches import Batch
from decor.learning.task import Task

from .clip import CPU, Blocks, factors, lengths, limits, scale
from .dense_stack import Stack, StackGradients
from .tiles import (
    add_into,
    choose_tile,
    column_lengths,
    heavy_users,
    memory_layout,
    nominal_sizes,
    random_like,
    same_bits,
    scale_columns,
    sum_slack,
)

_REPEATED = 20_000
"""Parameters of a first layer up to which settings share one product with repeated examples;
above, each setting has its own product.
"""
_NARROW = 32
"""Outputs up to which products are taken transposed: libraries are slow with few columns and fast
with few rows.
"""


class Layers(StackGradients):
    """Multinomial regression and MLPs.

    Each layer is a block [users, seeds, settings, inputs + 1, outputs].

    Args:
        task: The data.
        stack: Its model and loss.
        dtype: The type of models and gradients.
        device: Where they are kept.
        exact: `add_clipped_examples` takes tiles and sums in float64, so that removing an example
            changes a sum by at most its clip.
    """

    def __init__(
        self,
        task: Task,
        stack: Stack,
        dtype: torch.dtype,
        device: torch.device = CPU,
        exact: bool = False,
    ) -> None:
        super().__init__(task, stack, dtype, device)
        self.exact = exact
        self.parameters = sum(p.numel() for _, layer in stack.layers for p in layer.parameters())
        self.tiles: dict[object, tuple[int, bool]] = {}
        self.products: dict[object, Tensor] = {}
        # on a GPU the first layer's bias is kept out of its product, which is slow with an odd
        # number of rows
        self.apart = device.type == "cuda" and stack.bias[0] and not exact

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        rows, weights = self.data.select(batch, models[0], users)
        gradients = [torch.empty_like(block[users]) for block in models]
        targets = _by_group(gradients, len(rows))
        selected = _by_group([block[users] for block in models], len(rows))
        # one weight for all goes into the product; different weights scale g first
        scale = weights if isinstance(weights, float) else 1.0
        for _, to, W, A, y, some in self._settings(targets, selected, rows):
            into, back = self._passes(W, A, y)
            for k, (h, g) in enumerate(zip(into, back, strict=True)):
                if isinstance(weights, Tensor):
                    g.mul_(weights.to(self.dtype).repeat_interleave(some, 0).unsqueeze(-1))
                self._outer(to[k], k, h, g, scale, 0.0)
        return gradients

    def add_clipped_examples(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * weighted sum of the gradients of examples, each clipped first.

        Guarantee: what one example adds to zeros with alpha one is at most its weight times `clip`
        long in exact arithmetic. An example whose gradient is not finite adds nothing. With `exact`
        two sums over batches that differ in one example are no farther apart than that; without,
        sums are rounded in no fixed order.
        """
        rows, weights = self.data.select(batch, models[0], users)
        targets, selected = (
            _by_group([block[users] for block in side], len(rows)) for side in (to, models)
        )
        caps, rates = (
            _by_model(value, len(rows), models[0][users]).double() for value in (clip, alpha)
        )
        if self.exact:
            self._add_tiles(targets, selected, rows, weights, batch.planned, caps, rates)
            return
        bounds = limits(caps, self.dtype, self.parameters)
        if self._is_wide(models[0]):
            self._add_wide(targets[0], selected[0], rows, weights, bounds, rates)
            return
        # the first layer's inputs are the examples, whose lengths are known
        first = self.data.sizes(rows)
        for group, target, W, A, y, some in self._settings(targets, selected, rows):
            into, back = self._passes(W, A, y)
            limit, rate = (value[:, group].reshape(-1, 1) for value in (bounds, rates))
            norms = first.repeat_interleave(some, 0) * lengths(back[0])
            # the squared norm of a gradient is the sum over layers; hypot does not overflow
            for k in range(1, len(back)):
                norms = torch.hypot(norms, self._length(k, lengths(into[k])) * lengths(back[k]))
            factor = factors(norms, limit).mul_(rate)
            factor.mul_(
                weights if isinstance(weights, float) else weights.repeat_interleave(some, 0)
            )
            # zero times what is not finite would not be zero; on a GPU a look at it would wait
            finite = torch.isfinite(norms)
            if norms.is_cuda or not bool(finite.all()):
                into = [
                    h if h is A and self.data.fits else torch.where(finite.unsqueeze(-1), h, 0.0)
                    for h in into
                ]
            for k, (h, g) in enumerate(zip(into, back, strict=True)):
                self._outer(target[k], k, h, scale(g, factor), 1.0, 1.0)

    def _is_wide(self, block: Tensor) -> bool:
        """Whether settings are taken as further outputs of one layer.

        One product with all settings reads the examples once, where a product for each is as slow
        as reading them.
        """
        one, settings = len(self.stack.layers) == 1, block.shape[2]
        large = block.shape[-1] * block.shape[-2] > _REPEATED
        return one and large and settings > 1 and not block.is_cuda

    def _add_wide(
        self,
        to: Tensor,
        W: Tensor,
        rows: Tensor,
        weights: float | Tensor,
        limit: Tensor,
        rates: Tensor,
    ) -> None:
        """`add_clipped_examples` of one layer [B, settings, inputs + 1, outputs], not `exact`."""
        B, settings, inputs, outputs = W.shape
        A, y = self.data.gather(rows)
        # [B, examples, settings, outputs]
        g = torch.bmm(A, W.transpose(1, 2).reshape(B, inputs, -1)).view(B, -1, settings, outputs)
        g = self.data.derivative(g, y.unsqueeze(2))
        norms = self.data.sizes(rows).unsqueeze(2) * lengths(g)
        factor = factors(norms, limit.unsqueeze(1)).mul_(rates.unsqueeze(1))
        factor.mul_(weights if isinstance(weights, float) else weights.unsqueeze(2))
        if not self.data.fits:  # zero times what is not finite would not be zero
            A = torch.where(torch.isfinite(self.data.sizes(rows)).unsqueeze(2), A, 0.0)
        sums = torch.bmm(scale(g, factor).view(B, -1, settings * outputs).transpose(1, 2), A)
        to.add_(sums.view(B, settings, outputs, inputs).transpose(2, 3))

    def evaluate(self, blocks: Blocks, loss: bool = True) -> dict[str, Tensor]:
        return self.data.metrics(blocks, self._outputs, loss)

    def _outputs(self, models: Blocks, X: Tensor) -> Tensor:
        X = X[..., :-1] if self.apart else X
        return self._forward(models, X.expand(len(models[0]), *X.shape))[-1]

    def _length(self, k: int, inputs: Tensor) -> Tensor:
        """The length of layer k's input, including the 1 that multiplies its bias."""
        return torch.hypot(inputs, torch.ones_like(inputs)) if self.bias[k] else inputs

    def _add_tiles(
        self,
        to: Blocks,
        models: Blocks,
        rows: Tensor,
        weights: float | Tensor,
        planned: float | None,
        caps: Tensor,
        rates: Tensor,
    ) -> None:
        """`add_clipped_examples` for blocks [B, settings, ...], in tiles summed in float64."""
        if isinstance(weights, float):
            weights = torch.full(rows.shape, weights, dtype=torch.float64, device=rows.device)
        sizes = nominal_sizes(weights, planned)
        # this part of the clip pays for the rounding of sums
        sums_share = sum_slack(sizes, self.dtype, to[0].dtype).unsqueeze(1)
        bounds = limits(caps, self.dtype, self.parameters, sums_share)
        heavy = heavy_users(weights, sizes, self.dtype)
        for setting in range(models[0].shape[1]):
            W = [block[:, setting] for block in models]
            targets = [block[:, setting] for block in to]
            width, columns = self._tile(W, float(sizes.max()))
            # one tile is no sum, so it may be added to its target at once
            single = rows.shape[1] <= width and not heavy
            direct = (single or to[0].dtype is torch.float64) and all(
                block.is_contiguous() for block in targets
            )
            sums = targets
            if not direct:
                sums = [torch.zeros_like(block, dtype=torch.float64) for block in targets]
            for first in range(0, rows.shape[1], width):
                some, shares = rows[:, first : first + width], weights[:, first : first + width]
                missing = width - some.shape[1]
                some = pad(some, (0, missing), value=self.data.null)
                shares = pad(shares, (0, missing)) * rates[:, setting, None]
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
        """Adds one tile [B, width]. Only the last sums mix examples, and nothing mixes users."""
        A, y = self.data.gather_columns(rows) if columns else self.data.gather(rows)
        into, back = self._column_passes(W, A, y) if columns else self._passes(W, A, y)
        measure, rescale = (column_lengths, scale_columns) if columns else (lengths, scale)
        norms = self.data.sizes(rows) * measure(back[0])
        for k in range(1, len(back)):
            norms = torch.hypot(norms, self._length(k, measure(into[k])) * measure(back[k]))
        factor = factors(norms, limit).mul_(shares)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):  # zero times what is not finite would not be zero
            into = [torch.where(finite.unsqueeze(1 if columns else -1), h, 0.0) for h in into]
        for total, h, g in zip(sums, into, back, strict=True):
            g = rescale(g, factor)
            h, g = (h, g.transpose(1, 2)) if columns else (h.transpose(1, 2), g)
            # in float64: for batches this large float32 sums exceed the slack
            for user in heavy:
                one = slice(user, user + 1)
                self._add_outer(total[one], h[one].double(), g[one].double())
                g[user] = 0.0
            if len(heavy) < len(g):
                self._add_outer(total, h, g)

    def _add_outer(self, total: Tensor, h: Tensor, g: Tensor) -> None:
        """total += [h, 1] g, summed in the type of `total`.

        Args:
            total: [B, inputs + 1, outputs], or without the 1.
            h: [B, inputs, width].
            g: [B, width, outputs].
        """
        key = (total.shape, h.dtype)
        if key not in self.products:  # kept, because fresh memory costs as much as the sum
            self.products[key] = torch.empty(total.shape, dtype=h.dtype, device=h.device)
        product = self.products[key]
        inner = product[:, : h.shape[1]]
        if g.shape[2] > _NARROW:
            inner.baddbmm_(h, g, beta=0.0)
        else:
            # few outputs: the transposed product is faster
            inner.copy_(torch.bmm(g.transpose(1, 2), h.transpose(1, 2)).transpose(1, 2))
        if total.shape[1] > h.shape[1]:
            torch.sum(g, 1, out=product[:, -1])
        add_into(total, product)

    def _tile(self, W: Blocks, expected: float) -> tuple[int, bool]:
        """`choose_tile` for blocks with the memory layout of these."""
        # trying shapes is slow, so results are kept for each layout
        key = (expected, *(memory_layout(block) for block in W))
        if key not in self.tiles:
            self.tiles[key] = choose_tile(
                expected, lambda width, columns: self._same(W, width, columns)
            )
        return self.tiles[key]

    def _same(self, W: Blocks, width: int, columns: bool) -> bool:
        """Whether random examples, each repeated in all places, give the same bits everywhere."""
        generator = torch.Generator().manual_seed(0)
        # three draws: two orders of addition can agree by chance on one
        for _ in range(3):
            blocks = [random_like(block, generator) for block in W]
            A, y = (
                torch.randn(len(W[0]), 1, size, generator=generator, dtype=self.dtype)
                .to(self.device)
                .repeat(1, width, 1)
                for size in (self.data.columns, self.data.outputs)
            )
            if columns:
                A, y = (part.transpose(1, 2).contiguous() for part in (A, y))
            passes = (self._column_passes if columns else self._passes)(blocks, A, y)
            if not all(same_bits(part, -1 if columns else 1) for side in passes for part in side):
                return False
        return True

    def _column_passes(self, W: Blocks, A: Tensor, y: Tensor) -> tuple[Blocks, Blocks]:
        """The inputs of each layer and what flows back into it, [B, values, examples]."""
        into = [A]
        h = torch.bmm(W[0].transpose(1, 2), A)
        for k in range(1, len(W)):
            h = self._activate(k, h)
            into.append(h)
            h = torch.bmm(W[k][:, : h.shape[1]].transpose(1, 2), h)
            if self.bias[k]:
                h.add_(W[k][:, -1].unsqueeze(-1))
        back = [self.data.derivative(h, y, 1)]
        for k in range(len(W) - 1, 0, -1):
            g = torch.bmm(W[k][:, : into[k].shape[1]], back[0])
            back.insert(0, self._activate_backward(k, g, into[k]))
        return into, back

    def _activate(self, k: int, h: Tensor) -> Tensor:
        """The input of layer k from the output of the layer before; overwrites it."""
        return h.relu_() if self.stack.activations[k - 1] is nn.ReLU else h.tanh_()

    def _activate_backward(self, k: int, g: Tensor, h: Tensor) -> Tensor:
        """What flows back through the activation before layer k, whose output is h."""
        if self.stack.activations[k - 1] is nn.ReLU:
            # one pass, where a comparison and a product would take two
            return torch.ops.aten.threshold_backward(g, h, 0)  # type: ignore[no-any-return]
        return g.mul_(1 - h * h)

    def _settings(
        self, to: Blocks, models: Blocks, rows: Tensor
    ) -> Iterator[tuple[slice, Blocks, Blocks, Tensor, Tensor, int]]:
        """Groups of settings that are computed together.

        Yields:
            Which settings, their targets and models [B * some, inputs + 1, outputs], their
            examples and labels, and `some`, how many settings these are.
        """
        A, y = self.data.gather(rows)
        A = A[..., :-1] if self.apart else A
        count = models[0].shape[1]
        # repeating examples pays while the first layer is small, and always on a GPU
        some = count if A.is_cuda or models[0].shape[-1] * models[0].shape[-2] <= _REPEATED else 1
        if some > 1:
            A, y = A.repeat_interleave(some, 0), y.repeat_interleave(some, 0)
        for first in range(0, count, some):
            group = slice(first, first + some)
            targets, W = (
                [block[:, group].flatten(0, 1) for block in side] for side in (to, models)
            )
            yield group, targets, W, A, y, some

    def _passes(self, W: Blocks, A: Tensor, y: Tensor) -> tuple[Blocks, Blocks]:
        """The inputs of each layer and what flows back into it, [B, examples, values]."""
        *into, output = self._forward(W, A)
        back = [self.data.derivative(output, y)]
        for k in range(len(W) - 1, 0, -1):
            g = torch.bmm(back[0], W[k][:, : into[k].shape[-1]].transpose(1, 2))
            back.insert(0, self._activate_backward(k, g, into[k]))
        return into, back

    def _forward(self, W: Blocks, A: Tensor) -> Blocks:
        """The inputs of each layer, and the last output."""
        into = [A]
        h = _product(A, W[0][:, : A.shape[-1]])
        if self.apart:
            h.add_(W[0][:, -1:])
        for k in range(1, len(W)):
            h = self._activate(k, h)
            into.append(h)
            h = _product(h, W[k][:, : h.shape[-1]])
            if self.bias[k]:
                h.add_(W[k][:, -1:])
        return [*into, h]

    def _outer(self, to: Tensor, k: int, h: Tensor, g: Tensor, alpha: float, beta: float) -> None:
        """to = beta to + alpha [h, 1]' g for all models, in layer k."""
        weight = to[:, : h.shape[-1]]
        if g.shape[-1] > _NARROW:
            weight.baddbmm_(h.transpose(1, 2), g, beta=beta, alpha=alpha)
        elif beta:
            weight.add_(torch.bmm(g.transpose(1, 2), h).transpose(1, 2), alpha=alpha)
        else:
            torch.mul(torch.bmm(g.transpose(1, 2), h).transpose(1, 2), alpha, out=weight)
        # the first layer's h has its ones already, unless they are kept apart
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
    """Blocks [users, seeds, settings, ...] as [B, settings that share examples, ...]."""
    return [block.view(B, -1, *block.shape[3:]) for block in blocks]


def _by_model(value: Tensor, B: int, block: Tensor) -> Tensor:
    """[seeds, settings] as [B, settings that share examples]."""
    return value.reshape(1, -1).expand(B, -1) if B == len(block) else value.repeat(len(block), 1)
