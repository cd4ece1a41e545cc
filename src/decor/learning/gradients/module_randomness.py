"""What a module draws itself, such as dropout, from words that nobody else knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from decor.arrays import Array

WORDS = 624
"""32-bit words that torch's generator on the CPU (MT19937) has for a state; of a seed it would take
32 bits alone.
"""
_LEFT, _STATE, _BYTES = slice(8, 12), slice(24, 24 + 8 * WORDS), 5056
"""Where in the bytes of torch.get_rng_state are how many words are left, and the words, as 64-bit
integers.
"""


@contextmanager
def secret_coins(words: Array) -> Iterator[None]:
    """Within this block torch's own generator goes on from these words; afterwards it is as
    it was.
    """
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        held = state.numpy()
        assert len(words) == WORDS and len(held) == _BYTES
        held[_STATE] = np.asarray(words, "<u8").view(np.uint8)
        # the next draw makes new words of all of these
        held[_LEFT] = np.array([1], "<i4").view(np.uint8)
        torch.set_rng_state(state)
        yield
