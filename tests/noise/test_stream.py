"""A stream's numbers: the same on every processor, of the law that is promised, and nothing a reader could predict."""

import hashlib
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats

from decor.errors import DecorError, InputError
from decor.noise import stream

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def many():
    return stream.gaussians(hashlib.sha256(b"many").digest(), 4_000_000)


def made(sigma=stream.FINE, cells=4096, bits=52):
    """The alias table from its definition, in whole numbers: weights that add up to exactly 2^64."""
    with mpmath.workprec(256):
        one, middle = 1 << bits, cells // 2
        weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * sigma**2)) for k in range(-middle, middle)]
        total = mpmath.fsum(weights)
        left = [int(mpmath.nint(w / total * cells * one)) for w in weights]
    left[middle] += cells * one - sum(left)
    threshold, other = [0] * cells, list(range(cells))
    small = [i for i in range(cells) if left[i] < one]
    large = [i for i in range(cells) if left[i] >= one]
    while small and large:
        a, b = small.pop(), large[-1]
        threshold[a], other[a] = left[a], b
        left[b] -= one - left[a]
        if left[b] < one:
            small.append(large.pop())
    return threshold, other


def exact_law():
    """What the shipped table makes of a uniform word: probabilities in units of 2^-64, without rounding."""
    mass = [0] * 4096
    for cell, entry in enumerate(stream.table().tolist()):
        mass[cell] += entry >> 12
        mass[entry & 4095] += (1 << 52) - (entry >> 12)
    return mass


def test_the_table_is_the_one_its_definition_gives():
    threshold, other = made()
    assert stream.table().tolist() == [(t << 12) | o for t, o in zip(threshold, other, strict=True)]


def test_the_tables_law_is_a_discrete_gaussian_to_two_to_the_minus_54():
    mass = exact_law()
    assert sum(mass) == 2**64
    with mpmath.workprec(256):
        weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * stream.FINE**2)) for k in range(-2048, 2048)]
        total = 2 * mpmath.fsum(mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * stream.FINE**2)) for k in range(1, 6000)) + 1
        beyond = 1 - mpmath.fsum(weights) / total
        distance = mpmath.fsum(abs(m / mpmath.mpf(2**64) - w / total) for m, w in zip(mass, weights, strict=True)) / 2
        assert beyond < 2**-60 and distance + beyond < mpmath.mpf(2) ** -53  # and a value takes two
    assert stream.DISTANCE == 2 * 2**-53


def test_two_levels_together_are_a_discrete_gaussian_of_deviation_sigma():
    """Sixty-four times the second leaves no trace of its grid: the first is three and a half times as wide."""
    level = np.array([m / 2**64 for m in exact_law()])
    coarse = np.zeros(64 * 4095 + 1)
    coarse[::64] = level
    value = np.arange(-2048 * 65, 2047 * 65 + 1)
    law = np.array([level @ coarse[k - 4095 : k + 1][::-1] for k in range(4095, len(coarse), 997)])
    z = value[4095 : len(coarse) : 997] / stream.SIGMA
    near = abs(z) < 6  # beyond, thresholds of 2^-64 show
    expected = np.exp(-(z**2) / 2) / (stream.SIGMA * math.sqrt(2 * math.pi))
    assert np.allclose(law[near], expected[near], rtol=1e-7, atol=0)


def test_a_damaged_table_is_refused(monkeypatch):
    stream.table.cache_clear()
    monkeypatch.setattr(stream, "_DIGEST", "0" * 64)
    with pytest.raises(DecorError, match="damaged; install decor again"):
        stream.table()
    monkeypatch.undo()
    assert len(stream.table()) == 4096


def test_every_value_is_two_words_of_the_cipher_through_the_table():
    words = np.frombuffer(Cipher(AES256(KEY), CTR(bytes(16))).encryptor().update(bytes(16 * 100)), "<u8").tolist()
    table = stream.table().tolist()

    def level(word):
        cell, rest = word >> 52, word & ((1 << 52) - 1)
        return (cell if rest < table[cell] >> 12 else table[cell] & 4095) - 2048

    expected = [level(words[2 * k]) + 64 * level(words[2 * k + 1]) for k in range(100)]
    assert stream.gaussians(KEY, 100).tolist() == expected


