"""The simulator's generator: the right bits, the right distribution, and nothing used twice."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from decor.noise import gaussians
from decor.noise.gaussians import GROUP, LANES, fill, fill_rows

ALL = 0xFFFFFFFF
MANY = 1 << 20


def philox(counter, key):
    """Philox 4x32-10 as Salmon and others publish it, one word at a time."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & ALL, (p >> 32) ^ d ^ k1, p & ALL
        k0, k1 = (k0 + 0x9E3779B9) & ALL, (k1 + 0xBB67AE85) & ALL
    return a, b, c, d


def bits(seed, stream, step, group):
    words = [np.empty(LANES, np.uint32) for _ in range(4)]
    gaussians._bits(*words, np.uint64(seed), stream, step, group)
    return np.stack(words, 1)  # [lane, word]


def drawn(count, seed=1, stream=0, step=0, first=0):
    out = np.empty(count, np.float32)
    fill(out, np.uint64(seed), stream, step, first)
    return out.astype(np.float64)


def unrelated(x, y):
    """No correlation of values, sizes, squares, or of one's value with the other's square, at five
    deviations (6e-7 each).
    """
    x, y = x.ravel(), y.ravel()
    forms = [(x, y), (x**2, y**2), (abs(x), abs(y)), (x, y**2), (x**2, y)]
    return all(abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(len(a)) for a, b in forms)


def independent(x, y, bins=16):
    """Chi-square of the table of two samples' quantiles: any dependence, not correlation alone
    (false alarm 1e-6).
    """
    edges = stats.norm.ppf(np.arange(1, bins) / bins)
    table = np.bincount(
        np.searchsorted(edges, x.ravel()) * bins + np.searchsorted(edges, y.ravel()),
        minlength=bins**2,
    )
    expected = x.size / bins**2
    return stats.chi2.sf(((table - expected) ** 2 / expected).sum(), bins**2 - 1) > 1e-6


