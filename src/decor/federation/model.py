"""The model that a federation's file names: how large it is, the module itself, and data in the
shape it takes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from decor.choices import Dtype
from decor.errors import InputError, require
from decor.learning import own_data

from .file import Model

Pair = tuple[Any, Any]


def parameters(model: Model, dtype: Dtype) -> int:
    """How many numbers are trained; loads torch for a model of code only."""
    if model.sizes is None:
        return sum(p.numel() for p in built(model, dtype)[0].parameters() if p.requires_grad)
    bias = 0 if model.kind == "linear" else 1
    return sum((inputs + bias) * outputs for inputs, outputs in pairwise(model.sizes))


def built(model: Model, dtype: Dtype) -> Pair:
    """A new module and its loss, with the weights that everybody starts from."""
    require("torch", "train", "federations that train")
    import torch

    from decor.learning import losses, models

    made: Pair
    match model.kind:
        case "logistic":
            made = models.logistic(model.features or 0), losses.logistic
        case "multinomial":
            made = models.multinomial(model.features or 0, model.classes or 0), losses.cross_entropy
        case "linear":
            made = models.linear(model.features or 0), losses.squared
        case "mlp":
            made = (
                models.mlp(
                    *(model.sizes or ()), activation=model.activation or "", seed=model.seed or 0
                ),
                losses.cross_entropy,
            )
        case _:
            made = _of_code(model.code or "", model.seed or 0)
    return made[0].to(getattr(torch, dtype)), made[1]


def _of_code(name: str, seed: int) -> Pair:
    """What the public function gives, with torch's own randomness at the seed; torch's state is
    left as it was.
    """
    import torch

    function = own_data.function_of(name, "model.code")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            made = function()
        except Exception as problem:  # whatever other people's code raises, it is theirs to mend
            raise InputError(
                f"model.code {name!r} failed: {type(problem).__name__}: {problem}"
            ) from problem
    if (
        not isinstance(made, tuple)
        or len(made) != 2
        or not isinstance(made[0], torch.nn.Module)
        or not callable(made[1])
    ):
        raise InputError(
            f"model.code {name!r} must give (torch.nn.Module, loss), not {type(made).__name__}"
        )
    return made


def fitting(model: Model, dtype: Dtype, what: str, shard: Pair) -> Pair:
    """Records and targets in the types that the model takes; an error says where they do not fit,
    never what they are.
    """
    import torch

    try:
        X, y = (torch.as_tensor(part) for part in shard)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{what} must be a pair (X, y) of arrays") from None
    kind = getattr(torch, dtype)
    if model.kind is None:
        return tuple(part.to(kind) if part.is_floating_point() else part for part in (X, y))  # type: ignore[return-value]
    if X.dim() != 2 or X.shape[1] != model.features:
        shape = tuple(X.shape[1:])
        raise InputError(
            f"{what} has records of shape {shape}, and model.features is "
            f"{model.features}; give as many"
        )
    if model.kind == "linear":
        return X.to(kind), y.to(kind)
    classes = model.classes or 2
    wrong = ~((y >= 0) & (y < classes) & (y == y.to(torch.int64)))
    if y.dim() != 1 or bool(wrong.any()):
        where = f" at record {int(wrong.nonzero()[0])} (counted from 0)" if y.dim() == 1 else ""
        raise InputError(
            f"{what} has a label{where} that is no class from 0 to {classes - 1}; "
            "number the classes from 0"
        )
    return X.to(kind), y.long()
