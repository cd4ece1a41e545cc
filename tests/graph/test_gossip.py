import dataclasses
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import graphs

import decor
from decor.errors import InputError
from decor.graph import eigenmodes, mixing
from decor.graph import gossip as gossip_module
from decor.graph.gossip import MAX_ROUNDS, Gossip
from decor.graph.gossip_polynomial import design_roots

gossips = st.builds(Gossip, st.integers(0, 12), st.sampled_from([False, True, "designed"]))
TRANSITIVE = [
    decor.ring(9),
    decor.torus(3, 5),
    decor.torus(2, 6),
    decor.torus(2, 2),
    decor.complete(5),
    decor.hypercube(3),
]
IRREGULAR = [decor.star(9), decor.path(7), decor.grid(3, 4), decor.erdos_renyi(12, 0.3, seed=4)]
PARTS = decor.from_edges(9, [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (4, 6), (6, 7)])


def averaging(topology):
    J = (topology.components[:, None] == topology.components[None, :]).astype(float)
    return J / J.sum(axis=1, keepdims=True)


def modes_of_disagreement(topology):
    """Eigenvalues of W, each component's 1 taken out, straight from the definition."""
    W = topology.mixing.toarray()
    # consensus moves to -1, where nothing else is
    values, vectors = np.linalg.eigh(W - 2 * averaging(topology))
    return values[topology.component_count :], vectors[:, topology.component_count :]


def oracle(gossip, topology):
    """P(W) by eigenvectors, with T_k(cos u) = cos(k u) and T_k(cosh u) = cosh(k u)."""
    values, vectors = modes_of_disagreement(topology)
    l = np.abs(values).max(initial=0.0)  # noqa: E741
    k = gossip.rounds
    if gossip.accelerate == "designed" and k > 1:
        roots = np.array(design_roots(topology, k))
        P = np.prod((values[:, None] - roots) / (1 - roots), axis=1)
    elif gossip.accelerate and l > 1e-6:
        P = np.cos(k * np.arccos(np.clip(values / l, -1, 1))) / math.cosh(k * math.acosh(1 / l))
    else:
        P = values**k
    return (vectors * P) @ vectors.T + averaging(topology)


@given(graphs(), gossips)
def test_the_rounds_are_the_polynomial_of_the_definition(topology, gossip):
    assert np.allclose(gossip.matrix(topology), oracle(gossip, topology), rtol=0, atol=1e-12)


@given(graphs(), gossips)
def test_every_user_can_do_the_rounds_with_its_neighbours_models_alone(topology, gossip):
    x = now = before = np.random.default_rng(3).normal(size=(topology.users, 2))
    W = topology.mixing.toarray()
    coefficients = gossip.steps(topology)
    assert len(coefficients) == gossip.rounds and all(b == 0 for _, b, _ in coefficients[:1])
    for a, b, c in coefficients:
        now, before = a * W @ now + b * before + c * now, now
    assert np.allclose(now, gossip.apply(topology, x), rtol=0, atol=1e-12)
    assert np.allclose(now, gossip.matrix(topology) @ x, rtol=0, atol=1e-12)


@given(graphs(), gossips)
def test_the_average_of_every_component_stays(topology, gossip):
    P, J = gossip.matrix(topology), averaging(topology)
    assert (P == P.T).all() and np.allclose(P.sum(axis=1), 1, rtol=0, atol=1e-13)
    assert np.allclose(J @ P, J, rtol=0, atol=1e-13)


@given(graphs(), gossips)
def test_shrinkage_is_the_norm_of_what_is_left_of_disagreement(topology, gossip):
    expected = (
        np.linalg.norm(gossip.matrix(topology) - averaging(topology), 2)
        if topology.edge_count
        else 0.0
    )
    assert gossip.shrinkage(topology) == pytest.approx(expected, abs=1e-12)


@given(graphs(least=2), st.integers(0, 40))
def test_accelerated_rounds_shrink_the_worst_mode_as_theory_says_and_never_less_than_plain_ones(
    topology, rounds
):
    plain, fast = Gossip(rounds).shrinkage(topology), Gossip(rounds, True).shrinkage(topology)
    assert fast <= plain * (1 + 1e-12)
    l = np.abs(modes_of_disagreement(topology)[0]).max(initial=0.0)  # noqa: E741
    if topology.edge_count and l > 1e-6:
        r = l / (1 + math.sqrt(1 - l**2))
        assert fast == pytest.approx(2 * r**rounds / (1 + r ** (2 * rounds)), rel=1e-9)
        assert plain == pytest.approx(l**rounds, rel=1e-9)


@pytest.mark.parametrize("topology", [*TRANSITIVE, *IRREGULAR, PARTS], ids=repr)
def test_one_round_is_the_papers_gossip(topology):
    for gossip in (Gossip(), Gossip(1, accelerate=True)):
        assert np.allclose(gossip.matrix(topology), topology.mixing.toarray(), rtol=0, atol=1e-15)
        assert np.allclose(
            gossip.edge_residuals(topology),
            mixing.edge_heterogeneity(topology),
            rtol=1e-12,
            atol=1e-14,
        )
        assert gossip.distance_to_average(topology) == pytest.approx(
            mixing.distance_to_average(topology), rel=1e-11, abs=1e-13
        )
        rate = mixing.consensus_rate_within_components(topology)
        assert 1 - gossip.shrinkage(topology) ** 2 == pytest.approx(rate, abs=1e-13)


