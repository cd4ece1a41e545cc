"""Messages on the grid: exact sums, enough noise for the rounding, and nearly Gaussian."""

import hashlib
import itertools
import math
import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from decor.errors import InputError
from decor.noise import grid, integer_gaussians
from decor.noise.grid import Grid

RING = [(i, (i + 1) % 5) for i in range(5)]


def key(*what):
    return hashlib.sha256(repr(what).encode()).digest()


def ring_grid(s=0.5, c=3.0, d=1000, shift=2.0, steps=100):
    return Grid.of(s, [c] * 5, RING, 5, shift, d, steps)


def ends_of(user, multiples, edges=RING):
    """An edge's key and signed multiple, for every edge of the user: plus at the lower number."""
    return [
        (key("edge", e), m if user == min(edges[e]) else -m)
        for e, m in enumerate(multiples)
        if user in edges[e]
    ]


def own_noise(own_key, count):
    return integer_gaussians.own_noise(grid._hmac(own_key, b"decor own noise 1"), count).astype(
        np.int64
    )


def steps_of(g, message):
    """A message in grid steps: whole numbers without any rounding."""
    k = np.rint(message / g.unit).astype(np.int64)
    assert (k * g.unit == message).all()
    return k


# what is added up


def test_a_message_is_the_gradient_plus_own_noise_plus_signed_multiples_of_the_edges_noise():
    g, user = ring_grid(d=20_000), 2
    gradient = np.random.default_rng(0).integers(-(10**6), 10**6, 20_000)
    message, _ = g.add_noise(gradient * g.unit, key("own"), ends_of(user, g.multiples))
    expected = gradient + own_noise(key("own"), 20_000)
    expected += g.multiples[2] * integer_gaussians.edge_noise(key("edge", 2), 20_000).astype(
        np.int64
    )
    expected -= g.multiples[1] * integer_gaussians.edge_noise(key("edge", 1), 20_000).astype(
        np.int64
    )
    assert (steps_of(g, message) == expected).all()


def test_the_edges_noise_cancels_in_the_sum_over_users_and_their_own_stays():
    g, d = ring_grid(d=9001), 9001
    messages = [
        g.add_noise(np.zeros(d), key("own", i), ends_of(i, g.multiples))[0] for i in range(5)
    ]
    own = sum(own_noise(key("own", i), d) for i in range(5))
    assert (sum(steps_of(g, m) for m in messages) == own).all()
    assert (sum(messages) == own * g.unit).all()  # in float64 too: a unit has 24 bits
    alone = steps_of(g, messages[0]) - own_noise(key("own", 0), d)
    expected = math.sqrt(g.multiples[0] ** 2 + g.multiples[4] ** 2) * integer_gaussians.EDGE_SIGMA
    assert abs(alone.std() / expected - 1) < 5 / math.sqrt(2 * d)


def test_the_covariance_of_messages_is_the_planned_one_and_neither_two_thirds_nor_three_halves_of_it():
    s, c, d = 0.5, 1.3, 200_000
    edges = [(0, 1), (1, 2), (0, 2)]
    g = Grid.of(s, [c, c, 2 * c], edges, 3, 2.0, d, 1)
    messages = np.stack(
        [
            g.add_noise(np.zeros(d), key("own", i), ends_of(i, g.multiples, edges))[0]
            for i in range(3)
        ]
    )
    found = messages @ messages.T / d
    wider = g.unit * integer_gaussians.OWN_SIGMA / s
    B = np.array([[1, 0, 1], [-1, 1, 0], [0, -1, -1]])

    def matches(own, cor):
        planned = wider**2 * (
            own**2 * s**2 * np.eye(3) + cor**2 * B @ np.diag([c**2, c**2, 4 * c**2]) @ B.T
        )
        error = np.sqrt((planned**2 + np.outer(planned.diagonal(), planned.diagonal())) / d)
        # multiples are rounded up, by 1/166 at most
        return (abs(found - planned) < 5 * error + 0.02 * c**2).all()

    assert matches(1, 1)
    assert not any(
        matches(own, cor) for own, cor in [(1, 2 / 3), (1, 3 / 2), (2 / 3, 2 / 3), (3 / 2, 3 / 2)]
    )
    total, error = messages.sum(axis=0).var(), math.sqrt(2 / d)
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):  # own noise alone
        assert (abs(total / (3 * (factor * s * wider) ** 2) - 1) < 5 * error) == right


