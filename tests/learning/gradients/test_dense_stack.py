"""Which modules are stacks of plain dense layers."""

import pytest
import torch
from gradient_oracle import BUILT_IN, F64, OTHERS, PATHS, mlp, scattered, seeded, tied
from torch import nn
from torch.nn import functional

from decor.learning import losses, models
from decor.learning.gradients.dense_stack import Stack
from decor.learning.gradients.modules import Modules
from decor.learning.gradients.quadratic import Quadratic


class Louder(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def with_hook(register):
    model = mlp(5, 4, 3)
    getattr(model[0], register)(lambda *_: None)
    return model


def with_own_forward():
    model = mlp(5, 4, 3)
    model[0].forward = lambda x: 2 * functional.linear(x, model[0].weight)
    return model


def with_frozen():
    model = mlp(5, 4, 3)
    model[2].bias.requires_grad_(False)
    return model


def with_tied_biases():
    model = mlp(5, 3, 3)
    model[2].bias = model[0].bias
    return model


def with_same_layer_twice():
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer)


def with_spectral_norm():
    model = mlp(5, 4, 3)
    torch.nn.utils.parametrizations.spectral_norm(model[0])
    return model


CE = losses.cross_entropy


NOT_STACKS = {
    "tied weights": (seeded(tied), CE, (5,)),
    "tied biases": (with_tied_biases(), CE, (5,)),
    "the same layer twice": (with_same_layer_twice(), CE, (5,)),
    "forward hook": (with_hook("register_forward_hook"), CE, (5,)),
    "forward pre-hook": (with_hook("register_forward_pre_hook"), CE, (5,)),
    "backward hook": (with_hook("register_full_backward_hook"), CE, (5,)),
    "backward pre-hook": (with_hook("register_full_backward_pre_hook"), CE, (5,)),
    "own forward": (with_own_forward(), CE, (5,)),
    "spectral norm": (with_spectral_norm(), CE, (5,)),
    "frozen bias": (with_frozen(), CE, (5,)),
    "dropout": (nn.Sequential(nn.Linear(5, 4), nn.Dropout(), nn.Linear(4, 3)), CE, (5,)),
    "subclass of Linear": (nn.Sequential(Louder(5, 3)), CE, (5,)),
    "subclass of Linear alone": (Louder(5, 3), CE, (5,)),
    "batch norm": (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), CE, (5,)),
    "convolution": (nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU(), nn.Linear(5, 3)), CE, (1, 5)),
    "other activation": (nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)), CE, (5,)),
    "activation at the end": (nn.Sequential(nn.Linear(5, 4), nn.ReLU()), CE, (5,)),
    "activation at the start": (nn.Sequential(nn.ReLU(), nn.Linear(5, 4)), CE, (5,)),
    "no activation between": (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), CE, (5,)),
    "two activations": (
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 3)),
        CE,
        (5,),
    ),
    "records that are not flat": (mlp(5, 4, 3), CE, (2, 5)),
    "records without features": (mlp(1, 4, 3), CE, ()),
    "half flat": (nn.Sequential(nn.Flatten(2), nn.Linear(5, 3)), CE, (2, 5, 1)),
    "flat at the end": (nn.Sequential(nn.Linear(5, 3), nn.Flatten()), CE, (5,)),
    "nothing": (nn.Sequential(), CE, (5,)),
    "only flat": (nn.Sequential(nn.Flatten()), CE, (5,)),
    "unknown loss": (mlp(5, 4, 3), lambda output, y: CE(output, y), (5,)),
    "loss object": (mlp(5, 4, 3), nn.CrossEntropyLoss(), (5,)),
    "weighted loss": (mlp(5, 4, 3), nn.CrossEntropyLoss(weight=torch.ones(3)), (5,)),
    "torch's squared loss": (mlp(5, 4, 1), functional.mse_loss, (5,)),
    "logistic loss of two outputs": (mlp(5, 4, 2), losses.logistic, (5,)),
}


@pytest.mark.parametrize("name", NOT_STACKS)
def test_only_plain_dense_layers_are_a_stack(name):
    assert Stack.of(*NOT_STACKS[name]) is None


def test_plain_dense_layers_are_a_stack():
    assert Stack.of(nn.Linear(5, 3), losses.cross_entropy, (5,)).loss == "classes"
    assert Stack.of(nn.Linear(5, 1), losses.logistic, (5,)).loss == "logistic"
    found = Stack.of(mlp(6, 4, 2, flat=True), losses.squared, (2, 3))
    assert (found.loss, [name for name, _ in found.layers], found.activations) == (
        "squared",
        ["1", "3"],
        (nn.Tanh,),
    )
    assert Stack.of(mlp(5, 4, 3, bias=(True, False)), functional.cross_entropy, (5,)).bias == (
        True,
        False,
    )
    assert Stack.of(models.mlp(5, 4, 3).eval(), losses.cross_entropy, (5,)) is not None


@pytest.mark.parametrize("name", [*BUILT_IN, *OTHERS])
def test_models_pass_through_their_names_and_back(name):
    given = (BUILT_IN | OTHERS)[name]()
    every = [make(given) for make in PATHS.values()] if name in BUILT_IN else [Modules(given, F64)]
    every += [Quadratic(given, F64)] if Quadratic.takes(given, None) else []
    own = {n: p.detach() for n, p in given.model.named_parameters() if p.requires_grad}
    for gradients in every:
        started = gradients.state(gradients.initial())
        assert started.keys() == own.keys() and all(torch.equal(started[n], own[n]) for n in own)
        blocks = scattered(gradients, 3)
        for some in (blocks, [b[:, 0, 0] for b in blocks], [b[0, 0, 0] for b in blocks]):
            again = gradients.blocks(gradients.state(some))
            assert all(torch.equal(a, b) for a, b in zip(again, some, strict=True))
