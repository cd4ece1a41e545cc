"""Attention after the projections: what torch's own function computes."""

import math

import pytest
import torch
from torch import nn

from decor.learning.attention import attend

TOKENS, BATCH, HEADS, WIDTH = 5, 3, 2, 8


def identity_attention():
    """torch's layer whose projections change nothing, so that only what is between them counts."""
    layer = nn.MultiheadAttention(WIDTH, HEADS, bias=False).double()
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(WIDTH).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(WIDTH))
    return layer


hides = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
MASKS = {
    "none": {},
    "true where to hide": {"attn_mask": hides},
    "added": {"attn_mask": torch.zeros(TOKENS, TOKENS, dtype=torch.float64).masked_fill(hides, -math.inf)},
    "one for each head": {"attn_mask": torch.linspace(-2, 2, BATCH * HEADS * TOKENS**2, dtype=torch.float64).view(-1, TOKENS, TOKENS)},
    "padding": {"key_padding_mask": torch.arange(BATCH * TOKENS).view(BATCH, TOKENS) % 4 == 3},
}  # fmt: skip


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("name", MASKS)
def test_output_and_weights_are_those_of_torch(name, weights):
    torch.manual_seed(0)
    q, k, v = (torch.randn(TOKENS, BATCH, WIDTH, dtype=torch.float64) for _ in range(3))
    wanted = identity_attention()(q, k, v, need_weights=weights, **MASKS[name])
    masks = MASKS[name]
    out, shares = attend(
        q,
        k,
        v,
        HEADS,
        mask=masks.get("attn_mask"),
        hidden=masks.get("key_padding_mask"),
        weights=weights,
    )
    assert torch.allclose(out, wanted[0], atol=1e-12)
    assert (shares is None) == (wanted[1] is None) == (not weights)
    if weights:
        assert torch.allclose(shares, wanted[1], atol=1e-12)


def test_a_causal_token_sees_those_before_it():
    torch.manual_seed(0)
    q, k, v = (torch.randn(TOKENS, BATCH, WIDTH, dtype=torch.float64) for _ in range(3))
    causal, _ = attend(q, k, v, HEADS, causal=True)
    masked, _ = attend(q, k, v, HEADS, mask=hides)
    assert torch.allclose(causal, masked, atol=1e-12)
