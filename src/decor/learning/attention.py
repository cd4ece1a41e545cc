"""Attention over heads, from queries, keys and values: what follows the input projections."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    *,
    mask: Tensor | None = None,
    hidden: Tensor | None = None,
    dropout: float = 0.0,
    weights: bool = False,
    average_weights: bool = True,
    causal: bool = False,
    product: Callable[..., Tensor] = functional.scaled_dot_product_attention,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention` computes between its two projections.

    Args:
        q: Queries [tokens, batch, heads * size].
        k: Keys, likewise.
        v: Values, likewise.
        heads: Their number.
        mask: Added to scores, or true where to hide: [tokens, tokens], or one for each head of each
            element of the batch.
        hidden: Tokens to hide, [batch, tokens].
        dropout: The share of weights that is dropped.
        weights: Whether the weights are returned.
        average_weights: Whether they are the mean over heads.
        causal: Whether a token sees those before it only; beside a mask only a hint.
        product: Scaled dot product attention.

    Returns:
        The output [tokens, batch, heads * size], and the weights or None.
    """
    q, k, v = (x.view(*x.shape[:2], heads, -1).permute(1, 2, 0, 3) for x in (q, k, v))
    added = _additive(mask, q)
    if added is not None and added.dim() == 3:
        added = added.view(-1, heads, *added.shape[1:])
    if hidden is not None:
        padding = _additive(hidden, q)[:, None, None, :]  # type: ignore[index]
        added = padding if added is None else added + padding
    shares = None
    # fused attention does not give its weights away
    if weights:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        shares = (scores if added is None else scores + added).softmax(-1)
        shares = functional.dropout(shares, dropout) if dropout else shares
        out = shares @ v
        shares = shares.mean(1) if average_weights else shares
    else:
        # a mask hides later tokens itself
        out = product(q, k, v, added, dropout, causal and added is None)
    return out.permute(2, 0, 1, 3).flatten(2), shares


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask that is added to scores, from one that is or from one that is true where to hide."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)