@pytest.mark.parametrize("count", [0, 1, 7, stream._CHUNK - 1, stream._CHUNK, stream._CHUNK + 1, 3 * stream._CHUNK + 5])
def test_a_shorter_stream_is_the_beginning_of_a_longer_one(count):
    assert np.array_equal(stream.gaussians(KEY, count), stream.gaussians(KEY, 4 * stream._CHUNK)[:count])


def test_known_answers():
    z = stream.gaussians(KEY, 100_000)
    assert z[:8].tolist() == KNOWN
    assert hashlib.sha256(z.astype("<i4").tobytes()).hexdigest() == KNOWN_DIGEST


@pytest.mark.parametrize("features", ["", "-avx512f,-avx2,-avx,-fma"])
def test_a_processor_without_vector_units_draws_the_same(features, tmp_path):
    program = "import hashlib; from decor.noise import stream; z = stream.gaussians(bytes(range(32)), 100_000)\n"
    program += "print(hashlib.sha256(z.astype('<i4').tobytes()).hexdigest())"
    environment = {
        "PATH": "/usr/bin",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": features,
    }
    environment |= {"OPENSSL_ia32cap": "~0x200000200000000"} if features else {}  # the cipher without its instructions
    import os

    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == KNOWN_DIGEST


def test_the_deviation_is_sigma_and_neither_two_thirds_nor_three_halves_of_it(many):
    variance, error = (many.astype(float) ** 2).mean(), math.sqrt(2 / len(many))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False), (1.01, False)):
        assert (abs(variance / (factor * stream.SIGMA) ** 2 - 1) < 5 * error) == right
    assert abs(many.mean()) < 5 * stream.SIGMA / math.sqrt(len(many)) and abs(many).max() <= stream.LARGEST


def test_the_law_is_gaussian_in_every_bin_and_in_the_tails(many):
    edges = stats.norm.ppf(np.linspace(0, 1, 513)[1:-1])
    counts = np.bincount(np.searchsorted(edges, (many + 0.5) / stream.SIGMA), minlength=512)
    assert 1e-4 < stats.chisquare(counts).pvalue < 1 - 1e-4
    for far in (3, 4, 4.5):
        expected = 2 * stats.norm.sf(far) * len(many)
        assert abs((abs(many) > far * stream.SIGMA).sum() - expected) < 5 * math.sqrt(expected)
    skew, kurtosis = stats.skew(many), stats.kurtosis(many.astype(float))
    assert abs(skew) < 5 * math.sqrt(6 / len(many)) and abs(kurtosis) < 5 * math.sqrt(24 / len(many))


def test_low_bits_are_uniform_and_neighbours_independent(many):
    for modulus in (2, 3, 64, 1000):
        assert stats.chisquare(np.bincount(many % modulus, minlength=modulus)).pvalue > 1e-5
    z = many / stream.SIGMA
    for lag in (1, 2, 3, 64, 4096, stream._CHUNK):
        for f in (lambda v: v, lambda v: v**2 - 1):
            a, b = f(z[:-lag]), f(z[lag:])
            assert abs((a * b).mean()) < 5 * a.std() * b.std() / math.sqrt(len(a))


def test_streams_of_different_keys_are_independent():
    a, b = (stream.gaussians(hashlib.sha256(bytes([k])).digest(), 1_000_000) / stream.SIGMA for k in (1, 2))
    assert abs((a * b).mean()) < 5e-3 and abs(((a**2 - 1) * (b**2 - 1)).mean()) < 1e-2


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(33)])
def test_a_key_of_another_length_is_refused(key):
    with pytest.raises(InputError, match="32 bytes"):
        stream.gaussians(key, 1)


KNOWN = [574, -5304, 26184, -1470, -2871, 12427, 25979, 2421]
KNOWN_DIGEST = "9d28377408146a2d9c60f1250696010647656d8ae290b9ac31dfda281508ae9e"
