import itertools

import mpmath
import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from decor.errors import InputError
from decor.privacy.leverage import branch, branch_kernels, dense
from decor.privacy.leverage.branch import worst_coalition
from decor.privacy.leverage.network import Network


def network(graph, ratio=1.0, weights=None, ground=None):
    """A graph as a network: conductance `ratio` times each edge's weight, ground one by default."""
    n = graph.number_of_nodes()
    edges = np.array(sorted(tuple(sorted(e)) for e in graph.edges()), dtype=np.int64).reshape(-1, 2)
    weights = np.ones(len(edges)) if weights is None else np.asarray(weights)
    return Network(
        np.ones(n) if ground is None else np.asarray(ground), edges, float(ratio) * weights
    )


def cliques(bridges):
    graph = nx.disjoint_union(nx.complete_graph(5), nx.complete_graph(6))
    graph.add_edges_from((k, 5 + k) for k in range(bridges))
    return graph


GRAPHS = {
    "cycle": nx.cycle_graph(8),
    "star": nx.star_graph(7),
    "ladder": nx.circular_ladder_graph(5),
    "cube": nx.convert_node_labels_to_integers(nx.hypercube_graph(3)),
    "complete": nx.complete_graph(8),
    "two components": cliques(0),
    "one bridge": cliques(1),
    "two bridges": cliques(2),
    "cut vertex": nx.barbell_graph(5, 1),
    "random": nx.gnp_random_graph(10, 0.6, seed=4),
    "random regular": nx.random_regular_graph(5, 10, seed=2),
}
RATIOS = [1e-6, 1.0, 1e3, 1e6, 1e10, 1e20]


def brute_force(network, q):
    """For every user the most any q others can do, each subset by itself and from scratch."""
    n = network.nodes
    sets = np.array(list(itertools.combinations(range(n), q)))
    rows = np.arange(len(sets))[:, None]
    K = np.repeat(network.dense()[None], len(sets), axis=0)
    K[rows, sets, :] = 0.0
    K[rows, :, sets] = 0.0
    values = dense.batch_diagonal(K, np.repeat(network.ground[None], len(sets), axis=0))
    values[rows, sets] = 0.0
    return values.max(axis=0)


def attained(network, user, coalition):
    left, kept = network.without(coalition)
    i = kept.tolist().index(user)
    return dense.inverse(left.dense(), left.ground)[i, i]


def exact_inverse(network, removed):
    """Sigma^-1 of what is left, to 60 digits, as a dictionary."""
    with mpmath.workdps(60):
        kept = [v for v in range(network.nodes) if v not in removed]
        place = {v: k for k, v in enumerate(kept)}
        sigma = mpmath.diag([mpmath.mpf(float(network.ground[v])) for v in kept])
        for (a, b), c in zip(network.edges.tolist(), network.conductance.tolist(), strict=True):
            if a in place and b in place:
                i, j, c = place[a], place[b], mpmath.mpf(c)
                sigma[i, i] += c
                sigma[j, j] += c
                sigma[i, j] -= c
                sigma[j, i] -= c
        inverse = sigma**-1
        return {(u, v): inverse[place[u], place[v]] for u in kept for v in kept}


def agrees(worst, network, q, truth):
    """The promises of `SearchResult` against the truth for every user."""
    most = truth.max()
    assert worst.value >= most * (1 - 1e-12)
    assert worst.lower <= most * (1 + 1e-12)
    assert (worst.per_user >= truth * (1 - 1e-12)).all()
    assert worst.exact == (worst.value <= worst.lower * (1 + 1e-9))
    if worst.exact:
        assert abs(worst.value / most - 1) <= 2e-9
    assert len(set(worst.coalition)) == q and worst.user not in worst.coalition
    assert attained(network, worst.user, worst.coalition) == pytest.approx(worst.lower, rel=1e-11)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", GRAPHS)
def test_the_worst_coalition_is_that_of_brute_force(name, ratio):
    wires = network(GRAPHS[name], ratio)
    for q in (2, 3, 4):
        worst = worst_coalition(wires, q)
        agrees(worst, wires, q, brute_force(wires, q))
        assert worst.exact


@st.composite
def networks(draw):
    """Any graph and ratio; edges and ground are equal or differ by ten orders of magnitude."""
    n = draw(st.integers(5, 10))
    seed = draw(st.integers(0, 10**6))
    graph = nx.gnp_random_graph(n, draw(st.sampled_from([0.3, 0.5, 0.7, 0.9])), seed=seed)
    rng = np.random.default_rng(seed)
    weights = 10 ** rng.uniform(-5, 5, graph.number_of_edges()) if draw(st.booleans()) else None
    spread = draw(st.sampled_from([0, 1, 5]))
    return network(
        graph, draw(st.sampled_from(RATIOS)), weights, 10 ** rng.uniform(-spread, spread, n)
    )


