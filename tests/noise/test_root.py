"""Roots of Sigma: every way to make the noise has exactly its covariance."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import graphs

import decor
from decor.noise import root

GRAPHS = [
    decor.ring(16),
    decor.ring(100),
    decor.torus(4, 5),
    decor.torus(10, 10),
    decor.star(12),
    decor.path(30),
    decor.erdos_renyi(30, 0.2, seed=1),
    decor.random_regular(40, 4, seed=2),
    decor.complete(9),
    decor.hypercube(5),
]


def true_sigma(topology, s, c):
    """diag(s^2) + sum over edges of c_e^2 k_e k_e', one edge at a time."""
    sigma = np.diag(np.broadcast_to(np.square(s), topology.users)).astype(float)
    for (i, j), each in zip(
        topology.edges.tolist(), np.broadcast_to(c, topology.edge_count).tolist(), strict=True
    ):
        k = np.zeros(topology.users)
        k[i], k[j] = 1, -1
        sigma += each**2 * np.outer(k, k)
    return sigma


def dense(columns, users):
    F = np.zeros((users, len(columns.start) - 1))
    for k in range(F.shape[1]):
        for p in range(columns.start[k], columns.start[k + 1]):
            F[columns.rows[p], k] += columns.values[p]
    assert columns.start[0] == 0 and columns.start[-1] == len(columns.rows) == len(columns.values)
    return F


def roots(topology, s, c):
    """All three, whichever would be chosen."""
    n, edges = topology.users, topology.edges
    c = np.broadcast_to(np.asarray(c, dtype=float), topology.edge_count)
    least = np.min(s)
    beyond = np.broadcast_to(np.square(s) - least**2, n)
    values, vectors = root.eigenvectors(n, edges, c**2, beyond)
    found = {
        "eigenvectors": vectors * np.sqrt(least**2 + values),
        "edges": dense(root.by_edges(n, edges, s, c), n),
        "chosen": dense(root.sparse(n, edges, s, c), n),
    }
    if least > 0:
        found["band"] = dense(root.by_band(n, edges, s, c), n)
    return found


def check(topology, s, c):
    sigma = true_sigma(topology, s, c)
    for name, F in roots(topology, s, c).items():
        assert abs(F @ F.T - sigma).max() <= 1e-10 * abs(sigma).max(), name
        # entry by entry, too: where users share little noise, they share exactly that little
        assert np.allclose(
            np.diag(F @ F.T), np.diag(sigma), rtol=1e-10, atol=1e-14 * abs(sigma).max()
        ), name
    return sigma


