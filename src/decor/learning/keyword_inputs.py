"""Several inputs per example: packed side by side into one tensor, and unpacked for the model.

Batches, gradients and fingerprints know one tensor of examples. A model with keyword inputs becomes
one that unpacks them; its parameters keep their names.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from decor.errors import InputError

_EXACT = 2**24
"""Whole numbers up to this are exact in float32."""
_M = TypeVar("_M", bound=nn.Module)


@dataclass(frozen=True)
class Layout:
    """The inputs of one example, in the order in which they are packed.

    Attributes:
        names: The keywords.
        shapes: The shape of each input of one example.
        dtypes: The type of each input; real numbers take the type that the model is trained in.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, inputs: Mapping[str, Tensor]) -> Layout:
        """The layout of examples, [examples, ...] each."""
        names = tuple(inputs)
        shapes = tuple(tuple(part.shape[1:]) for part in inputs.values())
        return cls(names, shapes, tuple(part.dtype for part in inputs.values()))

    @property
    def _is_whole(self) -> bool:
        return not any(dtype.is_floating_point for dtype in self.dtypes)

    def pack(self, owner: str, inputs: Mapping[str, Tensor]) -> Tensor:
        """The inputs as one tensor [examples, values].

        Args:
            owner: Who has the examples, for messages.
            inputs: The same inputs as the layout's.

        Raises:
            InputError: If the inputs are others, or whole numbers do not fit beside real ones.
        """
        found = Layout.of({name: inputs[name] for name in self.names if name in inputs})
        if found != self or len(inputs) != len(self.names):
            raise InputError(
                f"{owner} has the inputs {_text(Layout.of(inputs))}, but the first user has "
                f"{_text(self)}; give all users the same inputs, shapes and types"
            )
        if len({len(part) for part in inputs.values()}) > 1:
            counts = ", ".join(f"{name} {len(part):,}" for name, part in inputs.items())
            raise InputError(f"{owner} has inputs of different numbers of examples ({counts})")
        parts = [
            inputs[name].flatten(1) if inputs[name].dim() > 1 else inputs[name][:, None]
            for name in self.names
        ]
        if self._is_whole:
            return torch.cat([part.long() for part in parts], 1)
        for name, part in zip(self.names, parts, strict=True):
            if not part.is_floating_point() and bool((part.long().abs() > _EXACT).any()):
                raise InputError(
                    f"input {name!r} of {owner} has whole numbers beyond {_EXACT:,}, which do not "
                    "fit beside real numbers; number them from 0"
                )
        # one type for all: the parts' own come back in `unpack`
        widest = torch.float64 if torch.float64 in self.dtypes else torch.float32
        return torch.cat([part.to(widest) for part in parts], 1)

    def unpack(self, packed: Tensor) -> dict[str, Tensor]:
        """The inputs of packed examples, by keyword."""
        inputs, start = {}, 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            end = start + prod(shape)
            part = packed[:, start:end].reshape(len(packed), *shape)
            inputs[name], start = part if dtype.is_floating_point else part.to(dtype), end
        return inputs


def unpacking(model: _M, layout: Layout) -> _M:
    """The model, taking packed examples; parameters and their names are the model's own.

    Args:
        model: Takes the inputs of the layout as keyword arguments.
        layout: How the examples are packed.
    """

    def forward(self: Any, packed: Tensor) -> Any:
        return type(model).forward(self, **layout.unpack(packed))

    # a subclass, and not a module around the model: that would rename all parameters
    name = type(model).__name__
    view = copy.copy(model)
    view.__class__ = type(name, (type(model),), {"forward": forward})
    return view


def _text(layout: Layout) -> str:
    parts = [
        f"{name} {shape} {str(dtype).removeprefix('torch.')}"
        for name, shape, dtype in zip(layout.names, layout.shapes, layout.dtypes, strict=True)
    ]
    return ", ".join(parts)
