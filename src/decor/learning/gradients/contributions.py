"""What each use of a parameter adds to the gradients of examples, in the form that is cheapest.

A layer's output gradient g comes from one backward pass. For a dense layer with input a the
gradient of an example is the sum over its tokens t of g_t a_t', and its length follows from the
products of a and g with themselves or from the sum itself, whichever is cheaper. The weighted sum
over examples is one more product. No contribution ever holds more example gradients than a chunk.

Lengths are bounds: never shorter than the exact length of what is added later. A bound is the
computed length plus the largest error of its computation, which is a share of the `size` of a
contribution: the sum over tokens of |a_t| |g_t|. docs/noise.md, "The clip, in floating point", has
the proof. Operands may be half as wide as gradients (bfloat16): their products are then exact, and
are added up in float32, so that a sum is a gradient in float32 in every case.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .clip import lengths, scale

_SAFE = 1e-12, 1e15
"""Lengths of operands whose products neither vanish nor overflow in float32."""
_LARGEST_SIZE = 1e18
"""The largest size whose square does not overflow in float32."""
_CPU_VALUES, _GPU_VALUES = 1 << 18, 1 << 28
"""Values computed together: what fits a CPU's cache, or occupies a GPU."""
_CUT = 1.01 * 2.0**-9
"""Largest relative error of a product whose operands are cut to eleven bits (TF32)."""
_ROUNDED = 1.01 * 2.0**-8
"""Largest relative error of a value that is rounded to eight bits (bfloat16)."""
_TENSOR_CORE = 2.0**-22
"""Largest relative error of an addition of a GPU's units for products of short operands.

They cut where float32 rounds, and not at the sum but at the largest of some terms: an error of at
most 2^-23 of the absolute sum. Measured errors are smaller; twice the bound costs little.
"""
_EIGHT_BITS = torch.bfloat16
_SETTLED = 16_000_000
"""Most values of example gradients that are kept."""


@dataclass(frozen=True)
class Bound:
    """Of the length of each example's contribution, in float64.

    Attributes:
        length: At least the length in exact arithmetic.
        size: At least the sum of the lengths of all products that are added up for it.
    """

    length: Tensor
    size: Tensor


