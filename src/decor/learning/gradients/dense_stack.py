"""Stack: a torch module recognised as plain dense layers, which the fast paths support."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from decor.learning import losses
from decor.learning.batches import Batch
from decor.learning.task import Loss, Task

from .clip import CPU, Blocks, add_clipped
from .example_table import ExampleTable
from .layer_chain import find_chain

ACTIVATIONS = (nn.ReLU, nn.Tanh)


@dataclass(frozen=True)
class Stack:
    """Dense layers with activations between them, and one of three losses.

    Each layer of a model is a block [inputs + 1, outputs], the bias as its last row; without bias
    it is [inputs, outputs].

    Attributes:
        layers: (name, layer), first to last.
        activations: The activation after each layer but the last.
        loss: "logistic", "classes" or "squared".
    """

    layers: tuple[tuple[str, nn.Linear], ...]
    activations: tuple[type[nn.Module], ...]
    loss: str

    @classmethod
    def of(cls, model: nn.Module, loss: Loss, shape: Sequence[int] | None) -> Stack | None:
        """The model as a stack; None unless it is plain, untied, trainable layers without hooks.

        Args:
            model: Any module: an nn.Sequential, or a class with its own forward (`find_chain`).
            loss: Any loss.
            shape: Of one example; None for a row.
        """
        # a hook need not run in a trial; a part that is not trained has no fast path
        chain = find_chain(model, shape) if is_plain(model) else None
        if chain is None or not all(p.requires_grad for p in model.parameters()):
            return None
        parts = chain[1:] if type(chain[0]) is nn.Flatten else chain
        # without a Flatten, layers would apply along the last dimension
        if parts is chain and shape is not None and len(shape) != 1:
            return None
        names = {id(layer): name for name, layer in model.named_modules()}
        dense = [(names[id(part)], part) for part in parts[::2] if type(part) is nn.Linear]
        between = tuple(type(part) for part in parts[1::2])
        if len(parts) != 2 * len(dense) - 1 or any(kind not in ACTIVATIONS for kind in between):
            return None
        used = sorted(id(p) for _, layer in dense for p in layer.parameters())
        if used != sorted(id(p) for p in model.parameters()):
            return None
        # the loss's derivative must be known in closed form
        kind = _loss_kind(loss, dense[-1][1])
        return None if kind is None else cls(tuple(dense), between, kind)

    @property
    def bias(self) -> tuple[bool, ...]:
        return tuple(layer.bias is not None for _, layer in self.layers)

    def initial(self, dtype: torch.dtype) -> Blocks:
        """The module's own weights."""
        weights: dict[str, Tensor] = {}
        for prefix, layer in self._prefixes():
            weights |= {prefix + name: p.detach() for name, p in layer.named_parameters()}
        return self.blocks(weights, dtype)

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        """Blocks [..., inputs + 1, outputs] under the module's names and in its shapes."""
        state: dict[str, Tensor] = {}
        for (prefix, layer), block in zip(self._prefixes(), blocks, strict=True):
            weight = block[..., : layer.in_features, :]
            state[f"{prefix}weight"] = weight.transpose(-1, -2).contiguous()
            if layer.bias is not None:
                state[f"{prefix}bias"] = block[..., -1, :].contiguous()
        return state

    def blocks(self, state: dict[str, Tensor], dtype: torch.dtype) -> Blocks:
        """The inverse of `state`."""
        blocks = []
        for prefix, layer in self._prefixes():
            rows = [state[f"{prefix}weight"].transpose(-1, -2)]
            if layer.bias is not None:
                rows.append(state[f"{prefix}bias"].unsqueeze(-2))
            blocks.append(torch.cat(rows, -2).to(dtype).contiguous())
        return blocks

    def _prefixes(self) -> Iterator[tuple[str, nn.Linear]]:
        """Each layer with what its parameters' names begin with in the module."""
        # a lone layer is the module itself, so its parameters have no prefix
        yield from ((f"{name}." if name else "", layer) for name, layer in self.layers)


class StackGradients(ABC):
    """What `Linear` and `Layers` share: a stack, and the table of all examples."""

    def __init__(
        self, task: Task, stack: Stack, dtype: torch.dtype, device: torch.device = CPU
    ) -> None:
        self.stack, self.dtype, self.device, self.bias = stack, dtype, device, stack.bias
        # a stack has nothing but trained, untied parameters
        self.fixed: dict[str, Tensor] = {}
        self.tied: dict[str, str] = {}
        outputs = stack.layers[-1][1].out_features
        self.data = ExampleTable(task, stack.loss, outputs, stack.bias[0], dtype, device)

    def initial(self) -> Blocks:
        return [block.to(self.device) for block in self.stack.initial(self.dtype)]

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        return self.stack.state(blocks)

    def blocks(self, state: dict[str, Tensor]) -> Blocks:
        return [block.to(self.device) for block in self.stack.blocks(state, self.dtype)]

    @abstractmethod
    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        """The weighted mean gradients of some users."""

    def add_clipped_means(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * clipped mean gradient."""
        add_clipped([block[users] for block in to], self.mean(models, batch, users), clip, alpha)


def is_plain(model: nn.Module) -> bool:
    """Whether the model has no hooks and no replaced forward."""
    # a hook may change inputs, outputs or gradients
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(
        "forward" in vars(m) or any(getattr(m, name) for name in hooks) for m in model.modules()
    )


def _loss_kind(loss: Loss, last: nn.Linear) -> str | None:
    if loss is losses.logistic:
        return "logistic" if last.out_features == 1 else None
    if loss is losses.cross_entropy or loss is functional.cross_entropy:
        return "classes"
    return "squared" if loss is losses.squared else None
