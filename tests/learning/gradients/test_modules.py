"""The generic path: any module has the gradients of plain autograd."""

import copy

import pytest
import torch
from gradient_oracle import (
    BUILT_IN,
    F64,
    OTHERS,
    added_by,
    assert_close,
    batches_of,
    clips,
    dropping,
    expected,
    scattered,
    seeded,
    task,
)
from torch import nn

import decor
from decor.errors import InputError
from decor.learning import losses
from decor.learning.gradients import modules
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.dense_stack import Stack
from decor.learning.gradients.modules import Modules
from decor.learning.task import Task


def test_records_that_do_not_fit_together_are_taken_in_turns(monkeypatch):
    given = BUILT_IN["tanh"]()
    gradients = Modules(given, F64)
    blocks, batch = scattered(gradients, given.users), batches_of(given, "poisson")
    wanted = added_by(gradients, blocks, batch, "example")
    monkeypatch.setattr(modules, "_CHUNK", 1)
    assert batch.rows.shape[1] > 1
    assert_close(added_by(gradients, blocks, batch, "example"), wanted, 1e-13)


@pytest.mark.parametrize("kind", ["poisson", "fixed", "all"])
@pytest.mark.parametrize("name", OTHERS)
def test_any_module_has_the_gradients_of_autograd(name, kind):
    given = OTHERS[name]()
    assert Stack.of(given.model, given.loss, given.shards[0][0].shape[1:]) is None
    gradients, batch = Modules(given, F64), batches_of(given, kind)
    blocks = scattered(gradients, given.users, scale=0.1)
    state = gradients.state(blocks)
    for level, wanted in expected(given, state, batch, *clips()).items():
        assert_close(added_by(gradients, blocks, batch, level), wanted)


def test_training_leaves_a_module_and_torchs_random_state_as_they_were():
    given = OTHERS["frozen layer and buffer"]()
    before, random = copy.deepcopy(given.model.state_dict()), torch.get_rng_state()
    gradients = Modules(given, torch.float32)
    added_by(gradients, scattered(gradients, 3), batches_of(given, "poisson"), "example")
    assert all(torch.equal(value, before[name]) for name, value in given.model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["poisson", "fixed", "all"])
def test_dropout_drops_while_it_trains(kind):
    given = task(seeded(dropping).train(), losses.cross_entropy)
    gradients = Modules(given, F64)
    blocks = scattered(gradients, 3)
    for level in ("user", "example"):
        found = [added_by(gradients, blocks, batches_of(given, kind), level) for _ in range(2)]
        assert all(torch.isfinite(value).all() for value in found[0].values())
        assert not torch.equal(found[0]["3.weight"], found[1]["3.weight"])


def test_a_parameter_without_dimensions_is_trained():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.scale = nn.Linear(3, 2), nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.scale * self.inside(x)

    shard = (torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))
    run = decor.train(
        Task(Scaled(), losses.cross_entropy, [shard] * 2),
        decor.NoisePlan(
            decor.complete(2), decor.Exposure(1.0, 2), decor.Adversary.eavesdropper(), 0.1, 0.1
        ),
        learning_rate=0.1,
    )
    assert run.average_model["scale"].shape == () and run.average_model["scale"] != 2.0


class Centred(nn.Module):
    """Mixes examples, or refuses any but whole numbers."""

    def __init__(self, mixes):
        super().__init__()
        self.layer, self.mixes = nn.Linear(4, 3), mixes

    def forward(self, x):
        if not self.mixes and not torch._C._functorch.is_batchedtensor(x):
            assert torch.equal(x, x.round()), "counts must be whole"
        return self.layer(x - x.mean(0) if self.mixes else x)


def of_counts(model, loss=losses.cross_entropy):
    X = torch.arange(24.0, dtype=F64).view(6, 4)
    return Task(model, loss, [(X, torch.zeros(6, dtype=torch.int64))])


def weighing(output, y):
    return nn.functional.cross_entropy(output, y, torch.tensor([1.0, 5.0, 1.0]).to(output))


def test_private_runs_refuse_models_and_losses_that_mix_examples_without_a_look_at_the_data():
    with pytest.raises(InputError, match="depends on the other examples"):
        Modules(of_counts(Centred(True)), F64, exact=True)
    # all labels of the data are equal, which hides weights of classes
    task = of_counts(nn.Linear(4, 3), weighing)
    Modules(task, F64)
    with pytest.raises(InputError, match="is not the mean of their losses"):
        Modules(task, F64, exact=True)


def test_a_model_that_refuses_artificial_examples_is_taken_all_the_same():
    Modules(of_counts(Centred(False)), F64, exact=True)


class Halved(nn.Module):
    """Halves what flows back through it, where a tensor says that it needs a gradient."""

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(lambda g: g / 2)
        return x.tanh()


def test_a_hook_that_torch_func_does_not_see_is_refused():
    """Nested maps hide it at user level; gradients of single examples have it."""
    given = task(
        seeded(lambda: nn.Sequential(nn.Linear(5, 4), Halved(), nn.Linear(4, 3))),
        losses.cross_entropy,
    )
    with pytest.raises(InputError, match="another gradient than autograd"):
        choose_gradients(given, "user", 3, F64)
    with pytest.warns(UserWarning, match="cannot be recorded"):
        gradients = choose_gradients(given, "example", 3, F64)
    blocks, batch = scattered(gradients, 3, scale=0.1), batches_of(given, "poisson")
    wanted = expected(given, gradients.state(blocks), batch, *clips(), levels=("example",))
    assert_close(added_by(gradients, blocks, batch, "example"), wanted["example"])