@given(graphs(least=2), gossips, st.sampled_from([1, 2, 7]))
def test_what_is_left_is_the_sum_over_steps_by_brute_force(topology, gossip, steps):
    check_what_is_left(topology, gossip, steps)


@pytest.mark.parametrize("topology", [*TRANSITIVE, *IRREGULAR, PARTS], ids=repr)
@pytest.mark.parametrize("gossip", [Gossip(0), Gossip(3), Gossip(3, True)], ids=repr)
def test_closed_forms_of_families_leave_what_brute_force_says(topology, gossip):
    check_what_is_left(topology, gossip, 1)
    check_what_is_left(topology, gossip, 4)


def check_what_is_left(topology, gossip, steps):
    P, J = gossip.matrix(topology), averaging(topology)
    powers = [np.linalg.matrix_power(P, k) for k in range(1, steps + 1)]
    i, j = topology.edges.T
    by_edge = sum(((p[i] - p[j]) ** 2).sum(axis=1) for p in powers)
    assert np.allclose(gossip.edge_residuals(topology, steps), by_edge, rtol=1e-10, atol=1e-12)
    together = sum(np.linalg.norm(p - J) ** 2 for p in powers)
    assert gossip.distance_to_average(topology, steps) == pytest.approx(
        together, rel=1e-10, abs=1e-12
    )
    variances = np.linspace(1, 3, topology.edge_count)
    assert gossip.residual(topology, variances, steps) == pytest.approx(
        variances @ by_edge, rel=1e-10, abs=1e-12
    )
    assert gossip.residual(topology, 2.0, steps) == pytest.approx(
        2 * np.sum(by_edge), rel=1e-10, abs=1e-12
    )


@pytest.mark.parametrize("users", [1, 4])
def test_users_without_neighbours_keep_their_models(users):
    alone = decor.from_edges(users, np.empty((0, 2), dtype=int))
    for gossip in (Gossip(0), Gossip(5), Gossip(5, True)):
        assert (gossip.matrix(alone) == np.eye(users)).all()
        assert (
            gossip.shrinkage(alone)
            == gossip.distance_to_average(alone, 9)
            == gossip.residual(alone, 1.0)
            == 0
        )
        assert gossip.edge_residuals(alone).shape == (0,)


def test_no_rounds_leave_everything():
    for accelerate in (False, True):
        none = Gossip(0, accelerate)
        assert none.steps(decor.ring(5)) == () and (none.matrix(decor.ring(5)) == np.eye(5)).all()
        assert none.shrinkage(decor.ring(5)) == none.shrinkage(decor.complete(5)) == 1
        assert (
            np.allclose(none.edge_residuals(decor.path(4), 10), 20)
            and none.distance_to_average(decor.ring(5), 10) == 40
        )


def test_the_complete_graph_has_nothing_to_accelerate():
    for topology in (decor.complete(6), decor.from_edges(6, decor.complete(6).edges)):
        assert np.allclose(Gossip(7, True).steps(topology), [(1, 0, 0)] * 7, rtol=0, atol=1e-15)
        assert (
            np.allclose(Gossip(7, True).matrix(topology), 1 / 6)
            and Gossip(7, True).shrinkage(topology) < 1e-15
        )


@pytest.mark.parametrize(
    "topology",
    [decor.path(50), decor.from_edges(50, decor.path(50).edges), decor.ring(1000)],
    ids=repr,
)
def test_hundreds_of_rounds_stay_finite_and_right(topology):
    """Against 60 digits: T_200(1/l) alone would overflow nothing yet, T_10000(1/l) would."""
    with mpmath.workdps(60):
        l = mpmath.mpf(eigenmodes.second_eigenvalue(topology))  # noqa: E741
        assert Gossip(200, True).shrinkage(topology) == pytest.approx(
            float(1 / mpmath.chebyt(200, 1 / l)), rel=1e-9
        )
        eigenvalues = np.linspace(-1, 1, 9) * float(l)
        expected = [
            float(mpmath.chebyt(200, mpmath.mpf(v) / l) / mpmath.chebyt(200, 1 / l))
            for v in eigenvalues
        ]
    assert np.allclose(
        Gossip(200, True).value_at(topology, eigenvalues), expected, rtol=0, atol=1e-11
    )
    P = Gossip(200, True).matrix(topology)
    assert np.isfinite(P).all() and np.allclose(P.sum(axis=1), 1, rtol=0, atol=1e-12)
    most = Gossip(MAX_ROUNDS, True)
    assert (
        all(1 <= a <= 2 and a + b == 1 and c == 0 for a, b, c in most.steps(topology))
        and most.shrinkage(topology) < 1e-10
    )


