"""Modes of gossip against traces of dense matrices."""

import numpy as np
import pytest
from hypothesis import given
from oracles import graphs

import decor
from decor.graph import eigenmodes

FUNCTIONS = (np.ones_like, np.square, lambda w: (w + w**2) ** 2)


def traces(topology, function):
    """trace F(W)(I - J) and trace F(W) L, straight from the definition."""
    values, vectors = np.linalg.eigh(topology.mixing.toarray())
    F = (vectors * function(values)) @ vectors.T
    J = (topology.components[:, None] == topology.components[None, :]).astype(float)
    J /= J.sum(axis=1, keepdims=True)
    return np.trace(F - F @ J), np.trace(F @ topology.laplacian.toarray())


@given(graphs())
def test_sums_over_modes_are_traces(topology):
    found = eigenmodes.modes_of(topology)
    assert found.exact
    for function in FUNCTIONS:
        values = function(found.eigenvalues)
        by_user, by_edge = traces(topology, function)
        assert found.users @ values == pytest.approx(by_user, abs=1e-9)
        assert found.edges @ values == pytest.approx(by_edge, abs=1e-9)


@pytest.mark.parametrize("topology", [decor.path(9), decor.star(7), decor.torus(3, 4)], ids=repr)
def test_closed_forms_are_those_of_the_same_graph_without_a_name(topology):
    plain = decor.from_edges(topology.users, topology.edges)
    named, general = eigenmodes.modes_of(topology), eigenmodes.modes_of(plain)
    assert np.allclose(np.sort(named.eigenvalues), np.sort(general.eigenvalues), atol=1e-12)
    assert eigenmodes.second_eigenvalue(topology) == pytest.approx(
        eigenmodes.second_eigenvalue(plain)
    )


@given(graphs(least=2))
def test_a_function_of_the_mixing_matrix_leaves_consensus_out(topology):
    F = eigenmodes.function_of_mixing(topology, np.ones_like)
    assert np.allclose(F.sum(axis=1), 0, atol=1e-9)
    assert np.trace(F) == pytest.approx(topology.users - topology.component_count)


def test_an_estimate_says_so_and_is_exact_for_totals(monkeypatch):
    topology = decor.erdos_renyi(60, 0.2, seed=1)
    monkeypatch.setattr(eigenmodes, "DENSE_LIMIT", 10)
    eigenmodes.modes_of.cache_clear()
    found = eigenmodes.modes_of(topology)
    eigenmodes.modes_of.cache_clear()
    assert not found.exact
    assert found.users.sum() == pytest.approx(topology.users - topology.component_count)
    assert found.edges.sum() == pytest.approx(2 * topology.edge_count)
