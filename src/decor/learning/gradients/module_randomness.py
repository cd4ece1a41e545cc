"""Secret random words for what a module draws itself, such as dropout."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from decor.array_types import Array

STATE_WORDS = 624
"""32-bit words in the state of torch's CPU generator (MT19937); a seed would fill only one."""
_LEFT, _STATE, _BYTES = slice(8, 12), slice(24, 24 + 8 * STATE_WORDS), 5056
"""In torch.get_rng_state: the number of words left, the words as 64-bit integers, the size."""


@contextmanager
def torch_generator_from(words: Array) -> Iterator[None]:
    """Within this block torch's CPU generator continues from these words; then it is restored."""
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        raw = state.numpy()
        # another layout in a new version of torch must not pass unnoticed
        assert len(words) == STATE_WORDS and len(raw) == _BYTES
        raw[_STATE] = np.asarray(words, "<u8").view(np.uint8)
        # one word left: the next draw regenerates all words from these
        raw[_LEFT] = np.array([1], "<i4").view(np.uint8)
        torch.set_rng_state(state)
        yield


def random_states(device: torch.device) -> tuple[object, ...]:
    """The states of all generators that a module may draw from, to see whether one did.

    Args:
        device: Where the module computes.
    """
    tensors = [torch.get_rng_state()]
    if device.type == "cuda":
        tensors.append(torch.cuda.get_rng_state(device))
    of_numpy: Any = np.random.get_state(legacy=True)
    _, words, *rest = of_numpy
    of_torch = tuple(state.numpy().tobytes() for state in tensors)
    return *of_torch, np.asarray(words).tobytes(), tuple(rest), random.getstate()
