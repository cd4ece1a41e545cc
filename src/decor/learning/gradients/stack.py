"""Stack: a torch module recognised as plain dense layers, which the fast paths can take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from decor.learning import losses
from decor.learning.task import Loss

from .clip import Blocks

ACTIVATIONS = (nn.ReLU, nn.Tanh)


@dataclass(frozen=True)
class Stack:
    """Dense layers, first to last, the activation after all but the last, and which of three losses
    follows.

    A layer of a model is a block [inputs + 1, outputs], the bias as its last row (absent where the
    layer has none).
    """

    layers: tuple[tuple[str, nn.Linear], ...]
    activations: tuple[type[nn.Module], ...]
    loss: str

    @classmethod
    def of(cls, model: nn.Module, loss: Loss, shape: Sequence[int]) -> Stack | None:
        """The model as a stack, or None if it is anything else: only plain, untied, trainable
        layers without hooks are.
        """
        parts = list(model.named_children()) if type(model) is nn.Sequential else [("", model)]
        if (
            parts
            and type(parts[0][1]) is nn.Flatten
            and (parts[0][1].start_dim, parts[0][1].end_dim) == (1, -1)
        ):
            parts = parts[1:]
        elif len(shape) != 1:
            return None
        dense = [(name, layer) for name, layer in parts[::2] if type(layer) is nn.Linear]
        between = tuple(type(part) for _, part in parts[1::2])
        if len(parts) != 2 * len(dense) - 1 or any(kind not in ACTIVATIONS for kind in between):
            return None
        if not plain(model):
            return None
        held = [p for _, layer in dense for p in layer.parameters()]
        if len({id(p) for p in held}) < len(held) or not all(p.requires_grad for p in held):
            return None
        kind = _known_loss(loss, dense[-1][1])
        return None if kind is None else cls(tuple(dense), between, kind)

    @property
    def bias(self) -> tuple[bool, ...]:
        return tuple(layer.bias is not None for _, layer in self.layers)

    def initial(self, dtype: torch.dtype) -> Blocks:
        """The module's own weights."""
        held = {
            f"{name}.{part}" if name else part: p.detach()
            for name, layer in self.layers
            for part, p in layer.named_parameters()
        }
        return self.blocks(held, dtype)

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        """Blocks [..., inputs + 1, outputs] under the names and in the shapes that the module gives
        its parameters.
        """
        named: dict[str, Tensor] = {}
        for (name, layer), block in zip(self.layers, blocks, strict=True):
            dot = f"{name}." if name else ""
            named[f"{dot}weight"] = (
                block[..., : layer.in_features, :].transpose(-1, -2).contiguous()
            )
            if layer.bias is not None:
                named[f"{dot}bias"] = block[..., -1, :].contiguous()
        return named

    def blocks(self, state: dict[str, Tensor], dtype: torch.dtype) -> Blocks:
        """The inverse of `state`."""
        found = []
        for name, layer in self.layers:
            dot = f"{name}." if name else ""
            rows = [
                state[f"{dot}weight"].transpose(-1, -2),
                *([state[f"{dot}bias"].unsqueeze(-2)] if layer.bias is not None else []),
            ]
            found.append(torch.cat(rows, -2).to(dtype).contiguous())
        return found


def plain(model: nn.Module) -> bool:
    """Nothing is hooked onto the model or put in place of its own forward."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(
        "forward" in vars(m) or any(getattr(m, name) for name in hooks) for m in model.modules()
    )


def _known_loss(loss: Loss, last: nn.Linear) -> str | None:
    if loss is losses.logistic:
        return "logistic" if last.out_features == 1 else None
    if loss is losses.cross_entropy or loss is functional.cross_entropy:
        return "classes"
    return "squared" if loss is losses.squared else None
