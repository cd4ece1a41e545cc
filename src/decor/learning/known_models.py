"""The definition of a task that was made in Python, where its model is a built-in one."""

from __future__ import annotations

from typing import Any

from torch import nn

from decor.errors import InputError

from . import losses
from .definition import Definition
from .file_model import Model
from .models import ACTIVATIONS
from .task import Task

_CROSS_ENTROPY = (losses.cross_entropy, nn.functional.cross_entropy)


def definition_of(task: Task) -> Definition | None:
    """How the task's model can be built again; None where only the caller's program knows.

    A model of linear layers that is like a built-in one counts as that one, however it was made:
    the run has its parameters.
    """
    if task.definition is not None:
        return task.definition
    model = _model_of(task.model, task.loss)
    try:
        return None if model is None else Definition(model, task.columns)
    except InputError:  # the model is not of the columns alone
        return None


def _model_of(module: nn.Module, loss: Any) -> Model | None:
    # a built-in model is trained whole: what is frozen here would be another start there
    if not all(p.requires_grad for p in module.parameters()):
        return None
    if type(module) is nn.Linear:
        return _linear(module, loss)
    if type(module) is nn.Sequential and loss in _CROSS_ENTROPY:
        return _mlp(module)
    return None


def _linear(layer: nn.Linear, loss: Any) -> Model | None:
    inputs, outputs, bias = layer.in_features, layer.out_features, layer.bias is not None
    if bias and outputs == 1 and loss is losses.logistic:
        return Model(kind="logistic", features=inputs)
    if bias and outputs > 1 and loss in _CROSS_ENTROPY:
        return Model(kind="multinomial", features=inputs, classes=outputs)
    if not bias and outputs == 1 and loss is losses.squared:
        return Model(kind="linear", features=inputs)
    return None


def _mlp(module: nn.Sequential) -> Model | None:
    layers, between = list(module)[::2], {type(each) for each in list(module)[1::2]}
    names = [name for name, kind in ACTIVATIONS.items() if between == {kind}]
    plain = all(type(each) is nn.Linear and each.bias is not None for each in layers)
    if not plain or not names or len(module) % 2 == 0:
        return None
    last: Any = layers[-1]
    hidden: Any = layers[:-1]
    if last.out_features < 2:
        return None
    return Model(
        kind="mlp",
        features=hidden[0].in_features,
        classes=last.out_features,
        hidden=tuple(each.out_features for each in hidden),
        activation=names[0],
    )
