"""Clipping: whatever a user's data is, what it adds is at most `clip` long, in exact arithmetic.

docs/noise.md, "The clip, in floating point", has the proof and the constants. Lengths are computed
in float64 without under- or overflow; limits are shorter than the clip by a bound on every rounding
that follows; what is not finite adds nothing.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numba import njit
from torch import Tensor

from decor.arrays import Array

CPU = torch.device("cpu")
Blocks = list[Tensor]
"""All models: one tensor [users, seeds, settings, ...] for every part of a model."""

_ROUNDINGS = 8
"""Roundings to the model's type between a unit and its gradient's length: of the clip, of factors,
of products. Five at most.
"""
SMALLEST = 2.0**-1022
"""The smallest normal number of float64."""
_LONGEST_BATCH = 1e6
"""Weights of examples are at least one over this."""


@cache
def slack(dtype: torch.dtype, parameters: int) -> float:
    """By how much a limit is shorter than the clip, relatively; lengths in float64 have up to
    `parameters` roundings.
    """
    return _ROUNDINGS / 2 * torch.finfo(dtype).eps + (parameters + 32) * 2.0**-52


@cache
def least(dtype: torch.dtype, parameters: int) -> float:
    """And absolutely: no product of numbers is rounded by more than the smallest number
    there is.
    """
    return math.sqrt(parameters) * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def limits(clip: Tensor, dtype: torch.dtype, parameters: int, sums: float | Tensor = 0.0) -> Tensor:
    """In float64: how long an example's gradient may be, so that what it adds is at most `clip`
    times its weight long.

    `sums` is what the rounding of sums over examples takes of the clip, where that counts.
    """
    largest = clip.double().clamp(max=torch.finfo(dtype).max)
    return (
        largest * (1 - slack(dtype, parameters) - sums) - _LONGEST_BATCH * least(dtype, parameters)
    ).clamp_(min=0.0)


def factors(lengths: Tensor, limit: Tensor) -> Tensor:
    """min(1, limit / length), and zero for a gradient that is not finite.

    Zero also where that is below float64's normal numbers, times a weight: there a relative bound
    on roundings does not hold.
    """
    shrunk = torch.where(lengths <= limit, 1.0, limit / lengths)
    return torch.where(torch.isfinite(lengths) & (shrunk >= _LONGEST_BATCH * SMALLEST), shrunk, 0.0)


def lengths(rows: Tensor) -> Tensor:
    """Of [..., d], in float64: no square vanishes or overflows.

    Not finite where an entry, or the length itself, is not.
    """
    if rows.is_cuda:
        return lengths_by_torch(rows)
    flat = rows.reshape(-1, rows.shape[-1])
    found = np.empty(len(flat))
    _lengths(flat.numpy(), found)
    return torch.from_numpy(found).view(rows.shape[:-1])


def lengths_by_torch(rows: Tensor) -> Tensor:
    """The same on a card: scaled by the largest entry, for float32 without need, since its squares
    are far inside of float64.
    """
    if rows.dtype is torch.float32:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
        return norms
    largest = rows.abs().amax(-1, keepdim=True)
    unit = torch.where(torch.isfinite(largest) & (largest > 0), largest, 1.0)
    scaled: Tensor = torch.linalg.vector_norm(rows / unit, dim=-1)
    whole = scaled * unit.squeeze(-1)
    return torch.where((whole > 0) & (whole < SMALLEST), whole + 5e-324, whole)


def scale(rows: Tensor, factor: Tensor) -> Tensor:
    """rows *= factor (in float64) over the last dimension; exactly zero where the factor is, even
    where rows are not finite.

    Numbers below the smallest normal one become zero: they would be rounded by more than a relative
    bound allows.
    """
    tiny = torch.finfo(rows.dtype).smallest_normal
    if rows.is_cuda or not rows.is_contiguous():
        rows = torch.where((factor == 0).unsqueeze(-1), 0.0, rows * factor.unsqueeze(-1)).to(
            rows.dtype
        )
        return torch.where(rows.abs() < tiny, 0.0, rows)
    _scale(rows.view(-1, rows.shape[-1]).numpy(), factor.reshape(-1).numpy(), tiny)
    return rows


def add_clipped(to: Blocks, gradients: Blocks, clip: Tensor, alpha: Tensor) -> None:
    """to += alpha * gradient min(1, clip / |gradient|), for every user, seed and setting; clip and
    alpha: [seeds, settings].

    Guarantee: what is added to zeros with alpha one is at most `clip` long in exact arithmetic, for
    any gradient; one that is not finite, or whose length is not, adds nothing.
    """
    dtype = to[0].dtype
    if to[0].is_cuda or not all(block.is_contiguous() for block in (*to, *gradients)):
        parameters = sum(math.prod(g.shape[3:]) for g in gradients)
        found = lengths(gradients[0].flatten(3))
        for g in gradients[1:]:
            found = torch.hypot(found, lengths(g.flatten(3)))
        largest = clip.double().clamp(max=torch.finfo(dtype).max)
        limit = (largest * (1 - slack(dtype, parameters)) - least(dtype, parameters)).clamp_(
            min=0.0
        )
        factor = factors(found, limit).mul_(alpha).to(dtype)
        factor = torch.where(factor.abs() < torch.finfo(dtype).smallest_normal, 0.0, factor)
        for block, g in zip(to, gradients, strict=True):
            block.addcmul_(g.masked_fill(over(factor == 0, g), 0.0), over(factor, g))
        return
    count = math.prod(to[0].shape[:3])
    pairs = [
        (x.view(count, -1).numpy(), g.view(count, -1).numpy())
        for x, g in zip(to, gradients, strict=True)
    ]
    parameters = sum(rows.shape[1] for _, rows in pairs)
    clips, rates = clip.reshape(-1).numpy(), alpha.reshape(-1).numpy()
    bound = (slack(dtype, parameters), least(dtype, parameters), torch.finfo(dtype).max)
    if len(pairs) == 1:
        _add_clipped(*pairs[0], rates, clips, *bound)
        return
    joint = np.zeros(count)
    for _, rows in pairs:
        _join_lengths(rows, joint)
    for x, rows in pairs:
        _add_shrunk(x, rows, joint, rates, clips, *bound)


def over(value: Tensor, block: Tensor) -> Tensor:
    """[seeds, settings] or [users, seeds, settings], to multiply a block [users, seeds, settings,
    ...].
    """
    return value.view(*value.shape, *[1] * (block.dim() - 3))


# contracted and reordered, but never as if there were no infinity and no nan
_FAST = {"contract", "nsz", "reassoc"}


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _add_clipped(
    to: Array,
    gradients: Array,
    alpha: Array,
    clip: Array,
    slack: float,
    least: float,
    largest: float,
) -> None:
    for k in range(len(to)):
        length = length_of(gradients[k])
        _add_one(
            to[k],
            gradients[k],
            length,
            alpha[k % len(alpha)],
            clip[k % len(clip)],
            slack,
            least,
            largest,
        )


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _add_shrunk(
    to: Array,
    gradients: Array,
    lengths: Array,
    alpha: Array,
    clip: Array,
    slack: float,
    least: float,
    largest: float,
) -> None:
    for k in range(len(to)):
        _add_one(
            to[k],
            gradients[k],
            lengths[k],
            alpha[k % len(alpha)],
            clip[k % len(clip)],
            slack,
            least,
            largest,
        )


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _add_one(
    x: Array,
    g: Array,
    length: float,
    alpha: float,
    clip: float,
    slack: float,
    least: float,
    largest: float,
) -> None:
    factor = np.float64(alpha) * shrunk(length, clip, slack, least, largest)
    if factor != 0:  # zero times what is not finite would not be zero
        by = x.dtype.type(factor)
        for j in range(len(x)):
            x[j] += by * g[j]


@njit(cache=True, nogil=True, error_model="numpy")
def shrunk(length: float, clip: float, slack: float, least: float, largest: float) -> float:
    """min(1, limit / length) for a limit that all roundings fit into; zero for a length that is not
    finite.

    Zero also below the smallest normal number, which is about 1 / largest: there a relative bound
    on roundings does not hold.
    """
    if not length < np.inf:
        return 0.0
    limit = max(0.0, min(np.float64(clip), largest) * (1 - slack) - least)
    if length <= limit:
        return 1.0
    found = limit / length
    return found if found * largest >= 4.0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def length_of(g: Array) -> float:
    """In float64; only if squares might vanish or overflow there is a second, slower pass over
    scaled entries.
    """
    square = _square(g)
    if 1e-280 < square < 1e280:
        return float(np.sqrt(square))
    largest = 0.0
    for j in range(g.size):
        size = abs(np.float64(g[j]))
        if not size <= largest:  # which nan is not either
            largest = size
            if np.isnan(size):
                return size
    if largest == 0.0 or largest == np.inf:
        return largest
    total = 0.0
    for j in range(g.size):
        part = np.float64(g[j]) / largest
        total += part * part
    found = float(largest * np.sqrt(total))
    # rounded up, where a relative bound on rounding does not hold
    return found if found >= SMALLEST else found + 5e-324


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _square(g: Array) -> float:
    """In double precision: a sum of a million squares in single is off by more than a clip
    may be.
    """
    total = 0.0
    for j in range(g.size):
        total += np.float64(g[j]) * np.float64(g[j])
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _lengths(rows: Array, found: Array) -> None:
    for k in range(len(rows)):
        found[k] = length_of(rows[k])


@njit(cache=True, nogil=True, error_model="numpy")
def _join_lengths(rows: Array, found: Array) -> None:
    for k in range(len(rows)):
        found[k] = np.hypot(found[k], length_of(rows[k]))


@njit(cache=True, nogil=True, error_model="numpy")
def _scale(rows: Array, factor: Array, tiny: float) -> None:
    for k in range(len(rows)):
        row, by = rows[k], factor[k]
        for j in range(len(row)):
            value = by * np.float64(row[j])
            row[j] = row.dtype.type(value) if by != 0 and abs(value) >= tiny else 0
