"""Streams: the same values on every CPU, of the promised distribution, and unpredictable."""

import hashlib
import math
import os
import struct
import subprocess
import sys
from importlib.resources import files

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats

from decor.errors import DecorError, InputError
from decor.noise import integer_gaussians

KEY = bytes(range(32))
CELLS, BITS = 4096, 116
LAWS = {
    "shared": (
        integer_gaussians.edge_noise,
        integer_gaussians.SHARED,
        integer_gaussians.EDGE_SIGMA,
    ),
    "own": (integer_gaussians.own_noise, integer_gaussians.OWN, integer_gaussians.OWN_SIGMA),
}


@pytest.fixture(scope="module", params=["shared", "own"])
def many(request):
    """Four million values, and the deviation they should have."""
    draw, _, sigma = LAWS[request.param]
    return draw(hashlib.sha256(b"many").digest(), 4_000_000), sigma


def ideal(name):
    """The probabilities of -2048..2047 in the law that a table stands for, as numbers of mpmath's
    precision.
    """
    half, sigma = mpmath.mpf(1) / 2, mpmath.mpf(integer_gaussians.FINE)
    if name == "discrete":
        weights = [mpmath.exp(-((k / sigma) ** 2) / 2) for k in range(6000)]
        total = 2 * mpmath.fsum(weights) - 1  # beyond lies less than 10^-300
        return [weights[abs(k)] / total for k in range(-2048, 2048)]
    beyond = [mpmath.erfc((k - half) / sigma / mpmath.sqrt(2)) / 2 for k in range(2050)]
    return [beyond[abs(k)] - beyond[abs(k) + 1] for k in range(-2048, 2048)]


def made(name):
    """The table from its definition, in whole numbers: probabilities in units of 2^-128, and the
    middle has what is left.

    Then Walker's alias method: every cell keeps a threshold below 2^116 and gives the rest to one
    larger cell.
    """
    one, middle = 1 << BITS, CELLS // 2
    with mpmath.workprec(400):
        left = [int(mpmath.nint(p * CELLS * one)) for p in ideal(name)]
    left[middle] += CELLS * one - sum(left)
    threshold, other = [0] * CELLS, list(range(CELLS))
    small = [i for i in range(CELLS) if left[i] < one]
    large = [i for i in range(CELLS) if left[i] >= one]
    while small and large:
        a, b = small.pop(), large[-1]
        threshold[a], other[a] = left[a], b
        left[b] -= one - left[a]
        if left[b] < one:
            small.append(large.pop())
    cells = [(t >> 64) << 12 | o for t, o in zip(threshold, other, strict=True)]
    return struct.pack(f"<{2 * CELLS}Q", *cells, *(t & (1 << 64) - 1 for t in threshold))


def exact_law(name):
    """What the shipped table makes of a uniform word and 96 further bits: probabilities in units of
    2^-128, without rounding.
    """
    mass, table = [0] * CELLS, integer_gaussians.table(name)
    for cell, (entry, rest) in enumerate(zip(table.cells.tolist(), table.rest, strict=True)):
        threshold = (entry >> 12) << 96 | rest
        mass[cell] += threshold
        mass[entry & 4095] += (1 << BITS) - threshold
    return mass


@pytest.mark.parametrize("name", ["discrete", "rounded"])
def test_the_tables_are_those_their_definition_gives(name):
    held = made(name)
    assert files("decor.noise").joinpath(f"{name}-160.table").read_bytes() == held
    assert hashlib.sha256(held).hexdigest() == integer_gaussians._DIGESTS[name]
    entries = struct.unpack(f"<{2 * CELLS}Q", held)
    table = integer_gaussians.table(name)
    assert [(c >> 12) << 96 | r for c, r in zip(table.cells.tolist(), table.rest, strict=True)] == [
        (entry >> 12) << 64 | more
        for entry, more in zip(entries[:CELLS], entries[CELLS:], strict=True)
    ]
    assert [c & 4095 for c in table.cells.tolist()] == [entry & 4095 for entry in entries[:CELLS]]


def distance(name):
    with mpmath.workprec(400):
        mass, law = exact_law(name), ideal(name)
        assert sum(mass) == 2**128
        beyond = 1 - mpmath.fsum(law)
        assert beyond < mpmath.mpf(2) ** -122
        return (
            mpmath.fsum(abs(mpmath.mpf(m) / 2**128 - p) for m, p in zip(mass, law, strict=True))
            + beyond
        ) / 2


