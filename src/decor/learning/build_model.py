"""The model of a file: its size, its module, and data in the shape it takes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from decor.choices import Dtype
from decor.errors import InputError, require

from . import model_code
from .file_model import Model

Pair = tuple[Any, Any]


def parameters(model: Model, dtype: Dtype) -> int:
    """How many parameters are trained; loads torch only for a model given as code."""
    if model.sizes is None:
        module, _ = build(model, dtype)
        return sum(p.numel() for p in module.parameters() if p.requires_grad)
    # without torch: a file is checked on machines that do not train
    bias = 0 if model.kind == "linear" else 1
    linear = sum((inputs + bias) * outputs for inputs, outputs in pairwise(model.sizes))
    planes = pairwise((*(model.image or ())[:1], *(model.channels or ())))
    return linear + sum((9 * inputs + 1) * outputs for inputs, outputs in planes)


def build(model: Model, dtype: Dtype) -> Pair:
    """A new module with the weights that all users start from, and its loss.

    Raises:
        InputError: Among others, if a model's code is not the code that the file has the hash of.
    """
    require("torch", "train", "federations that train")
    import torch

    from . import losses, models

    features, classes, seed = model.features or 0, model.classes or 0, model.seed or 0
    module: torch.nn.Module
    match model.kind:
        case "logistic":
            module, loss = models.logistic(features), losses.logistic
        case "multinomial":
            module, loss = models.multinomial(features, classes), losses.cross_entropy
        case "linear":
            module, loss = models.linear(features), losses.squared
        case "mlp":
            activation = model.activation or ""
            module = models.mlp(*(model.sizes or ()), activation=activation, seed=seed)
            loss = losses.cross_entropy
        case "cnn":
            module = models.cnn(model.image or (), model.channels or (), classes, seed=seed)
            loss = losses.cross_entropy
        case _:
            module, loss = model_code.call(
                model.code or "", model.code_sha256, seed, model.loss is not None
            )
    if model.loss is not None:
        loss = getattr(losses, model.loss.replace("-", "_"))
    return module.to(getattr(torch, dtype)), loss


def convert_data(model: Model, dtype: Dtype, what: str, shard: Pair) -> Pair:
    """Examples and targets in the dtypes that the model takes.

    An error says where the data do not fit, never what they are.
    """
    import torch

    try:
        X, y = (torch.as_tensor(part) for part in shard)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{what} must be a pair (X, y) of arrays") from None
    kind = getattr(torch, dtype)
    # code decides about shapes itself; floats get the federation's dtype
    if model.kind is None:
        X, y = (part.to(kind) if part.is_floating_point() else part for part in (X, y))
        return X, y
    if X.dim() != 2 or X.shape[1] != model.features:
        shape = tuple(X.shape[1:])
        raise InputError(
            f"{what} has records of shape {shape}, and model.features is {model.features}; give "
            "as many"
        )
    if model.classes is None:  # a number is predicted
        return X.to(kind), y.to(kind)
    classes = model.classes or 2
    # written so that NaN is wrong too
    wrong = ~((y >= 0) & (y < classes) & (y == y.to(torch.int64)))
    if y.dim() != 1 or bool(wrong.any()):
        where = f" at record {int(wrong.nonzero()[0])} (counted from 0)" if y.dim() == 1 else ""
        raise InputError(
            f"{what} has a label{where} that is not a class from 0 to {classes - 1}; number the "
            "classes from 0"
        )
    return X.to(kind), y.long()
