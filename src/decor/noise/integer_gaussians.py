"""A step's noise: (key, count) -> integers of a known distribution, the same bits on every CPU.

AES-256 in counter mode turns the key into 32-bit words, and a table turns each word into an integer
of standard deviation 160. The value of an edge is the first integer plus 64 times a second; a
user's own value adds 4096 times a third. There are only integers, and each value takes the same
number of words: no rounding mode, vector width or library can make two ends differ, and nothing can
shift the rest of a stream.

Guarantee: if the cipher's bits are uniform, the distribution of a value is within `DISTANCE` (total
variation) of D + 64 D' for `edge_noise` and of R + 64 D + 4096 D' for `own_noise`, where D, D' are
discrete Gaussians and R a rounded one, all of deviation 160 and independent. docs/noise.md shows
what follows for privacy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from decor.array_types import Array
from decor.errors import DecorError, InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

Integers = NDArray[np.int32]
Levels = tuple[str, ...]

FINE, COARSE = 160, 64
EDGE_SIGMA = FINE * math.sqrt(1 + COARSE**2)
"""Standard deviation of an edge's value: about 10,241 grid steps."""
OWN_SIGMA = FINE * math.sqrt(1 + COARSE**2 + COARSE**4)
"""Standard deviation of a user's own value: about 655,440 grid steps."""
EDGE_LARGEST, OWN_LARGEST = 2048 * (1 + COARSE), 2048 * (1 + COARSE + COARSE**2)
DISTANCE = 2.0**-117
"""Total variation per value: a word is within 2^-118.8 of its distribution, because table entries
are multiples of 2^-128 and the tails that are cut off weigh 2^-122.
"""

SHARED: Levels = ("discrete", "discrete")
OWN: Levels = ("rounded", "discrete", "discrete")
PART = 1 << 13
"""Values drawn at a time: their words stay in the L2 cache."""
WORD_BYTES = 4

_DIGESTS = {
    "discrete": "c881c2e177faf148cefd3d197a194485a4fbff13c3ac171f82bc9099c67bb11c",
    "rounded": "721fdd073eec32bce414a0530a7e5e6e75df027ee277cb247b0b97f48ad9723a",
}
_ASIDE = 1 << 96
"""The counter where bits for ties begin: no stream is long enough to reach it."""
_REST = 96
"""Bits of a threshold beyond the 20 that are compared first."""
_LOW = np.uint32((1 << 20) - 1)


def edge_noise(key: bytes, count: int) -> Integers:
    """`count` values of an edge's noise, for a step's `key` of 32 bytes with no other use."""
    return _concatenate(key, count, SHARED)


def own_noise(key: bytes, count: int) -> Integers:
    """`count` values of a user's own noise, for a `key` of 32 bytes with no other use."""
    return _concatenate(key, count, OWN)


def parts(key: bytes, count: int, levels: Levels) -> Iterator[Integers]:
    """The values of `edge_noise` (levels SHARED) or `own_noise` (OWN), `PART` at a time."""
    # one stream: the words of a part follow those of the part before
    words, each = Words(key, len(levels) * min(count, PART)), len(levels)
    for first in range(0, count, PART):
        needed = each * min(PART, count - first)
        yield values(words.take(needed), levels, partial(words.tie_bits, each * first))