# own noise of each user


OWN = (0.5, 1.1, 0.5, 7.0, 0.5000001)


def uneven_grid(own=OWN, c=3.0, d=1000, steps=100):
    return Grid.of(own, [c] * 5, RING, 5, 2.0, d, steps)


def test_what_users_draw_beside_reaches_their_own_noise_and_hardly_more():
    g, wider = uneven_grid(), ring_grid().unit / 0.5
    assert g.unit == ring_grid().unit and g.multiples == ring_grid().multiples
    for s, multiple in zip(OWN, g.own_multiples, strict=True):
        reached = math.hypot(integer_gaussians.OWN_SIGMA, multiple * integer_gaussians.EDGE_SIGMA)
        planned = s * wider * integer_gaussians.OWN_SIGMA / g.unit
        assert reached >= planned
        # 64 levels of an edge are one of own noise: rounding up to the next is small beside
        less = math.hypot(
            integer_gaussians.OWN_SIGMA, max(multiple - 1, 0) * integer_gaussians.EDGE_SIGMA
        )
        assert multiple == 0 or less < planned
    assert g.own_multiples[0] == g.own_multiples[2] == 0 < g.own_multiples[4]


def test_users_with_one_level_have_the_grid_of_one_number():
    assert uneven_grid((0.5,) * 5) == ring_grid()
    with pytest.raises(InputError, match="4 deviations for 5 users"):
        uneven_grid((0.5,) * 4)
    with pytest.raises(InputError, match="sigma_cdp must be a number above 0"):
        uneven_grid((0.5, 0.5, 0.0, 0.5, 0.5))


def test_a_message_has_what_its_user_draws_beside_from_a_stream_of_its_own():
    g, d, user = uneven_grid(d=20_000), 20_000, 3
    gradient, own_key = np.zeros(d), key("own")
    plain, tags = g.add_noise(gradient, own_key, ends_of(user, g.multiples))
    more, same = g.add_noise(
        gradient, own_key, ends_of(user, g.multiples), own_multiple=g.own_multiples[user]
    )
    beside = integer_gaussians.edge_noise(grid._hmac(own_key, b"decor own noise beside 1"), d)
    expected = g.own_multiples[user] * beside.astype(np.int64)
    assert (steps_of(g, more) - steps_of(g, plain) == expected).all()
    assert tags == same, "nobody compares what a user draws alone"
    drawn = own_noise(own_key, d)
    for e in (2, 3):
        edge = integer_gaussians.edge_noise(key("edge", e), d)
        assert abs(np.corrcoef(beside, edge)[0, 1]) < 5 / math.sqrt(d)
    assert abs(np.corrcoef(beside, drawn)[0, 1]) < 5 / math.sqrt(d)
    assert (drawn + expected).std() * g.unit == pytest.approx(7.0, rel=0.05)


