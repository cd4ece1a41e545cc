import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import graphs, never_below, ratios, true_leverages

import decor
from decor.privacy.leverage import solve
from decor.privacy.leverage.solve import ScaledCovariance, leverages


@given(graphs(), ratios)
def test_leverages_are_never_below_the_truth_at_any_ratio(topology, ratio):
    result = leverages(ScaledCovariance(topology, ratio))
    truth = true_leverages(topology, 1.0, mpmath.sqrt(mpmath.mpf(ratio)))
    assert all(never_below(value, true) for value, true in zip(result, truth, strict=True))


@given(graphs(least=2), st.integers(0, 1000))
def test_leverages_of_per_edge_noise_are_never_below_the_truth(topology, seed):
    sigma = 10.0 ** np.random.default_rng(seed).uniform(-4, 5, topology.edge_count)
    sigma[::5] = 0.0
    result = leverages(ScaledCovariance(topology, tuple((sigma**2).tolist())))
    truth = true_leverages(topology, 1.0, sigma)
    assert all(never_below(value, true) for value, true in zip(result, truth, strict=True))


@pytest.mark.parametrize("ratio", [0.0, 1e-3, 1.0, 50.0, 1e6, 1e12, 1e20])
@pytest.mark.parametrize(
    "topology",
    [
        decor.ring(5),
        decor.ring(16),
        decor.torus(3, 4),
        decor.torus(2, 4),
        decor.complete(9),
        decor.hypercube(3),
    ],
    ids=repr,
)
def test_closed_forms_of_families_are_never_below_the_truth(topology, ratio):
    result = leverages(ScaledCovariance(topology, ratio))
    truth = true_leverages(topology, 1.0, mpmath.sqrt(mpmath.mpf(ratio)))
    assert all(never_below(value, true) for value, true in zip(result, truth, strict=True))


@pytest.mark.parametrize("users", [5, 1000, 1_000_000])
@pytest.mark.parametrize("ratio", [0.1, 100.0, 1e9])
def test_a_ring_of_any_size_has_the_leverage_of_its_closed_form(users, ratio):
    with mpmath.workdps(50):
        x = mpmath.mpf(ratio)
        t = mpmath.acosh(1 + 1 / (2 * x))
        expected = mpmath.coth(users * t / 2) / (2 * x * mpmath.sinh(t))
    result = leverages(ScaledCovariance(decor.ring(users), ratio))
    assert result.shape == (users,) and never_below(result[0], expected)


@pytest.mark.parametrize("ratio", [0.5, 1e3, 1e9])
def test_all_paths_agree_on_one_graph(monkeypatch, ratio):
    """Small, dense and sparse elimination, and the closed form, of one and the same torus."""
    closed = leverages(ScaledCovariance(decor.torus(6, 8), ratio))[0]
    plain = ScaledCovariance(decor.from_edges(48, decor.torus(6, 8).edges), ratio)
    for small, dense in ((64, 1200), (0, 1200), (0, 0)):
        monkeypatch.setattr(solve, "SMALL", small)
        monkeypatch.setattr(solve, "DENSE", dense)
        assert np.allclose(leverages(plain), closed, rtol=1e-11)


@given(graphs(least=2), st.sampled_from([0.3, 5.0, 200.0]))
def test_more_noise_and_more_edges_never_raise_a_leverage(topology, ratio):
    result = leverages(ScaledCovariance(topology, ratio))
    assert (leverages(ScaledCovariance(topology, 2 * ratio)) <= result * (1 + 1e-9)).all()
    if topology.edge_count:
        less = decor.from_edges(topology.users, topology.edges[1:])
        assert (leverages(ScaledCovariance(less, ratio)) >= result * (1 - 1e-9)).all()


@given(graphs(least=2), st.randoms())
def test_names_of_users_do_not_matter(topology, random):
    order = list(range(topology.users))
    random.shuffle(order)
    renamed = decor.from_edges(topology.users, np.array(order)[topology.edges])
    assert np.allclose(
        leverages(ScaledCovariance(renamed, 3.0))[order],
        leverages(ScaledCovariance(topology, 3.0)),
        rtol=1e-12,
    )


@given(graphs(most=6), graphs(most=6), ratios)
def test_graphs_side_by_side_do_not_touch_each_other(a, b, ratio):
    union = decor.from_edges(a.users + b.users, np.concatenate([a.edges, b.edges + a.users]))
    apart = np.concatenate(
        [leverages(ScaledCovariance(a, ratio)), leverages(ScaledCovariance(b, ratio))]
    )
    assert np.allclose(leverages(ScaledCovariance(union, ratio)), apart, rtol=1e-9)


@given(graphs())
def test_leverage_falls_from_local_dp_to_one_over_the_component(topology):
    assert (leverages(ScaledCovariance(topology, 0.0)) == 1).all()
    sizes = np.bincount(topology.components)[topology.components]
    assert np.allclose(leverages(ScaledCovariance(topology, 1e15)), 1 / sizes, rtol=1e-9)


@given(st.floats(1e-300, 1e300))
def test_ratios_are_rounded_down_by_little_and_rounding_again_changes_nothing(ratio):
    rounded = solve.round_down_ratio(ratio)
    assert min(ratio, 1e200) * (1 - 1e-11) <= rounded <= ratio
    assert solve.round_down_ratio(rounded) == rounded
