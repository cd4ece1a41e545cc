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


@contextmanager
def memory_dropped(model: nn.Module) -> Iterator[None]:
    """After this block the model keeps nothing of the examples that `torch.func` mapped over in it.

    Other attributes stay as the block leaves them, such as counts of calls.
    """
    # lists and the like may be changed in place
    before = {
        module: {name: copy.copy(kept) if _is_group(kept) else kept for name, kept in items}
        for module in model.modules()
        if (items := vars(module).items())
    }
    try:
        yield
    finally:
        for module, attributes in before.items():
            for name, kept in list(vars(module).items()):
                if not _has_examples(kept):
                    continue
                if name in attributes:
                    vars(module)[name] = attributes[name]
                else:
                    del vars(module)[name]


def remembers(
    model: nn.Module, state: Mapping[str, Tensor], examples: Tensor, random_seed: int = 0
) -> bool:
    """Whether the output for the last example depends on which example came before.

    Args:
        model: In the mode in which it trains; left as it is.
        state: Its parameters and buffers.
        examples: Three at least, to have two that may come before.
        random_seed: What the module draws is the same for both.
    """
    outputs = []
    for first in examples[:2]:
        used = _twin(model)
        # a buffer may be changed in place
        buffers = {name: state[name].clone() for name, _ in model.named_buffers()}
        own = {**state, **buffers}
        functional_call(used, own, (first.unsqueeze(0),))
        cuda = [examples.device] if examples.is_cuda else []
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(random_seed)
            outputs.append(functional_call(used, own, (examples[-1:],)))
    one, other = outputs
    return one.shape != other.shape or not torch.allclose(one, other, 1e-4, 1e-7, equal_nan=True)


def _twin(model: nn.Module) -> nn.Module:
    """A copy with the same parameters and buffers in memory, or the module itself."""
    shared = {id(p): p for p in chain(model.parameters(), model.buffers())}
    try:
        return copy.deepcopy(model, dict(shared))
    except Exception:  # a module may hold what cannot be copied
        return model


def _is_group(value: Any) -> bool:
    return isinstance(value, (list, dict, set))


def _has_examples(value: Any) -> bool:
    """Whether it is, or directly holds, a tensor that was mapped over."""
    if isinstance(value, Tensor):
        return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, (list, tuple, set)) and any(_has_examples(each) for each in value)
