"""Rounds designed for a graph: never worse than the others, and exact where there are enough."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import graphs
from scipy.optimize import minimize

import decor
from decor.errors import InputError
from decor.graph import gossip_polynomial
from decor.graph.eigenmodes import modes_of
from decor.graph.gossip import Gossip

NEEDED = [
    (decor.ring(16), 8),
    (decor.ring(9), 4),
    (decor.torus(4, 4), 4),
    (decor.hypercube(5), 5),
    (decor.star(9), 2),
]


@pytest.mark.parametrize("topology, needed", NEEDED, ids=lambda x: repr(x))
def test_as_many_rounds_as_eigenvalues_are_the_average_and_one_less_is_not(topology, needed):
    average = np.full((topology.users, topology.users), 1 / topology.users)
    for more in (0, 1, 5):
        assert np.allclose(
            Gossip(needed + more, "designed").matrix(topology), average, rtol=0, atol=1e-13
        )
    assert not np.allclose(
        Gossip(needed - 1, "designed").matrix(topology), average, rtol=0, atol=1e-3
    )
    assert not np.allclose(Gossip(needed, True).matrix(topology), average, rtol=0, atol=1e-3)


@given(graphs(most=12), st.integers(2, 6))
def test_designed_rounds_leave_no_more_noise_than_plain_or_chebyshevs(topology, rounds):
    steps = 100_000
    ours = Gossip(rounds, "designed").residual(topology, 1.0, steps)
    assert ours >= 0
    for other in (False, True):
        assert (
            ours
            <= 1.02 * Gossip(rounds, other).residual(topology, 1.0, steps) + 1e-9 * topology.users
        )
    assert Gossip(rounds, "designed").shrinkage(topology) < 1


@pytest.mark.parametrize(
    "topology",
    [decor.ring(32), decor.torus(5, 6), decor.path(12), decor.erdos_renyi(20, 0.25, seed=3)],
    ids=repr,
)
@pytest.mark.parametrize("rounds", [2, 3])
def test_no_polynomial_found_by_search_leaves_less(topology, rounds):
    modes = modes_of(topology)
    noise = modes.edges + gossip_polynomial._OWN_NOISE * modes.users

    def left(roots):
        return min(
            gossip_polynomial._residual(
                gossip_polynomial._squares(roots, modes.eigenvalues), noise
            ),
            1e6,
        )

    starts = np.random.default_rng(0).uniform(-0.5, 0.95, (20, rounds))
    found = min(
        minimize(left, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-9}).fun
        for start in starts
    )
    assert left(np.array(gossip_polynomial.design_roots(topology, rounds))) <= 1.01 * found


LONG = [
    (decor.ring(100), 8, 0.786),
    (decor.ring(256), 8, 3.67),
    (decor.ring(256), 31, 0.155),
    (decor.path(100), 31, 0.046),
]


@pytest.mark.parametrize(("topology", "rounds", "reached"), LONG, ids=repr)
def test_long_graphs_are_designed_for_too(topology, rounds, reached):
    """Here a whole step of the iteration overshoots; plain rounds leave five times as much."""
    modes = modes_of(topology)
    left = [Gossip(rounds, how).residual(topology, 1.0, 10**6) for how in ("designed", False)]
    noise = modes.edges + gossip_polynomial._OWN_NOISE * modes.users
    roots = np.array(gossip_polynomial.design_roots(topology, rounds))
    assert (
        gossip_polynomial._residual(gossip_polynomial._squares(roots, modes.eigenvalues), noise)
        <= reached
        and left[0] < left[1] / 4
    )


@pytest.mark.parametrize("users", [64, 128, 500])
def test_many_rounds_in_a_row_do_not_lose_digits(users):
    """Some modes grow on the way, but in Leja's order not beyond what float32 can lose."""
    P = Gossip(users // 2, "designed").matrix(decor.ring(users))
    assert np.allclose(P, 1 / users, rtol=0, atol=1e-11)


def test_graphs_of_unknown_spectrum_are_refused_with_the_way_out():
    topology = decor.erdos_renyi(5000, 0.002, seed=0)
    with pytest.raises(InputError, match="5,000.*accelerate=True"):
        Gossip(4, "designed").steps(topology)
    for wrong in ("best", 1, None):
        with pytest.raises(InputError, match="accelerate must be"):
            Gossip(4, wrong)
    assert Gossip(4, "chebyshev") == Gossip(4, True)


def lossy(topology, roots, lost, runs=400, seed=0):
    """(in the average, in all models): squares left of unit edge noise, with messages lost.

    Each end of an edge loses each message by itself, so that one end may mix and the other not.
    """
    rng, (i, j), w = np.random.default_rng(seed), topology.edges.T, topology.edge_weights
    noise = rng.normal(size=(topology.edge_count, runs))
    x = np.zeros((topology.users, runs))
    np.add.at(x, i, noise)
    np.add.at(x, j, -noise)
    for r in roots:
        moved = (w / (1 - r))[:, None] * (x[j] - x[i])
        x = x.copy()
        np.add.at(x, i, moved * (rng.random(moved.shape) >= lost))
        np.add.at(x, j, -moved * (rng.random(moved.shape) >= lost))
    average = topology.users * (x.mean(0) ** 2).mean()
    return average, (x**2).sum(0).mean()


FEW = [
    *((decor.ring(16), rounds) for rounds in (2, 4, 6, 12)),
    *((decor.random_regular(40, 4, seed=1), rounds) for rounds in (2, 4, 8, 16)),
    *((graph, 4) for graph in (decor.torus(4, 4), decor.path(8), decor.erdos_renyi(40, 0.15, 2))),
]


@pytest.mark.parametrize(("topology", "rounds"), FEW, ids=repr)
def test_lost_messages_leave_no_more_after_designed_rounds_than_after_one_plain_round(
    topology, rounds
):
    """In Leja's order four rounds on a ring of 16 leave ten times as much in the average and more."""
    plain = lossy(topology, [0.0], 0.1)
    designed = lossy(topology, gossip_polynomial.design_roots(topology, rounds), 0.1)
    # the average has sampling errors of a tenth
    assert designed[0] <= 1.3 * plain[0] and designed[1] <= plain[1]


def test_the_order_of_rounds_is_for_lost_messages_alone():
    ring = decor.ring(16)
    roots = np.array(gossip_polynomial.design_roots(ring, 4))
    leja = gossip_polynomial._leja_order(roots)
    assert lossy(ring, leja, 0.1)[0] > 10 * lossy(ring, roots, 0.1)[0]
    # without losses both leave the same
    assert lossy(ring, leja, 0.0)[1] == pytest.approx(lossy(ring, roots, 0.0)[1])
    assert lossy(ring, roots, 0.0)[0] < 1e-20


@pytest.mark.parametrize("topology", [decor.ring(16), decor.torus(6, 6)], ids=repr)
def test_what_lost_messages_leave_is_predicted(topology):
    for rounds in (1, 2, 4, 8):
        roots = gossip_polynomial.design_roots(topology, rounds) if rounds > 1 else None
        average, whole = lossy(topology, [0.0] if roots is None else roots, 0.1, runs=2000)
        predicted = gossip_polynomial.loss_left(topology, roots)
        # a mean field: what is left of large coefficients is overestimated
        assert 0.8 * (9 * average + whole) < predicted < 1.8 * (9 * average + whole)
