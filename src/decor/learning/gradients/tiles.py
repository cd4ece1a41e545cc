"""Examples in tiles of one shape: an example adds the same bits in every place and company.

A library of matrix products may add in another order for another number of examples, or for another
place among them. So products are taken over tiles of a fixed number of examples, padded with the
null example. That number is one for which this machine gives the same bits in all places
(`choose_tile`). Tiles are summed in float64, and the rounding of these sums is taken from the clip
(`sum_slack`). docs/noise.md, "The clip, in floating point", has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from decor.array_types import Array
from decor.errors import InputError

from .clip import length_of, lengths, scale

WIDEST = 96
"""Most examples in a tile. 96 and 48 are multiples of what MKL's kernels take at once: 16 in
float32 and 12 in float64.
"""
_WIDTHS = (48, 32, 24, 16, 12, 8, 4, 2)
_TILE_OVERHEAD = 32
"""What a tile costs a whole module beside its examples, in examples: measured, 26 to 130."""
_MOST = 512
"""Expected batch size up to which float32 tiles are multiplied in float32."""
_LARGEST = 100_000
"""Largest expected batch size: beyond, the rounding of sums would take too much of the clip."""
_ROUNDED = 2.0**-53
"""Relative rounding of one addition in float64."""
_LINE = 64
"""Bytes of a cache line: products may depend on where in a line their values begin."""


def nominal_sizes(weights: Tensor, planned: float | None = None) -> Tensor:
    """The planned batch sizes [B]: `planned`, or from the weights of examples [B, b]."""
    if planned is not None:
        return torch.full((len(weights),), planned, dtype=torch.float64, device=weights.device)
    # never the realised sizes, which depend on a single example's presence
    largest = weights.amax(1)
    sizes = torch.where(largest > 0, 1 / largest, 1.0)
    if not weights.is_cuda and float(sizes.max()) > _LARGEST * (1 + 1e-9):
        raise InputError(
            f"batches of {float(sizes.max()):,.0f} examples are too large to be summed exactly "
            "enough; take smaller batches"
        )
    return sizes


def float32_limits(sizes: Tensor) -> Tensor:
    """Realised batch sizes up to which tiles are multiplied in float32; larger ones in float64."""
    # 16 and four standard deviations above the expected size
    return torch.where(sizes <= _MOST, (sizes + 4 * sizes.sqrt() + 16).floor(), 0.0)


def heavy_users(weights: Tensor, sizes: Tensor, dtype: torch.dtype) -> list[int]:
    """Rows [B] whose realised batches are too large for products in float32."""
    if dtype is not torch.float32:
        return []
    heavy: list[int] = ((weights > 0).sum(1) > float32_limits(sizes)).nonzero().flatten().tolist()
    return heavy


def sum_slack(sizes: Tensor, dtype: torch.dtype, to: torch.dtype) -> Tensor:
    """The share of one example's clip that the rounding of sums over a batch takes, [B].

    It covers both of two neighbouring batches, and is a function of the planned size alone.

    Args:
        sizes: The planned batch sizes, [B].
        dtype: The type of gradients.
        to: The type that the sum is rounded to at the end.
    """
    most = 4 * sizes + 256  # exceeded by a Poisson batch with probability below exp(-590)
    # additions within a tile and one per tile, of values up to the whole sum: width + 2 + most /
    # width, which is largest for tiles of one example
    total = 2 * most * (most + 3) * _ROUNDED
    if dtype is torch.float32:
        total += 2 * float32_limits(sizes) * (WIDEST + 2) * 2.0**-24
    if to is torch.float32:
        total += torch.where(sizes <= _MOST, 0.0, 2 * (2 * sizes + 32) * 2.0**-24)
    return total


def choose_tile(
    expected: float,
    same: Callable[[int, bool], bool],
    widest: int = WIDEST,
    widths: Sequence[int] | None = None,
) -> tuple[int, bool]:
    """The first shape of a tile that passes `same`.

    Args:
        expected: The planned batch size, for which a suitable width is tried first.
        same: `same(width, columns)` is whether all places of such a tile give equal bits.
        widest: The largest width to try.
        widths: The widths to try, in this order; None takes those of small matrix products.

    Returns:
        (width, columns): how many examples a tile has, and whether they are its columns or rows.
    """
    if widths is None:
        large = expected + 2 * math.sqrt(expected) > _WIDTHS[0]
        widths = (WIDEST, *_WIDTHS) if large else (*_WIDTHS, WIDEST)
    for width in widths:
        for columns in (False, True):
            if width <= widest and same(width, columns):
                return width, columns
    return 1, True  # one example has only one place


def cheapest_widths(size: float, fixed: bool) -> list[int]:
    """Widths of tiles for whole modules, where all of a tile is computed: the cheapest first.

    Args:
        size: The planned batch size. The realised one must not choose: other widths have other
            last bits.
        fixed: Whether every batch has this size; otherwise Poisson sampling draws it.
    """
    counts = np.array([size])
    if not fixed:
        counts = np.maximum(size + math.sqrt(size) * np.linspace(-2.5, 2.5, 21), 1)
    # of a normal distribution, which is near enough for a guess of time
    chances = np.exp(-((counts - size) ** 2) / (2 * size))

    def cost(width: int) -> float:
        tiles = np.ceil(counts / width - 1e-9)
        return float(np.average(tiles, weights=chances)) * (width + _TILE_OVERHEAD)

    return sorted((*range(8, WIDEST + 1, 8), 4, 2), key=cost)


def same_bits(values: Tensor, places: int = -1) -> bool:
    """Whether all places of a dimension have the same bits."""
    return bool((values == values.narrow(places, 0, 1)).all())


def random_like(block: Tensor, generator: torch.Generator) -> Tensor:
    """Random values with the shape, the strides and the place in a cache line of `block`."""
    span = 1 + sum((n - 1) * stride for n, stride in zip(block.shape, block.stride(), strict=True))
    size = block.element_size()
    memory = torch.empty(span + _LINE // size, dtype=block.dtype, device=block.device)
    # as far into a cache line as the block
    start = (block.data_ptr() - memory.data_ptr()) % _LINE // size
    values = torch.randn(len(memory), generator=generator, dtype=block.dtype)
    # scaled like real weights, so that activations do not saturate
    memory.copy_(values / math.sqrt(block.shape[-2]))
    return memory[start:].as_strided(block.shape, block.stride())


def memory_layout(block: Tensor) -> tuple[Any, ...]:
    """Everything about a block that a product's order of additions may depend on."""
    return tuple(block.shape), block.stride(), block.data_ptr() % _LINE