def test_the_bits_are_philox_as_published():
    assert [f"{word:08x}" for word in bits(0, 0, 0, 0)[0]] == [
        "6627e8d5",
        "e169c58d",
        "bc57ac4c",
        "9b00dbd8",
    ]
    last = bits(2**64 - 1, ALL, ALL, 2**59 - 1)[LANES - 1]
    assert [f"{word:08x}" for word in last] == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]
    assert philox((0,) * 4, (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8), (
        "the oracle itself"
    )
    assert philox((ALL,) * 4, (ALL, ALL)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD), (
        "the oracle itself"
    )


@given(st.integers(0, 2**64 - 1), st.integers(0, ALL), st.integers(0, ALL), st.integers(0, 2**58))
def test_the_counter_is_place_stream_and_step_and_the_key_is_the_seed(seed, stream, step, group):
    found = bits(seed, stream, step, group)
    for lane in range(LANES):
        place = group * LANES + lane
        assert tuple(found[lane]) == philox(
            (place & ALL, stream, step, place >> 32), (seed & ALL, seed >> 32)
        )


@given(st.integers(0, 2**63 - 1), st.integers(0, 9), st.integers(0, 10**6), st.integers(0, 2**40))
def test_every_gaussian_is_box_and_mullers_of_its_own_bits(seed, stream, step, group):
    """Radius and angle of both pairs of a lane, in float64 from independently made bits: no word is
    used for two of them.
    """
    z = drawn(GROUP, seed, stream, step, group).reshape(4, LANES)
    for lane in range(LANES):
        place = group * LANES + lane
        words = philox((place & ALL, stream, step, place >> 32), (seed & ALL, seed >> 32))
        for x, y, radius, angle in ((z[0], z[1], *words[:2]), (z[2], z[3], *words[2:])):
            u = (radius // 2 + 0.5) / 2**31
            assert x[lane] ** 2 + y[lane] ** 2 == pytest.approx(
                -2 * math.log(u), rel=3e-6, abs=3e-7
            )
            turn = (angle % 2**30) / 2**30 - 0.5  # of a quarter, from its middle
            found = math.atan2(y[lane], x[lane]) / (math.pi / 2)
            if math.hypot(x[lane], y[lane]) > 1e-3:
                assert abs((found - turn + 0.5) % 1 - 0.5) < 1e-5


def test_the_outermost_bits_give_finite_gaussians_of_the_size_the_module_says():
    words = np.array(
        [
            0,
            1,
            2,
            3,
            ALL,
            ALL - 1,
            ALL - 255,
            1 << 31,
            (1 << 31) - 1,
            0xB504F333,
            0xB504F334,
            0x5A827999,
        ],
        np.uint32,
    )
    for radius in words:
        for angle in (0, 1, 2, ALL, 1 << 29, 1 << 30, (1 << 30) - 1, 1 << 31, 3 << 30):
            x, y = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
            gaussians._polar(
                np.full(LANES, radius, np.uint32), np.full(LANES, angle, np.uint32), x, y
            )
            assert np.isfinite(x).all() and np.isfinite(y).all()
            assert np.hypot(x, y).max() < 6.7


@pytest.fixture(scope="module")
def long():
    return drawn(4 * MANY, seed=7, stream=3, step=11)


def test_moments_are_a_standard_gaussians(long):
    n = len(long)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs((long**power).mean() - mean) < 5 * math.sqrt(variance / n), power
    for scale in (2 / 3, 3 / 2):
        assert abs(((scale * long) ** 2).mean() - 1) > 5 * math.sqrt(2 / n), (
            "and it would not do so at another scale"
        )


def test_every_quarter_of_a_group_fills_fine_bins_as_often_as_it_should(long):
    edges = stats.norm.ppf(np.arange(1, 512) / 512)
    for part in long.reshape(-1, 4, LANES).transpose(1, 0, 2):
        counts = np.bincount(np.searchsorted(edges, part.ravel()), minlength=512)
        assert stats.chisquare(counts).pvalue > 1e-6
        for scale in (2 / 3, 3 / 2, 1.02):
            assert (
                stats.chisquare(
                    np.bincount(np.searchsorted(edges, scale * part.ravel()), minlength=512)
                ).pvalue
                < 1e-6
            )


def test_tails_are_as_heavy_as_a_gaussians_and_no_heavier():
    z = np.concatenate([drawn(4 * MANY, seed=s) for s in range(4)])
    for size in (2.0, 3.0, 4.0, 4.5, 5.0):
        for found in ((z > size).sum(), (z < -size).sum()):
            expected = len(z) * stats.norm.sf(size)
            low, high = stats.poisson.ppf([5e-7, 1 - 5e-7], expected)
            assert low <= found <= high, size
    assert 4.9 < abs(z).max() < 6.7 and (np.abs(z[z > 0]).min() < 1e-5)


def test_quarters_of_a_group_and_neighbouring_lanes_and_groups_are_independent_squares_included(
    long,
):
    """Both halves of Box and Muller share a radius: had they shared bits wrongly, only their
    squares would tell.
    """
    quarters = long.reshape(-1, 4, LANES)
    for a in range(4):
        for b in range(a):
            assert unrelated(quarters[:, a], quarters[:, b]) and independent(
                quarters[:, a], quarters[:, b]
            ), (a, b)
            assert unrelated(quarters[:, a, 1:], quarters[:, b, :-1]), "neighbouring lanes"
            assert unrelated(quarters[1:, a], quarters[:-1, b]), "neighbouring groups"
    assert unrelated(quarters[:, :, 1:], quarters[:, :, :-1]) and unrelated(
        quarters[1:], quarters[:-1]
    )


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 6},
        {"seed": 5 + 2**32},
        {"seed": 2**63 - 1},
        {"stream": 1},
        {"step": 1},
        {"step": 2**31},
        {"first": MANY // GROUP},
    ],
    ids=str,
)
def test_seeds_streams_steps_and_places_are_independent(other):
    x, y = drawn(MANY, seed=5), drawn(MANY, **({"seed": 5} | other))
    assert not np.isin(x[:4096].astype(np.float32), y[:4096].astype(np.float32)).mean() > 0.01, (
        "not the same numbers elsewhere"
    )
    assert unrelated(x, y) and independent(x, y)
    step = {"stream": 1, "step": 0} if other == {"step": 1} else {"stream": 0, "step": 1}
    assert unrelated(x, drawn(MANY, seed=5, **step)), "stream and step do not stand for each other"


