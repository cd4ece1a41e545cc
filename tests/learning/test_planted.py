"""Planted records: from public facts alone, and as easy as a linear model could wish."""

import numpy as np
import pytest

from decor.errors import InputError
from decor.learning.columns import CategoryColumn, Label, NumberColumn, Preparation
from decor.learning.definition import Definition
from decor.learning.planted import plant

COLUMNS = (NumberColumn("age", 0, 120), CategoryColumn("ward", ["north"]), NumberColumn("x", -1, 0))


def of_columns(label):
    preparation = Preparation(COLUMNS, label)
    kind = {"kind": "linear"} if isinstance(label, NumberColumn) else {"kind": "logistic"}
    if isinstance(label, Label) and len(label.classes) > 2:
        kind = {"kind": "multinomial"}
    return Definition.of(preparation.to_json(), kind)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_each_class_has_records_of_its_own_at_the_ends_of_all_ranges(classes):
    definition = of_columns(Label("ill", [str(k) for k in range(classes)]))
    X, y = plant(definition, 50)
    assert len(X) == 50 and set(np.unique(y)) == set(range(classes))
    assert set(np.unique(X[:, [0, -1]])) <= {-1.0, 1.0}
    kinds = {tuple(row) for row in X}
    assert len(kinds) == classes
    assert all(len({tuple(row) for row in X[y == k]}) == 1 for k in range(classes))


def test_two_classes_are_opposite_in_every_column():
    X, y = plant(Definition.of(None, {"kind": "logistic", "features": 7}), 4, seed=3)
    np.testing.assert_array_equal(X[y == 0], -X[y == 1])
    assert np.abs(X).min() == 1


def test_more_classes_than_ends_are_told_apart_by_places_between():
    X, y = plant(Definition.of(None, {"kind": "multinomial", "features": 1, "classes": 4}), 8)
    assert len(np.unique(X)) == len(np.unique(y)) == 4


def test_a_number_is_planted_at_the_ends_of_its_range():
    _, y = plant(of_columns(NumberColumn("days", 0, 30)), 6)
    assert y.shape == (6, 1) and set(y.ravel()) == {-1.0, 1.0}


def test_what_only_code_knows_cannot_be_planted():
    with pytest.raises(InputError, match="give a public sample"):
        plant(Definition.of(None, {"code": "own:model"}), 5)
