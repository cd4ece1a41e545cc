import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import graphs, true_delta, true_leverages, true_worst

import decor
from decor import Adversary, Exposure, NoisePlan, Phases
from decor.errors import BudgetError, InputError
from decor.privacy.loss import gaussian

EAVESDROPPER = Adversary.eavesdropper()


def plan(topology, sigma_cdp=8.0, sigma_cor=30.0, adversary=EAVESDROPPER, clip=1.0, steps=100):
    return NoisePlan(topology, Exposure(clip, steps), adversary, sigma_cdp, sigma_cor)


@given(
    graphs(least=2),
    st.floats(0.1, 100),
    st.just(0.0) | st.floats(1e-9, 1e5),
    st.floats(0.01, 10),
    st.integers(1, 10_000),
)
def test_the_reported_epsilon_suffices_and_nothing_smaller_does(topology, s, c, clip, steps):
    """From the definitions: mpmath's inverse, the formula for mu, delta of the Gaussian."""
    guarantee = plan(topology, s, c, clip=clip, steps=steps).guarantee(1e-5)
    leverage = max(true_leverages(topology, s, c))
    mu = 2 * mpmath.mpf(clip) * mpmath.sqrt(steps * leverage)
    assume(mu <= 60)  # beyond, the oracle takes too long
    assert true_delta(guarantee.epsilon, mu) <= 1e-5
    if guarantee.epsilon > 1e-6:
        assert true_delta(guarantee.epsilon * (1 - 1e-6), mu) > 1e-5


IRREGULAR = decor.from_edges(
    8, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5), (5, 6), (6, 3), (6, 7)]
)
OWN = (3.0, 9.0, 4.0, 3.0, 20.0, 5.0, 7.0, 12.0)
COR = tuple(np.linspace(2.0, 40.0, IRREGULAR.edge_count).tolist())


@pytest.mark.parametrize(
    ("adversary", "colluders"),
    [("eavesdropper", 0), ("curious", 1), ("colluding:2", 2), ("colluding:3", 3), ("everyone", 7)],
)
@pytest.mark.parametrize("cor", [25.0, COR], ids=["one sigma_cor", "by edge"])
def test_own_noise_of_each_user_is_what_its_epsilon_says(adversary, colluders, cor):
    """Every user, every coalition: mpmath's inverse and delta, not above and hardly below."""
    made = plan(IRREGULAR, OWN, cor, Adversary.parse(adversary), clip=0.2)
    guarantee = made.guarantee(1e-5)
    truth = true_worst(IRREGULAR, OWN, cor, colluders)
    for epsilon, leverage in zip(guarantee.per_user, truth, strict=True):
        mu = mpmath.mpf("0.4") * mpmath.sqrt(100 * leverage)
        assert true_delta(epsilon, mu) <= mpmath.mpf("1e-5") * (1 + mpmath.mpf(10) ** -9)
        assert true_delta(epsilon * (1 - 1e-6), mu) > 1e-5
    assert guarantee.worst_user == max(range(8), key=truth.__getitem__)


def test_two_users_levels_swapped_are_another_guarantee():
    swapped = (OWN[0], OWN[1], OWN[2], OWN[7], *OWN[4:7], OWN[3])
    right, wrong = (plan(IRREGULAR, s, 25.0).guarantee(1e-5).per_user for s in (OWN, swapped))
    assert not np.allclose(right, wrong, rtol=0.01)


def test_one_level_for_all_may_be_written_once_or_for_each_user():
    for adversary in ("eavesdropper", "curious", "colluding:2", "everyone"):
        who = Adversary.parse(adversary)
        once, each = (plan(IRREGULAR, s, 25.0, who).guarantee(1e-5) for s in (5.0, [5.0] * 8))
        assert (once.per_user == each.per_user).all() and str(once) == str(each)