def test_the_departure_and_the_distance_count_what_users_draw_beside():
    """As ends of edges that nobody else knows: two of five users draw in this plan."""
    own = (1.0, 900.0, 1.0, 1.0, 1500.0)
    g = Grid.of(own, [20.0] * 5, RING, 5, 2.0, 1000, 100)
    edges = 2 * g.multiples[0] ** 2
    with mpmath.workprec(300):
        widest = (
            1 / mpmath.mpf(integer_gaussians.EDGE_SIGMA) ** 2
            + 2 * (edges + g.own_multiples[4] ** 2) / mpmath.mpf(integer_gaussians.OWN_SIGMA) ** 2
        )
        ripples = (1 + theta(1 / widest)) ** 12 - 1
        expected = 1000 * 100 * (5 * mpmath.mpf(1.0709e-53) + 12 * mpmath.mpf(5.4347e-54) + ripples)
        found = grid._departure(g.multiples, g.own_multiples, RING, 5, 1000 * 100)
        assert expected < found < 1.06 * expected
        pairs = 5 * mpmath.mpf(751) ** 2 / 2 + 12 * mpmath.mpf(501) ** 2 / 2
        blocks = 100 * pairs / 2**128
        assert 1.0009 < (g.departure - found) / blocks < 1.0011
    assert g.values == 1000 * 100 * (5 + 10 + 2)
    with pytest.raises(InputError, match="and what it adds beside have .* too wide"):
        Grid.of((1.0, 1.0, 1.0, 1.0, 9000.0), [20.0] * 5, RING, 5, 2.0, 1000, 1000)


# rounding


def test_gradients_round_at_random_without_bias_and_independently_of_the_noise():
    g, d = ring_grid(d=400_000), 400_000
    noise = own_noise(key("own"), d)
    for fraction in (0.0, 0.25, 0.5, 0.875):
        up = (
            steps_of(g, g.add_noise(np.full(d, (7 + fraction) * g.unit), key("own"), [])[0])
            - noise
            - 7
        )
        assert set(up) <= {0, 1} and abs(up.mean() - fraction) < 5 * 0.5 / math.sqrt(d)
        if fraction:
            z = (up - up.mean()) / up.std()
            low = [noise % 2**bits for bits in (1, 6, 12, 16, 20)]
            for other in (noise, abs(noise), *low, z[::-1], np.roll(z, 1), np.roll(z, 8192)):
                assert abs(np.mean(z * (other - other.mean()) / other.std())) < 5 / math.sqrt(d)
    again = (
        steps_of(g, g.add_noise(np.full(d, 7.5 * g.unit), key("another"), [])[0])
        - own_noise(key("another"), d)
        - 7
    )
    once = steps_of(g, g.add_noise(np.full(d, 7.5 * g.unit), key("own"), [])[0]) - noise - 7
    assert abs(np.corrcoef(again, once)[0, 1]) < 5 / math.sqrt(d)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.floats(-9, 3.5),
    st.floats(-9, 3.5),
    st.integers(0, 3),
)
def test_rounding_moves_neighbouring_gradients_apart_by_less_than_a_grid_step_a_coordinate(
    seed, d, size, apart, sparse
):
    g, random = ring_grid(), np.random.default_rng(seed)
    a = random.standard_normal(d) * 10.0**size
    b = a + random.standard_normal(d) * 10.0**apart * (random.random(d) < 10.0**-sparse)
    moved = np.subtract(*(steps_of(g, g.add_noise(x, key(seed), [])[0]) for x in (a, b)))
    assert (abs(moved) < abs(a - b) / g.unit + 1 + 2**-14).all()
    assert np.linalg.norm(moved) <= np.linalg.norm(a - b) / g.unit + math.sqrt(d) * (1 + 2**-14)


