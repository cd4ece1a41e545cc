"""What a module keeps from call to call: no example may reach others through it.

A module may keep tensors in its attributes, such as the last state of a recurrent layer or a map of
attention. Examples that come later must not see them: they would move by more than their clip with
an example that came before, and no noise covers that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

_OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has: parameters, buffers, hooks."""
_PLAIN = frozenset((str, int, float, bool, type(None)))


@contextmanager
def memory_dropped(model: nn.Module) -> Iterator[None]:
    """After this block the model keeps nothing of the examples that `torch.func` mapped over in it.

    Other attributes stay as the block leaves them, such as counts of calls.
    """
    before = [(vars(module), _attributes(module)) for module in model.modules()]
    try:
        yield
    finally:
        for now, then in before:
            for name in [name for name in now if name not in _OWN and _has_examples(now[name])]:
                if name in then:
                    now[name] = then[name]
                else:
                    del now[name]


def remembers(model: nn.Module, state: Mapping[str, Tensor], examples: Tensor) -> bool:
    """Whether the output for the last example depends on which example came before.

    Args:
        model: In the mode in which it trains; left as it is.
        state: Its parameters and buffers.
        examples: Three at least, to have two that may come before.
    """
    cuda = [examples.device] if examples.is_cuda else []
    with torch.random.fork_rng(devices=cuda):
        one, other = (_output_after(model, state, first, examples[-1]) for first in examples[:2])
    # far above rounding
    return one.shape != other.shape or not torch.allclose(one, other, 1e-4, 1e-7, equal_nan=True)


def _output_after(
    model: nn.Module, state: Mapping[str, Tensor], first: Tensor, last: Tensor
) -> Tensor:
    """The output for the last example of a model that has seen the first."""
    used = _twin(model)
    # a buffer may be changed in place
    own = {**state, **{name: state[name].clone() for name, _ in model.named_buffers()}}
    for example in (first, last):
        # what the module draws is the same, whatever it drew before
        torch.manual_seed(0)
        output: Tensor = functional_call(used, own, (example.unsqueeze(0),))
    return output


def _twin(model: nn.Module) -> nn.Module:
    """A copy with the same parameters and buffers in memory, or the module itself."""
    shared = {id(p): p for p in chain(model.parameters(), model.buffers())}
    try:
        return copy.deepcopy(model, dict(shared))
    except Exception:  # a module may hold what cannot be copied
        return model


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What a class derived from `nn.Module` has added; groups are copied, as they may be changed in
    place.
    """
    added = {name: kept for name, kept in vars(module).items() if name not in _OWN}
    for name, kept in added.items():
        if isinstance(kept, (list, dict, set)):
            added[name] = copy.copy(kept)
    return added


def _has_examples(value: Any) -> bool:
    """Whether it is, or holds, a tensor that was mapped over."""
    if isinstance(value, Tensor):
        return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple, set)):
        return False
    # a vocabulary is long, and holds no tensors
    return not _PLAIN.issuperset(map(type, value)) and any(map(_has_examples, value))