def test_a_value_is_as_near_its_law_as_promised():
    """A value is a function of independent words, so distances add up; what is promised is not far
    above.
    """
    discrete, rounded = distance("discrete"), distance("rounded")
    assert (
        integer_gaussians.DISTANCE / 4
        < 2 * discrete
        < rounded + 2 * discrete
        < integer_gaussians.DISTANCE
    )


def test_two_levels_together_are_a_discrete_gaussian_as_near_as_the_theory_says():
    """P(D + 64 D' = x) exp(x^2 / 2 EDGE_SIGMA^2) is constant but for 5.44e-54 (docs/noise.md)."""
    with mpmath.workprec(400):
        law = [
            mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * integer_gaussians.FINE**2)) for k in range(3000)
        ]
        square = mpmath.mpf(integer_gaussians.FINE**2 * (1 + integer_gaussians.COARSE**2))
        found = []
        for x in (0, 1, 13, 32, 5000, 20_011, 40_000):
            near = round(64 * x / 4097)
            total = mpmath.fsum(
                law[abs(k)] * law[abs(x - 64 * k)] for k in range(near - 40, near + 41)
            )
            found.append(total * mpmath.exp(mpmath.mpf(x) ** 2 / (2 * square)))
        ideal_ = mpmath.sqrt(2 * mpmath.pi * integer_gaussians.FINE**2 / mpmath.mpf(4097))
        worst = max(abs(f / ideal_ - 1) for f in found)
    assert 1e-54 < worst < 5.44e-54


@pytest.mark.parametrize("name", ["discrete", "rounded"])
def test_a_damaged_table_is_refused(monkeypatch, name):
    integer_gaussians.table.cache_clear()
    monkeypatch.setitem(integer_gaussians._DIGESTS, name, "0" * 64)
    with pytest.raises(DecorError, match="damaged; install decor again"):
        integer_gaussians.table(name)
    monkeypatch.undo()
    assert (
        len(integer_gaussians.table(name).cells) == len(integer_gaussians.table(name).rest) == 4096
    )


def plain(words, levels, tie_bits):
    """Values from words, as the definition says: a threshold of 116 bits against 20 of the word and
    96 further.
    """
    out = []
    for first in range(0, len(words), len(levels)):
        value = 0
        for level, name in enumerate(levels):
            table, word = integer_gaussians.table(name), int(words[first + level])
            cell = word >> 20
            threshold = (int(table.cells[cell]) >> 12) << 96 | table.rest[cell]
            bits = (word & (1 << 20) - 1) << 96 | tie_bits(first + level)
            value += 64**level * (
                (cell if bits < threshold else int(table.cells[cell]) & 4095) - 2048
            )
        out.append(value)
    return out


def aside(key):
    """The 96 further bits of a word, from the definition: twelve bytes of the cipher's block 2^96 +
    the word's place.
    """

    def tie_bits(place):
        block = (
            Cipher(AES256(key), CTR((2**96 + place).to_bytes(16, "big")))
            .encryptor()
            .update(bytes(16))
        )
        return int.from_bytes(block[:12], "little")

    return tie_bits


@pytest.mark.parametrize("law", LAWS)
def test_every_value_is_words_of_the_cipher_through_tables(law):
    draw, levels, _ = LAWS[law]
    words = np.frombuffer(
        Cipher(AES256(KEY), CTR(bytes(16))).encryptor().update(bytes(4 * len(levels) * 100)), "<u4"
    )
    assert draw(KEY, 100).tolist() == plain(words.tolist(), levels, aside(KEY))


