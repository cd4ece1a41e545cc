"""Adam on noised gradients: torch's numbers, on every engine that takes it, and refused elsewhere."""

import numpy as np
import pytest
import torch
from own_loops import train as train_loops

import decor
from decor.errors import InputError
from decor.learning.optimizer import Adam, optimizer_of

STEPS = 7


def test_directions_are_torchs():
    torch.manual_seed(0)
    model = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    other = torch.optim.Adam([model], lr=0.1, betas=(0.8, 0.95), eps=1e-6)
    adam, mine = Adam(0.8, 0.95, 1e-6), model.detach().clone()
    state = adam.start([mine])
    for step in range(20):
        gradient = torch.randn(5, dtype=torch.float64)
        model.grad = gradient.clone()
        other.step()
        (direction,) = adam.direction([gradient], state, step)
        mine -= 0.1 * direction
        assert torch.allclose(mine, model.detach(), rtol=0, atol=1e-12)


def small():
    rng = np.random.default_rng(1)
    shards = [(rng.normal(size=(9, 4)), rng.integers(0, 3, 9)) for _ in range(5)]
    return decor.Task(decor.models.mlp(4, 6, 3).double(), decor.losses.cross_entropy, shards)


def plan():
    return decor.calibrate(
        decor.ring(5),
        decor.Exposure(clip=0.3, steps=STEPS),
        decor.Adversary.eavesdropper(),
        decor.Budget(5.0, 1e-5),
    )


def test_engines_and_own_loops_agree():
    more = {"learning_rate": 0.05, "optimizer": Adam(0.8, 0.9), "weight_decay": 0.1}
    engine = decor.Vectorised(dtype="float64", path="generic")
    run = decor.train(small(), plan(), engine=engine, **more)
    federation = train_loops(
        decor.simulate(plan(), small().model, dtype="float64", **more), small()
    )
    for name, expected in run.models.items():
        assert torch.allclose(federation.run.models[name], expected, rtol=0, atol=1e-12), name
    # of its own: it is not SGD
    sgd = decor.train(small(), plan(), engine=engine, learning_rate=0.05, weight_decay=0.1)
    assert not torch.allclose(sgd.models["0.weight"], run.models["0.weight"], atol=1e-3)
    assert run.manifest["recipe"]["optimizer"] == {
        "name": "Adam",
        "beta1": 0.8,
        "beta2": 0.9,
        "epsilon": 1e-8,
    }
    assert "optimizer" not in sgd.manifest["recipe"]


def test_a_private_run_takes_adam_and_promises_what_it_would_without():
    runs = [
        decor.train(small(), plan(), learning_rate=0.05, engine=decor.Vectorised(seed=None), **more)
        for more in ({}, {"optimizer": "adam"})
    ]
    assert runs[0].guarantee.epsilon == runs[1].guarantee.epsilon <= 5
    moved = runs[1].models["0.weight"] - small().model[0].weight.detach()
    # Adam's steps are about as long as the step size says
    assert 0.01 < float(moved.abs().max()) < 0.05 * STEPS * 1.01


def test_adam_leaves_noise_that_sgd_cancels():
    """The figures of docs/training.md, at their smallest: users divide by different roots."""
    quiet = decor.NoisePlan(
        decor.ring(8), decor.Exposure(clip=1.0, steps=20), decor.Adversary.curious(), 0.1, 10.0
    )

    def average(**more):
        model = torch.nn.Linear(400, 1, bias=False)
        federation = decor.simulate(quiet, model, **more)
        with pytest.warns(decor.UnsharedWarning):
            for _ in federation:
                pass
        return float((federation.average.weight - model.weight).detach().std())

    own_alone = 0.1 / np.sqrt(8) * np.sqrt(20)
    assert average() == pytest.approx(own_alone, rel=0.15)
    # Adam divides by about 14, the size of all noise
    assert average(optimizer="adam") > 10 * own_alone / np.sqrt(0.1**2 + 2 * 10.0**2)


@pytest.mark.parametrize(
    "bad", [{"beta1": 1.0}, {"beta2": -0.1}, {"epsilon": 0.0}, {"beta1": None}]
)
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Adam(**bad)


def test_names_are_known_and_others_point_to_own_loops():
    assert optimizer_of("sgd") is None and optimizer_of("adam") == Adam()
    for wrong in ("rmsprop", None, Adam, torch.optim.Adam):
        with pytest.raises(InputError, match="any other is possible in an own loop"):
            decor.Recipe(optimizer=wrong)
    with pytest.raises(InputError, match="momentum 0.9 is of SGD"):
        decor.Recipe(optimizer="adam", momentum=0.9)


@pytest.mark.parametrize(
    ("option", "resumed", "by_peers"),
    [
        (
            {"optimizer": "adam"},
            "a run with Adam cannot be resumed",
            'peers take SGD steps; drop optimizer="adam"',
        ),
        (
            {"averaging": 0.5},
            "a run that averages models cannot be resumed",
            "peers end with their last model; drop averaging",
        ),
    ],
)
def test_what_cannot_be_done_with_adam_or_averaging_is_refused(option, resumed, by_peers):
    more = {"learning_rate": 0.05, **option}
    half = decor.train(small(), plan(), callbacks=lambda moment: moment.step >= 3, **more)
    with pytest.raises(InputError, match=resumed):
        decor.train(small(), plan(), resume=half, **more)
    with pytest.raises(InputError, match=by_peers):
        decor.train(small(), plan(), engine=decor.Peers(), **more)
