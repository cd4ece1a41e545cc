"""Task: a model, its loss, and one shard of data per user."""

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
from .definition import Definition

Shard = tuple[Tensor, Tensor]
"""(X, y): the examples of one user and their targets, one row each."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""(model output, target) -> the mean over examples."""

# what torch and modules raise for tensors that do not fit
_MISFITS = (RuntimeError, IndexError, TypeError, ValueError)


@dataclass(frozen=True, eq=False)
class Task:
    """What is learnt, and from which users' data. All users start from the model's own weights.

    Attributes:
        model: Any torch module, except one that keeps statistics of its inputs.
        loss: `loss(model(X), y)` is the mean over examples.
        shards: (X, y) of each user, as tensors or arrays, examples first: a mapping from user
            names, such as {"bonn": (X, y)}, or a list for users 0 to n-1. Kept as a tuple.
        test: (X, y) on which the average model is measured, or None.
        name: What manifests and reports call the task.
        optimum: The best flat parameter vector, if it is known.
        facts: Where the data is from, for the manifest of a simulation.
        test_public: Whether anyone may know the test examples. Only then does a private run keep
            what was measured on them.
        definition: How the model is made from public facts, which run folders keep so that it can
            be built again; None where only your program knows.
        names: The users' names, in the order of `shards`; None if `shards` was a list.

    Raises:
        InputError: If model, loss and data do not fit each other; the message names the user.
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
    definition: Definition | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:  # a mapping is accepted, and a tuple is kept

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
            *,
            definition: Definition | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
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
            self._set(names=names, shards=tuple(self.shards.values()))
        self._set(shards=tuple(_shard(self._owner(i), s) for i, s in enumerate(self.shards)))
        if self.test is not None:
            self._set(test=_shard("the test data", self.test))
        self._check_same_form()
        self._check_labels(self._try_model())
        if self.optimum is not None and self.optimum.numel() != self.parameters:
            raise InputError(
                f"optimum has {self.optimum.numel()} values, but the model has "
                f"{self.parameters} parameters"
            )

    def __repr__(self) -> str:
        # never the data, which would end up in notebooks and logs
        return (
            f"Task({self.name!r}, {self.users} users, {sum(self.counts):,} examples, "
            f"{self.parameters:,} parameters)"
        )

    @property
    def users(self) -> int:
        return len(self.shards)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many examples each user holds, in the order of `shards`."""
        return tuple(len(X) for X, _ in self.shards)

    @property
    def records(self) -> tuple[int, ...] | dict[str, int]:
        """`counts` as `Exposure(records=...)` takes them: by name if the users have names."""
        if self.names is None:
            return self.counts
        return dict(zip(self.names, self.counts, strict=True))

    @property
    def parameters(self) -> int:
        """How many parameters are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _owner(self, i: int) -> str:
        """What messages call user i."""
        return f"user {i if self.names is None else self.names[i]}"

    def _all_data(self) -> Iterator[tuple[str, Shard]]:
        """Each shard and the test data, with the name that messages use."""
        yield from ((self._owner(i), shard) for i, shard in enumerate(self.shards))
        if self.test is not None:
            yield "the test data", self.test

    def _check_same_form(self) -> None:
        """All users' examples have the same shape and type."""
        X0, y0 = self.shards[0]
        for owner, (X, y) in self._all_data():
            for what, of, fix in (
                ("shape", lambda part: tuple(part.shape[1:]), "give all users the same features"),
                ("type", lambda part: part.dtype, "convert them to one type"),
            ):
                if (of(X), of(y)) != (of(X0), of(y0)):
                    raise InputError(
                        f"{owner} has examples of {what} {of(X)} and targets of {what} {of(y)}, "
                        f"but {self._owner(0)} has {of(X0)} and {of(y0)}; {fix}"
                    )

    def _try_model(self) -> Tensor:
        """The model's output for user 0's first example; checks that the loss takes it too."""
        check_model(self.model)
        X, y = (part[:1] for part in self.shards[0])
        # data in another floating point type is converted as an engine will do
        dtype = next(self.model.parameters()).dtype
        # copies: a module that updates a buffer in its forward must not see private data
        copies = {name: p.detach().clone() for name, p in self.model.state_dict().items()}
        try:
            with torch.no_grad(), evaluating(self.model):
                output = functional_call(self.model, copies, (_cast(X, dtype),), tie_weights=False)
        except _MISFITS as problem:
            if not X.is_floating_point():  # not an embedding, so integers are ordinary features
                self._set(shards=tuple((X.to(dtype), y) for X, y in self.shards))
                self._set(test=self.test and (self.test[0].to(dtype), self.test[1]))
                return self._try_model()
            raise InputError(
                f"the model cannot take examples of shape {tuple(X.shape[1:])}: {problem}"
            ) from None
        if not isinstance(output, Tensor):
            raise InputError(f"the model must give a tensor, not {type(output).__name__}")
        try:
            cost = self.loss(output, _cast(y, dtype))
        # a loss of decor.losses explains itself better
        except InputError:
            raise
        except _MISFITS as problem:
            raise InputError(
                f"the loss cannot take outputs of shape {tuple(output.shape[1:])} and targets of "
                f"shape {tuple(y.shape[1:])} per example: {problem}"
            ) from None
        if not isinstance(cost, Tensor) or cost.dim():
            raise InputError(
                'the loss must give one number, the mean over examples; use reduction="mean"'
            )
        return output

    def _check_labels(self, output: Tensor) -> None:
        """Labels are classes of the model; a wrong one would be an obscure index error later."""
        # on a GPU a wrong class index would end all work of the process
        classified = isinstance(self.loss, nn.CrossEntropyLoss) or self.loss in (
            losses.cross_entropy,
            nn.functional.cross_entropy,
        )
        y0 = self.shards[0][1]
        if self.loss is losses.logistic:
            classes, of = 2, "the logistic loss"
        elif not classified:
            return
        elif y0.is_floating_point():
            if y0.dim() > 1:
                return  # probabilities of classes
            raise InputError("the labels are not whole numbers; convert them with y.long()")
        else:
            classes, of = int(output.shape[1]), "the model"
        for owner, (_, y) in self._all_data():
            wrong = (y < 0) | (y >= classes)
            if y.is_floating_point():
                wrong |= y != y.floor()
            if bool(wrong.any()):
                at = int(wrong.flatten().nonzero()[0])
                raise InputError(
                    f"{owner} has label {y.flatten()[at].item():g} at example {at}, but {of} knows "
                    f"classes 0 to {classes - 1}; number the labels from 0"
                )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within this block every part of the model is in evaluation mode."""
    # each part on its own: model.train() afterwards would also thaw parts the caller had frozen
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_model(model: nn.Module) -> None:
    """Refuses a model with nothing to train, or that would carry private data past the noise."""
    for name, module in model.named_modules():
        # running statistics are saved with the model, and no noise is added to them
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(
            module, "track_running_stats", False
        ):
            raise InputError(
                f"the layer {name or 'itself'!r} is {type(module).__name__}, which keeps "
                "statistics of the examples that no noise covers; use nn.GroupNorm or nn.LayerNorm"
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(
            "the model has no parameter that requires a gradient, so there is nothing to train"
        )


def _cast(part: Tensor, dtype: torch.dtype) -> Tensor:
    return part.to(dtype) if part.is_floating_point() else part


def _shard(owner: str, shard: Any) -> Shard:
    """The shard as two tensors: finite, one target per example, detached from the caller's."""
    try:
        X, y = (torch.as_tensor(part) for part in shard)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError(
            f"the shard of {owner} must be a pair (X, y) of tensors or arrays: {problem}"
        ) from None
    for part, what in ((X, "examples"), (y, "targets")):
        if part.layout != torch.strided or part.is_complex():
            raise InputError(
                f"{owner} has {what} that are sparse or complex; convert them with .to_dense(), or "
                "to real numbers"
            )
    if X.dim() < 1 or y.dim() < 1 or len(X) != len(y):
        examples, targets = (len(part) if part.dim() else 0 for part in (X, y))
        raise InputError(
            f"{owner} has {examples} examples but {targets} targets; give one target per example"
        )
    if len(X) == 0:
        raise InputError(f"{owner} has an empty shard; leave the user out, or give it data")
    for part, what in ((X, "examples"), (y, "targets")):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            at = int((~torch.isfinite(part)).reshape(len(part), -1).any(1).nonzero()[0])
            raise InputError(
                f"{owner} has a NaN or an infinity in its {what} at example {at}; fill it in, or "
                "drop that example"
            )
    # detached: a caller's requires_grad must not build graphs in training
    return _at_least_single(X), _at_least_single(y) if y.is_floating_point() else y.detach().long()


def _at_least_single(part: Tensor) -> Tensor:
    # NumPy does not have all of torch's half precision types
    half = part.is_floating_point() and part.element_size() < 4
    return part.detach().float() if half else part.detach()
