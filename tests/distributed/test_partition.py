"""Users are split evenly, and few edges cross parts."""

import numpy as np
import pytest

import decor
from decor.distributed.partition import cut, partition


@pytest.mark.parametrize(
    ("topology", "parts", "most"),
    [
        (decor.ring(256), 7, 7),
        (decor.torus(16, 16), 4, 64),
        (decor.torus(8, 16), 4, 32),
        (decor.grid(8, 16), 4, 24),
        (decor.path(10), 3, 2),
        (decor.random_regular(400, 4, seed=0), 2, 200),
        (decor.from_edges(8, [(k, (k + 2) % 8) for k in range(8)]), 2, 0),
    ],
    ids=repr,
)
def test_users_are_split_evenly_and_few_edges_are_cut(topology, parts, most):
    part = partition(topology, parts)
    sizes = np.bincount(part, minlength=parts)
    assert sizes.max() - sizes.min() <= 1 and cut(topology, part) <= most
