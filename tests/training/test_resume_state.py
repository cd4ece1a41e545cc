"""A resumed run is the uninterrupted one, bit by bit; a run of anything else is refused."""

import numpy as np
import pytest
import torch
from small_tasks import make, planned, private

import decor
from decor import Budget, Task, Vectorised, losses, models, schedule
from decor.errors import InputError


def halted(task, plan, at, tmp_path=None, **options):
    run = decor.train(
        task, plan, learning_rate=0.1, callbacks=[lambda moment: moment.step == at], **options
    )
    assert run.steps_taken == at
    if tmp_path is None:
        return run
    run.save(tmp_path / "run")
    return decor.Run.load(tmp_path / "run")


def same(one, other):
    assert (
        one.models.keys() == other.models.keys()
        and one.steps_taken == other.steps_taken
        and one.stopped == other.stopped
    )
    assert all(torch.equal(one.models[name], other.models[name]) for name in one.models), (
        "bit for bit"
    )
    assert one.history == other.history


@pytest.mark.parametrize("at", [0, 1, 7])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["logistic", "relu", "squares", "convolution"])
def test_a_resumed_run_is_the_uninterrupted_one(kind, momentum, saved, at, tmp_path):
    task = make(kind)
    plan = (
        private(task)
        if kind in ("squares", "relu")
        else planned(task, "example", steps=12, budget=Budget(3.0, 1e-5))
    )
    options = {
        "momentum": momentum,
        "weight_decay": 0.1,
        "final_gossip_rounds": 2,
        "schedule": schedule.Cosine(0.2),
    }
    whole = decor.train(task, plan, learning_rate=0.1, **options)
    first = halted(task, plan, at, tmp_path if saved else None, **options)
    again = decor.train(task, plan, learning_rate=0.1, resume=first, **options)
    same(again, whole)
    assert again.guarantee.epsilon == whole.guarantee.epsilon


def test_a_checkpoint_taken_on_the_way_resumes_to_the_same_end():
    task = make("tanh")
    plan, kept = private(task), []
    whole = decor.train(
        task,
        plan,
        learning_rate=0.1,
        momentum=0.5,
        callbacks=[lambda m: kept.append(m.run()) if m.step == 6 else None],
    )
    assert kept[0].steps_taken == 6 and kept[0].stopped == "stopped after step 6 of 12"
    same(decor.train(task, plan, learning_rate=0.1, momentum=0.5, resume=kept[0]), whole)


def test_resuming_a_finished_run_changes_nothing():
    task = make("logistic")
    plan = private(task)
    whole = decor.train(task, plan, learning_rate=0.1, final_gossip_rounds=3)
    same(decor.train(task, plan, learning_rate=0.1, final_gossip_rounds=3, resume=whole), whole)


def test_resuming_with_anything_else_is_refused_and_says_what_changed():
    task = make("relu")
    plan = private(task)
    first = halted(task, plan, 4)

    def again(task=task, plan=plan, learning_rate=0.1, **options):
        return decor.train(task, plan, learning_rate=learning_rate, resume=first, **options)

    others = {
        "seed": {"engine": Vectorised(seed=1)},
        "engine": {"engine": Vectorised(dtype="float64")},
        "plan": {"plan": plan.scaled(2.0)},
        "learning_rate": {"learning_rate": 0.2},
        "recipe": {"momentum": 0.5},
        "task": {"task": Task(models.mlp(4, 5, 4, 3, seed=1), losses.cross_entropy, task.shards)},
    }
    for what, options in others.items():
        with pytest.raises(InputError, match=f"had another {what}.*start a new run"):
            again(**options)
    for data in (
        [*task.shards[:-1], (task.shards[-1][0] + 1, task.shards[-1][1])],
        task.shards[::-1],
    ):
        with pytest.raises(InputError, match="had another task"):
            again(task=Task(task.model, task.loss, data))
    for recipe in (
        {"gossip_rounds": 2},
        {"weight_decay": 0.1},
        {"schedule": schedule.Cosine()},
        {"batch_size": 2},
        {"local_steps": 2},
    ):
        with pytest.raises(InputError, match="had another recipe"):
            again(**recipe)
    assert again().stopped is None


@pytest.mark.parametrize("changed", ["activation", "loss"])
def test_resuming_with_another_activation_or_loss_is_refused(changed):
    """Neither shows in the weights, and both change what is trained."""
    task = make("relu")
    plan = private(task)
    first = halted(task, plan, 4)

    def other_loss(output, target):
        return losses.cross_entropy(output, target)

    model = models.mlp(4, 5, 4, 3, activation="tanh") if changed == "activation" else task.model
    other = Task(model, other_loss if changed == "loss" else task.loss, task.shards)
    with pytest.raises(InputError, match="had another task"):
        decor.train(other, plan, learning_rate=0.1, resume=first)


def test_resuming_a_run_without_models_is_refused_in_words():
    task = make("logistic")
    plan = private(task)
    light = decor.sweep(task, [plan], learning_rates=[0.1]).runs[0]
    with pytest.raises(InputError, match="models"):
        decor.train(task, plan, learning_rate=0.1, resume=light)


def test_a_run_is_not_resumed_on_other_data_another_loss_or_another_start():
    def made(scale):
        return lambda output, target: scale * losses.logistic(output, target)

    X, y = (
        np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32"),
        np.array([[0, 1, 0, 1, 0, 1]] * 2),
    )
    plan = decor.NoisePlan(
        decor.complete(2), decor.Exposure(1.0, 8), decor.Adversary.eavesdropper(), 1.0, 1.0
    )

    def half(task):
        return decor.train(
            task,
            plan,
            learning_rate=0.1,
            evaluate_every=2,
            callbacks=lambda moment: moment.step >= 4,
        )

    task = decor.Task(decor.models.logistic(3), made(1.0), list(zip(X, y, strict=True)))
    stopped = half(task)
    other = decor.Task(decor.models.logistic(3), made(50.0), list(zip(X, y, strict=True)))
    for change in ("loss", "start", "data"):
        if change == "start":
            task.model.weight.data.fill_(1.0)
        if change == "data":
            task.model.weight.data.fill_(0.0)
            X *= -100
        with pytest.raises(InputError, match="another task"):
            decor.train(
                other if change == "loss" else task,
                plan,
                learning_rate=0.1,
                evaluate_every=2,
                resume=stopped,
            )
