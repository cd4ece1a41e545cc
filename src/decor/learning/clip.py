"""Clipping whole gradients: whatever a user's data is, what enters its message is at most `clip` long."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
CPU = torch.device("cpu")
Blocks = list[Tensor]
"""All models: one tensor [users, seeds, settings, ...] for every part of a model."""


def add_clipped(to: Blocks, gradients: Blocks, clip: Tensor, alpha: Tensor) -> None:
    """to += alpha * gradient min(1, clip / |gradient|), for every user, seed and setting; clip and alpha: [seeds, settings]."""
    if len(to) == 1 and not to[0].is_cuda and to[0].is_contiguous() and gradients[0].is_contiguous():
        count = to[0].shape[0] * to[0].shape[1] * to[0].shape[2]
        flat, found = to[0].view(count, -1).numpy(), gradients[0].view(count, -1).numpy()
        _add_clipped(flat, found, clip.reshape(-1).numpy(), alpha.reshape(-1).numpy())
        return
    if to[0].is_cuda:
        norms = [torch.linalg.vector_norm(g.flatten(3), dim=-1, dtype=torch.float64) for g in gradients]
        norm = norms[0] if len(norms) == 1 else torch.stack(norms).square_().sum(0).sqrt_()
        factor = (clip / norm).clamp_(max=1.0).mul_(alpha).to(to[0].dtype)
        for block, g in zip(to, gradients, strict=True):
            block.addcmul_(g, over(factor, g))
        return
    squares = np.zeros(gradients[0].shape[:3])
    for g in gradients:
        _add_squares(g.contiguous().view(squares.size, -1).numpy(), squares.reshape(-1))
    # a gradient of zero gives infinity, which the clamp makes one; one that is not a number stays so, and is seen as divergence
    factor = (clip / torch.from_numpy(squares).sqrt_()).clamp_(max=1.0).mul_(alpha).to(to[0].dtype)
    for block, g in zip(to, gradients, strict=True):
        block.addcmul_(g, over(factor, g))


def over(value: Tensor, block: Tensor) -> Tensor:
    """[seeds, settings] or [users, seeds, settings], to multiply a block [users, seeds, settings, ...]."""
    return value.view(*value.shape, *[1] * (block.dim() - 3))


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"})
def _add_clipped(to: Array, gradients: Array, clip: Array, alpha: Array) -> None:
    count, d = to.shape
    for k in range(count):
        g, x = gradients[k], to[k]
        square = _square(g)
        limit = np.float64(clip[k % len(clip)])
        shrunk = 1.0 if square <= limit * limit else limit / np.sqrt(square)
        factor = to.dtype.type(alpha[k % len(alpha)] * shrunk)
        for j in range(d):
            x[j] += factor * g[j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"})
def _add_squares(gradients: Array, squares: Array) -> None:
    for k in range(len(gradients)):
        squares[k] += _square(gradients[k])


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"})
def _square(g: Array) -> float:
    """In double precision: a sum of a million squares in single is off by more than a clip may be."""
    total = 0.0
    for j in range(g.size):
        total += np.float64(g[j]) * np.float64(g[j])
    return total
