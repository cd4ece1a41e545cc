"""Examples in tiles of one shape: what an example adds has the same bits wherever it stands, and
whoever stands beside it.

A library of matrix products may take another order of additions for another number of examples, and
for another place among them. So products are taken for tiles of a fixed number of examples, padded
with the null record, and that number is one for which this machine gives the same bits at all
places (`fixed_tile`). Tiles are summed in float64, and what these sums are rounded by is taken from
the clip (`sum_slack`); docs/noise.md, "The clip, in floating point", has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from decor.arrays import Array
from decor.errors import InputError

from .clip import length_of, lengths, scale

WIDEST = 96
"""Examples of a tile at most; 96 and 48 are multiples of how many MKL's kernels take at once in
float32 (16) and float64 (12).
"""
_WIDTHS = (48, 32, 24, 16, 12, 8, 4, 2)
_MOST = 512
"""Expected examples of a batch up to which float32 tiles are multiplied in float32."""
_LARGEST = 100_000
_ROUNDED = 2.0**-53
"""By how much a sum in float64 is rounded, relatively."""
_LINE = 64
"""Bytes of a cache line: products may depend on where in a line their numbers begin."""


def expected_sizes(weights: Tensor) -> Tensor:
    """The batch sizes that the plan knows, [B], from the weights of examples [B, b]; never the
    realised ones.
    """
    largest = weights.amax(1)
    sizes = torch.where(largest > 0, 1 / largest, 1.0)
    if not weights.is_cuda and float(sizes.max()) > _LARGEST * (1 + 1e-9):
        raise InputError(
            f"batches of {float(sizes.max()):,.0f} examples are too large to be "
            "summed exactly enough; take smaller"
        )
    return sizes


def light_sizes(sizes: Tensor) -> Tensor:
    """Realised examples up to which a user's tiles are multiplied in float32; what has more is
    multiplied in float64.
    """
    return torch.where(sizes <= _MOST, (sizes + 4 * sizes.sqrt() + 16).floor(), 0.0)


def sum_slack(sizes: Tensor, dtype: torch.dtype, to: torch.dtype) -> Tensor:
    """What sums over a batch are rounded by, of one example's clip, for both of two neighbouring
    batches: [B].

    A function of the planned batch size alone. `to` is the type that the sum is rounded to at the
    end.
    """
    most = 4 * sizes + 256  # which no Poisson batch exceeds: less than exp(-590)
    found = 2 * most * (WIDEST + 2 + most / WIDEST) * _ROUNDED
    if dtype is torch.float32:
        found += 2 * light_sizes(sizes) * (WIDEST + 2) * 2.0**-24
    if to is torch.float32:
        found += torch.where(sizes <= _MOST, 0.0, 2 * (2 * sizes + 32) * 2.0**-24)
    return found


def fixed_tile(
    expected: float, same: Callable[[int, bool], bool], widest: int = WIDEST
) -> tuple[int, bool]:
    """How many examples a tile has, and whether they are its columns (else its rows): the first
    that passes `same`.

    `same(width, columns)` finds equal bits at all places of a tile. Tiles of one example have one
    place.
    """
    widths = (
        (WIDEST, *_WIDTHS)
        if expected + 2 * math.sqrt(expected) > _WIDTHS[0]
        else (*_WIDTHS, WIDEST)
    )
    for width in widths:
        for columns in (False, True):
            if width <= widest and same(width, columns):
                return width, columns
    return 1, True


def alike(found: Tensor, places: int = -1) -> bool:
    """Whether all places of a dimension have the same bits."""
    return bool((found == found.narrow(places, 0, 1)).all())


def stand_in(block: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers of the same shape, strides and place in a cache line as `block`."""
    held = 1 + sum((n - 1) * stride for n, stride in zip(block.shape, block.stride(), strict=True))
    size = block.element_size()
    room = torch.empty(held + _LINE // size, dtype=block.dtype, device=block.device)
    start = (block.data_ptr() - room.data_ptr()) % _LINE // size
    room.copy_(
        torch.randn(len(room), generator=generator, dtype=block.dtype) / math.sqrt(block.shape[-2])
    )
    return room[start:].as_strided(block.shape, block.stride())


def place(block: Tensor) -> tuple[Any, ...]:
    """All of a block that a product's order of additions may depend on."""
    return tuple(block.shape), block.stride(), block.data_ptr() % _LINE


def gather_columns(table: Tensor, rows: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """Rows [B, width] of a table, each as a column: [B, columns, width].

    Side by side, examples are worked on alike.
    """
    taken = table.index_select(0, rows.reshape(-1)).view(*rows.shape, -1)[..., :columns]
    found = torch.empty((len(rows), columns, rows.shape[1]), dtype=dtype, device=table.device)
    return found.copy_(taken.transpose(1, 2))


def column_lengths(found: Tensor) -> Tensor:
    """Of the columns of [B, d, width], as `clip.lengths`: [B, width] in float64."""
    if found.is_cuda:
        return lengths(found.transpose(1, 2))
    out = torch.empty((len(found), found.shape[2]), dtype=torch.float64)
    _column_lengths(found.contiguous().numpy(), out.numpy())
    return out


def scale_columns(found: Tensor, factor: Tensor) -> Tensor:
    """Columns of [B, d, width] times a factor each [B, width], as `clip.scale`."""
    if found.is_cuda:
        return scale(found.transpose(1, 2), factor).transpose(1, 2)
    found = found.contiguous()
    _scale_columns(found.numpy(), factor.numpy(), torch.finfo(found.dtype).smallest_normal)
    return found


def add_into(to: Tensor, block: Tensor) -> None:
    """to += block, rounded in the type of `to`; both contiguous."""
    if to.is_cuda or to.dtype is block.dtype:
        to.add_(block)
        return
    _add_into(to.view(-1).numpy(), block.view(-1).numpy())  # without torch's copy in another type


@njit(cache=True, nogil=True, error_model="numpy")
def _column_lengths(found: Array, out: Array) -> None:
    for b in range(len(found)):
        squares = out[b]
        squares[:] = 0.0
        for j in range(found.shape[1]):
            for k in range(found.shape[2]):
                squares[k] += np.float64(found[b, j, k]) * np.float64(found[b, j, k])
        for k in range(found.shape[2]):
            if 1e-280 < squares[k] < 1e280:
                squares[k] = np.sqrt(squares[k])
            else:  # too small, too large, or not a number
                squares[k] = length_of(found[b, :, k])


@njit(cache=True, nogil=True, error_model="numpy")
def _scale_columns(found: Array, factor: Array, tiny: float) -> None:
    for b in range(len(found)):
        for j in range(found.shape[1]):
            row = found[b, j]
            for k in range(len(row)):
                value = factor[b, k] * np.float64(row[k])
                row[k] = row.dtype.type(value) if factor[b, k] != 0 and abs(value) >= tiny else 0


@njit(cache=True, nogil=True)
def _add_into(to: Array, block: Array) -> None:
    for k in range(len(to)):
        to[k] += np.float64(block[k])