class Contribution(ABC):
    """What one use of a parameter adds to the gradient of each of N examples.

    Args:
        shape: Of the parameter.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)

    @property
    @abstractmethod
    def terms(self) -> int:
        """Products that are added up for one entry of an example's gradient."""

    @abstractmethod
    def bound(self) -> Bound:
        """Of the length of each example's contribution."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """What gradients are made of; examples are the first dimension."""

    @abstractmethod
    def gradients(self, examples: slice) -> Tensor:
        """The gradients of some examples: [examples, *shape]."""

    @abstractmethod
    def add(self, to: Tensor, factor: Tensor | None, wide: bool = False) -> None:
        """to += the sum over each model's examples of factor * gradient.

        Args:
            to: [models, *shape].
            factor: In float64, [N]; ones if None. What it sets to zero adds zero, even where it is
                not finite.
            wide: Add up in float64.
        """


class Given(Contribution):
    """Gradients that are there: [N, *shape]."""

    terms = 1

    def __init__(self, gradients: Tensor) -> None:
        super().__init__(gradients.shape[1:])
        self.values = _at_least_float32(gradients)

    def tensors(self) -> list[Tensor]:
        return [self.values]

    def bound(self) -> Bound:
        length = lengths(self.values.reshape(len(self.values), -1))
        return Bound(length, length)

    def gradients(self, examples: slice) -> Tensor:
        return self.values[examples]

    def add(self, to: Tensor, factor: Tensor | None, wide: bool = False) -> None:
        values = self.values.reshape(len(to), -1, math.prod(self.shape))
        kind = torch.float64 if wide else values.dtype
        if factor is None:
            to += values.sum(1, dtype=kind).view(to.shape)
            return
        weights = _round_factor(factor, values.dtype).view(len(to), 1, -1)
        # zero times what is not finite would not be zero; on a GPU a look at it would wait
        if weights.is_cuda or not bool(weights.all()):
            values = values.masked_fill((weights == 0).transpose(1, 2), 0.0)
        to += torch.bmm(weights.to(kind), values.to(kind)).view(to.shape)


class Outer(Contribution):
    """Sums over tokens of g_t a_t', for a parameter [outputs, inputs].

    Args:
        g: [N, tokens, outputs].
        a: [N, tokens, inputs].
        shape: Of the parameter, if it is not [outputs, inputs].
    """

    def __init__(self, g: Tensor, a: Tensor, shape: Sequence[int] | None = None) -> None:
        super().__init__((g.shape[2], a.shape[2]) if shape is None else shape)
        if g.dtype is not a.dtype:
            # the wider one: what is short has its values there too
            wide = torch.promote_types(g.dtype, a.dtype)
            g, a = g.to(wide), a.to(wide)
        self.g, self.a = g, a

    def tensors(self) -> list[Tensor]:
        return [self.g, self.a]

    @property
    def terms(self) -> int:
        return self.g.shape[1]

    def bound(self) -> Bound:
        return outer_bound(self.g, self.a)

    def gradients(self, examples: slice) -> Tensor:
        product = multiply(self.g[examples].transpose(1, 2), self.a[examples])
        return product.view(-1, *self.shape)

    def settle(self) -> Contribution:
        """The gradients of examples themselves, where they are small beside tokens (adapters)."""
        tokens, outputs, inputs = self.g.shape[1], self.g.shape[2], self.a.shape[2]
        # one token has lengths without any sum
        if tokens == 1 or 2 * outputs * inputs > tokens * (outputs + inputs):
            return self
        return Given(self.gradients(slice(None)))

    def add(self, to: Tensor, factor: Tensor | None, wide: bool = False) -> None:
        g, a = self.g, self.a
        if factor is not None:
            # the narrower side is scaled
            if g.shape[2] <= a.shape[2]:
                g, a = _scale_rows(g, factor), _finite(a, factor)
            else:
                g, a = _finite(g, factor), _scale_rows(a, factor)
        if wide:
            g, a = g.double(), a.double()
        n = len(to)
        g, a = g.reshape(n, -1, g.shape[2]), a.reshape(n, -1, a.shape[2])
        flat = to.view(n, g.shape[2], a.shape[2])
        if wide or flat.dtype is not g.dtype:
            flat += multiply(g.transpose(1, 2), a)
        else:
            flat.baddbmm_(g.transpose(1, 2), a)


class Lookup(Contribution):
    """Rows of a table [rows, width] that tokens look up.

    Args:
        g: [N, tokens, width].
        ids: [N, tokens].
        rows: Of the table.
    """

    def __init__(self, g: Tensor, ids: Tensor, rows: int) -> None:
        super().__init__((rows, g.shape[2]))
        self.g, self.ids = g, ids

    def tensors(self) -> list[Tensor]:
        return [self.g, self.ids]

    @property
    def terms(self) -> int:
        return self.ids.shape[1]

    def bound(self) -> Bound:
        width, whole, cut = self.g.shape[2], _longest(self.g), product_error(self.g)
        # Cauchy-Schwarz: T lengths add up to at most sqrt(T) times the length of all together
        size = whole * math.sqrt(self.terms)
        squares = []
        for part in _chunks(len(self.g), self.terms * (self.terms + width), self.g):
            g, ids = self.g[part], self.ids[part]
            # gradients of different rows are orthogonal, so their products do not count
            same = ids.unsqueeze(2) == ids.unsqueeze(1)
            products = multiply(g, g.transpose(1, 2))
            squares.append((products * same).sum((1, 2), dtype=torch.float64))
        error = (width + 8) * rounding(self.g) + 2 * cut
        inside = _is_safe(whole, self.terms * math.sqrt(width) * _least(self.g))
        return _from_square(torch.cat(squares), size, error, inside)

    def gradients(self, examples: slice) -> Tensor:
        g, ids = self.g[examples], self.ids[examples]
        out = g.new_zeros(len(g), *self.shape)
        return out.scatter_add_(1, ids.unsqueeze(2).expand_as(g), g)

    def add(self, to: Tensor, factor: Tensor | None, wide: bool = False) -> None:
        g = self.g if factor is None else _scale_rows(self.g, factor)
        n, width = len(to), self.shape[1]
        # the table's type decides, and not `wide`: exact sums are kept in float64
        pairs = zip(to, self.ids.reshape(n, -1), g.reshape(n, -1, width), strict=True)
        for table, ids, values in pairs:
            table.index_add_(0, ids, values.to(table.dtype))


class Total(Contribution):
    """One parameter with several uses: the sum of their contributions."""

    def __init__(self, parts: Sequence[Contribution]) -> None:
        super().__init__(parts[0].shape)
        self.parts = list(parts)

    def tensors(self) -> list[Tensor]:
        return [values for part in self.parts for values in part.tensors()]

    @property
    def terms(self) -> int:
        return sum(part.terms for part in self.parts)

    def bound(self) -> Bound:
        # the length of the sum, not the sum of the lengths: that would clip more than asked
        total = []
        size = torch.stack([part.bound().size for part in self.parts]).sum(0)
        for part in _chunks(len(size), 2 * math.prod(self.shape), self._like):
            gradients = self.gradients(part)
            total.append(lengths(gradients.reshape(len(gradients), -1)))
        sums = [values for values in self.tensors() if values.is_floating_point()]
        unit, cut = max(map(rounding, sums)), max(map(product_error, sums))
        error = ((self.terms + 8) * unit + cut) * size
        length = torch.minimum(torch.cat(total) + error, size)
        return Bound(torch.where(_is_safe(size), length, size), size)

    def gradients(self, examples: slice) -> Tensor:
        total = self.parts[0].gradients(examples)
        for part in self.parts[1:]:
            total = total + part.gradients(examples)
        return total

    def add(self, to: Tensor, factor: Tensor | None, wide: bool = False) -> None:
        for part in self.parts:
            part.add(to, factor, wide)

    @property
    def _like(self) -> Tensor:
        return self.parts[0].tensors()[0]


def join(parts: Sequence[Contribution]) -> Contribution:
    """All uses of one parameter as one contribution."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Given) for part in parts):
        return Given(
            sum((p.gradients(slice(None)) for p in parts[1:]), parts[0].gradients(slice(None)))
        )
    if all(type(part) is Outer for part in parts):
        # a use is only more tokens
        return Outer(
            torch.cat([part.g for part in parts], 1),  # type: ignore[attr-defined]
            torch.cat([part.a for part in parts], 1),  # type: ignore[attr-defined]
            parts[0].shape,
        )
    if all(type(part) is Lookup for part in parts):
        # no table of gradients for each example, which is as large as the parameter
        return Lookup(
            torch.cat([part.g for part in parts], 1),  # type: ignore[attr-defined]
            torch.cat([part.ids for part in parts], 1),  # type: ignore[attr-defined]
            parts[0].shape[0],
        )
    return Total(parts)


