"""A task's own metrics: measured on the test data, at the average model, whatever the engine."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import decor
from decor.errors import InputError
from decor.learning import losses, models
from decor.learning.task import Task

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(12, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long()


def recall(outputs, targets):
    right = outputs.flatten() > 0 if outputs.shape[-1] == 1 else outputs.argmax(1) == 1
    return float((right & (targets == 1)).sum() / (targets == 1).sum())


def made(model=None, loss=losses.logistic, metrics=None, **more):
    return Task(
        model or models.logistic(4),
        loss,
        [(X[:6], Y[:6]), (X[6:], Y[6:])] * 2,
        test=(X, Y),
        metrics={"recall": recall} if metrics is None else metrics,
        **more,
    )


def trained(task, **more):
    exposure = decor.Exposure(clip=1.0, steps=4)
    plan = decor.NoisePlan(decor.ring(4), exposure, decor.Adversary.curious(), 0.1, 0.1)
    return decor.train(task, plan, learning_rate=0.5, **more)


class Tied(nn.Module):
    """Two names for one parameter, a buffer, and a part that is not trained."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(4))
        self.last = nn.Linear(4, 2)
        self.last.bias.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x) + self.shift))))


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (models.logistic(4), losses.logistic),
        (models.mlp(4, 3, 2), losses.cross_entropy),
        (Tied(), nn.functional.cross_entropy),
    ],
)
def test_an_own_metric_is_of_the_average_model_on_the_test_data(model, loss):
    task = made(model, loss)
    run = trained(task)
    assert len(run.history["recall"]) == len(run.history["step"])
    module = task.model
    module.load_state_dict(run.average_model)
    with torch.no_grad():
        assert run.metrics["recall"] == pytest.approx(recall(module(X), Y))


def test_settings_of_a_sweep_have_their_own_values_and_the_best_is_the_largest():
    task = made(metrics={"norm": lambda outputs, targets: float(outputs.norm())})
    exposure = decor.Exposure(clip=1.0, steps=4)
    plan = decor.NoisePlan(decor.ring(4), exposure, decor.Adversary.curious(), 0.0, 0.0)
    tuned = decor.tune(task, [plan], learning_rates=[0.01, 1.0], criterion="norm", seeds=(0, 1))
    assert tuned.learning_rate == 1.0 and tuned.value > 1


def test_a_metric_that_is_undefined_does_not_stop_a_run():
    calls = []

    def sometimes(outputs, targets):
        calls.append(len(outputs))
        return {0: 1.0, 1: math.nan}.get(len(calls) - 1) if len(calls) < 3 else 1 / 0

    run = trained(made(metrics={"odd": sometimes}), evaluate_every=1)
    assert run.stopped is None and run.steps_taken == 4
    assert all(map(math.isnan, run.history["odd"])) and set(calls) == {12}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"loss": recall}, "the metric 'loss' is measured already"),
        ({"a\nb": recall}, "must have a short name"),
        ({"auc": 3}, "must be a function of"),
        (
            {"auc": lambda outputs, targets: outputs},
            r"metric 'auc' cannot be computed from outputs of shape \(12, 1\).*one number",
        ),
        ({"auc": lambda outputs: 1}, "TypeError.*must return one number"),
    ],
)
def test_a_metric_that_cannot_be_measured_is_refused_before_anything_is_trained(metrics, said):
    with pytest.raises(InputError, match=said):
        made(metrics=metrics)


def test_metrics_need_test_data():
    with pytest.raises(InputError, match="are measured on test data; give test="):
        dataclasses.replace(made(), test=None)


def test_other_metrics_are_another_task_to_resume():
    from decor.training.manifest import fingerprint

    assert fingerprint(made()) != fingerprint(made(metrics={}))
    assert fingerprint(made()) == fingerprint(made())
