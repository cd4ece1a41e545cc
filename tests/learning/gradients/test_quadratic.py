"""The quadratic path is the generic one, for the models that it takes."""

import pytest
import torch
from gradient_oracle import (
    BUILT_IN,
    F64,
    added_by,
    assert_close,
    batches_of,
    same_models,
    scattered,
    task,
)
from torch import nn

import decor
from decor.learning import losses
from decor.learning.gradients.modules import Modules
from decor.learning.gradients.quadratic import Quadratic


@pytest.mark.parametrize("name", ["linear", "linear without bias"])
def test_the_quadratic_path_is_the_generic_one(name):
    given = BUILT_IN[name]()
    assert Quadratic.takes(given, None) and not Quadratic.takes(given, 3)
    quick, generic, batch = Quadratic(given, F64), Modules(given, F64), batches_of(given, "all")
    blocks = scattered(quick, 3, shape=(2, 80))
    clip = torch.logspace(-6, 3, 160, dtype=F64).view(2, 80)
    one = added_by(quick, blocks, batch, "user", None, clip, clip.flip(1) - 3)
    same = same_models(generic, quick, blocks)
    assert_close(one, added_by(generic, same, batch, "user", None, clip, clip.flip(1) - 3))
    assert_close(
        added_by(quick, blocks, batch, "user", [slice(0, 1), slice(1, 3)], clip, clip.flip(1) - 3),
        one,
        1e-13,
    )
    assert_close(
        quick.state(quick.mean(blocks, batch, slice(1, 3))),
        generic.state(generic.mean(same, batch, slice(1, 3))),
    )
    means = [quick.evaluate([blocks[0][:, 0, 0]]), generic.evaluate([same[0][:, 0, 0]])]
    assert torch.allclose(means[0]["loss"], means[1]["loss"], rtol=1e-10)


def test_the_quadratic_path_measures_public_data_too():
    given = task(nn.Linear(5, 1), losses.squared, classes=1, test=True)
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(clip=1.0, steps=1), decor.Adversary.eavesdropper(), 0.1, 0.1
    )
    found = [
        decor.train(
            given, plan, learning_rate=0.1, engine=decor.Vectorised(path=p, dtype="float64")
        )
        for p in ("auto", "generic")
    ]
    assert found[0].metrics == pytest.approx(found[1].metrics, rel=1e-9)


def test_the_quadratic_path_takes_only_plain_layers():
    hooking = nn.Linear(5, 1)
    hooking.register_forward_hook(lambda module, given, output: 2 * output)
    assert not Quadratic.takes(task(hooking, losses.squared, classes=1), None)
    assert not Quadratic.takes(task(nn.Linear(5, 2), losses.squared, classes=2), None)
    assert not Quadratic.takes(task(nn.Linear(5, 1), losses.logistic, classes=2), None)
    frozen = nn.Linear(5, 1)
    frozen.bias.requires_grad_(False)
    assert not Quadratic.takes(task(frozen, losses.squared, classes=1), None)