@given(st.integers(0, 5 * GROUP), st.integers(0, 40))
def test_a_fill_of_any_length_from_any_place_is_a_part_of_a_long_one(length, first):
    whole = drawn(46 * GROUP, seed=9, stream=2, step=4)
    part = drawn(length, seed=9, stream=2, step=4, first=first)
    assert np.array_equal(part, whole[first * GROUP : first * GROUP + length])


@pytest.mark.parametrize("size", [1, 5, 63, 64, 65, 127, 128, 129, 300])
def test_what_a_seed_gets_in_a_row_does_not_depend_on_the_others(size):
    seeds = np.array([3, 2**40, 8], np.uint64)
    together = np.empty((7, 3, size), np.float32)
    fill_rows(together, seeds, 1, 5)
    for s, seed in enumerate(seeds):
        alone, fewer = np.empty((7, 1, size), np.float32), np.empty((4, 1, size), np.float32)
        fill_rows(alone, seeds[s : s + 1], 1, 5)
        fill_rows(fewer, np.array([seed]), 1, 5)
        assert np.array_equal(alone[:, 0], together[:, s])
        assert np.array_equal(fewer[:, 0], alone[:4, 0]), "nor on how many users come after"
    assert len(np.unique(together)) > 0.999 * together.size, (
        "nothing twice: not over rows, not over seeds"
    )


@pytest.mark.parametrize("size", [64, 100, 128, 300])
def test_rows_made_in_parts_are_the_rows_made_together(size):
    seeds = np.array([3, 9], np.uint64)
    whole, parts = np.empty((7, 2, size), np.float32), np.empty((7, 2, size), np.float32)
    fill_rows(whole, seeds, 1, 5)
    for first, last in ((0, 2), (2, 3), (3, 7)):
        fill_rows(parts[first:last], seeds, 1, 5, first)
    assert np.array_equal(whole, parts)


def test_short_rows_share_groups_and_long_ones_start_their_own():
    seeds = np.array([4], np.uint64)
    short, long = np.empty((50, 1, 7), np.float32), np.empty((3, 1, 200), np.float32)
    fill_rows(short, seeds, 2, 3)
    fill_rows(long, seeds, 2, 3)
    assert np.array_equal(short.ravel(), drawn(350, 4, 2, 3).astype(np.float32))
    for row in range(3):
        assert np.array_equal(long[row, 0], drawn(200, 4, 2, 3, first=2 * row).astype(np.float32))


@pytest.mark.parametrize("size", [3, 40, 64, 100, 200])
def test_rows_and_places_of_rows_are_independent(size):
    out = np.empty((MANY // 2 // size, 2, size), np.float32)
    fill_rows(out, np.array([1, 2], np.uint64), 0, 0)
    out = out.astype(np.float64)
    assert unrelated(out[1:, 0], out[:-1, 0]) and unrelated(out[:, 0], out[:, 1]), "users; seeds"
    assert unrelated(out[:, 0, 1:], out[:, 0, :-1]) and unrelated(out[:, 0, 0], out[:, 0, -1]), (
        "coordinates"
    )
    assert abs(out.var() - 1) < 5 * math.sqrt(2 / out.size) and abs(out.mean()) < 5 / math.sqrt(
        out.size
    )
