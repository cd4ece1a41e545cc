"""What a task learns: columns, label and model, as files and run folders say it."""

import json
import subprocess
import sys

import pytest
import torch

from decor.errors import InputError
from decor.learning import losses
from decor.learning.definition import Definition

COLUMNS = [
    {"name": "age", "kind": "number", "low": 0, "high": 100},
    {"name": "ward", "kind": "category", "values": ["north", "south"]},
]
CLASSES = {"name": "sick", "classes": ["no", "yes", "perhaps"]}
NUMBER = {"name": "days", "kind": "number", "low": 0, "high": 30}


def definition(label=CLASSES, **model):
    return Definition.of({"columns": COLUMNS, "label": label}, model)


@pytest.mark.parametrize(
    ("label", "model", "shape", "loss"),
    [
        (CLASSES, {"kind": "multinomial"}, (3, 4), losses.cross_entropy),
        (CLASSES, {"kind": "mlp", "hidden": [5]}, (3, 5), losses.cross_entropy),
        (NUMBER, {"kind": "linear"}, (1, 4), losses.squared),
        (NUMBER, {"kind": "mlp", "hidden": [5], "loss": "squared"}, (1, 5), losses.squared),
    ],
)
def test_sizes_follow_from_the_columns(label, model, shape, loss):
    made, used = definition(label, **model).build()
    assert (
        tuple(list(made.parameters())[-2 if len(list(made.parameters())) > 1 else 0].shape) == shape
    )
    assert used is loss and made(torch.zeros(2, 4)).shape == (2, shape[0])


def test_it_is_read_again_as_it_is_written():
    one = definition(kind="mlp", hidden=[5])
    again = Definition.of(*(json.loads(json.dumps(one.to_json()))[k] for k in ("data", "model")))
    assert again == one and again.digest == one.digest
    assert one.classes == ("no", "yes", "perhaps") and one.label_range is None
    assert definition(NUMBER, kind="linear").label_range == (0, 30)
    numbers = Definition.of(None, {"kind": "multinomial", "features": 3, "classes": 4})
    assert numbers.to_json().keys() == {"model"} and numbers.classes == ("0", "1", "2", "3")


def test_every_change_of_what_is_learnt_changes_the_digest():
    digests = {
        definition(kind="multinomial").digest,
        definition(kind="mlp", hidden=[5]).digest,
        definition(kind="mlp", hidden=[5], seed=1).digest,
        definition({**CLASSES, "classes": ["yes", "no", "perhaps"]}, kind="multinomial").digest,
        Definition.of({"columns": COLUMNS[::-1], "label": CLASSES}, {"kind": "multinomial"}).digest,
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("label", "model", "problem"),
    [
        (CLASSES, {"kind": "linear"}, "the label 'sick' has classes, which .* take logistic"),
        (NUMBER, {"kind": "mlp", "hidden": [5]}, "model.classes is missing"),
        (NUMBER, {"kind": "mlp", "hidden": [5], "classes": 2}, "the label 'days' is a number"),
        (CLASSES, {"kind": "multinomial", "classes": 2}, "model.classes is 2, .* has 3 classes"),
        (CLASSES, {"kind": "multinomial", "features": 2}, "drop model.features"),
        (CLASSES, {"kind": "logistic"}, "must be 2"),
        (CLASSES, {"kind": "linear", "loss": "logistic"}, "model.loss 'logistic' does not apply"),
    ],
)
def test_a_model_that_does_not_fit_the_label_is_refused(label, model, problem):
    with pytest.raises(InputError, match=problem):
        definition(label, **model)


def test_the_usual_loss_may_be_spelled_out():
    assert definition(kind="multinomial", loss="cross-entropy") == definition(kind="multinomial")


def test_a_definition_is_read_without_torch():
    code = (
        "import sys; from decor.learning.definition import Definition; "
        f"d = Definition.of({ {'columns': COLUMNS, 'label': CLASSES}!r}, {{'kind': 'multinomial'}}); "
        "d.digest; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
