"""A module's own randomness follows from the given words alone, and leaves no trace."""

import numpy as np
import torch

from decor.learning.gradients.module_randomness import STATE_WORDS, torch_generator_from


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
