import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import graphs, ratios

import decor
from decor.privacy.leverage import dense
from decor.privacy.leverage.network import Network


def exact_inverse(K, ground):
    with mpmath.workdps(90):
        n = len(ground)
        M = mpmath.matrix(n, n)
        for i in range(n):
            M[i, i] = mpmath.mpf(float(ground[i])) + mpmath.fsum(mpmath.mpf(float(k)) for k in K[i])
            for j in range(n):
                if i != j:
                    M[i, j] = -mpmath.mpf(float(K[i, j]))
        return M**-1


@given(graphs(), ratios, st.integers(0, 2**32 - 1), st.booleans())
def test_every_entry_is_right_to_the_stated_error_at_any_ratio(topology, ratio, seed, weighted):
    rng = np.random.default_rng(seed)
    n, m = topology.users, topology.edge_count
    conductance = ratio * (10.0 ** rng.uniform(-10, 10, m) if weighted else np.ones(m))
    ground = 10.0 ** rng.uniform(-3, 3, n) if weighted else np.ones(n)
    K = Network(ground, topology.edges, conductance).dense()
    truth = exact_inverse(K, ground)
    result = dense.inverse(K, ground)
    batched = dense.batch_diagonal(np.array([K, 2 * K]), np.array([ground, 2 * ground]))
    allowed = dense.relative_error(n)
    for i in range(n):
        assert abs(mpmath.mpf(float(batched[0, i])) / truth[i, i] - 1) <= allowed
        assert abs(mpmath.mpf(float(batched[1, i])) * 2 / truth[i, i] - 1) <= allowed
        for j in range(n):
            error = abs(mpmath.mpf(float(result[i, j])) - truth[i, j])
            assert error <= dense.entry_error(n) * mpmath.sqrt(truth[i, i] * truth[j, j])
            assert i != j or error <= allowed * truth[i, i]


def test_blocks_and_single_steps_agree_on_larger_graphs():
    rng = np.random.default_rng(1)
    for n in (47, 48, 49, 150):
        A = np.triu(rng.random((n, n)) < 0.1, 1) * 10.0 ** rng.uniform(-6, 12, (n, n))
        K, ground = A + A.T, np.ones(n)
        result = dense.inverse(K, ground)
        batched = dense.batch_diagonal(K[None], ground[None])[0]
        assert np.allclose(result, result.T, rtol=0, atol=0)
        assert np.abs(result.diagonal() / batched - 1).max() < 1e-13
        # rows of the inverse of (ground + Laplacian) sum to one: a check that needs no other
        # inverse
        assert np.abs(result @ ground - 1).max() < 1e-12


def test_a_plain_inverse_under_reports_where_elimination_does_not():
    """Why this module exists: a plain inverse reports half of the truth here, then less than 0."""
    topology = decor.torus(4, 4)
    for ratio in (1e16, 1e17):
        sigma = np.eye(16) + ratio * topology.laplacian.toarray()
        plain = np.linalg.inv(sigma).diagonal().max()
        ours = dense.inverse(ratio * topology.adjacency.toarray(), np.ones(16)).diagonal().max()
        assert ours == pytest.approx(1 / 16, rel=1e-12)
        assert plain < 0.9 * ours
