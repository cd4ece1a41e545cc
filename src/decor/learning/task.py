"""Task: a model, its loss, and one shard of data for every user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decor.errors import InputError

from . import losses

Shard = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """What is learnt, and on whose data.

    `loss(model(X), y)` is the mean over records. Every user starts from the model's own weights. `shards` holds (X, y) of every
    user, as tensors or arrays, records first; `test` is public data, measured with the average model. `optimum`, where it is
    known, is the best flat parameter vector. `facts` says where the data is from, for the manifest of a run.
    """

    model: nn.Module
    loss: Loss
    shards: Sequence[Shard]
    test: Shard | None = None
    name: str = "own task"
    optimum: Tensor | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not isinstance(self.model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module, not {self.model!r}")
        if not callable(self.loss):
            raise InputError(f"loss must be a function of (output, target), not {self.loss!r}")
        if isinstance(self.shards, Tensor | np.ndarray) or len(self.shards) == 0:
            raise InputError("shards must be a list of (X, y), one for every user, and not empty")
        put(self, "shards", tuple(_shard(f"user {i}", shard) for i, shard in enumerate(self.shards)))
        if self.test is not None:
            put(self, "test", _shard("the test data", self.test))
        self._check_alike()
        self._check_labels()

    @property
    def users(self) -> int:
        return len(self.shards)

    @property
    def records(self) -> tuple[int, ...]:
        """How many records every user holds."""
        return tuple(len(X) for X, _ in self.shards)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def _check_alike(self) -> None:
        """Everybody's records have the same shape and type."""
        (X0, y0), *_ = self.shards
        others = [(f"user {i}", s) for i, s in enumerate(self.shards)] + ([("the test data", self.test)] if self.test else [])
        for who, (X, y) in others:
            if X.shape[1:] != X0.shape[1:] or y.shape[1:] != y0.shape[1:]:
                raise InputError(
                    f"{who} has records of shape {tuple(X.shape[1:])} and targets of shape {tuple(y.shape[1:])}, but user 0 has "
                    f"{tuple(X0.shape[1:])} and {tuple(y0.shape[1:])}; give everybody the same features"
                )
            if X.dtype != X0.dtype or y.dtype != y0.dtype:
                raise InputError(
                    f"{who} has records of type {X.dtype} and targets of type {y.dtype}, but user 0 has {X0.dtype} and "
                    f"{y0.dtype}; convert them to one type"
                )

    def _check_labels(self) -> None:
        """Labels are classes that the model can say: a wrong one would otherwise be an index out of range, deep inside."""
        named = [(f"user {i}", y) for i, (_, y) in enumerate(self.shards)] + (
            [("the test data", self.test[1])] if self.test else []
        )
        if self.loss is losses.logistic:
            classes, of = 2, "the logistic loss"
        elif (self.loss is losses.cross_entropy or self.loss is nn.functional.cross_entropy) and not self.shards[0][
            1
        ].is_floating_point():
            with torch.no_grad():
                classes, of = int(self._output().shape[-1]), "the model"
        else:
            return
        for who, y in named:
            wrong = (
                (y < 0) | (y >= classes) | (y != y.floor() if y.is_floating_point() else torch.zeros_like(y, dtype=torch.bool))
            )
            if bool(wrong.any()):
                at = int(wrong.flatten().nonzero()[0])
                raise InputError(
                    f"{who} has label {y.flatten()[at].item():g} at record {at}, but {of} knows classes 0 to {classes - 1}; "
                    "number the labels from 0"
                )

    def _output(self) -> Tensor:
        X = self.shards[0][0][:1]
        try:
            output: Tensor = self.model(X)
        except (RuntimeError, IndexError, TypeError) as problem:
            raise InputError(f"the model cannot take records of shape {tuple(X.shape[1:])}: {problem}") from None
        return output


def _shard(who: str, shard: Any) -> Shard:
    try:
        X, y = (torch.as_tensor(part) for part in shard)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError(f"the shard of {who} must be a pair (X, y) of tensors or arrays: {problem}") from None
    if X.dim() < 1 or y.dim() < 1 or len(X) != len(y):
        counts = [len(part) if part.dim() else 0 for part in (X, y)]
        raise InputError(f"{who} has {counts[0]} records but {counts[1]} targets; give one target for each record")
    if len(X) == 0:
        raise InputError(f"{who} has an empty shard; leave the user out, or give it data")
    for part, what in ((X, "records"), (y, "targets")):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            at = int((~torch.isfinite(part)).reshape(len(part), -1).any(1).nonzero()[0])
            raise InputError(f"{who} has a NaN or an infinity in its {what} at record {at}; fill in or drop that record")
    return X.detach(), y.detach()