@pytest.mark.parametrize("law", LAWS)
def test_a_tie_is_settled_by_further_bits_against_the_rest_of_the_threshold(law):
    """Words made to tie, one in four, with further bits just below, at and above the threshold's
    rest.
    """
    _, levels, _ = LAWS[law]
    random = np.random.default_rng(1)
    words = random.integers(0, 2**32, 999 * len(levels), np.uint32)
    place = np.arange(len(words))
    cell, thresholds, rest = (
        (words >> np.uint32(20)).astype(int),
        np.empty_like(words),
        np.empty(len(words), object),
    )
    for level, name in enumerate(levels):
        mine = place % len(levels) == level
        thresholds[mine] = integer_gaussians.table(name).cells[cell[mine]] >> np.uint32(12)
        rest[mine] = [integer_gaussians.table(name).rest[c] for c in cell[mine]]
    ties = random.random(len(words)) < 0.25
    words[ties] = (words[ties] >> np.uint32(20) << np.uint32(20)) | thresholds[ties]
    asked = []

    def tie_bits(at):
        asked.append(at)
        return min(max(rest[at] + (at // len(levels)) % 3 - 1, 0), 2**96 - 1)

    found = integer_gaussians.values(words, levels, tie_bits).tolist()
    assert sorted(asked) == np.flatnonzero(ties).tolist()
    expected = plain(words, levels, tie_bits)
    assert found == expected
    always, never = (plain(words, levels, lambda at, b=b: b) for b in (0, 2**96 - 1))
    assert expected != always and expected != never


@pytest.mark.parametrize(
    "law, level", [("shared", 0), ("shared", 1), ("own", 0), ("own", 1), ("own", 2)]
)
def test_a_single_tie_is_noticed_wherever_it_is(law, level):
    _, levels, _ = LAWS[law]
    words = np.random.default_rng(2).integers(0, 2**32, 50 * len(levels), np.uint32)
    at = 49 * len(levels) + level
    cell = int(words[at]) >> 20
    words[at] = cell << 20 | int(integer_gaussians.table(levels[level]).cells[cell]) >> 12
    low, high = (
        integer_gaussians.values(words, levels, lambda place, b=b: b).tolist()
        for b in (0, 2**96 - 1)
    )
    assert low == plain(words, levels, lambda place: 0) and high == plain(
        words, levels, lambda place: 2**96 - 1
    )
    assert low[:-1] == high[:-1] and low[-1] != high[-1]


@pytest.mark.parametrize("law", LAWS)
def test_a_tie_in_a_stream_takes_its_bits_from_blocks_that_no_word_uses(law, monkeypatch):
    """Tables changed so that words of this very stream tie, in its first part and its second."""
    draw, levels, _ = LAWS[law]
    count = integer_gaussians.PART + 50
    words = np.frombuffer(
        Cipher(AES256(KEY), CTR(bytes(16))).encryptor().update(bytes(4 * len(levels) * count)),
        "<u4",
    )
    changed = {}
    for level, name in ((0, levels[0]), (len(levels) - 1, levels[-1])):
        table = changed.setdefault(
            name,
            integer_gaussians.Table(
                integer_gaussians.table(name).cells.copy(), list(integer_gaussians.table(name).rest)
            ),
        )
        for k in [*range(20), *range(integer_gaussians.PART, count)]:
            word = int(words[len(levels) * k + level])
            table.cells[word >> 20] = (word & (1 << 20) - 1) << 12 | (word * 5 & 4095)
            table.rest[word >> 20] = 1 << 95
    before = draw(KEY, count)
    monkeypatch.setattr(integer_gaussians, "table", changed.__getitem__)
    after = draw(KEY, count)
    assert after.tolist() == plain(words.tolist(), levels, aside(KEY))
    assert (before != after).any() and after.tolist() != plain(
        words.tolist(), levels, lambda place: 0
    )


@pytest.mark.parametrize("law", LAWS)
def test_ties_of_a_long_stream_are_settled(law):
    """One word in 2^20 ties: five million values have some, and all agree with the definition."""
    draw, levels, _ = LAWS[law]
    count, each = 3_000_000, len(levels)
    words = np.frombuffer(
        Cipher(AES256(KEY), CTR(bytes(16))).encryptor().update(bytes(4 * each * count)), "<u4"
    )
    entries = np.stack(
        [
            integer_gaussians.table(name).cells[words[level::each] >> 20]
            for level, name in enumerate(levels)
        ],
        1,
    )
    tied = np.flatnonzero(((words.reshape(-1, each) & 0xFFFFF) == entries >> 12).any(1))
    assert 1 <= len(tied) < 50
    found, tie_bits = draw(KEY, count), aside(KEY)
    for k in tied.tolist():
        near = words[each * k : each * (k + 1)].tolist()
        assert [found[k]] == plain(near, levels, lambda place, k=k: tie_bits(each * k + place))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    "count",
    [
        0,
        1,
        7,
        integer_gaussians.PART - 1,
        integer_gaussians.PART,
        integer_gaussians.PART + 1,
        3 * integer_gaussians.PART + 5,
    ],
)
def test_a_shorter_stream_is_the_beginning_of_a_longer_one(law, count):
    draw, levels, _ = LAWS[law]
    assert np.array_equal(draw(KEY, count), draw(KEY, 4 * integer_gaussians.PART)[:count])
    assert [len(part) for part in integer_gaussians.parts(KEY, count, levels)] == [
        min(integer_gaussians.PART, count - first)
        for first in range(0, count, integer_gaussians.PART)
    ]


@pytest.mark.parametrize("law", LAWS)
def test_known_answers(law):
    z = LAWS[law][0](KEY, 100_000)
    assert z.dtype == np.int32 and z[:8].tolist() == KNOWN[law]
    assert hashlib.sha256(z.astype("<i4").tobytes()).hexdigest() == KNOWN_DIGESTS[law]


@pytest.mark.parametrize("features", ["", "-avx512f,-avx2,-avx,-fma"])
def test_a_processor_without_vector_units_draws_the_same(features, tmp_path):
    program = "import hashlib; from decor.noise import integer_gaussians\n"
    program += "for draw in (integer_gaussians.edge_noise, integer_gaussians.own_noise): "
    program += (
        "print(hashlib.sha256(draw(bytes(range(32)), 100_000).astype('<i4').tobytes()).hexdigest())"
    )
    environment = {
        "PATH": "/usr/bin",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": features,
    }
    # the cipher without its instructions
    environment |= {"OPENSSL_ia32cap": "~0x200000200000000"} if features else {}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(KNOWN_DIGESTS.values())


def test_the_deviation_is_sigma_and_neither_two_thirds_nor_three_halves_of_it(many):
    z, sigma = many
    variance, error = (z.astype(float) ** 2).mean(), math.sqrt(2 / len(z))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False), (1.01, False)):
        assert (abs(variance / (factor * sigma) ** 2 - 1) < 5 * error) == right
    largest = (
        integer_gaussians.EDGE_LARGEST
        if sigma == integer_gaussians.EDGE_SIGMA
        else integer_gaussians.OWN_LARGEST
    )
    assert abs(z.mean()) < 5 * sigma / math.sqrt(len(z)) and abs(z).max() <= largest