def test_numbers_of_the_wider_grid():
    """s' = s / (1 - sqrt(d) s / (shift OWN_SIGMA)): 30 in 80,000 coordinates grows by 0.65 %, 0.5
    in 1000 by 0.0012 %.
    """
    for s, d, shift, growth in (
        (30.0, 80_000, 2.0, 1.006516),
        (0.5, 1000, 2.0, 1.000012),
        (30.0, 80_000, 0.2, 1.069214),
    ):
        g = Grid.of(s, [], np.empty((0, 2)), 1, shift, d, 1)
        assert g.unit * integer_gaussians.OWN_SIGMA / s == pytest.approx(growth, abs=1e-6)
        exact = s / (1 - math.sqrt(d) * s * (1 + 2**-14) / (shift * integer_gaussians.OWN_SIGMA))
        assert exact <= g.unit * integer_gaussians.OWN_SIGMA * (
            1 + 1e-15
        ) and g.unit * integer_gaussians.OWN_SIGMA < exact * (1 + 2**-21)
        assert (g.unit / 2.0 ** (math.frexp(g.unit)[1] - 24)).is_integer()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(2, 7),
    st.floats(-6, 4),
    st.floats(-3, 3),
    st.floats(-2, 4),
    st.integers(1, 10**7),
)
def test_the_grid_is_at_least_as_private_as_continuous_noise(seed, users, size, ratio, shifts, d):
    """What a neighbour's gradient moves, rounding included, against the covariance: never above the
    plan's.
    """
    random = np.random.default_rng(seed)
    edges = [pair for pair in itertools.combinations(range(users), 2) if random.random() < 0.6]
    s = 10.0**size
    c = s * 10.0**ratio * random.choice([0.0, 1.0, 1.7], len(edges))
    shift = s * 10.0 ** (shifts - 3) * math.sqrt(d) / 300
    try:
        g = Grid.of(s, c, edges, users, shift, d, 10)
    except InputError as error:
        assert (
            "fewer parameters" in str(error)
            and math.sqrt(d) * s / (shift * integer_gaussians.OWN_SIGMA) > 0.499
        )
        return
    B = np.zeros((users, len(edges)))
    for e, (i, j) in enumerate(edges):
        B[i, e], B[j, e] = 1, -1
    plan = s**2 * np.eye(users) + B @ np.diag(c**2) @ B.T
    drawn = (
        integer_gaussians.OWN_SIGMA**2 * np.eye(users)
        + integer_gaussians.EDGE_SIGMA**2 * B @ np.diag(np.square(g.multiples, dtype=float)) @ B.T
    )
    moved = shift / g.unit + math.sqrt(d) * (1 + 2**-14)
    before, after = (
        shift**2 * np.linalg.inv(plan).diagonal(),
        moved**2 * np.linalg.inv(drawn).diagonal(),
    )
    assert (after <= before * (1 + 1e-9)).all()
    assert all((m == 0) == (x == 0) for m, x in zip(g.multiples, c, strict=True))
    if ratio > 1:  # and not much more private either, where multiples are large
        assert (after >= before * 0.99).all()


def test_plans_that_differ_in_the_last_bits_have_one_grid():
    a = Grid.of(0.123456789012, [1.23456789012] * 5, RING, 5, 2.0, 1000, 10)
    b = Grid.of(0.1234567890115, [1.234567890115] * 5, RING, 5, 2.0, 1000, 10)
    assert a == b != Grid.of(0.1234567891, [1.23456789012] * 5, RING, 5, 2.0, 1000, 10)


def test_an_edges_deviation_is_never_below_the_planned_and_by_less_than_a_multiple_above():
    for ratio in (1e-9, 1 / 64.1, 1 / 64, 1, 6.0, 1000.0):
        (m,) = Grid.of(0.7, [0.7 * ratio], [(0, 1)], 2, 2.0, 1000, 10).multiples
        assert (m - 1) * integer_gaussians.EDGE_SIGMA / integer_gaussians.OWN_SIGMA < ratio * (
            1 + 1e-10
        )
        assert m * integer_gaussians.EDGE_SIGMA / integer_gaussians.OWN_SIGMA >= ratio * (1 - 1e-15)


# how near to Gaussians


def theta(square):
    """2 sum_j exp(-2 pi^2 square j^2): how much sum_k exp(-(k - m)^2 / 2 square) differs between
    one m and another.
    """
    return 2 * mpmath.nsum(lambda j: mpmath.exp(-2 * mpmath.pi**2 * square * j**2), [1, 12])


