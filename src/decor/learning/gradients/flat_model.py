"""FlatModel: a module's trained parameters as one vector, for own loops, which have no task."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from decor.errors import InputError
from decor.learning.frozen import body_parameters
from decor.learning.task import Loss, check_model

from .dense_stack import Stack


class FlatModel:
    """Makes vectors of modules and modules of vectors, and refuses modules of another form.

    Args:
        model: The module that all users start from; copied.
        loss: Its loss, where others train the same model from data: dense layers are then ordered
            as their gradients are (`choose_gradients`). None: in the module's own order.
        dtype: The type of its parameters.

    Raises:
        InputError: If the model has nothing to train, or keeps statistics of its inputs.
    """

    def __init__(self, model: nn.Module, loss: Loss | None, dtype: torch.dtype) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module, not {model!r}")
        check_model(model)
        self._template = copy.deepcopy(model).to("cpu", dtype)
        self._stack = None if loss is None else Stack.of(self._template, loss, None)
        own = self._template.named_parameters()
        self._trained = {name: p for name, p in own if p.requires_grad}
        # tied parameters have several names, of which the first is trained
        first = {id(p): name for name, p in self._trained.items()}
        every = self._template.named_parameters(remove_duplicate=False)
        self._names = {name: first[id(p)] for name, p in every if id(p) in first}
        self.parameters = sum(p.numel() for p in self._trained.values())

    @property
    def fixed(self) -> dict[str, Tensor]:
        """What is not trained, by name: frozen parameters and buffers."""
        return body_parameters(self._template) | self.buffers

    @property
    def buffers(self) -> dict[str, Tensor]:
        return dict(self._template.named_buffers())

    @property
    def template(self) -> nn.Module:
        """The module that all users start from; not to be changed."""
        return self._template

    def start(self) -> Tensor:
        """The model's own parameters as a vector in float64."""
        return self._vector({name: p.detach() for name, p in self._trained.items()})

    def state(self, vector: Tensor) -> dict[str, Tensor]:
        """Each trained parameter under all its names.

        Args:
            vector: [..., parameters].
        """
        around = vector.shape[:-1]
        if self._stack is not None:
            shapes = [block.shape for block in self._stack.initial(vector.dtype)]
            parts = torch.split(vector, [shape.numel() for shape in shapes], -1)
            pairs = zip(parts, shapes, strict=True)
            blocks = [part.reshape(*around, *shape) for part, shape in pairs]
            return self._stack.state(blocks)
        parts = torch.split(vector, [p.numel() for p in self._trained.values()], -1)
        named = {
            name: part.reshape(*around, *p.shape)
            for (name, p), part in zip(self._trained.items(), parts, strict=True)
        }
        return {name: named[own].clone() for name, own in self._names.items()}

    def module(self, vector: Tensor) -> nn.Module:
        """A new module with these parameters, which its owner may change at will.

        Args:
            vector: [parameters].
        """
        module, state = copy.deepcopy(self._template), self.state(vector)
        with torch.no_grad():
            for name, p in module.named_parameters():
                if name in state:
                    p.copy_(state[name])
        return module

    def read(self, shared: nn.Module | Mapping[str, Tensor]) -> Tensor:
        """The vector, in float64, of a model that an own loop has trained.

        Args:
            shared: The module, or its `state_dict`; it is copied.

        Raises:
            InputError: If names or shapes are not this model's, or something has changed that is
                not trained. No message has a value of the model.
        """
        named = _tensors(shared)
        trained = {name: value for name, value in named.items() if name in self._names}
        for name, own in self._names.items():
            self._check(name, own, trained)
        self._check_rest({name: value for name, value in named.items() if name not in trained})
        for name, own in self._names.items():
            # to take one of two values would drop what training did to the other
            if name != own and not torch.equal(trained[name], trained[own]):
                raise InputError(
                    f"{name} and {own} are one parameter in this model, and two in what is shared; "
                    "train round.model itself, or a copy of it"
                )
        return self._vector(trained)

    def _check(self, name: str, own: str, trained: Mapping[str, Tensor]) -> None:
        """Refuses a parameter that is missing, or of another shape."""
        wanted = tuple(self._trained[own].shape)
        if name not in trained:
            raise InputError(f"what is shared has no parameter {name}; share round.model, trained")
        value = trained[name]
        if tuple(value.shape) != wanted or not value.is_floating_point():
            raise InputError(
                f"the parameter {name} has shape {tuple(value.shape)} and type {value.dtype} in "
                f"what is shared, and shape {wanted} in the federation; share round.model, trained"
            )

    def _check_rest(self, rest: Mapping[str, Tensor]) -> None:
        """Refuses what this model does not have, and what has changed without noise to cover it."""
        fixed = self.fixed
        for name, value in rest.items():
            if name not in fixed:
                raise InputError(
                    f"what is shared has {name}, which this model has not; share round.model, "
                    "trained"
                )
            if not _same(value, fixed[name]):
                raise InputError(
                    f"training has changed {name}, which is no trained parameter and would not be "
                    "shared; take a layer without such buffers, such as nn.GroupNorm, or leave it "
                    "as it was"
                )

    def _vector(self, named: Mapping[str, Tensor]) -> Tensor:
        if self._stack is not None:
            blocks = self._stack.blocks(dict(named), torch.float64)
            return torch.cat([block.flatten() for block in blocks])
        return torch.cat([named[name].double().flatten() for name in self._trained])


def _tensors(shared: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters and buffers on the CPU, by all their names."""
    named: dict[str, Tensor] = {}
    if isinstance(shared, nn.Module):
        # not state_dict, which leaves out buffers that are not saved
        named |= dict(shared.named_parameters(remove_duplicate=False))
        named |= dict(shared.named_buffers(remove_duplicate=False))
    elif isinstance(shared, Mapping):
        named |= dict(shared)
    if not named or not all(isinstance(value, Tensor) for value in named.values()):
        raise InputError(
            "share(model) takes a trained module like round.model, or its state_dict(), not "
            f"{type(shared).__name__}"
        )
    return {name: value.detach().cpu() for name, value in named.items()}


def _same(value: Tensor, fixed: Tensor) -> bool:
    if value.shape != fixed.shape or value.is_floating_point() != fixed.is_floating_point():
        return False
    # a NaN that was there from the start has not changed
    return bool(((value.to(fixed.dtype) == fixed) | ((value != value) & (fixed != fixed))).all())
