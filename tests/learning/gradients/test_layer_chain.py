"""Which modules are recognised as a chain of layers, and that nothing else is taken for one."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional

import decor
from decor.learning import losses
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.dense_layers import Layers
from decor.learning.gradients.dense_stack import Stack
from decor.learning.gradients.layer_chain import find_chain


class Network(nn.Module):
    """5-4-3, by a forward of one's own."""

    def __init__(self, forward):
        super().__init__()
        self.outer = nn.Linear(4, 3)  # not in the order in which it is used
        self.inner, self.between, self.calls = nn.Linear(5, 4), nn.ReLU(), 0
        self.own = forward

    def forward(self, x):
        return self.own(self, x)


CHAINS = {
    "torch's function": lambda net, x: net.outer(torch.relu(net.inner(x))),
    "functional": lambda net, x: net.outer(functional.relu(net.inner(x), inplace=True)),
    "a module": lambda net, x: net.outer(net.between(net.inner(x))),
    "a method": lambda net, x: net.outer(net.inner(x).relu()),
    "flat": lambda net, x: net.outer(torch.relu(net.inner(torch.flatten(x, 1)))),
    "flat by a method": lambda net, x: net.outer(torch.relu(net.inner(x.flatten(1)))),
    "a view of so many": lambda net, x: net.outer(torch.relu(net.inner(x.view(-1, 5)))),
    "a view of a count": lambda net, x: net.outer(torch.relu(net.inner(x.view(x.size(0), -1)))),
    "reshaped": lambda net, x: net.outer(torch.relu(net.inner(x.reshape(x.shape[0], 5)))),
    "weights by hand": lambda net, x: net.outer(
        torch.relu(functional.linear(x, net.inner.weight, net.inner.bias))
    ),
}


def changing_itself(net, x):
    net.calls += 1
    return net.outer(net.inner(x).relu() if net.calls % 2 else net.inner(x).tanh())


def in_place(net, x):
    hidden = net.inner(x)
    functional.relu(hidden, inplace=True)
    return net.outer(hidden.tanh())


def random_depth(net, x):
    return net.outer((torch.relu if random.random() < 0.999 else torch.tanh)(net.inner(x)))


RELU = CHAINS["torch's function"]
OTHERS = {
    "doubled, of tensors only": lambda net, x: RELU(net, 2 * x if torch.is_tensor(x) else x),
    "doubled": lambda net, x: RELU(net, 2 * x),
    "a branch on values": lambda net, x: RELU(net, x if x.sum() > 0 else -x),
    "a branch on an output": lambda net, x: net.outer(
        net.inner(x).relu() if net.inner(x).max() > 0 else net.inner(x).tanh()
    ),
    "a residual": lambda net, x: net.outer(net.inner(x).relu() + net.inner(x)),
    "dropout": lambda net, x: net.outer(functional.dropout(net.inner(x), 0.5, net.training)),
    "another one while it trains": lambda net, x: net.outer(
        net.inner(x).relu() if net.training else net.inner(x).tanh()
    ),
    "random": random_depth,
    "changes from call to call": changing_itself,
    "changed in place": in_place,
    "another activation": lambda net, x: net.outer(functional.gelu(net.inner(x))),
    "a layer that is not used": lambda net, x: net.inner(x),
    "a transposed weight": lambda net, x: net.outer(torch.relu(x @ net.inner.weight.T)),
    "a bias left out": lambda net, x: net.outer(functional.linear(x, net.inner.weight).relu()),
    "two outputs": lambda net, x: (RELU(net, x), x),
    "no output": lambda net, x: None,
    "mixed examples": lambda net, x: RELU(net, x - x.mean(0)),
    "one number for all": lambda net, x: RELU(net, x.view(-1, 1).expand(-1, 5)),
}


def stack_of(model, shape=(5,)):
    return Stack.of(model, losses.cross_entropy, shape)


def network(forward):
    torch.manual_seed(0)
    return Network(forward)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_found_however_it_is_written(name):
    model = network(CHAINS[name])
    for shape in ((5,), None):
        found = stack_of(model, shape)
        assert [layer for layer, _ in found.layers] == ["inner", "outer"]
        assert [layer for _, layer in found.layers] == [model.inner, model.outer]
        assert found.activations == (nn.ReLU,)


def test_a_chain_within_another_is_found():
    inner = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    model = nn.Sequential(nn.Sequential(inner), nn.Linear(4, 3))
    found = stack_of(model)
    assert [name for name, _ in found.layers] == ["0.0.0", "1"]
    assert found.activations == (nn.Tanh,)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_more_than_a_chain_is_not_taken_for_one(name):
    model = network(OTHERS[name])
    before = torch.get_rng_state()
    assert stack_of(model) is None and stack_of(model, None) is None
    assert model.calls == 0 and torch.equal(torch.get_rng_state(), before)


def test_a_start_that_overflows_is_a_chain_all_the_same():
    model = network(RELU)
    with torch.no_grad():
        model.inner.weight.fill_(torch.finfo(torch.float32).max)
    assert not model(torch.ones(1, 5)).isfinite().all() and stack_of(model) is not None


def test_pictures_are_flat_only_where_each_example_is():
    by_method, of_rows = network(CHAINS["flat by a method"]), network(CHAINS["a view of so many"])
    assert stack_of(by_method, (5, 1)) is not None and stack_of(of_rows, (1, 5)) is not None
    # two rows of five would become two examples
    assert stack_of(of_rows, (2, 5)) is None
    assert stack_of(network(RELU), (1, 5)) is None


def test_a_layer_with_two_names_and_a_module_with_a_buffer_are_no_chain():
    again, counted = network(RELU), network(RELU)
    again.same = again.inner
    counted.register_buffer("seen", torch.zeros(()))
    assert find_chain(again, (5,)) is None and find_chain(counted, (5,)) is None


@pytest.mark.parametrize("unit", ["user", "example"])
def test_a_class_of_ones_own_trains_as_the_sequential_of_the_same_layers(unit):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(60, 5, generator=generator)
    shards = [(X[k::3], torch.arange(60)[k::3] % 3) for k in range(3)]
    own = network(RELU)
    same = nn.Sequential(own.inner, nn.ReLU(), own.outer)
    of_examples = {"unit": "example", "batch_size": 8, "records": 20}
    exposure = decor.Exposure(1.0, 5, **(of_examples if unit == "example" else {}))
    plan = decor.NoisePlan(decor.ring(3), exposure, decor.Adversary.curious(), 0.1, 0.5)
    tasks = [decor.Task(model, losses.cross_entropy, shards) for model in (own, same)]
    assert all(type(choose_gradients(t, unit, 8, torch.float32)) is Layers for t in tasks)
    runs = [decor.train(each, plan, learning_rate=0.3) for each in tasks]
    for name, other in (("inner", "0"), ("outer", "2")):
        for part in ("weight", "bias"):
            assert torch.equal(runs[0].models[f"{name}.{part}"], runs[1].models[f"{other}.{part}"])
