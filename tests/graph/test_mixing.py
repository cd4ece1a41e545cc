import numpy as np
import pytest
from hypothesis import given
from oracles import graphs

import decor
from decor.graph import mixing


@given(graphs())
def test_metropolis_weights_are_symmetric_and_doubly_stochastic_on_every_graph(topology):
    W = topology.mixing.toarray()
    assert np.allclose(W, W.T) and np.allclose(W.sum(axis=0), 1) and (W >= -1e-15).all()
    away = np.ones_like(W) - np.eye(topology.users)
    away[tuple(topology.edges.T)] = away[tuple(topology.edges[:, ::-1].T)] = 0
    assert (W[away == 1] == 0).all(), "weight only where there is an edge"


@pytest.mark.parametrize(
    "topology", [decor.ring(16), decor.torus(4, 4), decor.complete(5), decor.hypercube(3)], ids=repr
)
def test_on_regular_graphs_the_weights_are_the_papers(topology):
    degree = topology.degrees[0]
    expected = (topology.adjacency.toarray() + np.eye(topology.users)) / (degree + 1)
    assert np.allclose(topology.mixing.toarray(), expected)


@given(graphs(least=2))
def test_consensus_rate_is_one_minus_the_second_eigenvalue_of_ww(topology):
    W = topology.mixing.toarray()
    J = np.ones_like(W) / topology.users
    expected = 1 - np.linalg.norm(W - J, 2) ** 2 if topology.is_connected else 0.0
    assert mixing.consensus_rate(topology) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "topology",
    [decor.ring(17), decor.torus(4, 6), decor.torus(2, 5), decor.complete(6), decor.hypercube(4)],
    ids=repr,
)
def test_closed_form_consensus_rates_equal_the_general_ones(topology):
    plain = decor.from_edges(topology.users, topology.edges)
    assert mixing.consensus_rate(topology) == pytest.approx(mixing.consensus_rate(plain), abs=1e-12)


def test_large_graphs_agree_with_dense_ones(monkeypatch):
    topology = decor.random_regular(400, 4, seed=1)
    union = decor.from_edges(500, np.concatenate([topology.edges, decor.ring(100).edges + 400]))
    for graph in (topology, union, decor.grid(10, 30)):
        dense = mixing.consensus_rate_within_components(graph), mixing.edge_heterogeneity(graph)
        monkeypatch.setattr(mixing, "DENSE_LIMIT", 10)
        sparse = mixing.consensus_rate_within_components(graph), mixing.edge_heterogeneity(graph)
        monkeypatch.undo()
        assert sparse[0] == pytest.approx(dense[0], rel=1e-6)
        assert np.allclose(sparse[1], dense[1])


@given(graphs(least=2))
def test_heterogeneity_and_distance_are_the_papers_definitions(topology):
    W = topology.mixing.toarray()
    both = [(i, j) for i, j in topology.edges.tolist()] + [
        (j, i) for i, j in topology.edges.tolist()
    ]
    expected = sum(((W[i] - W[j]) ** 2).sum() for i, j in both) / (2 * len(both)) if both else 0.0
    assert mixing.heterogeneity(topology) == pytest.approx(expected, abs=1e-12)
    J = (topology.components[:, None] == topology.components[None, :]).astype(float)
    J /= J.sum(axis=1, keepdims=True)
    assert mixing.distance_to_average(topology) == pytest.approx(
        np.linalg.norm(W - J) ** 2, abs=1e-9
    )


def test_one_round_of_gossip_leaves_what_lemma_noisereduce_says():
    rng = np.random.default_rng(0)
    for topology in (decor.ring(8), decor.star(7), decor.erdos_renyi(9, 0.5, seed=2)):
        K = np.zeros((topology.users, topology.edge_count))
        K[topology.edges[:, 0], range(topology.edge_count)] = 1
        K[topology.edges[:, 1], range(topology.edge_count)] = -1
        noise = rng.normal(size=(200_000, topology.edge_count)) @ (topology.mixing.toarray() @ K).T
        measured = (noise**2).sum(axis=1).mean()
        expected = 2 * mixing.heterogeneity(topology) * topology.edge_count
        assert measured == pytest.approx(expected, rel=0.02)
        assert measured != pytest.approx(expected * 2 / 3, rel=0.02)