class Words:
    """The cipher's words for one key, in order."""

    def __init__(self, key: bytes, most: int, buffer: NDArray[np.uint8] | None = None) -> None:
        """For at most `most` words at a time.

        Args:
            key: 32 bytes.
            most: Words that one call of `take` returns at most.
            buffer: Where they are written, 4 `most` + 32 bytes or more; None allocates one.
        """
        if len(key) != 32:
            raise InputError(f"a step's key has 32 bytes, not {len(key)}")
        self._key = key
        self._cipher = _cipher(key, 0)
        self._zeros = _zeros(WORD_BYTES * most)
        # 32 bytes more: `update_into` demands space for two blocks
        self._buffer = np.empty(WORD_BYTES * most + 32, np.uint8) if buffer is None else buffer

    def take(self, count: int) -> NDArray[np.uint32]:
        """The next `count` words, valid until the next call."""
        self._cipher.update_into(self._zeros[: WORD_BYTES * count], self._buffer.data)
        # a new view each time: on big-endian CPUs it is a copy, and one made once would stay zero
        return np.frombuffer(self._buffer, "<u4", count).astype(np.uint32, copy=False)

    def tie_bits(self, first: int, place: int) -> int:
        """96 more bits for the word at `first` + `place`, from a block that no word uses."""
        block = _cipher(self._key, _ASIDE + first + place).update(bytes(16))
        return int.from_bytes(block[: _REST // 8], "little")


def values(words: Array, levels: Levels, tie_bits: Callable[[int], int]) -> Integers:
    """One value for each `len(levels)` words; `tie_bits(place)` gives 96 more bits in a tie."""
    out = np.empty(len(words) // len(levels), np.int32)
    # only the lowest level may differ: a user's own value has a rounded one there
    first, rest = table(levels[0]).cells, table(levels[-1]).cells
    draw = _decode_pairs if len(levels) == 2 else _decode_triples
    if draw(words, first, rest, out):
        for k, difference in corrections(words, levels, tie_bits):
            out[k] += difference
    return out


def corrections(
    words: Array, levels: Levels, tie_bits: Callable[[int], int]
) -> list[tuple[int, int]]:
    """[(index of a value, what to add to it)] for ties: one word in 2^20 is one.

    The kernels decide a tie for the alias cell.
    """
    differences = []
    for level, name in enumerate(levels):
        alias_table, own_words = table(name), words[level :: len(levels)]
        cell = own_words >> np.uint32(20)
        entry = alias_table.cells[cell]
        for k in np.flatnonzero((own_words & _LOW) == entry >> np.uint32(12)).tolist():
            if tie_bits(len(levels) * k + level) < alias_table.rest[int(cell[k])]:
                alias = int(entry[k] & np.uint32(4095))
                differences.append((k, COARSE**level * (int(cell[k]) - alias)))
    return differences


class Table(NamedTuple):
    """An alias table (Walker 1977) of 4096 cells.

    Attributes:
        cells: 20 bits of the threshold, and the alias cell's number in 12.
        rest: The next 96 bits of the threshold.
    """

    cells: Array
    rest: list[int]


@cache
def table(name: str) -> Table:
    content = files(__package__).joinpath(f"{name}-{FINE}.table").read_bytes()
    if hashlib.sha256(content).hexdigest() != _DIGESTS[name]:
        raise DecorError(
            f"the table {name}-{FINE}.table of this installation is damaged; install decor again"
        )
    # the file has 52 bits of each threshold beside the alias, then 64 more bits of each
    numbers = np.frombuffer(content, dtype="<u8").tolist()
    cells, rest = [], []
    for entry, more in zip(numbers[:4096], numbers[4096:], strict=True):
        threshold, alias = (entry >> 12) << 64 | more, entry & 4095
        cells.append(threshold >> _REST << 12 | alias)
        rest.append(threshold & (1 << _REST) - 1)
    return Table(np.array(cells, np.uint32), rest)


def _concatenate(key: bytes, count: int, levels: Levels) -> Integers:
    # into one array, not np.concatenate: parts would have to be kept
    out, first = np.empty(count, np.int32), 0
    for part in parts(key, count, levels):
        out[first : first + len(part)] = part
        first += len(part)
    return out


def _cipher(key: bytes, counter: int) -> CipherContext:
    # here: simulations load this module too, and draw nothing from a cipher
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    return Cipher(AES256(key), CTR(counter.to_bytes(16, "big"))).encryptor()


@lru_cache(maxsize=4)
def _zeros(size: int) -> memoryview:
    """The plaintext: encrypting zeros gives the cipher's stream itself."""
    return memoryview(bytes(size))


@njit(cache=True, nogil=True)
def _decode_pairs(words: Array, first: Array, rest: Array, out: Array) -> bool:
    tied = False
    for k in range(len(out)):
        a, tie = decode(words[2 * k], first)
        b, also = decode(words[2 * k + 1], rest)
        out[k] = a + COARSE * b
        tied |= tie | also
    return tied


@njit(cache=True, nogil=True)
def _decode_triples(words: Array, first: Array, rest: Array, out: Array) -> bool:
    tied = False
    for k in range(len(out)):
        a, tie = decode(words[3 * k], first)
        b, also = decode(words[3 * k + 1], rest)
        c, too = decode(words[3 * k + 2], rest)
        out[k] = a + COARSE * (b + COARSE * c)
        tied |= tie | also | too
    return tied


@njit(cache=True, nogil=True, inline="always")
def decode(word: np.uint32, cells: Array) -> tuple[np.int32, bool]:
    """(value of a word, whether it is a tie): 12 bits choose a cell, 20 are compared."""
    cell = word >> np.uint32(20)
    entry = cells[cell]
    threshold, low = entry >> np.uint32(12), word & _LOW
    value = np.int32(cell if low < threshold else entry & np.uint32(4095)) - np.int32(2048)
    return value, low == threshold
