"""Vectors of modules: the order in which engines send parameters, and what an own loop may share."""

import copy

import pytest
import torch
from torch import nn

import decor
from decor.errors import InputError
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.flat_model import FlatModel


class Tied(nn.Module):
    """An output that shares the embedding's weights, a frozen scale and a buffer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 4, bias=False)
        self.out.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return self.out(self.embed(x)) * self.scale


class Backwards(nn.Module):
    """Two layers, the last one registered first."""

    def __init__(self):
        super().__init__()
        self.out, self.hidden = nn.Linear(5, 3), nn.Linear(4, 5)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


CASES = {
    "own class": (Backwards(), decor.losses.cross_entropy),
    "logistic": (decor.models.logistic(4), decor.losses.logistic),
    "linear": (decor.models.linear(4), decor.losses.squared),
    "mlp": (decor.models.mlp(4, 5, 3), decor.losses.cross_entropy),
    "module": (
        nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
        decor.losses.cross_entropy,
    ),
    "tied": (Tied(), decor.losses.cross_entropy),
}


def task_of(kind):
    model, loss = CASES[kind]
    model = copy.deepcopy(model).double()
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(torch.arange(p.numel()).reshape(p.shape) / 7 + k)
    X = torch.randn(6, 4, dtype=torch.float64)
    y = torch.randn(6).double() if kind == "linear" else torch.arange(6) % 2
    return decor.Task(model, loss, [(X, y)])


def flat_of(task, loss=True):
    return FlatModel(task.model, task.loss if loss else None, torch.float64)


@pytest.mark.parametrize("kind", CASES)
def test_parameters_are_in_the_order_in_which_nodes_that_train_on_data_send_them(kind):
    task = task_of(kind)
    flat = flat_of(task)
    gradients = choose_gradients(task, "user", None, torch.float64)
    sent = torch.cat([block.flatten() for block in gradients.initial()])
    assert torch.equal(flat.start(), sent) and flat.parameters == task.parameters
    state = flat.state(sent)
    own = gradients.state([block[None] for block in gradients.initial()])
    assert own.keys() <= state.keys()
    assert all(torch.equal(state[name], own[name][0]) for name in own)


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("kind", CASES)
def test_a_module_of_a_vector_has_that_vector_and_shares_nothing(kind, loss):
    flat = flat_of(task_of(kind), loss)
    vector = torch.randn(flat.parameters, dtype=torch.float64)
    module = flat.module(vector)
    assert torch.equal(flat.read(module), vector)
    assert torch.equal(flat.read(module.state_dict()), vector)
    with torch.no_grad():
        next(module.parameters()).zero_()
    assert torch.equal(flat.read(flat.module(vector)), vector)
    stacked = flat.state(torch.stack([vector, 2 * vector]))
    one = flat.state(vector)
    assert all(torch.equal(stacked[name][1], 2 * one[name]) for name in one)


def test_what_is_shared_may_be_of_any_precision_and_is_copied():
    flat = flat_of(task_of("mlp"))
    module = flat.module(flat.start()).half()
    vector = flat.read(module)
    assert vector.dtype == torch.float64
    assert torch.allclose(vector, flat.start(), rtol=1e-2)
    kept = vector.clone()
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert torch.equal(vector, kept)


def changed(kind, change):
    flat = flat_of(task_of(kind))
    state = dict(flat.module(flat.start()).state_dict())
    change(state)
    return flat, state


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("mlp", lambda s: s.pop("0.bias"), "has no parameter 0.bias"),
        ("mlp", lambda s: s.update({"0.weight": torch.zeros(4, 5)}), r"shape \(4, 5\).*\(5, 4\)"),
        ("mlp", lambda s: s.update({"0.bias": torch.zeros(5, dtype=torch.int64)}), "torch.int64"),
        (
            "mlp",
            lambda s: s.update({"4.bias": torch.zeros(1)}),
            "has 4.bias, which this model has not",
        ),
        ("tied", lambda s: s.update(seen=torch.ones(())), "training has changed seen"),
        ("tied", lambda s: s.update(scale=2 * s["scale"]), "training has changed scale"),
        ("tied", lambda s: s.update({"out.weight": torch.zeros(4, 4)}), "are one parameter"),
    ],
)
def test_another_form_and_changed_buffers_are_refused(kind, change, says):
    flat, state = changed(kind, change)
    with pytest.raises(InputError, match=says):
        flat.read(state)


def test_a_module_whose_training_changes_buffers_is_refused_by_its_layer():
    with pytest.raises(InputError, match="BatchNorm1d.*nn.GroupNorm"):
        FlatModel(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), None, torch.float32)


def test_what_is_no_model_is_refused():
    flat = flat_of(task_of("mlp"))
    for wrong in (None, 3, {}, {"0.weight": [1.0]}, flat.start()):
        with pytest.raises(InputError, match="takes a trained module like round.model"):
            flat.read(wrong)
    with pytest.raises(InputError, match="must be a torch.nn.Module"):
        FlatModel(dict, None, torch.float32)
