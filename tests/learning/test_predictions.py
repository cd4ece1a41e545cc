"""What a model says of new records, in the words of its label."""

import numpy as np
import pytest
import torch

from decor.errors import InputError
from decor.learning.definition import Definition
from decor.learning.predictions import predict

COLUMNS = [
    {"name": "age", "kind": "number", "low": 0, "high": 100},
    {"name": "ward", "kind": "category", "values": ["north", "south"]},
]
TABLE = {"ward": ["north", "", "west"], "id": ["7", "8", "9"], "age": ["0", "100", "oops"]}
INPUTS = [[-1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 1]]


def trained(label, **model):
    """A model with random parameters, its loss, and its outputs for the table."""
    definition = Definition.of({"columns": COLUMNS, "label": label}, model)
    module, loss = definition.build()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        return definition, module, loss, module(torch.tensor(INPUTS).float()).double().numpy()


def test_two_classes_share_one_logit():
    definition, module, loss, z = trained(
        {"name": "sick", "classes": ["no", "yes"]}, kind="logistic"
    )
    seen = predict(definition, module, loss, TABLE)
    yes = 1 / (1 + np.exp(-z[:, 0]))
    assert seen.classes == ("no", "yes") and np.allclose(seen.values[:, 1], yes)
    assert np.allclose(seen.values.sum(axis=1), 1)
    assert seen.most_likely == ["yes" if each > 0.5 else "no" for each in yes]


@pytest.mark.parametrize("model", [{"kind": "multinomial"}, {"kind": "mlp", "hidden": [3]}])
def test_several_classes_have_a_logit_each(model):
    definition, module, loss, z = trained({"name": "c", "classes": ["a", "b", "c"]}, **model)
    seen = predict(definition, module, loss, TABLE)
    assert np.allclose(seen.values, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True))
    columns = seen.columns()
    assert list(columns) == ["prediction", *(f"probability of {c}" for c in "abc")]
    assert columns["prediction"] == seen.most_likely and len(columns["prediction"]) == 3
    assert float(columns["probability of a"][0]) == pytest.approx(seen.values[0, 0], rel=1e-5)


def test_a_number_has_the_unit_of_its_label():
    label = {"name": "days", "kind": "number", "low": 10, "high": 30}
    definition, module, loss, z = trained(label, kind="linear")
    seen = predict(definition, module, loss, TABLE)
    assert seen.classes is None and np.allclose(seen.values, 20 + 10 * z)
    assert list(seen.columns()) == ["prediction"]
    with pytest.raises(InputError, match="predicts numbers"):
        _ = seen.most_likely


def test_labels_and_other_columns_are_not_looked_at():
    given = trained({"name": "sick", "classes": ["no", "yes"]}, kind="logistic")[:3]
    bare = predict(*given, {"age": TABLE["age"], "ward": TABLE["ward"]})
    assert np.array_equal(bare.values, predict(*given, TABLE | {"sick": ["?"] * 3}).values)
    with pytest.raises(InputError, match="has no column 'ward'"):
        predict(*given, {"age": ["1"]})


def test_no_records_have_no_predictions():
    given = trained({"name": "sick", "classes": ["no", "yes"]}, kind="logistic")[:3]
    assert predict(*given, {"age": [], "ward": []}).values.shape == (0, 2)


def test_without_columns_the_numbers_are_taken_in_their_order():
    definition = Definition.of(None, {"kind": "multinomial", "features": 2, "classes": 3})
    module, loss = definition.build()
    seen = predict(definition, module, loss, {"a": ["1", "2"], "b": ["3", "-1e1"]})
    assert seen.classes == ("0", "1", "2") and seen.values.shape == (2, 3)
    for table, problem in (
        ({"a": ["1"]}, "has 1 columns, and the model takes 2"),
        ({"a": ["1"], "b": ["north"]}, "holds other things than numbers"),
    ):
        with pytest.raises(InputError, match=problem):
            predict(definition, module, loss, table)
