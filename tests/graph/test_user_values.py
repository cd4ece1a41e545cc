"""Values of users with names are matched by name, whatever their order."""

import pytest

import decor
from decor.errors import InputError
from decor.graph.user_values import in_order, list_refusal

TRIANGLE = decor.from_edges(3, [(0, 1), (1, 2), (0, 2)], labels=["kiel", "bonn", "ulm"])


def test_the_order_is_the_graphs_and_never_the_mappings():
    assert in_order({"bonn": 1, "ulm": 2, "kiel": 0}, TRIANGLE, "records") == [0, 1, 2]
    assert in_order({"2": "c", "0": "a", "1": "b"}, decor.ring(3), "records") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kiel": 1, "bonn": 2}, "records has nothing for ulm"),
        ({"kiel": 1, "bonn": 2, "ulm": 3, "jena": 4}, "records names jena"),
        ({"kiel": 1, "bonn": 2, "Ulm": 3}, "nothing for ulm and names Ulm"),
    ],
)
def test_a_missing_or_unknown_user_is_named(given, said):
    with pytest.raises(InputError, match=said):
        in_order(given, TRIANGLE, "records")


def test_names_for_a_graph_without_names_are_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"ring\(7\) have no names.*labels="):
        in_order({f"user-{k}": k for k in range(7)}, decor.ring(7), "shards")


def test_the_refusal_of_a_list_shows_what_to_write():
    text = list_refusal(TRIANGLE, "records", "152")
    assert 'records={"kiel": 152, "bonn": 152, ...}' in text and "kiel, bonn, ulm" in text
