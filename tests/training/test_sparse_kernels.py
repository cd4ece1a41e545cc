"""Gossip by the sparse kernel is multiplication by the gossip matrix, and keeps what all share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import graphs

import decor
from decor.graph.gossip import Gossip
from decor.training import sparse_kernels


def mixing_rows(topology):
    W = topology.mixing
    return W.indptr.astype(np.int64), W.indices.astype(np.int64), W.data


@given(
    graphs(most=12),
    st.integers(0, 9),
    st.sampled_from([False, True, "designed"]),
    st.integers(1, 40),
)
def test_sparse_gossip_is_the_gossip_matrix(topology, rounds, accelerate, wide):
    gossip = Gossip(rounds, accelerate)
    x = np.random.default_rng(wide).normal(size=(topology.users, wide))
    W = mixing_rows(topology)
    mixed = x.copy()
    steps = np.array(gossip.steps(topology)).reshape(-1, 3)
    if rounds:
        middle = wide // 2  # as two threads would share the columns
        for left, right in ((0, middle), (middle, wide)):
            sparse_kernels.gossip(mixed, *W, steps, 3, left, right)
    assert np.allclose(mixed, gossip.matrix(topology) @ x, atol=1e-12)
    if not accelerate:
        assert np.allclose(
            mixed, np.linalg.matrix_power(topology.mixing.toarray(), rounds) @ x, atol=1e-12
        )


@pytest.mark.parametrize(("users", "rounds"), [(128, 64), (500, 250)])
@pytest.mark.parametrize("accelerate", [True, "designed"])
def test_values_that_all_users_share_stay_exact_in_single_precision(users, rounds, accelerate):
    """Rounded weights would move them the same way in every step: 2 % after 50 on a ring of 500."""
    topology = decor.ring(users)
    W = mixing_rows(topology)
    steps = np.array(Gossip(rounds, accelerate).steps(topology))
    mixed = np.full((users, 3), np.float32(0.7))
    for _ in range(20):
        sparse_kernels.gossip(mixed, *W, steps, 3, 0, 3)
    assert (mixed == np.float32(0.7)).all()
    # where users differ, their average stays, to a rounding or two
    start = np.random.default_rng(0).normal(size=(users, 3)).astype(np.float32)
    mixed = start.copy()
    for _ in range(3):
        sparse_kernels.gossip(mixed, *W, steps, 3, 0, 3)
    assert np.allclose(mixed.mean(0), start.astype(float).mean(0), rtol=0, atol=2e-4)
