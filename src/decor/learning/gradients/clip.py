"""Clipping: what a user's data adds is at most `clip` long in exact arithmetic, for any data.

docs/noise.md, "The clip, in floating point", has the proof and the constants. Lengths are computed
in float64 without under- or overflow. Limits are shorter than the clip by a bound on every rounding
that follows. What is not finite adds nothing.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numba import njit
from torch import Tensor

from decor.array_types import Array

CPU = torch.device("cpu")
Blocks = list[Tensor]
"""All models: one tensor [users, seeds, settings, ...] for each part of a model."""

_ROUNDINGS = 8
"""Bound on roundings to the model's type between a unit and its gradient's length: of the clip, of
factors, of products. There are five at most.
"""
SMALLEST = 2.0**-1022
"""The smallest normal number of float64."""
_LONGEST_BATCH = 1e6
"""Weights of examples are at least one over this."""


@cache
def slack(dtype: torch.dtype, parameters: int) -> float:
    """How much shorter a limit is than the clip, as a share of the clip."""
    # the second term is for lengths in float64, which have up to `parameters` roundings
    return _ROUNDINGS / 2 * torch.finfo(dtype).eps + (parameters + 32) * 2.0**-52


@cache
def absolute_slack(dtype: torch.dtype, parameters: int) -> float:
    """How much shorter a limit is in addition, whatever the clip."""
    # below the normal numbers a product is rounded by up to the smallest subnormal number
    return math.sqrt(parameters) * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def limits(clip: Tensor, dtype: torch.dtype, parameters: int, sums: float | Tensor = 0.0) -> Tensor:
    """How long an example's gradient may be, so that it adds at most `clip` times its weight.

    Args:
        clip: As planned.
        dtype: The type of models and gradients.
        parameters: Of one model.
        sums: The share of the clip that the rounding of sums over examples takes; 0 where sums
            need not be exact.

    Returns:
        The limits in float64.
    """
    largest = clip.double().clamp(max=torch.finfo(dtype).max)
    relative = largest * (1 - slack(dtype, parameters) - sums)
    return (relative - _LONGEST_BATCH * absolute_slack(dtype, parameters)).clamp_(min=0.0)


def factors(lengths: Tensor, limit: Tensor) -> Tensor:
    """min(1, limit / length), and zero for a gradient that is not finite."""
    shrunk = torch.where(lengths <= limit, 1.0, limit / lengths)
    # zero also where a factor times a weight leaves float64's normal numbers: the relative bound
    # on roundings does not hold there
    return torch.where(torch.isfinite(lengths) & (shrunk >= _LONGEST_BATCH * SMALLEST), shrunk, 0.0)


def lengths(rows: Tensor) -> Tensor:
    """Lengths of [..., d] in float64, without vanishing or overflowing squares.

    Not finite where an entry, or the length itself, is not.
    """
    if rows.is_cuda:
        return lengths_by_torch(rows)
    flat = rows.reshape(-1, rows.shape[-1])
    result = np.empty(len(flat))
    _lengths(flat.numpy(), result)
    return torch.from_numpy(result).view(rows.shape[:-1])


def lengths_by_torch(rows: Tensor) -> Tensor:
    """The same on a GPU."""
    if rows.dtype is torch.float32:  # squares of float32 are far inside float64's range
        norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
        return norms
    largest = rows.abs().amax(-1, keepdim=True)
    unit = torch.where(torch.isfinite(largest) & (largest > 0), largest, 1.0)
    scaled: Tensor = torch.linalg.vector_norm(rows / unit, dim=-1)
    whole = scaled * unit.squeeze(-1)
    # rounded up below the normal numbers, where the relative bound on rounding does not hold
    return torch.where((whole > 0) & (whole < SMALLEST), whole + 5e-324, whole)


def scale(rows: Tensor, factor: Tensor) -> Tensor:
    """rows *= factor (in float64) over the last dimension.

    Exactly zero where the factor is zero, even where rows are not finite.
    """
    # numbers below the smallest normal one become zero: the relative bound on roundings does not
    # hold there
    tiny = torch.finfo(rows.dtype).smallest_normal
    if rows.is_cuda or not rows.is_contiguous():
        scaled = torch.where((factor == 0).unsqueeze(-1), 0.0, rows * factor.unsqueeze(-1))
        scaled = scaled.to(rows.dtype)
        return torch.where(scaled.abs() < tiny, 0.0, scaled)
    _scale(rows.view(-1, rows.shape[-1]).numpy(), factor.reshape(-1).numpy(), tiny)
    return rows


def add_clipped(to: Blocks, gradients: Blocks, clip: Tensor, alpha: Tensor) -> None:
    """to += alpha * gradient min(1, clip / |gradient|), for each user, seed and setting.

    Args:
        to: Blocks [users, seeds, settings, ...].
        gradients: Blocks of the same shapes.
        clip: [seeds, settings].
        alpha: [seeds, settings].

    Guarantee: what is added to zeros with alpha one is at most `clip` long in exact arithmetic, for
    any gradient. A gradient that is not finite, or whose length is not, adds nothing.
    """
    dtype = to[0].dtype
    if to[0].is_cuda or not all(block.is_contiguous() for block in (*to, *gradients)):
        _add_clipped_by_torch(to, gradients, clip, alpha)
        return
    count = math.prod(to[0].shape[:3])
    pairs = [
        (x.view(count, -1).numpy(), g.view(count, -1).numpy())
        for x, g in zip(to, gradients, strict=True)
    ]
    parameters = sum(rows.shape[1] for _, rows in pairs)
    clips, rates = clip.reshape(-1).numpy(), alpha.reshape(-1).numpy()
    bound = (slack(dtype, parameters), absolute_slack(dtype, parameters), torch.finfo(dtype).max)
    if len(pairs) == 1:  # one pass, which keeps a gradient in the cache
        _add_clipped(*pairs[0], rates, clips, *bound)
        return
    joint = np.zeros(count)
    for _, rows in pairs:
        _join_lengths(rows, joint)
    for x, rows in pairs:
        _add_shrunk(x, rows, joint, rates, clips, *bound)


def _add_clipped_by_torch(to: Blocks, gradients: Blocks, clip: Tensor, alpha: Tensor) -> None:
    dtype = to[0].dtype
    parameters = sum(math.prod(g.shape[3:]) for g in gradients)
    norms = lengths(gradients[0].flatten(3))
    for g in gradients[1:]:
        norms = torch.hypot(norms, lengths(g.flatten(3)))
    largest = clip.double().clamp(max=torch.finfo(dtype).max)
    limit = largest * (1 - slack(dtype, parameters)) - absolute_slack(dtype, parameters)
    factor = factors(norms, limit.clamp_(min=0.0)).mul_(alpha).to(dtype)
    factor = torch.where(factor.abs() < torch.finfo(dtype).smallest_normal, 0.0, factor)
    for block, g in zip(to, gradients, strict=True):
        # zero times what is not finite would not be zero
        g = g.masked_fill(broadcastable(factor == 0, g), 0.0)
        block.addcmul_(g, broadcastable(factor, g))


def broadcastable(value: Tensor, block: Tensor) -> Tensor:
    """`value` in a shape that multiplies a block.

    Args:
        value: [seeds, settings] or [users, seeds, settings].
        block: [users, seeds, settings, ...].
    """
    return value.view(*value.shape, *[1] * (block.dim() - 3))


# may contract and reorder, but must not assume that there is no infinity or NaN
_FAST = {"contract", "nsz", "reassoc"}


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _add_clipped(
    to: Array,
    gradients: Array,
    alpha: Array,
    clip: Array,
    slack: float,
    absolute: float,
    largest: float,
) -> None:
    for k in range(len(to)):
        rate, cap = alpha[k % len(alpha)], clip[k % len(clip)]
        length = length_of(gradients[k])
        _add_one(to[k], gradients[k], length, rate, cap, slack, absolute, largest)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _add_shrunk(
    to: Array,
    gradients: Array,
    lengths: Array,
    alpha: Array,
    clip: Array,
    slack: float,
    absolute: float,
    largest: float,
) -> None:
    for k in range(len(to)):
        rate, cap = alpha[k % len(alpha)], clip[k % len(clip)]
        _add_one(to[k], gradients[k], lengths[k], rate, cap, slack, absolute, largest)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _add_one(
    x: Array,
    g: Array,
    length: float,
    alpha: float,
    clip: float,
    slack: float,
    absolute: float,
    largest: float,
) -> None:
    factor = np.float64(alpha) * clip_factor(length, clip, slack, absolute, largest)
    if factor != 0:  # zero times what is not finite would not be zero
        by = x.dtype.type(factor)
        for j in range(len(x)):
            x[j] += by * g[j]


@njit(cache=True, nogil=True, error_model="numpy")
def clip_factor(length: float, clip: float, slack: float, absolute: float, largest: float) -> float:
    """min(1, limit / length) for a limit that allows for all roundings; zero if not finite."""
    if not length < np.inf:
        return 0.0
    limit = max(0.0, min(np.float64(clip), largest) * (1 - slack) - absolute)
    if length <= limit:
        return 1.0
    factor = limit / length
    # zero below the smallest normal number, about 1 / largest: the relative bound on roundings
    # does not hold there
    return factor if factor * largest >= 4.0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def length_of(g: Array) -> float:
    """The length in float64."""
    square = _square(g)
    if 1e-280 < square < 1e280:
        return float(np.sqrt(square))
    # squares might vanish or overflow: a second, slower pass over scaled entries
    largest = 0.0
    for j in range(g.size):
        size = abs(np.float64(g[j]))
        if not size <= largest:  # also true for NaN
            largest = size
            if np.isnan(size):
                return size
    if largest == 0.0 or largest == np.inf:
        return largest
    total = 0.0
    for j in range(g.size):
        part = np.float64(g[j]) / largest
        total += part * part
    length = float(largest * np.sqrt(total))
    # rounded up below the normal numbers, where the relative bound on rounding does not hold
    return length if length >= SMALLEST else length + 5e-324


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _square(g: Array) -> float:
    # in float64: a sum of a million squares in float32 is off by more than a clip may be
    total = 0.0
    for j in range(g.size):
        total += np.float64(g[j]) * np.float64(g[j])
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _lengths(rows: Array, result: Array) -> None:
    for k in range(len(rows)):
        result[k] = length_of(rows[k])


@njit(cache=True, nogil=True, error_model="numpy")
def _join_lengths(rows: Array, joint: Array) -> None:
    for k in range(len(rows)):
        joint[k] = np.hypot(joint[k], length_of(rows[k]))


@njit(cache=True, nogil=True, error_model="numpy")
def _scale(rows: Array, factor: Array, tiny: float) -> None:
    for k in range(len(rows)):
        row, by = rows[k], factor[k]
        for j in range(len(row)):
            value = by * np.float64(row[j])
            row[j] = row.dtype.type(value) if by != 0 and abs(value) >= tiny else 0
