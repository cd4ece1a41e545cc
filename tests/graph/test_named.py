"""Graphs by name, as people type them."""

import pytest

import decor
from decor.errors import GraphError
from decor.graph import named

EXPECTED = {
    "ring": decor.ring(12),
    "torus": decor.torus(3, 4),
    "grid": decor.grid(3, 4),
    "complete": decor.complete(12),
    "star": decor.star(12),
    "path": decor.path(12),
    "random-regular": decor.random_regular(12, 4),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_name_is_its_family_and_a_rectangle_is_as_square_as_can_be(name):
    assert named.from_name(name, 12) == EXPECTED[name]
    assert named.from_name(f" {name.upper().replace('-', '_')} ", 12) == EXPECTED[name]


def test_options_of_random_graphs_are_passed_on():
    regular = named.from_name("random-regular", 12, degree=3, graph_seed=5)
    assert regular == decor.random_regular(12, 3, seed=5)
    sparse = named.from_name("erdos-renyi", 12, probability=0.5, graph_seed=5)
    assert sparse == decor.erdos_renyi(12, 0.5, seed=5)
    assert named.from_name("erdos-renyi", 1).users == 1


def test_the_default_is_sixteen_users():
    for name in named.NAMES:
        assert named.from_name(name).users == named.USERS == 16


@pytest.mark.parametrize(
    ("name", "users", "said"),
    [
        ("rung", 4, "unknown topology 'rung'; choose one of ring"),
        ("torus", 7, "do not fill a torus .* take 9"),
        ("torus", 0, "needs 4 to"),
        ("hypercube", 12, "power of two .* take 16"),
    ],
)
def test_what_cannot_be_built_says_what_to_take(name, users, said):
    with pytest.raises(GraphError, match=said):
        named.from_name(name, users)
