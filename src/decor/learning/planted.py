"""Planted records: made up from public facts, and as easy to tell apart as any records can be."""

from __future__ import annotations

import numpy as np

from decor.array_types import Array
from decor.errors import InputError

from .columns import OTHER, AnyLabel, CategoryColumn, Column, Label, NumberColumn, Preparation
from .definition import Definition

_TRIES = 100


def plant(definition: Definition, records: int, seed: int = 0) -> tuple[Array, Array]:
    """Records of the form that a definition describes; no data are read.

    All records of a class are equal, and every number is at an end of its range: a linear model
    can hardly find records that it learns faster. What it reaches on them is a ceiling.

    Args:
        definition: Columns and label; or the number of features and classes.
        records: How many there are; the classes take turns.
        seed: Selects which end of its range each column has in each class.

    Returns:
        (X, y), as a model takes them.

    Raises:
        InputError: If only the model's code knows what it takes.
    """
    preparation, features = definition.preparation, definition.model.features
    kinds = _class_count(definition)
    rng, turns = np.random.default_rng(seed), np.arange(records) % kinds
    if preparation is not None:
        return _of_columns(preparation, _ends(len(preparation.columns), kinds, rng)[turns], turns)
    if features is None:
        raise InputError(
            "what the model's code takes is known to it alone, so no records can be planted; give "
            "a public sample with --public"
        )
    X = (2 * _ends(features, kinds, rng)[turns] - 1).astype(np.float32)
    if definition.classes is None:
        return X, (2.0 * turns[:, None] - 1).astype(np.float32)
    return X, turns


def _class_count(definition: Definition) -> int:
    return 2 if definition.classes is None else len(definition.classes)


def _ends(columns: int, kinds: int, rng: np.random.Generator) -> Array:
    """Where in its range, 0 to 1, each class has each column: [kinds, columns]."""
    for _ in range(_TRIES):
        order = rng.permuted(np.tile(np.arange(kinds), (columns, 1)), axis=1).T
        halves = np.asarray(2 * order >= kinds, dtype=np.float64)
        if len(np.unique(halves, axis=0)) == kinds:
            return halves
    # too few columns for each class to have ends of its own
    return np.asarray(order / (kinds - 1))


def _of_columns(preparation: Preparation, places: Array, turns: Array) -> tuple[Array, Array]:
    """The records as a table, prepared as a user's own."""
    columns = zip(preparation.columns, places.T, strict=True)
    table = {column.name: _cells(column, place) for column, place in columns}
    label = preparation.label
    names = label.classes if isinstance(label, Label) else None
    table[label.name] = _cells(label, turns) if names is None else [names[k] for k in turns]
    prepared = preparation.apply(table, "the planted records")
    assert prepared.targets is not None  # labels are known
    return prepared.features, prepared.targets


def _cells(column: Column | AnyLabel, places: Array) -> list[float | str]:
    if isinstance(column, NumberColumn):
        # halved first: the width of a very large range would overflow
        return [float(2 * (column.low / 2 * (1 - x) + column.high / 2 * x)) for x in places]
    assert isinstance(column, CategoryColumn)  # plain columns are not in federation files
    known = (*column.values, OTHER)
    return [known[round(x * len(column.values))] for x in places]
