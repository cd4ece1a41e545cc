"""No example reaches others through what a module keeps."""

import copy

import pytest
import torch
from gradient_oracle import F64, added_by, expected, scattered, task
from torch import nn

from decor.errors import InputError
from decor.learning import losses
from decor.learning.batches import Batches
from decor.learning.gradients.book_keeping import BookKeeping
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.module_memory import memory_dropped, remembers
from decor.learning.gradients.modules import Modules

CLIP = torch.tensor([[0.3]], dtype=F64), torch.tensor([[1.0]], dtype=F64)


class Keeping(nn.Module):
    """Keeps its last hidden values, and shows them to later examples from some call on.

    Args:
        sees: From how many calls on; None: never.
        way: How values are kept.
    """

    def __init__(self, sees=None, way="attribute"):
        super().__init__()
        self.layer, self.out = nn.Linear(5, 4), nn.Linear(4, 3)
        self.sees, self.way, self.calls = sees, way, 0
        self.last, self.all, self.named = None, [], {}

    def forward(self, x):
        h = torch.tanh(self.layer(x))
        if not self.training:
            return self.out(h)
        kept = {"attribute": self.last, "list": sum(self.all), "dict": self.named.get("h")}
        seen = kept[self.way]
        if self.sees is not None and self.calls >= self.sees and torch.is_tensor(seen):
            h = h + seen
        self.calls += 1
        mean = h.detach().mean(0)
        self.last = mean
        self.all.append(mean)
        self.named["h"] = mean
        return self.out(h)


WAYS = ["attribute", "list", "dict"]


def of(model):
    given = task(model, losses.cross_entropy)
    given.model.train()
    return given


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_shows_an_example_to_later_ones_is_refused(way, unit, exact):
    with pytest.raises(InputError, match="examples that came before"):
        choose_gradients(of(Keeping(0, way)), unit, 3, F64, exact=exact)


@pytest.mark.parametrize("path", [BookKeeping, Modules])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_for_later_is_dropped_after_each_step(way, path):
    """Calls before training cannot see a memory that works from the twentieth call on."""
    given = of(Keeping(20, way))
    gradients, batch = path(given, F64), Batches(given.records, 3, "fixed", (11,)).draw(3)
    assert given.model.calls < 20
    given.model.calls = 20
    blocks = scattered(gradients, 3, shape=(1, 1))
    forgetful = of(Keeping())
    wanted = expected(forgetful, gradients.state(blocks), batch, *CLIP)
    for level in ("example", "user", "example"):
        found = added_by(gradients, blocks, batch, level, None, *CLIP)
        for name, value in found.items():
            assert torch.allclose(value, wanted[level][name], 1e-9, 1e-11), (level, name)


@pytest.mark.parametrize("path", [BookKeeping, Modules])
def test_a_model_that_keeps_what_it_does_not_use_is_trained_and_can_be_copied(path):
    given = of(Keeping())
    gradients, batch = path(given, F64), Batches(given.records, 3, "fixed", (11,)).draw(3)
    calls = given.model.calls
    added_by(gradients, scattered(gradients, 3, shape=(1, 1)), batch, "example", None, *CLIP)
    copied = copy.deepcopy(given.model)
    assert copied.calls > calls


def test_attributes_without_examples_stay_as_they_are_left():
    model = nn.Linear(2, 2)
    model.kept, model.list = torch.ones(2), [1]
    with memory_dropped(model):
        model.count, model.kept = 1, torch.zeros(2)
        model.list.append(2)
    assert model.count == 1 and not model.kept.any() and model.list == [1, 2]


def test_what_a_module_draws_is_no_memory():
    X, state = torch.randn(3, 5, dtype=F64), {}
    dropping = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3)).double().train()
    random = torch.get_rng_state()
    assert not remembers(dropping, state, X)
    assert torch.equal(random, torch.get_rng_state())
    assert remembers(Keeping(0).double().train(), state, X)
