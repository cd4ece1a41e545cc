"""Edges that give every user enough neighbours."""

import decor
from decor.graph.extra_edges import edges_to_add, with_edges


def test_edges_are_added_where_somebody_can_call():
    assert edges_to_add(decor.ring(8), 3) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert edges_to_add(decor.complete(4), 3) == [] and edges_to_add(decor.star(4), 2) == [
        (1, 2),
        (1, 3),
    ]
    assert (1, 2) not in edges_to_add(decor.star(4), 2, frozenset({1, 2}))
    assert edges_to_add(decor.star(4), 2, frozenset({1, 2, 3})) == []


def test_users_keep_their_order_and_their_names():
    towns = decor.from_edges(3, [(0, 2)], ["ulm", "bonn", "kiel"])
    more = with_edges(towns, [(2, 1)])
    assert more.edges.tolist() == [[0, 2], [1, 2]] and more.labels == towns.labels