def test_the_departures_of_single_values_are_bounds_and_not_far_above():
    with mpmath.workprec(300):
        fine, two = (
            mpmath.mpf(integer_gaussians.FINE**2),
            mpmath.mpf(1 + integer_gaussians.COARSE**2),
        )
        first, second = (
            theta(fine / two),
            theta(1 / (1 / fine + integer_gaussians.COARSE**4 / (fine * two))),
        )
        edge, own = -mpmath.log1p(-first), -mpmath.log1p(-first) - mpmath.log1p(-second)
        assert theta(fine) < mpmath.mpf(10) ** -1000  # what a table's sum differs from its integral
        assert (
            edge * 1.0005 < grid.EDGE_DEPARTURE < 1.01 * edge
            and own * 1.0005 < grid.OWN_DEPARTURE < 1.01 * own
        )


def test_own_noise_before_rounding_is_gaussian_as_near_as_is_claimed():
    """A + 64 D + 4096 D', A continuous: its density at a few points, against the Gaussian's."""
    with mpmath.workprec(300):
        fine = mpmath.mpf(integer_gaussians.FINE**2)
        square = fine * (1 + 64**2 + 64**4)
        worst = 0
        for x in (0, mpmath.mpf("31.7"), 2048, 100_000, mpmath.mpf("1234567.8")):
            total, high = 0, round(4096 * x / (1 + 64**2 + 64**4))
            for k in range(high - 60, high + 61):
                rest = x - 4096 * k
                low = round(64 * rest / 4097)
                each = range(int(low) - 50, int(low) + 51)
                total += mpmath.exp(-k * k / (2 * fine)) * mpmath.fsum(
                    mpmath.exp(-(j * j + (rest - 64 * j) ** 2) / (2 * fine)) for j in each
                )
            # two normalised tables and one density
            ratio = total / (2 * mpmath.pi * fine) ** 1.5 / mpmath.npdf(x, 0, mpmath.sqrt(square))
            worst = max(worst, abs(ratio - 1))
    assert 1e-54 < worst < grid.OWN_DEPARTURE


@pytest.mark.parametrize("deviation, factor", [(3, 2), (3, 3), (4, 5)])
def test_the_bound_for_levels_holds_on_a_coarse_toy(deviation, factor):
    with mpmath.workprec(200):
        square = mpmath.mpf(deviation**2)
        claimed = theta(square / (1 + factor**2))
        total = mpmath.fsum(mpmath.exp(-k * k / (2 * square)) for k in range(-90, 91))
        wide, worst = mpmath.sqrt(square * (1 + factor**2)), 0
        for x in mpmath.linspace(-20, 20, 81):
            density = mpmath.fsum(
                mpmath.exp(-k * k / (2 * square)) * mpmath.npdf(x - factor * k, 0, deviation)
                for k in range(-90, 91)
            )
            worst = max(worst, abs(density / total / mpmath.npdf(x, 0, wide) - 1))
    assert 0.7 * claimed < worst < claimed * (1 + 1e-9)


def departed(B, own, edge, points):
    """The largest |log| of the density of own noise (continuous) plus B times edges' (on the
    integers), over the Gaussian's.
    """
    reach = np.arange(-8 * math.ceil(edge), 8 * math.ceil(edge) + 1)
    e = np.stack(np.meshgrid(*[reach] * B.shape[1], indexing="ij"), -1).reshape(-1, B.shape[1])
    weights = np.exp(-(e**2).sum(1) / (2 * edge**2))
    weights /= weights.sum()
    wide = stats.multivariate_normal(np.zeros(len(B)), own**2 * np.eye(len(B)) + edge**2 * B @ B.T)
    narrow = (2 * math.pi * own**2) ** (-len(B) / 2)
    densities = [
        weights @ np.exp(-((y - e @ B.T) ** 2).sum(1) / (2 * own**2)) * narrow for y in points
    ]
    return abs(np.log(densities / wide.pdf(points))).max()