def test_own_noise_at_example_level_is_that_of_the_effective_noise():
    exposure = Exposure(1.0, 50, unit="example", batch_size=8, records=64)
    guarantee = NoisePlan(IRREGULAR, exposure, Adversary.curious(), OWN, 25.0).guarantee(1e-5)
    truth = true_worst(IRREGULAR, OWN, 25.0, 1)
    for user, leverage in enumerate(truth):
        # one user alone whose own noise is what its neighbours leave it
        alone = NoisePlan(
            decor.from_edges(1, []), exposure, EAVESDROPPER, float(1 / mpmath.sqrt(leverage)), 0.0
        )
        assert guarantee.per_user[user] == pytest.approx(alone.guarantee(1e-5).epsilon, rel=1e-6)


def test_phases_with_own_noise_compose_for_each_user():
    """A user with little noise in one phase may have much in the next."""
    first, second = plan(IRREGULAR, OWN, 25.0), plan(IRREGULAR, OWN[::-1], 10.0, steps=300)
    both = Phases([first, second]).guarantee(1e-5)
    squares = zip(
        true_leverages(IRREGULAR, OWN, 25.0),
        true_leverages(IRREGULAR, OWN[::-1], 10.0),
        strict=True,
    )
    expected = [
        float(gaussian.epsilon(2 * math.sqrt(100 * float(a) + 300 * float(b)), 1e-5))
        for a, b in squares
    ]
    assert np.allclose(both.per_user, expected, rtol=1e-9)


def test_the_average_of_users_with_own_noise_has_the_mean_variance():
    """Central DP with levels of its users: the average of all messages, and nothing else."""
    made = plan(decor.ring(4), (1.0, 2.0, 3.0, 4.0), 0.0, Adversary(0, average_only=True))
    mu = 2 * math.sqrt(100 / (1 + 4 + 9 + 16))
    assert made.guarantee(1e-5).epsilon == pytest.approx(gaussian.epsilon(mu, 1e-5), rel=1e-9)


