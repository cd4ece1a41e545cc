"""Definition: what a task learns, without its data: the columns, the label and the model.

All of it is public. A run folder keeps it, so that its models can be built and used again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from decor.errors import InputError

from . import build_model
from .columns import NumberColumn, Preparation
from .file_model import Model
from .file_rules import section_table
from .file_toml import parse_section

if TYPE_CHECKING:  # a file is checked without torch
    from .build_model import Pair


@dataclass(frozen=True)
class Definition:
    """What is learnt.

    Attributes:
        model: The model. Its features and classes are those of the columns, where there are some.
        preparation: The columns and the label; None where examples come as arrays of numbers.

    Raises:
        InputError: If the model does not fit the columns and the label.
    """

    model: Model
    preparation: Preparation | None = None

    def __post_init__(self) -> None:
        if self.preparation is not None:
            _check_fit(self.model, self.preparation)

    @classmethod
    def of(cls, data: Any, model: Any) -> Definition:
        """From the sections [data] and [model] as plain values.

        Args:
            data: The columns and the label; None where there are none.
            model: The model. What follows from `data` may be left out.
        """
        if data is None:
            return cls(parse_section(Model, model, "model"))
        preparation = Preparation.from_json(data, "[data]")
        if isinstance(model, Mapping):
            # what the file says wins, so that a wrong size is refused, and not replaced unseen
            model = {**_sizes_of(model, preparation), **model}
        return cls(parse_section(Model, model, "model"), preparation)

    def to_json(self) -> dict[str, Any]:
        """The sections as plain values, as `of` takes them."""
        data = {} if self.preparation is None else {"data": self.preparation.to_json()}
        return {**data, "model": section_table(self.model)}

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal digits: equal definitions learn the same."""
        text = json.dumps(["decor-definition-1", self.to_json()], sort_keys=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes: their numbers, where there are no columns; None if the label is
        a number.
        """
        if self.preparation is not None:
            return self.preparation.classes
        known = self.model.classes
        return None if known is None else tuple(map(str, range(known)))

    @property
    def parameters(self) -> int:
        """How many parameters are trained; loads torch only for a model given as code."""
        return build_model.parameters(self.model, "float32")

    @property
    def label_range(self) -> tuple[float, float] | None:
        """The public range of a label that is a number, which is scaled to -1 to 1."""
        label = None if self.preparation is None else self.preparation.label
        return (label.low, label.high) if isinstance(label, NumberColumn) else None

    def build(self) -> Pair:
        """A new module with the weights that all users start from, and its loss; loads torch.

        Raises:
            InputError: If the model's code is not the code that the definition has the hash of.
        """
        return build_model.build(self.model, "float32")

    def without_start(self) -> Definition:
        """The same without the model that a renewed federation starts from."""
        return replace(self, model=replace(self.model, start_sha256=None))


def _sizes_of(model: Mapping[str, Any], preparation: Preparation) -> dict[str, Any]:
    """The fields of a built-in model that follow from the columns and the label."""
    kind, classes = model.get("kind"), preparation.classes
    if kind is None:
        return {}
    sizes: dict[str, Any] = {"features": preparation.width}
    # a linear model predicts a number, and takes no classes
    if kind != "linear" and classes is not None:
        sizes["classes"] = len(classes)
    return sizes


def _check_fit(model: Model, preparation: Preparation) -> None:
    if model.kind is None:  # code decides itself what it takes
        return
    width, classes = preparation.width, preparation.classes
    if model.features != width:
        raise InputError(
            f"model.features is {model.features}, and the columns give the model {width}; drop "
            "model.features, which follows from the columns"
        )
    if (model.classes is None) != (classes is None):
        label = "has classes" if classes is not None else "is a number"
        fitting = (
            "logistic, multinomial or mlp"
            if classes is not None
            else 'linear, or mlp with loss = "squared"'
        )
        raise InputError(
            f"the label {preparation.label.name!r} {label}, which model.kind {model.kind!r} does "
            f"not predict; take {fitting}"
        )
    if classes is not None and model.classes != len(classes):
        raise InputError(
            f"model.classes is {model.classes}, and the label has {len(classes)} classes; drop "
            'model.classes, or take "multinomial" for more than two'
        )