def test_an_l_too_small_still_shrinks_every_mode(monkeypatch):
    topology = decor.path(30)
    values = modes_of_disagreement(topology)[0]
    for short in (1e-8, 1e-3, 0.2):
        monkeypatch.setattr(
            gossip_module,
            "second_eigenvalue",
            lambda t, short=short: np.abs(values).max() * (1 - short),
        )
        assert np.abs(Gossip(25, True).value_at(topology, values)).max() < 1


LARGE = [
    decor.random_regular(900, 4, seed=1),
    decor.grid(25, 30),
    decor.from_edges(
        900,
        np.concatenate([decor.random_regular(600, 3, seed=2).edges, decor.star(300).edges + 600]),
    ),
    decor.from_edges(900, [(k, k + 1) for k in range(899) if k % 3 != 2]),
]


@pytest.fixture
def as_if_large(monkeypatch):
    def switch():
        for module in (gossip_module, eigenmodes):
            monkeypatch.setattr(module, "DENSE_LIMIT", 10)
        eigenmodes.modes_of.cache_clear()
        eigenmodes.second_eigenvalue.cache_clear()

    yield switch
    monkeypatch.undo()
    eigenmodes.modes_of.cache_clear()
    eigenmodes.second_eigenvalue.cache_clear()


@pytest.mark.parametrize("topology", LARGE, ids=repr)
@pytest.mark.parametrize("gossip", [Gossip(), Gossip(3), Gossip(3, True)], ids=repr)
def test_large_graphs_are_estimated_to_a_few_percent(topology, gossip, as_if_large):
    variances = np.linspace(1, 3, topology.edge_count)

    def totals():
        return [f(steps) for steps in (1, 50, 1000) for f in (distance, uniform, by_edge)]

    def distance(steps):
        return gossip.distance_to_average(topology, steps)

    def uniform(steps):
        return gossip.residual(topology, 1.0, steps)

    def by_edge(steps):
        return gossip.residual(topology, variances, steps)

    exact, l = totals(), eigenmodes.second_eigenvalue(topology)  # noqa: E741
    by_edges, shrinkage = (
        (gossip.edge_residuals(topology, 1), gossip.edge_residuals(topology, 50)),
        gossip.shrinkage(topology),
    )
    as_if_large()
    assert np.allclose(totals(), exact, rtol=0.08)
    assert l * (1 - 1e-12) <= eigenmodes.second_eigenvalue(topology) <= l + 3e-8
    assert gossip.shrinkage(topology) == pytest.approx(shrinkage, rel=1e-5)
    assert np.allclose(gossip.edge_residuals(topology, 1), by_edges[0], rtol=1e-5, atol=1e-12)
    assert (gossip.edge_residuals(topology, 50) >= by_edges[1] * (1 - 1e-6)).all(), (
        "a bound from above"
    )


def test_where_p_fills_up_its_rows_are_bounded_from_above(as_if_large, monkeypatch):
    topology = LARGE[0]
    exact = {g: g.edge_residuals(topology) for g in (Gossip(6), Gossip(6, True))}
    as_if_large()
    monkeypatch.setattr(gossip_module, "_FILL", 10)
    for gossip, value in exact.items():
        assert (gossip.edge_residuals(topology) >= value).all()
    with pytest.raises(InputError, match="900 users would be dense"):
        Gossip().matrix(topology)


def test_a_million_users_on_a_ring_cost_less_than_a_second():
    topology = decor.ring(1_000_000)
    gossip = Gossip(8)
    small = decor.ring(1000)  # a thousand users do not see the far side in a hundred steps of eight
    for million, thousand in (
        (gossip.residual(topology, 1.0, 100) / 1e6, gossip.residual(small, 1.0, 100) / 1e3),
        (gossip.edge_residuals(topology)[0], gossip.edge_residuals(small)[0]),
    ):
        assert million == pytest.approx(thousand, rel=1e-6)


@pytest.mark.parametrize("rounds", [-1, 1.5, True, None, "2", MAX_ROUNDS + 1, math.nan])
def test_rounds_that_cannot_be_are_refused_with_a_way_out(rounds):
    with pytest.raises(InputError, match="whole number from 0 .* not .*; 0 is no gossip"):
        Gossip(rounds)
    with pytest.raises(InputError, match="accelerate must be .chebyshev"):
        Gossip(2, "yes")


def test_gossip_is_a_value():
    assert Gossip(np.int64(3), np.bool_(True)) == Gossip(3, True) and hash(Gossip(3)) == hash(
        Gossip(3, False)
    )
    assert type(Gossip(np.int64(3)).rounds) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gossip().rounds = 2


@pytest.mark.parametrize(
    ("gossip", "text"),
    [
        (Gossip(), "1 round"),
        (Gossip(1, "designed"), "1 round"),
        (Gossip(3), "3 rounds"),
        (Gossip(3, True), "3 Chebyshev rounds"),
        (Gossip(4, "designed"), "4 designed rounds"),
    ],
)
def test_gossip_is_described_in_words(gossip, text):
    assert gossip.description == text