def test_composition_over_steps_is_that_of_dp_accounting():
    """T steps of a Gaussian mechanism with sensitivity 2C, by an independent accountant."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    for steps in (1, 10, 100):
        ours = plan(decor.ring(16), 10.0, 50.0, steps=steps).guarantee(1e-5)
        leverage = float(max(true_leverages(decor.ring(16), 10.0, 50.0)))
        oracle = PLDAccountant(value_discretization_interval=1e-3)
        oracle.compose(dp_accounting.GaussianDpEvent(1 / (2 * math.sqrt(leverage))), steps)
        assert ours.epsilon == pytest.approx(oracle.get_epsilon(1e-5), rel=2e-3)


def test_epsilon_of_every_user_is_reported():
    topology = decor.star(6)
    g = plan(topology).guarantee(1e-5)
    expected = [
        float(gaussian.epsilon(2 * math.sqrt(100 * float(v)), 1e-5))
        for v in true_leverages(topology, 8.0, 30.0)
    ]
    assert np.allclose(g.per_user, expected, rtol=1e-9)
    assert g.per_user[0] < g.per_user[1] == g.epsilon and g.worst_user == 1
    assert g.per_user.max() == g.epsilon


def test_steps_and_clip_and_noise_scale_as_they_must():
    base = plan(decor.ring(8)).guarantee(1e-5).epsilon
    assert plan(decor.ring(8), 16.0, 60.0, clip=2.0).guarantee(1e-5).epsilon == pytest.approx(
        base, rel=1e-9
    )
    assert plan(decor.ring(8), 16.0, 60.0, steps=400).guarantee(1e-5).epsilon == pytest.approx(
        base, rel=1e-9
    )
    assert plan(decor.ring(8), steps=101).guarantee(1e-5).epsilon > base


def test_adversaries_in_increasing_strength():
    p = plan(decor.torus(4, 4))
    names = ("eavesdropper", "curious", "colluding:2", "colluding:3", "colluding:4", "everyone")
    values = [p.guarantee(1e-5, Adversary.parse(name)).epsilon for name in names]
    assert values == sorted(values) and values[0] < values[1] < values[2] < values[3] < values[4]
    assert (
        values[4]
        == values[5]
        == pytest.approx(float(gaussian.epsilon(2 * math.sqrt(100) / 8, 1e-5)))
    )


def test_a_changing_run_is_composed_per_user_before_the_worst_is_taken():
    """mu_i^2 adds over phases; who is most exposed in one phase need not be in the other."""
    # the ends of the path are its centre
    hubs = decor.from_edges(6, [(hub, k) for hub in (0, 5) for k in range(1, 5)])
    first, second = plan(decor.path(6), steps=60), plan(hubs, 5.0, 20.0, clip=0.5, steps=30)
    g = Phases([first, second]).guarantee(1e-5)
    mu2 = [
        4 * 60 * a + 4 * mpmath.mpf(0.25) * 30 * b
        for a, b in zip(
            true_leverages(first.topology, 8.0, 30.0),
            true_leverages(second.topology, 5.0, 20.0),
            strict=True,
        )
    ]
    assert np.allclose(
        g.per_user, gaussian.epsilon([float(mpmath.sqrt(m)) for m in mu2], 1e-5), rtol=1e-9
    )
    assert g.worst_user == 0 and g.steps == 90
    maxima = gaussian.epsilon(math.sqrt(sum(gaussian_mu2(p) for p in (first, second))), 1e-5)
    assert g.epsilon < float(maxima) * 0.999


def gaussian_mu2(p):
    s, c, e = p.sigma_cdp, p.sigma_cor, p.exposure
    return 4 * e.clip**2 * e.steps * float(max(true_leverages(p.topology, s, c)))


def test_two_halves_of_a_run_are_the_run():
    whole = plan(decor.ring(9), adversary=Adversary.curious()).guarantee(1e-5)
    halves = Phases(
        [plan(decor.ring(9), adversary=Adversary.curious(), steps=k) for k in (30, 70)]
    ).guarantee(1e-5)
    assert halves.epsilon == pytest.approx(whole.epsilon, rel=1e-9) and halves.steps == 100


def test_phases_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="one NoisePlan or more"):
        Phases([])
    with pytest.raises(InputError, match="same users"):
        Phases([plan(decor.ring(5)), plan(decor.ring(6))]).guarantee(1e-5)
    with pytest.raises(InputError, match="different adversaries"):
        Phases([plan(decor.ring(5)), plan(decor.ring(5), adversary=Adversary.curious())]).guarantee(
            1e-5
        )
    with pytest.raises(BudgetError, match="delta is not known"):
        plan(decor.ring(5)).guarantee()


def test_no_independent_noise_is_no_privacy():
    g = plan(decor.ring(5), 0.0, 30.0).guarantee(1e-5)
    assert g.epsilon == math.inf and np.isinf(g.per_user).all()


@pytest.mark.parametrize("s", [1e-100, 1e-50, 1e100])
def test_extreme_noise_is_accounted_and_does_not_overflow(s):
    for c in (0.0, s, 1.0, 1e100):
        g = plan(decor.torus(3, 3), s, c, Adversary.curious()).guarantee(1e-5)
        assert g.epsilon == 0.0 if s > 1 else g.epsilon > 1e90
        assert (g.per_user == g.epsilon).all()
    for beyond in (1e-320, 1e-101, 1e101, 1e308):
        with pytest.raises(BudgetError, match="0 or lie between 1e-100 and"):
            plan(decor.ring(5), beyond, 1.0)


def test_no_correlated_noise_is_local_dp_against_every_adversary():
    for adversary in (Adversary(0), Adversary(1), Adversary(3), Adversary(None)):
        g = plan(decor.torus(3, 3), 8.0, 0.0, adversary).guarantee(1e-5)
        assert g.epsilon == pytest.approx(float(gaussian.epsilon(2 * 10 / 8, 1e-5))) and g.exact


def test_the_papers_method_gives_the_papers_number():
    p = plan(decor.ring(16), 10.0, 50.0, steps=1000)
    step = 2 * float(max(true_leverages(decor.ring(16), 10.0, 50.0)))
    expected = 1000 * step + 2 * math.sqrt(1000 * step * math.log(1e5))
    g = p.guarantee(1e-5, method="paper")
    assert g.epsilon == pytest.approx(expected, rel=1e-9) and not g.exact
    assert g.epsilon > p.guarantee(1e-5).epsilon
    with pytest.raises(InputError, match='"exact" or "paper"'):
        p.guarantee(1e-5, method="renyi")


@pytest.mark.parametrize("delta", [0, 1, -1, float("nan"), "x"])
def test_a_nonsense_delta_is_refused(delta):
    with pytest.raises(BudgetError, match="delta must lie"):
        plan(decor.ring(5)).guarantee(delta)


@pytest.mark.parametrize(
    ("s", "c", "said"),
    [
        (-1, 1, "sigma_cdp"),
        (float("nan"), 1, "sigma_cdp"),
        (1, float("inf"), "sigma_cor"),
        ([1.0, 2.0], 1, "2 numbers for 5 users"),
        ([1.0, 2.0, 3.0, 4.0, -1.0], 1, "sigma_cdp must be a finite number"),
        ([1.0, 2.0, 3.0, 4.0, 0.0], 1, "sigma_cdp of user 4 is 0; give every user noise"),
        (1, [1.0, 2.0], "2 numbers for 5 edges"),
        (1, [1.0, 2.0, 3.0, 4.0, -1.0], "sigma_cor must be a finite number"),
    ],
)
def test_nonsense_noise_is_refused(s, c, said):
    with pytest.raises(BudgetError, match=said):
        plan(decor.ring(5), s, c)


def test_more_colluders_than_users_are_refused():
    with pytest.raises(InputError, match="no user to protect"):
        plan(decor.ring(5)).guarantee(1e-5, Adversary.colluding(5))


@given(graphs(least=3, most=7), st.data())
def test_crashes_and_new_secrets_never_raise_anybodys_epsilon(topology, data):
    """Edges whose ends draw different noise, and silent users, raise no leverage.

    Whatever own noise each user has.
    """
    levels = st.sampled_from([0.3, 1.0, 6.0])
    own = np.array(data.draw(st.lists(levels, min_size=topology.users, max_size=topology.users)))
    c2 = data.draw(st.sampled_from([0.5, 20.0, 1e4]))
    edges = topology.edges.tolist()
    broken = data.draw(st.lists(st.sampled_from(edges), unique_by=tuple) if edges else st.just([]))
    silent = data.draw(st.sets(st.integers(0, topology.users - 1), max_size=topology.users - 1))
    sigma = np.diag(own**2)
    for i, j in edges:
        sigma[i, i] += c2
        sigma[j, j] += c2
        if [i, j] not in broken:
            sigma[i, j] -= c2
            sigma[j, i] -= c2
    heard = [u for u in range(topology.users) if u not in silent]
    after = np.linalg.inv(sigma[np.ix_(heard, heard)]).diagonal()
    planned = np.array([float(v) for v in true_leverages(topology, own, math.sqrt(c2))])[heard]
    assert (after <= planned * (1 + 1e-9)).all()


def observations(edges, users, c, target, colluders, order, fresh, left_out=False):
    """What an attacker sees, one after the other: (coefficient of the target's gradient,
    coefficients of independent noises), for own noise 1 and edge noise c.

    `order` has the users that send; `fresh` whether the lower and the higher end of each edge draws
    a new key, if the other end was first. `left_out`: it adds no noise instead.
    """
    used = set()
    for user in order:
        row = np.zeros(users + 3 * len(edges))
        row[user] = 1.0
        known = []
        for k, (i, j) in enumerate(edges):
            if user not in (i, j):
                continue
            is_apart = fresh[k][user == j] and k in used
            at = users + 3 * k + (1 + (user == j) if is_apart else 0)
            if not (is_apart and left_out):
                row[at] = c if user == i else -c
            used.add(k)
            # a colluder is given the key of its edge, which it had or asks for later
            if {i, j} & colluders:
                known.append(np.eye(len(row))[at])
        yield float(user == target), row
        yield from ((0.0, key) for key in known)


def information(*case, **more):
    """The sum of a_k squared: each observation against its mean given those before it."""
    total, seen = 0.0, []
    for signal, row in observations(*case, **more):
        # less what is known of it: an orthogonal basis of the rows before
        for a, b in seen:
            part = row @ b
            signal, row = signal - part * a, row - part * b
        length = math.sqrt(row @ row)
        if length > 1e-6:  # else it follows from what was seen
            total += (signal / length) ** 2
            seen.append((signal / length, row / length))
    return total


@given(graphs(least=2, most=5), st.data())
def test_who_cuts_edges_and_delays_users_after_it_has_looked_learns_no_more(topology, data):
    """Claim 2 (d) of docs/guarantees.md, one observation after the other.

    Before each the attacker may choose, by all it has seen, who is next and whose end of an edge
    draws a fresh key. Whatever its rule, it meets one of the sequences that are drawn here.
    """
    c, users, edges = data.draw(st.sampled_from([0.7, 5.0, 100.0])), topology.users, topology.edges
    everyone = list(range(users))
    colluders = data.draw(st.sets(st.sampled_from(everyone), max_size=users - 1))
    honest = [user for user in everyone if user not in colluders]
    target = data.draw(st.sampled_from(honest))
    # those that are not in it stay silent
    order = data.draw(st.permutations(honest))[: data.draw(st.integers(0, len(honest)))]
    ends = st.tuples(st.booleans(), st.booleans())
    fresh = data.draw(st.lists(ends, min_size=len(edges), max_size=len(edges)))
    # a colluder's edges are known: they leave the graph with it
    sigma = np.eye(users)
    for i, j in edges.tolist():
        if not {i, j} & colluders:
            sigma[[i, j], [i, j]] += c**2
            sigma[[i, j], [j, i]] -= c**2
    planned = np.linalg.inv(sigma)[target, target]
    case = edges.tolist(), users, c, target, colluders, order, fresh
    assert information(*case) <= planned * (1 + 1e-9)


def test_all_messages_tell_what_is_planned_and_a_cut_edge_without_noise_would_tell_more():
    edges, c = decor.ring(3).edges.tolist(), 5.0
    planned = float(true_leverages(decor.ring(3), 1.0, c)[1])
    together = edges, 3, c, 1, set(), [0, 2, 1], [(False, False)] * 3
    assert information(*together) == pytest.approx(planned)
    apart = *together[:-1], [(True, True)] * 3
    assert information(*apart) < planned / 2
    assert information(*apart, left_out=True) > planned * 1.5


def test_a_choice_made_by_what_was_seen_stays_within_the_planned_delta():
    """Two users. The attacker lets ulm draw the same noise where bonn's message is doubtful, and cuts
    the edge where it is not: a rule that stops at the best moment.
    """
    random, c, shift, draws = np.random.default_rng(1), 3.0, 1.0, 400_000
    own, shared = random.standard_normal((2, draws)), random.standard_normal(draws)
    bonn, variance = shift + own[0] + c * shared, 1 + c**2
    # the log-likelihood ratio of bonn's message, for a gradient of `shift` against none
    first = shift * (bonn - shift / 2) / variance
    ulm, weight = own[1] - c * shared, -(c**2) / variance
    signal, left = -weight * shift, variance - c**4 / variance
    # that of ulm's, given bonn's: none if its noise is drawn afresh
    second = signal * (ulm - weight * bonn - signal / 2) / left
    planned_mu = shift * math.sqrt(float(true_leverages(decor.path(2), 1.0, c)[0]))
    for threshold in (-0.2, 0.0, 0.3, math.inf):
        loss = first + np.where(first > threshold, 0.0, second)
        for epsilon in (0.2, 0.5, 1.0):
            excess = np.maximum(0.0, 1.0 - np.exp(epsilon - loss))
            error = 5 * excess.std() / math.sqrt(draws)
            planned = gaussian.delta(epsilon, planned_mu)
            assert excess.mean() <= planned + error
            if threshold == math.inf:  # it looks at everything: nothing less would do
                assert excess.mean() >= planned - error


def test_phases_must_mean_the_same_people():
    """Found by review: the same graph read from two files may number its users differently."""
    first = decor.from_edges(4, [(0, 1), (1, 2), (0, 2)], labels=["a", "b", "c", "x"])
    second = decor.from_edges(4, [(1, 2), (2, 3), (1, 3)], labels=["x", "a", "b", "c"])
    with pytest.raises(InputError, match="name their users differently"):
        Phases([plan(first), plan(second)]).guarantee(1e-5)
    assert (
        Phases([plan(first), plan(first)]).guarantee(1e-5).epsilon
        > plan(first).guarantee(1e-5).epsilon
    )


def test_phases_must_protect_the_same_thing():
    example = Exposure(1.0, 10, unit="example", batch_size=8, records=100)
    replace = Exposure(1.0, 10, unit="example", batch_size=8, records=100, relation="replace")
    made = [
        NoisePlan(decor.ring(5), exposure, EAVESDROPPER, 1.0, 2.0)
        for exposure in (Exposure(1.0, 10), example, replace)
    ]
    for a, b in ((0, 1), (1, 2), (0, 2)):
        with pytest.raises(InputError, match="the same unit of privacy, the same relation"):
            Phases([made[a], made[b]]).guarantee(1e-5)


def test_things_of_the_wrong_kind_are_refused_by_name():
    with pytest.raises(InputError, match="adversary must be an Adversary"):
        plan(decor.ring(5)).guarantee(1e-5, adversary="curious")
    with pytest.raises(InputError, match="one NoisePlan or more"):
        Phases(None)
    with pytest.raises(InputError, match="budget must be a Budget"):
        NoisePlan(decor.ring(5), Exposure(1.0, 10), EAVESDROPPER, 1.0, 2.0, budget=3)
    for sigma in (10**400, "x", [[1.0], [2.0, 3.0]]):
        with pytest.raises(BudgetError):
            plan(decor.ring(5), 1.0, sigma)
    for clip in (10**400, 1e300):
        with pytest.raises(BudgetError, match="clip"):
            Exposure(clip, 1)


@given(
    graphs(least=2, most=6) | st.sampled_from([decor.ring(6), decor.torus(2, 3), decor.ring(4)]),
    st.data(),
)
def test_users_are_called_alike_only_where_all_are_equally_exposed(topology, data):
    q = data.draw(st.integers(0, min(topology.users - 1, 3)))
    noise = data.draw(st.sampled_from([0.0, 2.0, "by edge", "by user"]))
    own = tuple(1.0 + k for k in range(topology.users)) if noise == "by user" else 1.0
    cor = tuple(1.0 + k for k in range(topology.edge_count)) if noise == "by edge" else 2.0
    cor = noise if isinstance(noise, float) else cor
    guarantee = plan(topology, own, cor, Adversary(q)).guarantee(1e-5)
    worst = true_worst(topology, own, cor, q)
    alike = max(worst) <= min(worst) * (1 + 1e-12)
    assert alike if guarantee.alike else "All users" not in str(guarantee)
    # and where symmetry is plain to see, it is said
    if noise in (0.0, 2.0) and (topology.family or noise == 0.0 or topology.degrees.max() <= q):
        assert guarantee.alike and "All users are equally exposed" in str(guarantee)


def test_users_of_two_symmetric_graphs_need_not_be_alike():
    ring, square = (
        decor.ring(6),
        decor.from_edges(6, [(0, 2), (2, 4), (4, 1), (1, 3), (3, 5), (0, 5)]),
    )
    assert Phases([plan(ring), plan(square)]).guarantee(1e-5).alike
    curious = [plan(graph, adversary=Adversary.curious()) for graph in (ring, square)]
    both = Phases(curious).guarantee(1e-5)
    # the colluding user is the same in both, and no symmetry of one is that of the other
    assert not both.alike and np.ptp(both.per_user) > 1e-3
    assert Phases(curious[:1] * 2).guarantee(1e-5).alike


def test_users_with_different_records_are_not_alike():
    records = [100, 100, 100, 50]
    exposure = Exposure(1.0, 10, unit="example", batch_size=8, records=records)
    for adversary in (EAVESDROPPER, Adversary.everyone()):
        made = NoisePlan(decor.ring(4), exposure, adversary, 1.0, 2.0).guarantee(1e-5)
        assert not made.alike and np.ptp(made.per_user) > 1e-3