def outer_bound(g: Tensor, a: Tensor) -> Bound:
    """Of the length of each example's sum over tokens of g_t a_t'.

    Args:
        g: [N, tokens, outputs].
        a: [N, tokens, inputs].
    """
    tokens, outputs, inputs = g.shape[1], g.shape[2], a.shape[2]
    if tokens == 1:
        # no sum over tokens, so there is no error beyond roundings in float64
        length = lengths(_at_least_float32(g[:, 0])) * lengths(_at_least_float32(a[:, 0]))
        return Bound(length, length)
    cut = product_error(g)
    if tokens * (inputs + outputs) <= inputs * outputs:
        return _bound_by_products(g, a, cut)
    back, into = _longest(g), _longest(a)
    size = back * into
    totals = []
    for part in _chunks(len(g), inputs * outputs + tokens * (inputs + outputs), g):
        totals.append(_longest(multiply(g[part].transpose(1, 2), a[part])))
    error = ((tokens + 8) * rounding(g) + cut) * size
    length = torch.minimum(torch.cat(totals) + error, size)
    least = tokens * math.sqrt(outputs * inputs) * _least(g) ** 2
    inside = _is_safe(back) & _is_safe(into) & (size > least)
    return Bound(torch.where(inside, length, size), size)


def _bound_by_products(g: Tensor, a: Tensor, cut: float) -> Bound:
    """`outer_bound` from the products of g and of a with themselves."""
    tokens, outputs, inputs = g.shape[1], g.shape[2], a.shape[2]
    # on a GPU lengths are on the diagonals of the products, at no further look at g and a
    on_diagonal = g.is_cuda and g.dtype is not torch.float64
    ends = ([], []) if on_diagonal else ([_longest(g)], [_longest(a)])
    squares = []
    for part in _chunks(len(g), tokens * (2 * tokens + inputs + outputs), g):
        # operands that are cut in the product would make the square too uncertain
        sides = [side[part] if not cut else _cut(side[part]) for side in (g, a)]
        products = [multiply(side, side.transpose(1, 2)) for side in sides]
        if on_diagonal:
            for found, product, side in zip(ends, products, sides, strict=True):
                found.append(diagonal_lengths(product, side.shape[2], rounding(side), cut))
        both = products[0].mul_(products[1])
        squares.append(both.sum((1, 2), dtype=torch.float64))
    back, into = (torch.cat(found) for found in ends)
    size = back * into
    least = tokens * _least(g)
    # products of tokens, and of these products: none of the three may vanish or overflow
    inside = _is_safe(back, least * math.sqrt(outputs)) & _is_safe(into, least * math.sqrt(inputs))
    inside &= (size > least) & (size < _LARGEST_SIZE)
    # the last term is of both roundings in one product of products
    unit = rounding(g)
    error = (inputs + outputs + 8 + inputs * outputs * unit) * unit
    bound = _from_square(torch.cat(squares), size, error, inside)
    # the square is that of what is left of operands that are cut
    return Bound(torch.minimum(bound.length + cut * size, size), size)


