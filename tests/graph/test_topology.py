import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import graphs

import decor
from decor.errors import GraphError


@pytest.mark.parametrize(
    ("users", "edges", "said"),
    [
        (3, [(0, 3)], "names user 3, but there are 3 users, numbered 0 to 2"),
        (3, [(-1, 2)], "names user -1"),
        (3, [(1, 1)], "joins user 1 to itself"),
        (3, [(0, 1), (1, 0)], "edge 0-1 is given twice"),
        (0, [], "number of users must be"),
        (2.5, [], "number of users must be"),
        (True, [], "number of users must be"),
        (3, [(0, 1.5)], "whole user numbers"),
        (3, [(0, 1, 2)], "whole user numbers"),
        (3, "ab", "whole user numbers"),
        (3, 5, "pairs of user numbers"),
        (3, [(0, 1), (2,)], "pairs of user numbers"),
    ],
)
def test_a_graph_that_cannot_be_is_named_at_the_door(users, edges, said):
    with pytest.raises(GraphError, match=said):
        decor.from_edges(users, edges)


def test_labels_name_users_in_errors_and_must_be_unique():
    with pytest.raises(GraphError, match="joins user b to itself"):
        decor.from_edges(2, [(1, 1)], labels=["a", "b"])
    with pytest.raises(GraphError, match="two users are called 'a'"):
        decor.from_edges(2, [], labels=["a", "a"])
    with pytest.raises(GraphError, match="3 labels were given for 2 users"):
        decor.from_edges(2, [], labels=["a", "b", "c"])


@given(graphs(), st.randoms())
def test_order_and_orientation_of_edges_do_not_matter(topology, random):
    edges = topology.edges.tolist()
    random.shuffle(edges)
    flipped = [edge[::-1] if random.random() < 0.5 else edge for edge in edges]
    again = decor.from_edges(topology.users, flipped)
    assert again == topology and hash(again) == hash(topology) and again.digest == topology.digest
    assert (again.edges == topology.edges).all()


@given(graphs())
def test_degrees_neighbours_laplacian_and_components_agree_with_networkx(topology):
    import networkx as nx

    graph = topology.to_networkx()
    assert topology.degrees.tolist() == [graph.degree(k) for k in range(topology.users)]
    assert topology.component_count == nx.number_connected_components(graph)
    assert topology.is_connected == nx.is_connected(graph)
    for user in range(topology.users):
        assert topology.neighbours(user).tolist() == sorted(graph.neighbors(user))
    expected = nx.laplacian_matrix(graph, nodelist=range(topology.users)).toarray()
    assert (topology.laplacian.toarray() == expected).all()


def test_a_disconnected_graph_is_a_valid_object_that_says_so():
    topology = decor.from_edges(5, [(0, 1), (2, 3)])
    assert not topology.is_connected and topology.component_count == 3
    assert "in 3 parts" in repr(topology)


def test_a_topology_cannot_be_changed():
    topology = decor.ring(5)
    with pytest.raises(ValueError):
        topology.edges[0, 0] = 3
    with pytest.raises(AttributeError):
        topology.users = 6


def test_no_caller_can_claim_a_family_whose_closed_form_would_be_wrong():
    with pytest.raises(TypeError):
        decor.Topology(4, np.array([[0, 1]]), None, "ring")
    assert decor.Topology(4, decor.ring(4).edges).family is None


def test_different_graphs_differ_in_digest():
    everything = [
        decor.ring(6),
        decor.path(6),
        decor.star(6),
        decor.complete(6),
        decor.from_edges(6, []),
        decor.from_edges(7, []),
    ]
    labelled = decor.from_edges(6, decor.ring(6).edges, labels="abcdef")
    assert len({t.digest for t in [*everything, labelled]}) == 7
    assert labelled != decor.ring(6)


def test_a_ring_of_a_million_users_is_an_ordinary_object():
    topology = decor.ring(1_000_000)
    assert (
        topology.edge_count == 1_000_000 and topology.degrees.min() == 2 == topology.degrees.max()
    )
    assert topology.neighbours(0).tolist() == [1, 999_999]
    assert topology == decor.ring(1_000_000)


def test_a_graph_is_a_table_in_notebooks():
    html = decor.star(4)._repr_html_()
    assert "<td>star(4)</td>" in html and "<td>neighbours</td><td>1 to 3</td>" in html
    parts = decor.from_edges(4, [(0, 1), (2, 3)])._repr_html_()
    assert "<td>neighbours</td><td>1</td>" in parts and "<td>no, 2 parts</td>" in parts