@pytest.mark.parametrize("ratio", [0.0, 1e-3, 0.5, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("topology", GRAPHS, ids=repr)
def test_every_root_times_its_transpose_is_sigma(topology, ratio):
    check(topology, 0.7, 0.7 * ratio)
    check(topology, 1e-5, 1e-5 * ratio)


@given(graphs(), st.integers(0, 10**6), st.floats(-3, 3), st.floats(-3, 3))
def test_every_root_is_sigmas_on_any_graph_with_any_noise_on_its_edges(
    topology, seed, log_s, log_c
):
    c = 10.0 ** (log_c + np.random.default_rng(seed).uniform(-1.5, 1.5, topology.edge_count))
    c[::4] = 0.0
    check(topology, 10.0**log_s, c)


@given(graphs(), st.integers(0, 10**6), st.floats(-3, 3), st.floats(-3, 3))
def test_every_root_is_sigmas_with_own_noise_of_each_user(topology, seed, log_s, log_c):
    draw = np.random.default_rng(seed)
    s = 10.0 ** (log_s + draw.uniform(0, 1.5, topology.users))
    c = 10.0 ** (log_c + draw.uniform(-1.5, 1.5, topology.edge_count))
    c[::4] = 0.0
    check(topology, s, c)
    check(topology, s, 0.0)


@pytest.mark.parametrize("topology", GRAPHS, ids=repr)
def test_the_sum_over_users_has_the_noise_of_n_users_alone(topology):
    """What the average sees is n s^2, however large the edges' noise: it must cancel within the
    root.
    """
    for ratio, close in ((1.0, 1e-12), (30.0, 1e-10), (1e3, 1e-7)):
        for name, F in roots(topology, 1.0, ratio).items():
            assert ((F.sum(axis=0)) ** 2).sum() == pytest.approx(topology.users, rel=close), (
                name,
                ratio,
            )


@pytest.mark.parametrize("ratio", [1e5, 1e7, 1e8, 1e10])
@pytest.mark.parametrize("topology", GRAPHS, ids=repr)
def test_the_sum_over_users_keeps_its_noise_however_large_the_edges_is(topology, ratio):
    """Ratios that the accountant takes: rounding must neither eat sigma_cdp, which protects the
    sum, nor bury it.
    """
    s = 1e-3
    roots = {
        "chosen": dense(
            root.sparse(topology.users, topology.edges, s, np.full(topology.edge_count, s * ratio)),
            topology.users,
        )
    }
    values, vectors = root.eigenvectors(
        topology.users, topology.edges, np.full(topology.edge_count, (s * ratio) ** 2)
    )
    roots["eigenvectors"] = vectors * np.sqrt(s**2 + values)
    for name, F in roots.items():
        assert ((F.sum(axis=0)) ** 2).sum() == pytest.approx(topology.users * s**2, rel=1e-3), name


@given(graphs(least=2), st.integers(0, 10**6))
def test_the_correlated_part_alone_sums_to_zero_over_the_users_of_every_component(topology, seed):
    c = np.random.default_rng(seed).uniform(0.1, 5.0, topology.edge_count)
    check(topology, 0.0, c)
    member = (topology.components[:, None] == np.unique(topology.components)).astype(float)
    exact = dense(root.sparse(topology.users, topology.edges, 0.0, c), topology.users)
    assert (member.T @ exact == 0).all(), "to the last bit"
    values, vectors = root.eigenvectors(topology.users, topology.edges, c**2)
    assert abs(member.T @ (vectors * np.sqrt(values))).max(initial=0) < 1e-6 * max(
        1.0, c.max(initial=0)
    )


@given(graphs(least=2), st.floats(0.01, 100.0))
def test_a_scaled_root_is_not_sigmas(topology, ratio):
    """The other side: two thirds or three halves of either noise is seen."""
    assume(topology.edge_count > 0)
    F = roots(topology, 1.0, ratio)
    for s, c in ((2 / 3, ratio), (3 / 2, ratio), (1.0, ratio * 2 / 3), (1.0, ratio * 3 / 2)):
        wrong = true_sigma(topology, s, c)
        for each in F.values():
            assert abs(each @ each.T - wrong).max() > 1e-6 * abs(wrong).max()


@pytest.mark.parametrize(
    ("topology", "columns"),
    [
        (decor.ring(100), 100),
        (decor.path(100), 100),
        (decor.torus(10, 10), 300),
        (decor.star(100), 199),
        (decor.random_regular(100, 4, seed=1), 300),
    ],
    ids=repr,
)
def test_narrow_bands_take_a_gaussian_a_user_and_other_graphs_one_an_edge_too(topology, columns):
    n, c = topology.users, np.full(topology.edge_count, 2.0)
    chosen = root.sparse(n, topology.edges, 1.0, c)
    assert len(chosen.start) - 1 == columns
    entries = {100: 3 * n, n + topology.edge_count: n + 2 * topology.edge_count}[columns]
    assert len(chosen.rows) <= entries, "and no more numbers than that needs"
    assert len(root.sparse(n, topology.edges, 0.0, c).start) - 1 == topology.edge_count, (
        "no Gaussian for nothing"
    )
    assert len(root.sparse(n, topology.edges, 1.0, 0 * c).start) - 1 == n


def test_the_band_does_not_depend_on_how_users_are_numbered():
    for seed in range(3):
        place = np.random.default_rng(seed).permutation(200)
        ring = decor.from_edges(200, place[decor.ring(200).edges])
        F = root.sparse(200, ring.edges, 1.0, np.full(200, 3.0))
        assert len(F.start) - 1 == 200 and len(F.rows) < 3 * 200
        sigma = true_sigma(ring, 1.0, 3.0)
        assert abs(dense(F, 200) @ dense(F, 200).T - sigma).max() < 1e-10 * sigma.max()
