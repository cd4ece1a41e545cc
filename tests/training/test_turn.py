"""A user's turn: one share in each step, in time, of the model's own form."""

import warnings

import pytest
import torch

import decor
from decor.errors import InputError, UnsharedWarning
from decor.learning.gradients.flat_model import FlatModel
from decor.training.turn import Turn


@pytest.fixture
def given():
    return []


@pytest.fixture
def turn(given):
    flat = FlatModel(decor.models.mlp(3, 2, 2), None, torch.float32)
    return Turn(flat, flat.start(), 4, 0.5, "user 1: ", given.append)


def test_what_is_shared_is_given_once_and_the_model_is_a_copy(turn, given):
    model = turn.model
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    turn.share(model)
    (vector,) = given
    assert torch.allclose(vector - turn._start, torch.ones_like(vector))
    with pytest.raises(InputError, match="user 1: step 4 has its model already"):
        turn.share(model)
    assert turn.end() is False and len(given) == 1
    assert repr(turn) == "Turn(user 1: step 4, shared)"


def test_a_turn_without_a_share_gives_nothing_and_warns(turn, given):
    with pytest.warns(UnsharedWarning, match="step 4: nothing was shared, and a zero difference"):
        assert turn.end() is True
    assert given == [None]
    with pytest.raises(InputError, match="step 4 is over"):
        turn.share(turn.model)
    assert given == [None] and repr(turn).endswith("over)")


def test_a_quiet_end_does_not_warn(turn, given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert turn.end(quietly=True) is True
    assert given == [None]


def test_a_refused_share_leaves_the_turn_open(turn, given):
    with pytest.raises(InputError, match="has no parameter"):
        turn.share({"0.weight": torch.zeros(2, 3)})
    turn.share(turn.model)
    assert len(given) == 1


def test_a_model_that_is_not_finite_is_given_before_the_warning(turn, given):
    model = turn.model
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    # where warnings are errors, what is sent must not depend on the data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnsharedWarning, match="not finite was shared, and counts as zero"):
            turn.share(model)
    assert len(given) == 1