@pytest.mark.parametrize(
    "edges, multiples, columns",
    [
        ([(0, 1)], (2,), [[2, -2]]),
        ([(0, 1)], (2,), [[2, 0], [0, -2]]),  # drawn separately at the two ends
        ([(0, 1), (1, 2), (0, 2)], (2, 1, 1), [[2, -2, 0], [0, 1, -1], [1, 0, -1]]),
        # one edge known to the adversary
        ([(0, 1), (1, 2), (0, 2)], (2, 1, 1), [[2, -2, 0], [1, 0, -1]]),
        # one shared, one drawn at both ends
        ([(0, 1), (1, 2)], (2, 2), [[2, -2, 0], [0, 2, 0], [0, 0, -2]]),
    ],
)
def test_the_bound_for_edges_holds_on_a_coarse_toy(monkeypatch, edges, multiples, columns):
    """The density itself, summed over all integers, with deviations 3 and 2 instead of 655,440 and
    10,241.
    """
    own, edge, users = 3.0, 2.0, len(columns[0])
    for name, value in (("OWN_SIGMA", own), ("EDGE_SIGMA", edge), ("LARGEST_DEPARTURE", math.inf)):
        monkeypatch.setattr(grid, name, value)
    points = np.random.default_rng(0).uniform(-6, 6, (60, users))
    found, claimed = (
        departed(np.array(columns).T, own, edge, points),
        grid._departure(multiples, (), edges, users, 1),
    )
    assert 1e-12 < found < claimed
    if columns == [[2, -2]]:  # one edge: the largest eigenvalue is what the bound says
        assert found > claimed / 3


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 8))
def test_noise_drawn_separately_at_both_ends_exposes_nobody_more(seed, users):
    random = np.random.default_rng(seed)
    sigma, apart = np.eye(users), np.eye(users)
    for i, j in itertools.combinations(range(users), 2):
        column, weight = np.zeros(users), random.exponential() ** 2 * 10
        column[i], column[j] = 1, -1
        sigma += weight * np.outer(column, column)
        apart += weight * (
            np.diag(abs(column)) if random.random() < 0.5 else np.outer(column, column)
        )
    assert (np.linalg.inv(apart).diagonal() <= np.linalg.inv(sigma).diagonal() * (1 + 1e-9)).all()


@pytest.mark.parametrize("ratio", [0.0, 1.0, 1500.0, 3000.0])
def test_the_departure_counts_every_user_and_both_ends_of_every_edge(ratio):
    """The formula of docs/noise.md in mpmath; a complete graph, so that the widest user has four
    edges.
    """
    edges = list(itertools.combinations(range(5), 2))
    g = Grid.of(1.0, [ratio / math.sqrt(2)] * 10, edges, 5, 2.0, 1000, 100)
    with mpmath.workprec(300):
        widest = (
            1 / mpmath.mpf(integer_gaussians.EDGE_SIGMA) ** 2
            + 2 * 4 * g.multiples[0] ** 2 / mpmath.mpf(integer_gaussians.OWN_SIGMA) ** 2
        )
        edges_part = (1 + theta(1 / widest)) ** 20 - 1
        expected = (
            1000 * 100 * (5 * mpmath.mpf(1.0709e-53) + 20 * mpmath.mpf(5.4347e-54) + edges_part)
        )
        found = grid._departure(g.multiples, (), edges, 5, 1000 * 100)
        assert expected < found < 1.06 * expected
        # in each of 100 steps five own keys and twice ten edges' keys, and pairs of a key's blocks
        # that cannot be equal
        pairs = 5 * mpmath.mpf(751) ** 2 / 2 + 20 * mpmath.mpf(501) ** 2 / 2
        blocks = 100 * pairs / 2**128
        assert 1.0009 < (g.departure - found) / blocks < 1.0011
        # one stream for all: besides, 35 words a coordinate, by keys of 10,000 words at most
        joint = Grid.of(
            1.0, [ratio / math.sqrt(2)] * 10, edges, 5, 2.0, 1000, 100, words_per_key=10_000
        )
        more = 100 * 4 * mpmath.mpf(2500) ** 2 / 2 / 2**128  # four keys, 2500 blocks each
        assert 0.7 * more < joint.departure - g.departure < 1.1 * more
        assert joint.slack(3.0) > g.slack(3.0) and g.slack(
            g.largest_epsilon(1e-8)
        ) == pytest.approx(1e-8, rel=1e-9)