def select_columns(table: Tensor, rows: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """Rows [B, width] of a table, each as a column: [B, columns, width]."""
    selected = table.index_select(0, rows.reshape(-1)).view(*rows.shape, -1)[..., :columns]
    result = torch.empty((len(rows), columns, rows.shape[1]), dtype=dtype, device=table.device)
    return result.copy_(selected.transpose(1, 2))


def column_lengths(block: Tensor) -> Tensor:
    """As `clip.lengths`, of the columns of [B, d, width]: [B, width] in float64."""
    if block.is_cuda:
        return lengths(block.transpose(1, 2))
    result = torch.empty((len(block), block.shape[2]), dtype=torch.float64)
    _column_lengths(block.contiguous().numpy(), result.numpy())
    return result


def scale_columns(block: Tensor, factor: Tensor) -> Tensor:
    """As `clip.scale`, of the columns of [B, d, width] with one factor each [B, width]."""
    if block.is_cuda:
        return scale(block.transpose(1, 2), factor).transpose(1, 2)
    block = block.contiguous()
    _scale_columns(block.numpy(), factor.numpy(), torch.finfo(block.dtype).smallest_normal)
    return block


def add_into(to: Tensor, block: Tensor) -> None:
    """to += block, rounded in the type of `to`; both contiguous."""
    if to.is_cuda or to.dtype is block.dtype:
        to.add_(block)
        return
    # torch would first copy the block into the other type
    _add_into(to.view(-1).numpy(), block.view(-1).numpy())


@njit(cache=True, nogil=True, error_model="numpy")
def _column_lengths(block: Array, out: Array) -> None:
    for b in range(len(block)):
        squares = out[b]
        squares[:] = 0.0
        for j in range(block.shape[1]):
            for k in range(block.shape[2]):
                squares[k] += np.float64(block[b, j, k]) * np.float64(block[b, j, k])
        for k in range(block.shape[2]):
            if 1e-280 < squares[k] < 1e280:
                squares[k] = np.sqrt(squares[k])
            else:  # squares vanish, overflow, or are NaN
                squares[k] = length_of(block[b, :, k])


@njit(cache=True, nogil=True, error_model="numpy")
def _scale_columns(block: Array, factor: Array, tiny: float) -> None:
    for b in range(len(block)):
        for j in range(block.shape[1]):
            row = block[b, j]
            for k in range(len(row)):
                value = factor[b, k] * np.float64(row[k])
                row[k] = row.dtype.type(value) if factor[b, k] != 0 and abs(value) >= tiny else 0


@njit(cache=True, nogil=True)
def _add_into(to: Array, block: Array) -> None:
    for k in range(len(to)):
        to[k] += np.float64(block[k])