def test_the_law_is_gaussian_in_every_bin_and_in_the_tails(many):
    z, sigma = many
    # between integers, or bins are uneven
    edges = np.round(stats.norm.ppf(np.linspace(0, 1, 513)[1:-1]) * sigma) + 0.5
    counts = np.bincount(np.searchsorted(edges, z), minlength=512)
    law = np.diff(stats.norm.cdf(edges / sigma), prepend=0.0, append=1.0)
    assert 1e-4 < stats.chisquare(counts, law * len(z)).pvalue < 1 - 1e-4
    for far in (3, 4, 4.5):
        expected = 2 * stats.norm.sf(far) * len(z)
        assert abs((abs(z) > far * sigma).sum() - expected) < 5 * math.sqrt(expected)
    skew, kurtosis = stats.skew(z.astype(float)), stats.kurtosis(z.astype(float))
    assert abs(skew) < 5 * math.sqrt(6 / len(z)) and abs(kurtosis) < 5 * math.sqrt(24 / len(z))


def test_low_bits_are_uniform_and_neighbours_independent(many):
    z, sigma = many
    for modulus in (2, 3, 64, 1000, 4096):
        assert stats.chisquare(np.bincount(z % modulus, minlength=modulus)).pvalue > 1e-5
    z = z / sigma
    for lag in (1, 2, 3, 64, 4096, integer_gaussians.PART):
        for f in (lambda v: v, lambda v: v**2 - 1):
            a, b = f(z[:-lag]), f(z[lag:])
            assert abs((a * b).mean()) < 5 * a.std() * b.std() / math.sqrt(len(a))


def test_streams_of_different_keys_are_independent():
    a, b = (
        integer_gaussians.edge_noise(hashlib.sha256(bytes([k])).digest(), 1_000_000)
        / integer_gaussians.EDGE_SIGMA
        for k in (1, 2)
    )
    assert abs((a * b).mean()) < 5e-3 and abs(((a**2 - 1) * (b**2 - 1)).mean()) < 1e-2


@pytest.mark.parametrize("draw", [integer_gaussians.edge_noise, integer_gaussians.own_noise])
@pytest.mark.parametrize("key", [b"", bytes(16), bytes(33)])
def test_a_key_of_another_length_is_refused(draw, key):
    with pytest.raises(InputError, match="32 bytes"):
        draw(key, 1)


KNOWN = {
    "shared": [6642, 105, 10021, -4834, 4233, 26086, -6625, -1733],
    "own": [-1398286, 641351, 556318, 1669568, 235039, -974940, 644697, 614677],
}
KNOWN_DIGESTS = {
    "shared": "bce326d66ba55afe5ac126ea15768fd13790549275bc4044e9012c51e344ba1b",
    "own": "9ffd787f3da2335ec1cfdb38b684a06caedd7dcf7c7ea172f30bad65c9c47578",
}