def diagonal_lengths(products: Tensor, width: int, unit: float, cut: float) -> Tensor:
    """At least the lengths of rows [N, tokens, width], taken as one each, in float64.

    Args:
        products: Of the rows with themselves, in float32: [N, tokens, tokens].
        width: Of the rows.
        unit: The relative error of one addition in the products.
        cut: The share by which rows may be shorter there than they are.
    """
    whole = products.diagonal(dim1=1, dim2=2).sum(1, dtype=torch.float64).sqrt()
    # squares below 2^-126 vanish
    vanished = math.sqrt(products.shape[1] * width) * 2.0**-63
    return whole * ((1 + (width + 8) * unit) / (1 - cut)) + vanished


def _from_square(square: Tensor, size: Tensor, error: float, inside: Tensor) -> Bound:
    """A bound from a computed square of the length.

    Args:
        square: As computed, off by at most `error` times size^2.
        size: Of the contributions.
        error: See `square`.
        inside: Where no product vanished or overflowed.
    """
    # rounding may make the square of a short sum negative
    length = torch.minimum((square.clamp_min(0.0) + error * size * size).sqrt(), size)
    # beyond, products vanish or overflow, but not the size, which is in float64
    return Bound(torch.where(inside, length, size), size)


def _is_safe(length: Tensor, least: float = 0.0) -> Tensor:
    return (length > max(least, _SAFE[0])) & (length < _SAFE[1])


def _least(operands: Tensor) -> float:
    """The root of a number beside which the smallest normal one is less than a rounding."""
    # products of short operands are in float32
    kind = torch.float32 if operands.dtype is _EIGHT_BITS else operands.dtype
    info = torch.finfo(kind)
    return math.sqrt(8 * info.smallest_normal / info.eps)


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """Products of matrices; of short operands in float32, which holds each product of two values.

    Args:
        left: [N, rows, k].
        right: [N, k, columns].
    """
    if left.dtype is not _EIGHT_BITS:
        return torch.bmm(left, right)
    if left.is_cuda:
        product: Tensor = torch.bmm(left, right, out_dtype=torch.float32)
        return product
    return torch.bmm(left.float(), right.float())


def rounding(like: Tensor) -> float:
    """The relative error of one addition in `multiply`."""
    if like.is_cuda and (like.dtype is _EIGHT_BITS or product_error(like)):
        return _TENSOR_CORE
    # on a CPU short operands are float32 before they are multiplied
    kind = torch.float32 if like.dtype is _EIGHT_BITS else like.dtype
    return torch.finfo(kind).eps / 2


