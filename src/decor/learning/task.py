"""Task: a model, its loss, and one shard of data for every user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from decor.errors import InputError

from . import losses

Shard = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """What is learnt, and on whose data.

    `loss(model(X), y)` is the mean over records. Every user starts from the model's own weights.
    `shards` holds (X, y) of every user, as tensors or arrays, records first: a mapping from users'
    names, such as {"bonn": (X, y)}, or a list for users 0..n-1. It is kept as a tuple, with the
    names beside it in `names` (None for a list). The average model is measured on `test`;
    `test_public` says that anybody may know these records: only then does a private run keep what
    was measured on them. `optimum`, where it is known, is the best flat parameter vector. `facts`
    says where the data is from, for the manifest of a simulation.
    """

    model: nn.Module
    loss: Loss
    shards: Sequence[Shard]
    test: Shard | None = None
    name: str = "own task"
    optimum: Tensor | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    test_public: bool = False
    names: tuple[str, ...] | None = field(default=None, init=False)

    if TYPE_CHECKING:  # a mapping is taken, and a tuple is kept

        def __init__(
            self,
            model: nn.Module,
            loss: Loss,
            shards: Sequence[Shard] | Mapping[str, Shard],
            test: Shard | None = None,
            name: str = "own task",
            optimum: Tensor | None = None,
            facts: dict[str, Any] | None = None,
            test_public: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not isinstance(self.model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module, not {self.model!r}")
        if not callable(self.loss):
            raise InputError(f"loss must be a function of (output, target), not {self.loss!r}")
        if not isinstance(self.shards, list | tuple | Mapping) or not self.shards:
            raise InputError(
                "shards must be a list of (X, y), one for every user, or a mapping such as "
                '{"bonn": (X, y)}, and not empty'
            )
        if isinstance(self.shards, Mapping):
            names = tuple(map(str, self.shards))
            if len(set(names)) < len(names):
                raise InputError(f"shards names a user twice: {', '.join(map(repr, self.shards))}")
            put(self, "names", names)
            put(self, "shards", tuple(self.shards.values()))
        put(
            self,
            "shards",
            tuple(_shard(self._who(i), shard) for i, shard in enumerate(self.shards)),
        )
        if self.test is not None:
            put(self, "test", _shard("the test data", self.test))
        self._check_alike()
        self._check_labels(self._tried())
        if self.optimum is not None and self.optimum.numel() != self.parameters:
            raise InputError(
                f"optimum has {self.optimum.numel()} numbers, but the model has "
                f"{self.parameters} parameters"
            )

    def __repr__(self) -> str:
        """Never the records themselves, which would end in notebooks and logs."""
        return (
            f"Task({self.name!r}, {self.users} users, {sum(self.counts):,} records, "
            f"{self.parameters:,} parameters)"
        )

    @property
    def users(self) -> int:
        return len(self.shards)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many records every user holds, in the order of `shards`."""
        return tuple(len(X) for X, _ in self.shards)

    @property
    def records(self) -> tuple[int, ...] | dict[str, int]:
        """How many records every user holds, as `Exposure(records=...)` takes it: by name where
        users have names.
        """
        return (
            self.counts if self.names is None else dict(zip(self.names, self.counts, strict=True))
        )

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def _who(self, i: int) -> str:
        return f"user {i if self.names is None else self.names[i]}"

    def _named(self) -> Iterator[tuple[str, Shard]]:
        yield from ((self._who(i), shard) for i, shard in enumerate(self.shards))
        if self.test is not None:
            yield "the test data", self.test

    def _check_alike(self) -> None:
        """Everybody's records have the same shape and type."""
        X0, y0 = self.shards[0]
        for who, (X, y) in self._named():
            if X.shape[1:] != X0.shape[1:] or y.shape[1:] != y0.shape[1:]:
                raise InputError(
                    f"{who} has records of shape {tuple(X.shape[1:])} and targets of shape "
                    f"{tuple(y.shape[1:])}, but "
                    f"{self._who(0)} has {tuple(X0.shape[1:])} and {tuple(y0.shape[1:])}; give "
                    "everybody the same features"
                )
            if X.dtype != X0.dtype or y.dtype != y0.dtype:
                raise InputError(
                    f"{who} has records of type {X.dtype} and targets of type {y.dtype}, but "
                    f"{self._who(0)} has {X0.dtype} and "
                    f"{y0.dtype}; convert them to one type"
                )

    def _tried(self) -> Tensor:
        """The model's output for user 0's first record, which the loss takes too; the model is left
        as it was.
        """
        refuse(self.model)
        X, y = (part[:1] for part in self.shards[0])
        kind = next(self.model.parameters()).dtype
        held = {name: p.detach().clone() for name, p in self.model.state_dict().items()}
        try:
            with torch.no_grad(), evaluating(self.model):
                output = functional_call(self.model, held, (_as(X, kind),), tie_weights=False)
        except (RuntimeError, IndexError, TypeError, ValueError) as problem:
            if not X.is_floating_point():  # no embedding, then: whole numbers stand for real ones
                object.__setattr__(self, "shards", tuple((X.to(kind), y) for X, y in self.shards))
                object.__setattr__(
                    self, "test", self.test and (self.test[0].to(kind), self.test[1])
                )
                return self._tried()
            raise InputError(
                f"the model cannot take records of shape {tuple(X.shape[1:])}: {problem}"
            ) from None
        if not isinstance(output, Tensor):
            raise InputError(f"the model must give a tensor, not {type(output).__name__}")
        try:
            cost = self.loss(output, _as(y, kind))
        except InputError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as problem:
            shapes = (
                f"outputs of shape {tuple(output.shape[1:])} and targets of shape "
                f"{tuple(y.shape[1:])}"
            )
            raise InputError(f"the loss cannot take {shapes} a record: {problem}") from None
        if not isinstance(cost, Tensor) or cost.dim():
            raise InputError(
                'the loss must give one number, the mean over records; use reduction="mean"'
            )
        return output

    def _check_labels(self, output: Tensor) -> None:
        """Labels are classes that the model can say: a wrong one would otherwise be an index out of
        range, deep inside.
        """
        classified = isinstance(self.loss, nn.CrossEntropyLoss) or self.loss in (
            losses.cross_entropy,
            nn.functional.cross_entropy,
        )
        if self.loss is losses.logistic:
            classes, of = 2, "the logistic loss"
        elif classified and self.shards[0][1].is_floating_point():
            if self.shards[0][1].dim() > 1:
                return  # probabilities of classes
            raise InputError("the labels are not whole numbers; convert them with y.long()")
        elif classified:
            classes, of = int(output.shape[1]), "the model"
        else:
            return
        for who, (_, y) in self._named():
            wrong = (y < 0) | (y >= classes)
            if y.is_floating_point():
                wrong |= y != y.floor()
            if bool(wrong.any()):
                at = int(wrong.flatten().nonzero()[0])
                raise InputError(
                    f"{who} has label {y.flatten()[at].item():g} at record {at}, but {of} knows "
                    f"classes 0 to {classes - 1}; "
                    "number the labels from 0"
                )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within this block every part of the model is in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def refuse(model: nn.Module) -> None:
    """What would carry private data past the noise."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(
            module, "track_running_stats", False
        ):
            raise InputError(
                f"the layer {name or 'itself'!r} is {type(module).__name__}, which keeps "
                "statistics of the records that no noise "
                "covers; use nn.GroupNorm or nn.LayerNorm"
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(
            "the model has no parameter that requires a gradient, so there is nothing to train"
        )


def _as(part: Tensor, kind: torch.dtype) -> Tensor:
    return part.to(kind) if part.is_floating_point() else part


def _shard(who: str, shard: Any) -> Shard:
    try:
        X, y = (torch.as_tensor(part) for part in shard)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError(
            f"the shard of {who} must be a pair (X, y) of tensors or arrays: {problem}"
        ) from None
    for part, what in ((X, "records"), (y, "targets")):
        if part.layout != torch.strided or part.is_complex():
            raise InputError(
                f"{who} has {what} that are sparse or complex; convert them with "
                ".to_dense(), or to real numbers"
            )
    if X.dim() < 1 or y.dim() < 1 or len(X) != len(y):
        counts = [len(part) if part.dim() else 0 for part in (X, y)]
        raise InputError(
            f"{who} has {counts[0]} records but {counts[1]} targets; give one target "
            "for each record"
        )
    if len(X) == 0:
        raise InputError(f"{who} has an empty shard; leave the user out, or give it data")
    for part, what in ((X, "records"), (y, "targets")):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            at = int((~torch.isfinite(part)).reshape(len(part), -1).any(1).nonzero()[0])
            raise InputError(
                f"{who} has a NaN or an infinity in its {what} at record {at}; fill "
                "in or drop that record"
            )
    return _plain(X), _plain(y) if y.is_floating_point() else y.detach().long()


def _plain(part: Tensor) -> Tensor:
    """Half precision as single: NumPy does not know all its kinds."""
    return (
        part.detach().float()
        if part.is_floating_point() and part.element_size() < 4
        else part.detach()
    )