def test_edges_too_wide_for_the_grid_are_refused_and_what_is_proposed_fits():
    of = lambda c: Grid.of(1.0, [c] * 5, RING, 5, 2.0, 1000, 1000)  # noqa: E731
    assert 0 < of(1000.0).departure < 1e-25 and of(3000.0).departure < 5e-13
    with pytest.raises(InputError, match="too wide for the integer grid") as caught:
        of(4000.0)
    proposed = float(str(caught.value).split("below ")[1].split(" of this one")[0])
    assert 0.7 < proposed < 0.9 and 2 * of(proposed * 4000.0).departure <= grid.LARGEST_DEPARTURE
    with pytest.raises(InputError, match="too wide"):
        of(1e300)


def test_no_grid_that_is_accepted_can_leave_the_64_bit_integers():
    """Departures bound every user's squares, squares bound the multiples, and the rest is far
    below.
    """
    # wider: 2 exp(-2 pi^2 / 0.8) = 4e-11 a coordinate is refused
    square = 0.8 / 2 * integer_gaussians.OWN_SIGMA**2
    assert 2 * math.exp(-2 * math.pi**2 / 0.8) > grid.LARGEST_DEPARTURE
    assert square * integer_gaussians.EDGE_LARGEST + integer_gaussians.OWN_LARGEST + 2**36 < 2**62


# what is left for delta


def test_slack_is_total_variation_on_both_sides():
    g = ring_grid(d=1000, steps=100)
    assert g.values == 1000 * 100 * (5 + 2 * 5)
    for epsilon in (0.0, 1.0, 10.0):
        expected = (1 + math.exp(epsilon)) * (g.values * integer_gaussians.DISTANCE + g.departure)
        assert g.slack(epsilon) == pytest.approx(expected, rel=1e-12)
    assert g.slack(10.0) < 1e-23 and g.slack(1e4) == 1.0
    with pytest.raises(InputError, match="epsilon"):
        g.slack(float("nan"))


# tags


def test_tags_are_equal_at_both_ends_and_only_there():
    g = ring_grid(d=20_000)
    (_, first), (_, second) = (
        g.add_noise(np.zeros(20_000), key("own", i), ends_of(i, g.multiples)) for i in (0, 1)
    )
    z = integer_gaussians.edge_noise(key("edge", 0), 20_000)
    assert first[0] == second[0] == grid.tag(key("edge", 0), z) and len(first[0]) == grid.TAG_BYTES
    assert first[1] != second[1] and len(first) == len(second) == 2
    off = z.copy()
    off[19_999] += 1
    others = [
        grid.tag(key("edge", 0), off),
        grid.tag(key("edge", 0), z[:-1]),
        grid.tag(key("edge", 1), z),
        second[1],
    ]
    assert len({first[0], *others}) == 5


def test_a_tag_known_by_heart():
    assert (
        grid.tag(bytes(range(32)), integer_gaussians.edge_noise(bytes(range(32)), 100_000)).hex()
        == KNOWN_TAG
    )


# what is refused


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "bad, counts",
    [
        (math.nan, 0),
        (math.inf, 2**36),
        (-math.inf, -(2**36)),
        (3e38, 2**36),
        (2.0**38, 2**36),
        (-(2.0**38), -(2**36)),
    ],
)
def test_no_value_is_refused_what_is_far_off_counts_as_the_farthest_and_what_is_no_number_as_zero(
    bad, counts, dtype
):
    """A refusal that depends on a gradient's values would be seen by neighbours."""
    g, gradient = ring_grid(), np.zeros(1000, dtype)
    gradient[617] = bad * (g.unit if abs(bad) < 1e30 else 1)
    found = steps_of(g, g.add_noise(gradient, key("own"), [])[0]) - own_noise(key("own"), 1000)
    assert found[617] == counts and not np.delete(found, 617).any()


