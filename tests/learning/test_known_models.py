"""Runs of tasks that were made in Python know their model, where it is like a built-in one."""

import numpy as np
import pytest
import torch

import decor
from decor.errors import InputError
from decor.learning.known_models import definition_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3)).astype("f")
CLASSES = RNG.integers(0, 3, 40)
BIASED = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 3))


def sequential(*sizes, activation=torch.nn.Tanh):
    layers = []
    for pair in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [torch.nn.Linear(*pair), activation()]
    return torch.nn.Sequential(*layers[:-1])


KNOWN = [
    (decor.models.logistic(3), decor.losses.logistic, CLASSES % 2),
    (torch.nn.Linear(3, 3), torch.nn.functional.cross_entropy, CLASSES),
    (decor.models.linear(3), decor.losses.squared, X[:, :1]),
    (decor.models.mlp(3, 5, 3), decor.losses.cross_entropy, CLASSES),
    (sequential(3, 5, 4, 3), decor.losses.cross_entropy, CLASSES),
]
UNKNOWN = [
    (torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, X[:, :1]),
    (sequential(3, 5, 3, activation=torch.nn.GELU), decor.losses.cross_entropy, CLASSES),
    (BIASED, decor.losses.cross_entropy, CLASSES),
    (
        torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()),
        decor.losses.cross_entropy,
        CLASSES,
    ),
]


def trained(model, loss, y):
    task = decor.Task(model, loss, [(X[k::4], y[k::4]) for k in range(4)])
    plan = decor.calibrate(
        decor.ring(4), decor.Exposure(1.0, 2), decor.Adversary.curious(), decor.Budget(10, 1e-5)
    )
    return decor.train(task, plan, learning_rate=0.1)


@pytest.mark.parametrize(("model", "loss", "y"), KNOWN)
def test_the_model_that_is_built_again_gives_the_same_outputs(model, loss, y, tmp_path):
    trained(model, loss, y).save(tmp_path / "run")
    run = decor.Run.load(tmp_path / "run")
    model.load_state_dict(run.average_model)
    assert torch.equal(run.model()(torch.tensor(X)), model(torch.tensor(X)))
    assert len(run.predict({f"x{k}": X[:, k] for k in range(3)}).values) == 40


@pytest.mark.parametrize(("model", "loss", "y"), UNKNOWN)
def test_any_other_model_is_only_known_to_the_program(model, loss, y):
    run = trained(model, loss, y)
    with pytest.raises(InputError, match="a module of your own.*run.average_model"):
        run.model()


def test_a_run_of_tables_predicts_tables():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"ward": ["a", "b"] * 20, "age": range(40), "sick": ["no", "yes"] * 20}
    )
    columns = [decor.NumberColumn("age", 0, 100), decor.CategoryColumn("ward", ["a", "b"])]
    task = decor.Task(
        decor.models.logistic,
        decor.losses.logistic,
        [frame[k::4] if k % 2 else frame[k::3] for k in range(4)],
        label=decor.Label("sick", ["no", "yes"]),
        columns=columns,
    )
    assert definition_of(task).preparation == task.columns
    plan = decor.calibrate(
        decor.ring(4), decor.Exposure(1.0, 2), decor.Adversary.curious(), decor.Budget(10, 1e-5)
    )
    run = decor.train(task, plan, learning_rate=0.1)
    predicted = run.predict(frame.drop(columns="sick"))
    assert predicted.classes == ("no", "yes") and len(predicted.values) == 40


def test_a_folder_that_names_a_model_of_another_size_is_refused():
    run = trained(*KNOWN[0])
    run.manifest["definition"]["model"]["features"] = 10**9
    with pytest.raises(InputError, match="has 4 parameters, and the one it names 1,000,000,001"):
        run.model()
