"""Predictions: what a model says of new records, in the words of its label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decor.array_types import Array
from decor.errors import InputError

from . import losses
from .csv_table import Columns
from .definition import Definition
from .task import evaluating

_BATCH = 8192
"""Records at a time: a convolution of all of them at once would need too much memory."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of each record.

    Attributes:
        values: The probabilities of the classes [records, classes], or the predicted numbers
            [records, outputs].
        classes: The names of the classes; None if numbers are predicted.
    """

    values: NDArray[np.float64]
    classes: tuple[str, ...] | None

    @property
    def most_likely(self) -> list[str]:
        """The most probable class of each record."""
        if self.classes is None:
            raise InputError("this model predicts numbers, not classes; take values")
        return [self.classes[k] for k in self.values.argmax(axis=1).tolist()]

    def columns(self) -> Columns:
        """As columns of texts: the class and the probability of each, or the number."""
        texts = [[f"{value:.6g}" for value in column] for column in self.values.T.tolist()]
        if self.classes is None:
            several = len(texts) > 1
            names = [f"prediction {k}" if several else "prediction" for k in range(len(texts))]
            return dict(zip(names, texts, strict=True))
        names = [f"probability of {name}" for name in self.classes]
        return {"prediction": self.most_likely, **dict(zip(names, texts, strict=True))}


def predict(definition: Definition, module: nn.Module, loss: Any, table: Any) -> Predictions:
    """Predicts each record of a table.

    Args:
        definition: What the model has learnt.
        module: The trained model.
        loss: What it was trained with: decides what its outputs are.
        table: Columns by name, as `Preparation.apply` takes them; where the definition has no
            columns, as many columns of numbers as the model takes, in its order. Further columns
            are ignored where the definition names those it needs.

    Raises:
        InputError: If columns are missing, or the model cannot take them.
    """
    features = torch.from_numpy(_features(definition, table))
    outputs = _outputs(module, features.to(next(module.parameters()).dtype)).double()
    if loss is losses.logistic or isinstance(loss, nn.BCEWithLogitsLoss):
        # the model's only output is the log odds of class 1
        one = torch.sigmoid(outputs.flatten())
        return Predictions(torch.stack([1 - one, one], dim=1).numpy(), _classes(definition, 2))
    if _is_cross_entropy(loss):
        probabilities = torch.softmax(outputs, dim=1).numpy()
        return Predictions(probabilities, _classes(definition, probabilities.shape[1]))
    values: Array = outputs.reshape(len(outputs), -1).numpy()
    if definition.label_range is not None:
        low, high = definition.label_range
        # back from NumberColumn's scale; a prediction may lie outside the range
        values = low + (values + 1) / 2 * (high - low)
    return Predictions(values, None)


def _features(definition: Definition, table: Any) -> NDArray[np.float32]:
    where = "the data"
    if definition.preparation is not None:
        prepared = definition.preparation.apply(table, where, labelled=False, extra="ignore")
        return prepared.features
    try:
        columns = [np.asarray(column, dtype=np.float32) for column in table.values()]
    except ValueError:
        raise InputError(
            f"{where} holds other things than numbers, and the run does not say how columns are "
            "prepared; give the numbers that the model takes"
        ) from None
    needed = definition.model.features
    if needed is not None and len(columns) != needed:
        raise InputError(
            f"{where} has {len(columns)} columns, and the model takes {needed}; give these alone, "
            "in the order of training"
        )
    return np.stack(columns, axis=1) if columns else np.zeros((0, 0), dtype=np.float32)


def _outputs(module: nn.Module, features: Tensor) -> Tensor:
    try:
        with torch.no_grad(), evaluating(module):
            parts = [module(part) for part in torch.split(features, _BATCH)]
    except RuntimeError as problem:
        raise InputError(
            f"the model cannot take records of shape {tuple(features.shape[1:])}: {problem}"
        ) from None
    return torch.cat(parts)


def _is_cross_entropy(loss: Any) -> bool:
    known = (losses.cross_entropy, nn.functional.cross_entropy)
    return loss in known or isinstance(loss, nn.CrossEntropyLoss)


def _classes(definition: Definition, count: int) -> tuple[str, ...]:
    names = definition.classes
    return names if names is not None and len(names) == count else tuple(map(str, range(count)))