def test_gradients_up_to_the_limit_are_placed_exactly():
    g = ring_grid()
    far = np.array([2.0**36, -(2.0**36), 2.0**36 - 1, 0.0, -1.0])
    assert (
        steps_of(g, g.add_noise(far * g.unit, key("own"), [])[0]) - own_noise(key("own"), 5) == far
    ).all()


@pytest.mark.parametrize(
    "change, hint",
    [
        ({"sigma_cdp": 0.0}, "sigma_cdp must be a number above 0"),
        ({"sigma_cdp": math.nan}, "sigma_cdp"),
        ({"shift": math.inf}, "shift"),
        ({"shift": -1.0}, "shift"),
        ({"sigma_cor": [1.0, -1.0]}, "an edge's deviation"),
        ({"sigma_cor": [1.0, math.nan]}, "an edge's deviation"),
        ({"sigma_cor": [1.0]}, "1 deviations for 2 edges"),
        ({"edges": [(0, 1), (1, 3)]}, "two different users from 0 to 2, not 1 and 3"),
        ({"edges": [(0, 1), (1, 1)]}, "two different users"),
        ({"users": 0}, "users must be a whole number"),
        ({"parameters": 0}, "parameters"),
        ({"steps": 1.5}, "steps"),
        ({"shift": 1e-4}, "fewer parameters"),
    ],
)
def test_wrong_arguments_are_refused_with_a_hint(change, hint):
    right = {
        "sigma_cdp": 1.0,
        "sigma_cor": [1.0, 2.0],
        "edges": [(0, 1), (1, 2)],
        "users": 3,
        "shift": 2.0,
    }
    right |= {"parameters": 10_000, "steps": 10}
    assert Grid.of(**right).multiples == (65, 129)
    with pytest.raises(InputError, match=hint):
        Grid.of(**(right | change))


def test_half_the_shift_is_the_most_that_rounding_may_take():
    of = lambda s: Grid.of(s, [], np.empty((0, 2)), 1, 2.0, 10_000, 1)  # noqa: E731
    edge = integer_gaussians.OWN_SIGMA * 2.0 / 100 / 2
    assert of(edge * 0.999).unit * integer_gaussians.OWN_SIGMA == pytest.approx(2 * edge, rel=3e-3)
    with pytest.raises(InputError, match=r"by 0\.5 of that shift"):
        of(edge * 1.001)


def test_keys_and_shapes_that_are_wrong_are_refused():
    g = ring_grid()
    zero = np.zeros(1000)
    with pytest.raises(InputError, match="32 bytes"):
        g.add_noise(zero, b"short", [])
    with pytest.raises(InputError, match="32 bytes"):
        g.add_noise(zero, key("own"), [(b"short", 1)])
    with pytest.raises(InputError, match="the same"):
        g.add_noise(zero, key("own"), [(key("edge"), 1), (key("edge"), -1)])
    with pytest.raises(InputError, match="flatten"):
        g.add_noise(zero.reshape(10, 100), key("own"), [])
    with pytest.raises(InputError, match="64-bit"):
        g.add_noise(zero, key("own"), [(key("edge"), 1 << 50)])


def test_a_message_takes_little_memory_beside_itself():
    g, gradient, d = ring_grid(d=2_000_000), np.zeros(2_000_000), 2_000_000
    g.add_noise(gradient[:10], key("own"), ends_of(0, g.multiples))
    tracemalloc.start()
    message, _ = g.add_noise(gradient, key("own"), ends_of(0, g.multiples))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < message.nbytes + d


KNOWN_TAG = "dbe55cd1bb5a4866"
