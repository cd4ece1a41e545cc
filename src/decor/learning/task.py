"""Task: a model, its loss, and one shard of data per user."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from decor.errors import InputError
from decor.text import html_table

from . import losses
from .columns import AnyLabel, Column, Counts, Label, Preparation
from .definition import Definition
from .frames import names_text
from .frozen import body_summary
from .keyword_inputs import Layout, unpacking
from .target_kinds import has_classes
from .task_data import Examples, check_shards, one_class_refusal, preparation_of, read_examples

Shard = tuple[Tensor, Tensor]
"""(X, y): the examples of one user and their targets, one row each."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""(model output, target) -> the mean over examples."""
TestMetric = Callable[[Tensor, Tensor], float]
"""(model output, target) of all test examples -> a number; larger is better."""
Builder = Callable[..., nn.Module]
"""A function that builds a model; if it takes an argument, it is the number of inputs."""
MEASURED = ("step", "loss", "test_loss", "accuracy", "consensus", "distance")
"""What runs measure by themselves: own metrics have other names."""

_SHOWN = 20
"""Most users that a notebook shows."""
# what torch and modules raise for tensors that do not fit
_MISFITS = (RuntimeError, IndexError, TypeError, ValueError)


@dataclass(frozen=True, eq=False)
class Task:
    """What is learnt, and from which users' data. All users start from the model's own weights.

    A shard is a DataFrame (with `label`), a pair (X, y) of tensors or arrays with examples first,
    a torch Dataset, or a dict of tensors, which the model takes by keyword (the targets are its
    entry `label`, or it is the X of a pair). A Dataset is read once. Everything is kept as (X, y).

    Attributes:
        model: Any torch module, except one that keeps statistics of its inputs; or a function that
            builds one, given the number of inputs if it takes an argument.
        loss: `loss(model(X), y)` is the mean over examples.
        shards: The data of each user: a mapping from user names, such as {"bonn": frame}, or a
            list for users 0 to n-1. Kept as a tuple of pairs (X, y).
        test: The data on which the average model is measured, in any form of a shard, or None.
        name: What manifests and reports call the task.
        optimum: The best flat parameter vector, if it is known.
        facts: Where the data is from, for the manifest of a simulation.
        test_public: Whether anyone may know the test examples. Only then does a private run keep
            what was measured on them.
        definition: How the model is made from public facts, which run folders keep so that it can
            be built again; None where only your program knows.
        label: The column to predict: `Label`, or a name for numbers that are taken as they are.
        columns: The columns of tables that the model takes, in the order of its inputs: described
            (`NumberColumn`, `CategoryColumn`) or a name for numbers that are taken as they are; or
            a whole `Preparation`. By default all but the label, as in the first table.
        metrics: Own metrics by name: f(outputs, targets) -> float on the test data, larger is
            better. A private run keeps them only with `test_public`.
        table_counts: What preparation changed in each table, by its owner: never to be published.
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
    label: str | AnyLabel | None = field(default=None, kw_only=True)
    columns: Preparation | None = field(default=None, kw_only=True)
    metrics: Mapping[str, TestMetric] = field(default_factory=dict, kw_only=True)
    table_counts: dict[str, Counts] = field(default_factory=dict, init=False)
    names: tuple[str, ...] | None = field(default=None, init=False)
    definition: Definition | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:  # more is accepted than is kept

        def __init__(
            self,
            model: nn.Module | Builder,
            loss: Loss,
            shards: Sequence[Any] | Mapping[str, Any],
            test: Any = None,
            name: str = "own task",
            optimum: Tensor | None = None,
            facts: dict[str, Any] | None = None,
            test_public: bool = False,
            *,
            definition: Definition | None = None,
            label: str | AnyLabel | None = None,
            columns: Preparation | Sequence[str | Column] | None = None,
            metrics: Mapping[str, TestMetric] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module) and not callable(self.model):
            raise InputError(
                "model must be a torch.nn.Module, or a function that builds one, not "
                f"{self.model!r}"
            )
        if not callable(self.loss):
            raise InputError(f"loss must be a function of (output, target), not {self.loss!r}")
        check_shards(self.shards)
        if isinstance(self.shards, Mapping):
            names = tuple(map(str, self.shards))
            # 1 and "1" are two keys of a mapping, but one name
            if len(set(names)) < len(names):
                raise InputError(f"shards names a user twice: {', '.join(map(repr, self.shards))}")
            self._set(names=names, shards=tuple(self.shards.values()))
        self._read_data()
        self._check_same_form()
        self._build_model(int(self.shards[0][0][0].numel()))
        self._check_labels(self._try_model())
        self._check_classes()
        self._check_metrics()
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

    def _repr_html_(self) -> str:
        """The users and how much they hold, as a notebook shows it; for the owner of the data."""
        rows = [
            [str(i) if self.names is None else self.names[i], f"{count:,}"]
            for i, count in enumerate(self.counts[:_SHOWN])
        ]
        if self.users > _SHOWN:
            rows.append([f"and {self.users - _SHOWN:,} more", f"{sum(self.counts[_SHOWN:]):,}"])
        base = self.base_rate
        guess = "" if base is None else f"<p>always the same guess is right for {base:.1%}</p>"
        return f"<p>{escape(repr(self))}</p>{html_table(['user', 'examples'], rows)}{guess}"

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

    @cached_property
    def frozen(self) -> dict[str, Any] | None:
        """How many parameters of the model are not trained, and their hash; None: all are."""
        return body_summary(self.model)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _read_data(self) -> None:
        """Makes every source of data a pair (X, y)."""
        sources: list[tuple[str, Any]] = list(self._all_data())
        preparation = preparation_of(self.columns, self.label, sources)
        label = self.label if isinstance(self.label, str) else None
        read = {owner: read_examples(owner, data, preparation, label) for owner, data in sources}
        counts = {owner: each.counts for owner, each in read.items() if each.counts is not None}
        refusal = preparation and one_class_refusal(preparation, list(counts.values()))
        # data that are no tables have no counts, and may hold further classes
        if refusal and len(counts) == len(sources):
            raise InputError(refusal)
        self._set(columns=preparation, table_counts=counts)
        self._pack_inputs(read)
        pairs = [_shard(owner, each.inputs, each.targets) for owner, each in read.items()]
        if counts:  # a column of numbers may happen to be whole at one user only
            pairs = _alike(pairs)
        # the test data, if there are any, came last
        self._set(shards=tuple(pairs[: self.users]), test=(*pairs[self.users :], None)[0])

    def _pack_inputs(self, read: dict[str, Examples]) -> None:
        """Several inputs become one tensor, and the model one that unpacks it."""
        several = [each.inputs for each in read.values() if isinstance(each.inputs, dict)]
        if not several:
            return
        if len(several) < len(read):
            raise InputError(
                "some users have examples as a dict and others as one tensor; give all the same"
            )
        layout = Layout.of(several[0])
        for owner, each in read.items():
            assert isinstance(each.inputs, dict)
            read[owner] = Examples(layout.pack(owner, each.inputs), each.targets)
        # only a module can be wrapped, so a function that builds one is called first
        self._build_model(None)
        self._set(model=unpacking(self.model, layout))

    def _build_model(self, inputs: int | None) -> None:
        """Calls the function that builds the model, if one was given.

        Args:
            inputs: How many values an example has; None: it has several inputs.
        """
        if isinstance(self.model, nn.Module):
            return
        build: Builder = self.model
        if _arguments_without_default(build) > (inputs is not None):
            raise InputError(
                f"the function {_name(build)} that builds the model needs too many arguments; give "
                "lambda inputs: ..., or lambda: ... for a model of several inputs"
            )
        built = build(inputs) if _arguments_without_default(build) else build()
        if not isinstance(built, nn.Module):
            raise InputError(
                f"the function {_name(build)} must return a torch.nn.Module, not {built!r}"
            )
        self._set(model=built)

    def _check_metrics(self) -> None:
        """Own metrics have names of their own, and give a number on the test data."""
        self._set(metrics=dict(self.metrics or {}))
        for name, metric in self.metrics.items():
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w -]{0,39}", name):
                raise InputError(
                    f"a metric must have a short name of letters, digits, blanks and dashes, not "
                    f"{name!r}"
                )
            if name in MEASURED:
                raise InputError(f"the metric {name!r} is measured already; give it another name")
            if not callable(metric):
                raise InputError(
                    f"the metric {name!r} must be a function of (outputs, targets), not {metric!r}"
                )
        if not self.metrics:
            return
        if self.test is None:
            raise InputError(
                f"metrics ({names_text(list(self.metrics))}) are measured on test data; give "
                "test=... as well"
            )
        # tried now, because afterwards a budget may be spent
        X, y = self.test
        output = self.output(self.model.state_dict(), X)
        for name, metric in self.metrics.items():
            try:
                float(metric(output, y))
            except Exception as problem:  # the user's own function may raise anything
                raise InputError(
                    f"the metric {name!r} cannot be computed from outputs of shape "
                    f"{tuple(output.shape)} and targets of shape {tuple(y.shape)} "
                    f"({type(problem).__name__}: {problem}); it must return one number"
                ) from None

    def own_metrics(self, output: Tensor) -> dict[str, float]:
        """The own metrics; NaN where one fails on what a diverged model gives.

        Args:
            output: The model's, for all test examples.
        """
        assert self.test is not None  # checked with the metrics
        values = {}
        for name, metric in self.metrics.items():
            try:
                values[name] = float(metric(output, self.test[1]))
            except Exception:  # it was tried when the task was made
                values[name] = math.nan
        return values

    @property
    def base_rate(self) -> float | None:
        """The accuracy of always guessing the most frequent class of the test data.

        None without test data, or if the targets are not classes.
        """
        if self.test is None or self.test[1].is_floating_point() or self.test[1].dim() != 1:
            return None
        _, counts = torch.unique(self.test[1], return_counts=True)
        return float(counts.max()) / len(self.test[1])

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
        try:
            output = self._try_output(_cast(X, dtype))
        except InputError:
            raise
        except _MISFITS as problem:
            if not X.is_floating_point():  # not an embedding, so integers are ordinary features
                self._set(shards=tuple((X.to(dtype), y) for X, y in self.shards))
                self._set(test=self.test and (self.test[0].to(dtype), self.test[1]))
                # X is floating point from now on, so this cannot go on for ever
                return self._try_model()
            raise InputError(
                f"the model cannot take examples of shape {tuple(X.shape[1:])}: {problem}"
            ) from None
        if not isinstance(output, Tensor):
            raise InputError(
                f"the model must give a tensor, not {type(output).__name__}; wrap it in a module "
                "that returns one of its parts, such as its logits"
            )
        if self.table_counts and output.shape == (1, 1) and self.loss is not losses.logistic:
            # one number per record is compared with one number, not broadcast
            self._set(shards=tuple((X, _as_column(y)) for X, y in self.shards))
            self._set(test=self.test and (self.test[0], _as_column(self.test[1])))
            y = self.shards[0][1][:1]
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

    def output(self, state: Mapping[str, Tensor], X: Tensor) -> Tensor:
        """The model's output in evaluation mode.

        Args:
            state: All its parameters and buffers by name, as `Run.average_model` has them.
            X: Examples, in the form that the task keeps.
        """
        dtype = next(part.dtype for part in state.values() if part.is_floating_point())
        with torch.no_grad(), evaluating(self.model):
            output: Tensor = functional_call(
                self.model, dict(state), (_cast(X, dtype),), tie_weights=False
            )
        return output

    def _try_output(self, X: Tensor) -> Tensor:
        """The model's output, from its own weights, in evaluation mode."""
        # copies: a module that updates a buffer in its forward must not see private data
        copies = {name: p.detach().clone() for name, p in self.model.state_dict().items()}
        with torch.no_grad(), evaluating(self.model):
            output: Tensor = functional_call(self.model, copies, (X,), tie_weights=False)
        for name, buffer in self.model.named_buffers():
            if name in copies and not torch.equal(copies[name], buffer):
                raise InputError(
                    f"the model changes its buffer {name!r} when it is called, and no noise covers "
                    "buffers; leave out what counts or averages examples"
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
            # the logistic loss takes labels 0.0 and 1.0, but a share is no class
            if y.is_floating_point():
                wrong |= y != y.floor()
            if bool(wrong.any()):
                at = int(wrong.flatten().nonzero()[0])
                raise InputError(
                    f"{owner} has label {y.flatten()[at].item():g} at example {at}, but {of} knows "
                    f"classes 0 to {classes - 1}; number the labels from 0"
                )

    def _check_classes(self) -> None:
        """Refuses users who all have the same class, and no other: there is nothing to learn."""
        # a node has its own data alone, and neighbours would see that it refuses their class
        if self.users == 1 or not has_classes(self.loss, self.shards[0][1]):
            return
        first = self.shards[0][1].flatten()[0]
        # a share is no class; one user may have one class, as in shards by label
        if first != first.round() or any(bool((y != first).any()) for _, y in self.shards):
            return
        name = self.label.name if isinstance(self.label, Column | Label) else self.label
        what = "all labels" if name is None else f"all labels {name!r}"
        raise InputError(
            f"{what} of all users are {first.item():g}, so there is nothing to learn; correct "
            "them, or give other records"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within this block every part of the model is in evaluation mode."""
    # torch's transformer layers would then call a fused function with the weights of their parts,
    # and pass by what has taken the place of a part, such as an adapter of PEFT
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    # each part on its own: model.train() afterwards would also thaw parts the caller had frozen
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, mode in modes:
            module.training = mode


def check_model(model: nn.Module) -> None:
    """Refuses a model with nothing to train, or that would carry private data past the noise."""
    for name, module in model.named_modules():
        # running statistics are saved with the model, and no noise is added to them
        # instance norms keep such statistics too, if they are told to
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(
            module, "track_running_stats", False
        ):
            raise InputError(
                f"the layer {name or 'itself'!r} is {type(module).__name__}, which keeps "
                "statistics of the examples that no noise covers; use nn.GroupNorm or nn.LayerNorm"
            )
    for name, p in model.named_parameters():
        # models, messages and noise are real numbers
        if p.is_complex():
            raise InputError(
                f"the parameter {name!r} is complex; keep its two parts as one real parameter, and "
                "make it complex in forward with torch.view_as_complex"
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(
            "the model has no parameter that requires a gradient, so there is nothing to train"
        )


def _cast(part: Tensor, dtype: torch.dtype) -> Tensor:
    # integers stay what they are: they may look up rows of an embedding
    return part.to(dtype) if part.is_floating_point() else part


def _arguments_without_default(build: Builder) -> int:
    """How many arguments a function needs."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _as_column(y: Tensor) -> Tensor:
    return y.float()[:, None] if y.dim() == 1 else y


def _alike(pairs: list[Shard]) -> list[Shard]:
    """Targets of one type: if any user's are real numbers, all are."""
    if len({y.is_floating_point() for _, y in pairs}) < 2:
        return pairs
    return [(X, y if y.is_floating_point() else y.float()[:, None]) for X, y in pairs]


def _shard(owner: str, X: Any, y: Tensor) -> Shard:
    """The shard as two tensors: finite, one target per example, detached from the caller's."""
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