def product_error(like: Tensor) -> float:
    """The relative error of a product whose operands are cut to eleven bits, if they are."""
    # short operands are what they are: a product has nothing to cut
    if not like.is_cuda or like.dtype is _EIGHT_BITS:
        return 0.0
    backends: Any = torch.backends
    kinds = (backends.cuda.matmul, backends.cudnn.conv)
    # convolutions may be cut unless they are told not to be; see `matmul_precision`
    return _CUT if any(each.fp32_precision != "ieee" for each in kinds) else 0.0


def scaling_error(like: Tensor, short: bool) -> float:
    """The relative error of what is added, beyond that of float32.

    Args:
        like: On the device.
        short: Whether operands may have eight bits, which a factor times an operand is rounded to.
    """
    return max(product_error(like), _ROUNDED if short else 0.0)


def _at_least_float32(values: Tensor) -> Tensor:
    # NumPy does not have eight bits
    return values.float() if values.dtype is _EIGHT_BITS else values


def _cut(values: Tensor) -> Tensor:
    """Values in float32 with the eleven bits that TF32 keeps: their products are exact."""
    return values.view(torch.int32).bitwise_and(-(1 << 13)).view(torch.float32)


def _longest(rows: Tensor) -> Tensor:
    """At least the lengths of [N, ..., d], taken as one row each, in float64."""
    if not rows.is_cuda or rows.dtype is torch.float64:
        return lengths(_at_least_float32(rows).flatten(1))
    # in float32 along the last dimension, because float64 would first be a copy of everything
    width = rows.shape[-1]
    parts = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32).double().flatten(1)
    whole: Tensor = torch.linalg.vector_norm(parts, dim=-1)
    # squares below 2^-126 vanish
    vanished = math.sqrt(rows[0].numel()) * 2.0**-63
    return whole * (1 + (width + 8) * 2.0**-24) + vanished


