import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from oracles import graphs

import decor
from decor.errors import GraphError
from decor.graph import laplacian

NAMED = [
    decor.ring(3),
    decor.ring(16),
    decor.torus(4, 4),
    decor.torus(2, 5),
    decor.torus(2, 2),
    decor.complete(5),
    decor.hypercube(4),
    decor.star(7),
    decor.star(2),
    decor.path(6),
    decor.path(2),
    decor.grid(3, 5),
]


@pytest.mark.parametrize("topology", NAMED, ids=repr)
def test_closed_forms_are_the_eigenvalues(topology):
    values = np.linalg.eigvalsh(topology.laplacian.toarray())
    closed = laplacian.laplacian_spectrum(topology)
    assert (closed is not None) == topology.vertex_transitive
    if closed is not None:
        assert np.allclose(closed, values, atol=1e-12) and closed[0] == 0.0
    assert laplacian.algebraic_connectivity(topology) == pytest.approx(values[1], abs=1e-12)


def test_small_eigenvalues_of_a_large_ring_keep_their_digits():
    from mpmath import mp, mpf, pi, sin

    values = laplacian.laplacian_spectrum(decor.ring(1_000_000))
    with mp.workdps(40):
        for k in (1, 2, 1000):
            assert (
                abs(mpf(float(values[k])) / (4 * sin(pi * ((k + 1) // 2) / 1_000_000) ** 2) - 1)
                < 1e-14
            )


@given(graphs(least=2, most=7))
def test_connectivities_agree_with_networkx(topology):
    graph = topology.to_networkx()
    assert laplacian.vertex_connectivity(topology) == nx.node_connectivity(graph)
    values = np.linalg.eigvalsh(topology.laplacian.toarray())
    assert laplacian.algebraic_connectivity(topology) == pytest.approx(values[1], abs=1e-9)


@pytest.mark.parametrize("topology", NAMED, ids=repr)
def test_vertex_connectivity_of_families_agrees_with_networkx(topology):
    assert laplacian.vertex_connectivity(topology) == nx.node_connectivity(topology.to_networkx())


@pytest.mark.parametrize(
    "topology", [decor.ring(7), decor.star(6), decor.erdos_renyi(8, 0.5, seed=1)], ids=repr
)
@pytest.mark.parametrize("deletions", [1, 2, 3])
def test_a_q_is_the_minimum_over_all_deletions(topology, deletions):
    graph = topology.to_networkx()
    worst = min(
        np.linalg.eigvalsh(nx.laplacian_matrix(graph.subgraph(set(graph) - set(gone))).toarray())[1]
        for gone in itertools.combinations(graph, deletions)
    )
    assert laplacian.algebraic_connectivity(topology, deletions) == pytest.approx(worst, abs=1e-9)


def test_a_q_refuses_what_would_never_end():
    with pytest.raises(GraphError, match="eigenvalue problems"):
        laplacian.algebraic_connectivity(decor.ring(60), 8)
    with pytest.raises(GraphError, match="cannot be deleted"):
        laplacian.algebraic_connectivity(decor.ring(5), 5)
    assert laplacian.algebraic_connectivity(decor.ring(5), 4) == 0.0


def test_large_sparse_graphs_have_an_algebraic_connectivity(monkeypatch):
    topology = decor.random_regular(300, 4, seed=0)
    dense = laplacian.algebraic_connectivity(topology)
    monkeypatch.setattr(laplacian, "DENSE_LIMIT", 10)
    assert laplacian.algebraic_connectivity(topology) == pytest.approx(dense, rel=1e-6)
