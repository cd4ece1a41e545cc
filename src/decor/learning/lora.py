"""LoRA: small trained matrices beside the frozen linear layers of a module.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021: a layer x -> W x + b becomes
x -> W x + b + (alpha / rank) B A x, of which only A [rank, inputs] and B [outputs, rank] are
trained. B starts at zero, so that the module starts as what it was.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from decor import checks
from decor.errors import InputError

from .attention import attend

_SHOWN = 6
"""Most names of layers in a message."""


class Adapter(nn.Module):
    """The trained product B A, scaled.

    Args:
        like: The frozen weight beside which it is, [outputs, inputs].
        rank: Of the product.
        scale: What it is multiplied by.
        generator: Draws A.
    """

    def __init__(self, like: Tensor, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        outputs, inputs = like.shape
        self.scale = scale
        # as nn.Linear draws its weights
        bound = 1 / math.sqrt(inputs)
        down = torch.empty(rank, inputs, device="cpu", dtype=torch.float32)
        down.uniform_(-bound, bound, generator=generator)
        self.down = nn.Parameter(down.to(like))
        self.up = nn.Parameter(like.new_zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        # scaled where it is narrow
        return functional.linear(functional.linear(x, self.down) * self.scale, self.up)

    def extra_repr(self) -> str:
        inputs, outputs = self.down.shape[1], self.up.shape[0]
        return f"{inputs}, {outputs}, rank={len(self.down)}, scale={self.scale:g}"


class AdaptedLinear(nn.Module):
    """A frozen linear layer with an adapter.

    Args:
        base: The layer.
        adapter: Beside its weight.
    """

    def __init__(self, base: nn.Linear, adapter: Adapter) -> None:
        super().__init__()
        self.base, self.adapter = base, adapter

    def forward(self, x: Tensor) -> Tensor:
        x = _round_once(x)
        out: Tensor = self.base(x) + self.adapter(x)
        return out


class AdaptedAttention(nn.Module):
    """A frozen `nn.MultiheadAttention` with adapters on its input and output projections.

    Args:
        base: The layer.
        into: Beside `in_proj_weight`.
        out: Beside the weight of `out_proj`.
    """

    def __init__(self, base: nn.MultiheadAttention, into: Adapter, out: Adapter) -> None:
        super().__init__()
        self.base, self.into, self.out = base, into, out
        # what torch's own transformer layers ask their attention for; they must not call a fused
        # function, which would know nothing of adapters
        self.batch_first, self._qkv_same_embed_dim = base.batch_first, False

    @property
    def in_proj_bias(self) -> Tensor | None:
        return self.base.in_proj_bias

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `nn.MultiheadAttention`, for a batch."""
        if query.dim() != 3:
            raise InputError(
                f"attention with adapters takes a batch, [batch, tokens, width] or [tokens, batch, "
                f"width], not a tensor of shape {tuple(query.shape)}; add a dimension"
            )
        if query is key and key is value:
            q, k, v = self._project(query).chunk(3, -1)
        else:
            each = enumerate((query, key, value))
            q, k, v = (self._project(x).chunk(3, -1)[part] for part, x in each)
        if self.batch_first:
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        mixed, weights = attend(
            *(q, k, v, self.base.num_heads),
            mask=attn_mask,
            hidden=key_padding_mask,
            dropout=self.base.dropout if self.training else 0.0,
            weights=need_weights,
            average_weights=average_attn_weights,
            causal=is_causal,
        )
        mixed = mixed.transpose(0, 1) if self.batch_first else mixed
        last = self.base.out_proj
        return functional.linear(mixed, last.weight, last.bias) + self.out(mixed), weights

    def _project(self, x: Tensor) -> Tensor:
        """Query, key and value of each token, side by side."""
        x = _round_once(x)
        base = functional.linear(x, self.base.in_proj_weight, self.base.in_proj_bias)
        together: Tensor = base + self.into(x)
        return together


def _round_once(x: Tensor) -> Tensor:
    """In the type of autocast, if there is one, before both products would round it."""
    kind = x.device.type
    short = x.dtype is torch.float32 and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if short else x


