"""A module's own randomness follows from the given words alone, and leaves no trace."""

import random

import numpy as np
import pytest
import torch

from decor.learning.gradients.module_randomness import (
    STATE_WORDS,
    random_states,
    torch_generator_from,
)


def draws(words):
    with torch_generator_from(words):
        return torch.rand(8)


def test_equal_words_give_equal_draws_and_a_changed_word_other_ones():
    words = np.random.default_rng(0).integers(0, 2**32, STATE_WORDS, np.uint32)
    assert torch.equal(draws(words), draws(words))
    other = words.copy()
    other[1] ^= 1 << 31
    assert not torch.equal(draws(words), draws(other))


def test_the_global_state_is_restored():
    before = torch.get_rng_state()
    draws(np.arange(STATE_WORDS, dtype=np.uint32))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(1),
        lambda: np.random.default_rng(),
        lambda: np.random.rand(),
        random.random,
    ],
    ids=["torch", "none", "numpy", "python"],
)
def test_a_draw_from_a_global_generator_is_seen(draw, request):
    cpu = torch.device("cpu")
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        before = random_states(cpu)
        draw()
        assert (random_states(cpu) == before) == ("none" in request.node.name)
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