def _chunks(examples: int, values: int, like: Tensor) -> Iterator[slice]:
    """Parts of the examples that are computed together, `values` each."""
    most = _GPU_VALUES if like.is_cuda else _CPU_VALUES
    # at least one example, because a larger one cannot be computed in parts
    width = max(1, min(examples, most // max(1, values)))
    return (slice(k, min(k + width, examples)) for k in range(0, examples, width))


def _round_factor(factor: Tensor, dtype: torch.dtype) -> Tensor:
    """In the type of gradients; zero below its normal numbers."""
    tiny = torch.finfo(dtype).smallest_normal
    return torch.where(factor.abs() < tiny, 0.0, factor).to(dtype)


def _scale_rows(rows: Tensor, factor: Tensor) -> Tensor:
    """rows * factor, exactly zero where the factor is."""
    flat = rows.reshape(len(rows), -1)
    if not rows.is_cuda and rows.dtype is not _EIGHT_BITS:
        # `scale` writes to its argument, and what autograd returns may be shared
        return scale(flat.clone(), factor).view(rows.shape)
    # short rows are multiplied in float32, and rounded once
    kind = torch.float32 if rows.dtype is _EIGHT_BITS else rows.dtype
    by = _round_factor(factor, kind).unsqueeze(1)
    product = torch.mul(flat, by, out=torch.empty_like(flat))
    # as in `scale`: zero below the normal numbers; and where zero meets what is not finite
    tiny = torch.finfo(rows.dtype).smallest_normal
    return functional.hardshrink(product, tiny).nan_to_num_(0.0).view(rows.shape)


def _finite(rows: Tensor, factor: Tensor) -> Tensor:
    """rows, zero where the factor is."""
    out = factor == 0
    if not rows.is_cuda and not bool(out.any()):
        return rows
    return rows.masked_fill(out.view(-1, *[1] * (rows.dim() - 1)), 0.0)


@dataclass(frozen=True)
class Geometry:
    """Of a convolution, one value for each of its dimensions.

    Attributes:
        kernel: Its size.
        stride: Between its places.
        padding: (before, after).
        dilation: Between its entries.
        groups: Of channels.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    def patches(self, x: Tensor) -> Tensor:
        """What each place of the kernel sees: [images, *places, *kernel, channels]."""
        # functional.pad counts dimensions from the last
        sides = [side for pair in reversed(self.padding) for side in pair]
        x = functional.pad(x, sides) if any(sides) else x
        # channels last, so that what is copied lies together in memory
        x = x.movedim(1, -1).contiguous()
        strides = x.stride()
        inner = zip(x.shape[1:-1], self.kernel, self.stride, self.dilation, strict=True)
        places = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in inner]
        # a view: patches overlap, and share memory until they are made tokens
        return x.as_strided(
            (len(x), *places, *self.kernel, x.shape[-1]),
            (
                strides[0],
                *(s * step for s, step in zip(strides[1:-1], self.stride, strict=True)),
                *(s * step for s, step in zip(strides[1:-1], self.dilation, strict=True)),
                strides[-1],
            ),
        )


class Convolution(Contribution):
    """A convolution's weights [outputs, inputs / groups, *kernel].

    Args:
        g: [N, images, outputs, *places].
        x: [N, images, inputs, *sizes].
        shape: Of the weights.
        geometry: Of the convolution.
        backward: (g, x) -> the gradient of one model's weights on all its images.
    """

    def __init__(
        self,
        g: Tensor,
        x: Tensor,
        shape: Sequence[int],
        geometry: Geometry,
        backward: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__(shape)
        self.g, self.x, self.geometry, self.backward = g, x, geometry, backward

    def tensors(self) -> list[Tensor]:
        return [self.g, self.x]

    @property
    def terms(self) -> int:
        return self.g.shape[1] * math.prod(self.g.shape[3:])

    def bound(self) -> Bound:
        parts = []
        for part in self._chunks():
            g, a = self._tokens(part)
            each = outer_bound(g, a)
            groups = self.geometry.groups
            parts.append((each.length.view(-1, groups), each.size.view(-1, groups)))
        # groups have weights of their own, so theirs is the length of all their lengths
        return Bound(*(lengths(torch.cat(side)) for side in zip(*parts, strict=True)))

    def gradients(self, examples: slice) -> Tensor:
        g, a = self._tokens(examples)
        product = torch.bmm(g.transpose(1, 2), a)
        outputs, inputs, *kernel = self.shape
        return product.view(-1, outputs, *kernel, inputs).movedim(-1, 2)

    def add(self, to: Tensor, factor: Tensor | None, wide: bool = False) -> None:
        g, x = self.g, self.x
        if factor is not None:
            g, x = _scale_rows(g, factor), _finite(x, factor)
        if wide:
            g, x = g.double(), x.double()
        n = len(to)
        g, x = (side.reshape(n, -1, *side.shape[2:]) for side in (g, x))
        for model in range(n):
            to[model] += self.backward(g[model], x[model])

    def keep_gradients(self) -> Contribution:
        """The gradients of examples themselves, if they are small."""
        if len(self.g) * math.prod(self.shape) > _SETTLED:
            return self
        return Given(torch.cat([self.gradients(part) for part in self._chunks()]))

    def _tokens(self, examples: slice) -> tuple[Tensor, Tensor]:
        """g and the patches of some examples as tokens, [examples * groups, tokens, ...]."""
        g, x = self.g[examples], self.x[examples]
        count, images, groups = len(g), g.shape[1], self.geometry.groups
        a = self.geometry.patches(x.flatten(0, 1))
        places, kernel = math.prod(g.shape[3:]), math.prod(self.geometry.kernel)
        a = a.reshape(count, images * places, kernel, groups, -1)
        a = a.permute(0, 3, 1, 2, 4).reshape(count * groups, images * places, -1)
        g = g.reshape(count, images, groups, -1, places).permute(0, 2, 1, 4, 3)
        return g.reshape(count * groups, images * places, -1), a

    def _chunks(self) -> Iterator[slice]:
        inputs = math.prod(self.shape[1:]) * self.geometry.groups
        return _chunks(len(self.g), self.terms * (inputs + self.shape[0]), self.g)
