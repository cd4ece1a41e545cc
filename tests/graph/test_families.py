import re

import networkx as nx
import pytest

import decor
from decor.errors import GraphError

FAMILIES = [
    (decor.ring(3), nx.cycle_graph(3)),
    (decor.ring(16), nx.cycle_graph(16)),
    (decor.path(1), nx.path_graph(1)),
    (decor.path(7), nx.path_graph(7)),
    (decor.star(1), nx.empty_graph(1)),
    (decor.star(6), nx.star_graph(5)),
    (decor.complete(1), nx.complete_graph(1)),
    (decor.complete(7), nx.complete_graph(7)),
    (decor.hypercube(0), nx.empty_graph(1)),
    (decor.hypercube(4), nx.hypercube_graph(4)),
    (decor.torus(4, 4), nx.grid_2d_graph(4, 4, periodic=True)),
    (decor.torus(3, 5), nx.grid_2d_graph(3, 5, periodic=True)),
    (decor.torus(2, 4), nx.grid_2d_graph(2, 4, periodic=True)),
    (decor.torus(2, 2), nx.grid_2d_graph(2, 2, periodic=True)),
    (decor.grid(3, 4), nx.grid_2d_graph(3, 4)),
    (decor.grid(1, 4), nx.grid_2d_graph(1, 4)),
]


@pytest.mark.parametrize(
    ("topology", "expected"),
    FAMILIES,
    ids=lambda x: repr(x) if isinstance(x, decor.Topology) else "",
)
def test_every_family_is_the_graph_of_that_name(topology, expected):
    assert nx.is_isomorphic(topology.to_networkx(), expected)
    assert topology == decor.from_edges(topology.users, topology.edges), (
        "the edges a family writes are sorted and unique"
    )
    assert topology.is_connected


@pytest.mark.parametrize(
    "topology", [t for t, _ in FAMILIES if t.vertex_transitive and t.users <= 16], ids=repr
)
def test_a_family_called_vertex_transitive_is(topology):
    graph = topology.to_networkx()
    for user in range(1, topology.users):
        marked, other = graph.copy(), graph.copy()
        marked.add_edge(0, "mark")
        other.add_edge(user, "mark")
        assert nx.is_isomorphic(marked, other)


def test_random_graphs_are_what_they_say_and_follow_their_seed():
    regular = decor.random_regular(20, degree=4, seed=3)
    assert set(regular.degrees.tolist()) == {4}
    assert regular == decor.random_regular(20, 4, seed=3) != decor.random_regular(20, 4, seed=4)
    assert (
        decor.erdos_renyi(30, 0.2, seed=1)
        == decor.erdos_renyi(30, 0.2, seed=1)
        != decor.erdos_renyi(30, 0.2, seed=2)
    )
    assert decor.erdos_renyi(6, 1.0) == decor.from_edges(6, decor.complete(6).edges)
    assert decor.erdos_renyi(6, 0).edge_count == 0


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: decor.ring(2), "a path joins two users"),
        (lambda: decor.ring(-1), "not -1"),
        (lambda: decor.ring(3.0), "not 3.0"),
        (lambda: decor.torus(1, 5), "from 2"),
        (lambda: decor.random_regular(5, 3), "users x degree must be even; take degree 4"),
        (lambda: decor.random_regular(5, 5), "at most 4 neighbours"),
        (lambda: decor.random_regular(6, 4, seed=-1), "seed"),
        (lambda: decor.erdos_renyi(4, float("nan")), "between 0 and 1"),
        (lambda: decor.erdos_renyi(4, 1.5), "between 0 and 1"),
        (lambda: decor.erdos_renyi(4, "x"), "between 0 and 1"),
        (lambda: decor.complete(100_000), "take a random regular graph of degree 16"),
        (lambda: decor.hypercube(40), "to 26"),
    ],
)
def test_an_impossible_family_says_what_to_do_instead(build, said):
    with pytest.raises(GraphError, match=said) as caught:
        build()
    # commands print the same sentence: no calls, and no names of functions
    assert not re.search(r"\w\(|=|\w_\w", str(caught.value))


def test_networkx_graphs_come_in_and_go_out_unchanged():
    graph = nx.florentine_families_graph()
    topology = decor.from_networkx(graph)
    assert topology.labels is not None and "Medici" in topology.labels
    back = topology.to_networkx()
    assert set(back.nodes) == set(graph.nodes) and {frozenset(e) for e in back.edges} == {
        frozenset(e) for e in graph.edges
    }
    assert decor.from_networkx(
        nx.relabel_nodes(nx.path_graph(3), {0: 2, 2: 0})
    ) == decor.from_edges(3, [(0, 1), (1, 2)])


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (nx.DiGraph([(0, 1)]), "to_undirected"),
        (nx.MultiGraph([(0, 1), (0, 1)]), "networkx.Graph"),
        (nx.Graph([(0, 0)]), "to itself"),
        (nx.Graph(), "no users"),
    ],
)
def test_networkx_graphs_that_are_no_federation_are_refused(graph, said):
    with pytest.raises(GraphError, match=said):
        decor.from_networkx(graph)


def test_dense_random_regular_graphs_are_drawn_by_their_complement():
    dense = decor.random_regular(60, 57, seed=1)
    assert set(dense.degrees.tolist()) == {57} and dense != decor.random_regular(60, 57, seed=2)


def test_a_list_is_no_networkx_graph():
    with pytest.raises(GraphError, match="from_edges"):
        decor.from_networkx([(0, 1)])