def lora(
    module: nn.Module,
    rank: int = 8,
    targets: Sequence[str] | None = None,
    alpha: float | None = None,
    *,
    train: Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """The module with its parameters frozen, and trained adapters beside its linear layers.

    Takes `nn.Linear`, and the input and output projections of `nn.MultiheadAttention` where
    queries, keys and values have one width. Not taken are convolutions, embeddings, recurrent
    layers, attention with keys of another width or with `bias_k` or `add_zero_attn`, and layers of
    classes of your own that multiply by a parameter themselves: they stay frozen.

    Args:
        module: A trained body; left as it is. Its frozen parameters are shared with it, not copied.
        rank: Of the adapters.
        targets: Names of layers that get adapters; a name that is no layer's whole name means all
            that end so, such as ("query", "value"). None: all that can be taken.
        alpha: An adapter's product is multiplied by alpha / rank; None: by one.
        train: Names, likewise, of layers that are trained whole, such as ("head",); they get no
            adapters.
        seed: Selects the initial adapters, whatever torch's own random state.

    Returns:
        A module with the same outputs as `module`, until its adapters are trained.

    Raises:
        InputError: If there is nothing to adapt, or a name is not that of a layer.

    Guarantee: only what is trained (adapters, and layers in `train`) counts in the clip, gets noise
    and is sent or stored.
    """
    checks.count("rank", rank)
    if alpha is not None and not (math.isfinite(alpha) and alpha > 0):
        raise InputError(f"alpha must be a positive number, or None for the rank, not {alpha!r}")
    scale = 1.0 if alpha is None else alpha / rank
    generator = torch.Generator().manual_seed(checks.count("seed", seed, 0))
    # the same memory, so that a large body exists once
    shared = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters()}
    whole = copy.deepcopy(module, dict(shared))
    layers = dict(whole.named_modules())
    chosen = None if targets is None else _find(layers, targets)
    own = _find(layers, train)
    _thaw([layers[name] for name in own])

    def adapt(name: str, layer: nn.Module) -> nn.Module:
        """The layer with an adapter, or itself; its parts are looked at likewise."""
        if name in own:
            return layer
        wanted = chosen is None or name in chosen
        if wanted and isinstance(layer, nn.MultiheadAttention) and _can_be_adapted(layer):
            into = Adapter(layer.in_proj_weight, rank, scale, generator)
            out = Adapter(layer.out_proj.weight, rank, scale, generator)
            return AdaptedAttention(layer, into, out)
        # its output projection is a layer that it does not call
        if isinstance(layer, nn.MultiheadAttention):
            return layer
        if wanted and isinstance(layer, nn.Linear) and _can_be_adapted(layer):
            return AdaptedLinear(layer, Adapter(layer.weight, rank, scale, generator))
        for part, child in layer.named_children():
            found = adapt(f"{name}.{part}" if name else part, child)
            if found is not child:
                setattr(layer, part, found)
                # its fused function in evaluation mode would know nothing of adapters
                if isinstance(layer, nn.TransformerEncoderLayer):
                    layer.activation_relu_or_gelu = 0
        return layer

    whole = adapt("", whole)
    if not any(isinstance(layer, Adapter) for layer in whole.modules()):
        raise InputError(
            "there is no layer to put an adapter on: LoRA takes nn.Linear and nn.MultiheadAttention"
            + (", and the named layers are neither" if targets is not None else "")
        )
    return whole


def _find(layers: Mapping[str, nn.Module], wanted: Sequence[str]) -> set[str]:
    """The names of the layers that are meant: a whole name means one, an end of names all."""
    if isinstance(wanted, str):
        raise InputError(f"names of layers are a sequence, such as ({wanted!r},), not a text")
    found: set[str] = set()
    for each in wanted:
        ends = {name for name in layers if name.endswith(f".{each}")}
        meant = {each} if each and each in layers else ends
        if not meant:
            adaptable = [name for name, layer in layers.items() if _can_be_adapted(layer)]
            raise InputError(
                f"no layer has the name {each!r}, or a name that ends so; the layers that can get "
                f"adapters are {_list(adaptable)}"
            )
        found |= meant
    return found


def _can_be_adapted(layer: nn.Module) -> bool:
    """Whether this layer can get an adapter."""
    if isinstance(layer, nn.MultiheadAttention):
        plain = layer.bias_k is None and layer.bias_v is None and not layer.add_zero_attn
        return plain and layer._qkv_same_embed_dim
    # exact types: a subclass may compute something else
    return type(layer) is nn.Linear


def _thaw(layers: Sequence[nn.Module]) -> None:
    """Makes the parameters of layers trained ones, apart from those of the given module."""
    for p in {id(p): p for layer in layers for p in layer.parameters()}.values():
        p.data = p.data.clone()
        p.requires_grad_(True)


def _list(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return (", ".join(map(repr, names[:_SHOWN])) or "none") + more