@given(networks(), st.integers(2, 4))
@settings(max_examples=150)
def test_brute_force_agrees_on_any_weights_and_any_ground(wires, q):
    agrees(worst_coalition(wires, q), wires, q, brute_force(wires, q))


@pytest.mark.parametrize("ratio", [1.0, 1e8, 1e20])
@pytest.mark.parametrize("name", ["one bridge", "cut vertex"])
def test_sixty_digits_agree_where_a_cut_vertex_cancels(name, ratio):
    """Independent of the elimination that brute force and search share."""
    wires = network(GRAPHS[name], ratio)
    truth = np.zeros(wires.nodes)
    for pair in itertools.combinations(range(wires.nodes), 2):
        for (u, v), value in exact_inverse(wires, pair).items():
            if u == v:
                truth[u] = max(truth[u], float(value))
    agrees(worst_coalition(wires, 2), wires, 2, truth)


@pytest.mark.parametrize("limit", [0, 3, 20])
@pytest.mark.parametrize("ratio", [1.0, 10.0, 1e3, 1e5])
def test_a_search_cut_short_still_bounds_each_user(ratio, limit):
    wires = network(nx.random_regular_graph(6, 12, seed=1), ratio, weights=np.linspace(1, 2, 36))
    worst = worst_coalition(wires, 4, node_limit=limit)
    agrees(worst, wires, 4, brute_force(wires, 4))
    assert not worst.exact
    assert worst_coalition(wires, 4).exact


def test_a_well_connected_graph_is_bounded_by_its_connectivity_when_the_search_is_cut_short():
    wires = network(nx.complete_graph(9), 1e6)
    best = brute_force(wires, 3).max()
    assert best <= branch._connectivity_bound(wires, 3) <= best * (1 + 1e-5)


@given(networks(), st.integers(2, 4))
def test_the_connectivity_bound_is_never_below_the_truth(wires, q):
    level = Network(np.ones(wires.nodes), wires.edges, wires.conductance)
    for case in (
        wires,
        level,
        Network(level.ground, level.edges, np.full(level.conductance.size, 7.0)),
    ):
        assert branch._connectivity_bound(case, q) >= brute_force(case, q).max() * (1 - 1e-12)


def user_not_isolated(views, colluders, random):
    """A user with more neighbours than colluders."""
    several = [i for i in range(views.K.shape[0]) if views.neighbours(i).size > colluders]
    assume(several)
    return random.choice(several)


@given(networks(), st.integers(0, 1), st.integers(2, 3), st.randoms(use_true_random=False))
@settings(max_examples=80)
def test_no_coalition_exceeds_the_bound_of_the_branch_it_is_in(wires, gone, r, random):
    """Every suffix bound of a survey, flow and spread alike, also after a deletion."""
    views = branch._Views(wires, gone + r)
    i = user_not_isolated(views, gone + r, random)
    target, state = views.root(i)
    removed = ()
    for _ in range(gone):
        removed += (random.choice(branch._others(state, i).tolist()),)
        state = views.child(target, state, removed)
    candidates = branch._others(state, i)
    order, bounds = branch_kernels.survey(
        views.csr, target, state, candidates, r, 0.0, np.empty((wires.nodes, wires.nodes))
    )
    assert sorted(order) == sorted(candidates) and bounds.size == candidates.size - r + 1
    for chosen in itertools.combinations(range(order.size), r):
        coalition = removed + tuple(int(order[k]) for k in chosen)
        assert attained(wires, i, coalition) <= bounds[chosen[0]] * (1 + 1e-12)


