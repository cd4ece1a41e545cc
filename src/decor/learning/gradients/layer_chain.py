"""Which layers a module applies to its input one after the other, however it is written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from decor.learning.task import evaluating

from .module_randomness import random_states

Chain = tuple[nn.Module, ...]
"""Layers and activations, first to last; a `Flatten` stands for any call that does the same."""


def find_chain(model: nn.Module, shape: Sequence[int] | None) -> Chain | None:
    """The layers of a module that does nothing but apply them one after the other, or None.

    Its `forward` runs with a symbol in place of examples. The symbol knows linear layers, ReLU,
    Tanh and flattening, and fails at anything else, so a branch that depends on values is never
    taken for a chain. The chain must then compute what the module does, to the last bit, on
    artificial examples: a `forward` may treat what is not a tensor in another way.

    Args:
        model: Any module; neither it nor torch's random state is changed.
        shape: Of one example; None for a row that the first layer takes.
    """
    dense = {
        id(layer.weight): layer
        # exact types: a subclass may compute something else
        for layer in model.modules()
        if type(layer) is nn.Linear
    }
    own = sum(len(list(layer.parameters())) for layer in dense.values())
    # a layer with two names has two places in the state, and counts twice here
    every = [p for _, p in model.named_parameters(remove_duplicate=False)]
    if not every or own != len(every) or next(model.buffers(), None) is not None:
        return None
    before = random_states(every[0].device)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            # parameters are shared; what `forward` writes into the module is not
            trial = copy.deepcopy(model, {id(p): p for p in every})
            chain = _trace(trial, dense)
            found = _agrees(trial, chain, shape)
            with evaluating(trial):
                found = found and _trace(trial, dense) == chain and _agrees(trial, chain, shape)
            drawn = random_states(every[0].device) != before
    except Exception:  # a user's module may do anything: then it is no chain
        return None
    return chain if found and not drawn else None


def _trace(model: nn.Module, dense: Mapping[int, nn.Linear]) -> Chain:
    output = model(_Symbol(dense, ()))
    if not isinstance(output, _Symbol):
        raise _NoChainError
    return output.chain


def _agrees(model: nn.Module, chain: Chain, shape: Sequence[int] | None) -> bool:
    """Whether the chain computes what the module does, of one example and of several."""
    layers = [layer for layer in chain if type(layer) is nn.Linear]
    weight = layers[0].weight
    size = (layers[0].in_features,) if shape is None else tuple(shape)
    generator = torch.Generator().manual_seed(0)
    for count in (1, 3):
        x = torch.randn(count, *size, generator=generator).to(weight.device, weight.dtype)
        expected = x
        for layer in chain:
            expected = layer(expected)
        output = model(x)
        # a start that overflows is a chain as well
        equal = output.shape == expected.shape
        if not (equal and torch.allclose(output, expected, rtol=0, atol=0, equal_nan=True)):
            return False
    return True


class _NoChainError(Exception):
    """The module does what no chain of layers does."""


class _Count:
    """Stands for the number of examples, which a module may pass on and must not use."""


_COUNT = _Count()
_RELU, _TANH, _FLATTEN = nn.ReLU(), nn.Tanh(), nn.Flatten()


class _Symbol:
    """Stands for a batch of examples, and remembers which layers were applied to it.

    Args:
        dense: Linear layers by the id of their weights.
        chain: What was applied.
    """

    def __init__(self, dense: Mapping[int, nn.Linear], chain: Chain) -> None:
        self.dense, self.chain = dense, chain

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> _Symbol:
        first, *rest = args
        rule = _RULES.get(func)
        if rule is None or not isinstance(first, _Symbol):
            raise _NoChainError
        return rule(first, *rest, **(kwargs or {}))

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> _Symbol:
        layer = self.dense[id(weight)]
        if layer.bias is not bias:
            raise _NoChainError
        return self._then(layer)

    # in place or not: if what was changed is used again, the module and the chain disagree
    def relu(self, inplace: bool = False) -> _Symbol:
        return self._then(_RELU)

    def tanh(self) -> _Symbol:
        return self._then(_TANH)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> _Symbol:
        if (start_dim, end_dim) != (1, -1):
            raise _NoChainError
        return self._then(_FLATTEN)

    def view(self, *shape: Any) -> _Symbol:
        count, _ = shape[0] if isinstance(shape[0], (tuple, list)) else shape
        if count is not _COUNT and count != -1:
            raise _NoChainError
        return self._then(_FLATTEN)

    reshape = view

    def size(self, dim: int) -> _Count:
        if dim != 0:
            raise _NoChainError
        return _COUNT

    @property
    def shape(self) -> tuple[_Count]:
        return (_COUNT,)

    def _then(self, layer: nn.Module) -> _Symbol:
        return _Symbol(self.dense, (*self.chain, layer))


_RULES: dict[Callable[..., Any], Callable[..., _Symbol]] = {
    functional.linear: _Symbol.linear,
    functional.relu: _Symbol.relu,
    torch.relu: _Symbol.relu,
    torch.tanh: _Symbol.tanh,
    torch.flatten: _Symbol.flatten,
}
