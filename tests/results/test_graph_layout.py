"""Where users are drawn: apart from each other, and families as they are known."""

import numpy as np
import pytest

import decor
from decor.results.graph_layout import places

GRAPHS = {
    "ring": decor.ring(7),
    "torus": decor.torus(3, 4),
    "grid": decor.grid(3, 4),
    "star": decor.star(6),
    "path": decor.path(5),
    "complete": decor.complete(5),
    "hypercube": decor.hypercube(3),
    "one user": decor.path(1),
    "no edges": decor.from_edges(4, []),
    "two parts": decor.from_edges(5, [(0, 1), (2, 3), (3, 4)]),
    "large": decor.erdos_renyi(250, 0.05, seed=1),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_user_has_its_own_place_and_the_same_one_every_time(name):
    graph = GRAPHS[name]
    at = places(graph)
    assert at.shape == (graph.users, 2) and np.all(np.isfinite(at))
    assert len({tuple(row) for row in np.round(at, 4)}) == graph.users
    assert np.array_equal(at, places(graph))


def test_families_are_drawn_as_they_are_known():
    assert np.allclose(np.linalg.norm(places(decor.ring(7)), axis=1), 1)
    assert np.allclose(places(decor.ring(7))[0], (0, 1)), "the first user is at the top"
    assert np.allclose(places(decor.star(6))[0], (0, 0)), "the hub is in the middle"
    assert places(decor.torus(3, 4))[5].tolist() == [1, -1], "row by row, downwards"
    assert places(decor.path(5))[:, 1].tolist() == [0] * 5


@pytest.mark.parametrize("seed", range(4))
def test_forty_users_do_not_touch(seed):
    graph = decor.from_edges(40, decor.random_regular(40, 4, seed=seed).edges)
    at = places(graph)
    gaps = np.linalg.norm(at[:, None] - at[None], axis=2) + 9 * np.eye(40)
    assert gaps.min() > 0.12