@given(networks(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_deletion_errs_by_no_more_than_it_says(wires, random):
    """H, x and d after up to two deletions, and d after one more, against sixty digits."""
    views = branch._Views(wires, 4)
    i = user_not_isolated(views, 3, random)
    target, state = views.root(i)
    removed, scratch = (), branch_kernels._scratch(views.csr)
    while True:
        within_its_errors(wires, target, state, removed)
        removed += (random.choice(branch._others(state, i).tolist()),)
        left, error = branch_kernels.without(
            views.csr, target, state, np.empty((wires.nodes, 0)), removed[-1], scratch
        )
        with mpmath.workdps(60):
            assert abs(1 / exact_inverse(wires, removed)[i, i] - left) <= error + target.floor
        if len(removed) == 3:
            break
        state = views.child(target, state, removed)


def within_its_errors(wires, target, state, removed):
    i, others = target.user, branch._others(state, target.user).tolist()
    gone = [i, *removed]
    assert not state.H[gone].any() and not state.H[:, gone].any()
    G = exact_inverse(wires, removed)
    with mpmath.workdps(60):
        H = {(u, v): G[u, v] - G[u, i] * G[i, v] / G[i, i] for u in others for v in others}
        for u in others:
            x = sum(H[u, v] * mpmath.mpf(float(target.p[v])) for v in others)
            assert abs(x - state.x[u]) <= state.e * state.t[u] * state.reach
            for v in others:
                size = state.t[u] * state.t[v]
                assert abs(H[u, v]) <= size
                assert abs(H[u, v] - state.H[u, v]) <= state.e * size
        assert abs(1 / G[i, i] - state.d) <= state.e * state.reach**2 + target.floor


def test_deleting_a_cut_vertex_is_not_trusted_to_a_change_of_low_rank():
    """At this ratio a low-rank update keeps no digit of the nodes behind the cut vertex."""
    wires = network(nx.barbell_graph(5, 1), 1e14)
    views = branch._Views(wires, 3)
    target, state = views.root(0)
    _, _, sound = branch_kernels.delete(views.csr, target, state, 5)
    assert not sound
    assert branch_kernels.delete(views.csr, target, state, 1)[2]
    assert branch._others(views.child(target, state, (5,)), 0).tolist() == [1, 2, 3, 4]


def test_more_colluders_never_expose_less():
    wires = network(nx.random_regular_graph(7, 16, seed=3), 50.0)
    values = [worst_coalition(wires, q).value for q in range(2, 16)]
    assert all(b >= a * (1 - 1e-9) for a, b in itertools.pairwise(values))
    assert values[-1] == pytest.approx(1.0, rel=1e-12)


def test_a_user_with_few_neighbours_is_left_alone_with_its_own_noise():
    wires = network(nx.star_graph(6), 1e4, ground=[1.0, 0.5, 2.0, 2.0, 2.0, 2.0, 2.0])
    worst = worst_coalition(wires, 2)
    assert worst.user == 1 and 0 in worst.coalition and len(worst.coalition) == 2
    assert worst.value == pytest.approx(2.0, rel=1e-12) and worst.exact
    agrees(worst, wires, 2, brute_force(wires, 2))


def test_one_target_is_enough_where_all_are_alike():
    wires = network(nx.convert_node_labels_to_integers(nx.hypercube_graph(4)), 30.0)
    one, every = worst_coalition(wires, 3, targets=[0]), worst_coalition(wires, 3)
    assert one.value == pytest.approx(every.value, rel=2e-9)
    assert one.user == 0 and (one.per_user == one.value).all()


def test_only_the_targets_are_protected():
    wires = network(GRAPHS["random"], 20.0)
    truth = brute_force(wires, 3)
    for i in range(wires.nodes):
        worst = worst_coalition(wires, 3, targets=[i])
        assert worst.user == i and worst.exact
        assert worst.value == pytest.approx(truth[i], rel=2e-9)


@pytest.mark.parametrize("q", [1, 8, 9])
def test_a_coalition_of_one_or_of_everyone_is_refused(q):
    with pytest.raises(InputError, match="give 2 to 7 colluders"):
        worst_coalition(network(nx.cycle_graph(8)), q)


def test_the_same_call_gives_the_same_answer_and_counts_its_branches():
    wires, seen = network(GRAPHS["random regular"], 100.0), []
    first, second = worst_coalition(wires, 3, progress=seen.append), worst_coalition(wires, 3)
    assert (first.value, first.lower, first.user, first.coalition) == (
        second.value,
        second.lower,
        second.user,
        second.coalition,
    )
    assert first.nodes == second.nodes >= len(seen) > 0 and seen == sorted(seen)


@pytest.mark.parametrize(
    ("ratio", "value"), [(1.0, 0.5340581098466), (1e4, 0.004132408451805), (1e16, 1 / 249)]
)
def test_seven_colluders_in_a_hypercube_of_256_are_found_exactly(ratio, value):
    """1.3e13 subsets; the values come from an independent search and the strong-edge limit."""
    wires = network(nx.convert_node_labels_to_integers(nx.hypercube_graph(8)), ratio)
    worst = worst_coalition(wires, 7, targets=[0])
    assert worst.exact and worst.nodes < 1000
    assert worst.lower == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize(("ratio", "value"), [(1.0, 0.3733121778289), (10.0, 0.0612559255105)])
def test_six_colluders_in_a_random_graph_of_256_are_found_exactly(ratio, value):
    """3.7e11 subsets, 250 users each."""
    worst = worst_coalition(network(nx.random_regular_graph(8, 256, seed=0), ratio), 6)
    assert worst.exact
    assert worst.lower == pytest.approx(value, rel=1e-10)
    assert (worst.user, worst.coalition) == (62, (125, 127, 139, 146, 212, 228))
