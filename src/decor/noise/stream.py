"""A step's noise: (key, count) -> integers of a law that is known exactly, the same bits on every
processor.

AES-256 in counter mode turns the key into 32-bit words, and a table turns each word into an integer
of deviation 160. An edge's value is the first plus 64 times the second; a user's own goes on with
4096 times a third. Integers only, and the same number of words for every value: no rounding mode,
vector width or library can make two ends differ, and nothing can shift the rest of a stream.

Guarantee: if the cipher's bits are uniform, a value's law is within `DISTANCE` (total variation) of
D + 64 D' for `shared` and of R + 64 D + 4096 D' for `own`, where D, D' are discrete Gaussians and R
a rounded one, all of deviation 160 and independent. docs/noise.md says what follows for privacy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numba import njit
from numpy.typing import NDArray

from decor.arrays import Array
from decor.errors import DecorError, InputError

Integers = NDArray[np.int32]
Levels = tuple[str, ...]

FINE, COARSE = 160, 64
EDGE_SIGMA = FINE * math.sqrt(1 + COARSE**2)
"""The deviation of an edge's value: about 10,241 steps of the grid."""
OWN_SIGMA = FINE * math.sqrt(1 + COARSE**2 + COARSE**4)
"""The deviation of a user's own value: about 655,440 steps of the grid."""
EDGE_LARGEST, OWN_LARGEST = 2048 * (1 + COARSE), 2048 * (1 + COARSE + COARSE**2)
DISTANCE = 2.0**-117
"""Per value: a word is within 2^-118.8 of its law.

Probabilities are whole multiples of 2^-128, and tails weigh 2^-122.
"""

SHARED: Levels = ("discrete", "discrete")
OWN: Levels = ("rounded", "discrete", "discrete")
PART = 1 << 13
"""Values made at a time: their words stay in the second cache."""
WORD_BYTES = 4

_DIGESTS = {
    "discrete": "c881c2e177faf148cefd3d197a194485a4fbff13c3ac171f82bc9099c67bb11c",
    "rounded": "721fdd073eec32bce414a0530a7e5e6e75df027ee277cb247b0b97f48ad9723a",
}
_ASIDE = 1 << 96
"""The counter where bits for ties begin: no stream is long enough to come here."""
_REST = 96
"""Bits of a threshold beyond the 20 that are compared at first."""
_LOW = np.uint32((1 << 20) - 1)


def shared(key: bytes, count: int) -> Integers:
    """`count` values of the noise of an edge, for a step's `key` of 32 bytes that begins nothing
    else.
    """
    return _joined(key, count, SHARED)


def own(key: bytes, count: int) -> Integers:
    """`count` values of a user's own noise, for a `key` of 32 bytes that begins nothing else."""
    return _joined(key, count, OWN)


def parts(key: bytes, count: int, levels: Levels) -> Iterator[Integers]:
    """The values of `shared` (levels SHARED) or `own` (OWN) in order, `PART` at a time, so that
    none need be kept.
    """
    words, each = Words(key, len(levels) * min(count, PART)), len(levels)
    for first in range(0, count, PART):
        some = each * min(PART, count - first)
        yield values(words.take(some), levels, partial(words.further, each * first))


class Words:
    """The cipher's words for one `key` of 32 bytes, in order; `most` is how many are taken at a
    time.

    `buffer`, of 4 `most` + 32 bytes or more, is where they are written; None makes one.
    """

    def __init__(self, key: bytes, most: int, buffer: NDArray[np.uint8] | None = None) -> None:
        if len(key) != 32:
            raise InputError(f"a step's key has 32 bytes, not {len(key)}")
        self._key = key
        self._cipher = _cipher(key, 0)
        self._zeros = _zeros(WORD_BYTES * most)
        # with room for two blocks, as the cipher asks
        self._buffer = np.empty(WORD_BYTES * most + 32, np.uint8) if buffer is None else buffer

    def take(self, count: int) -> NDArray[np.uint32]:
        """The next `count` words, valid until the next are taken."""
        self._cipher.update_into(self._zeros[: WORD_BYTES * count], self._buffer.data)
        # read again for every part: a view made once would be a copy, and stay zero, where words
        # have the other byte order
        return np.frombuffer(self._buffer, "<u4", count).astype(np.uint32, copy=False)

    def further(self, first: int, place: int) -> int:
        """96 further bits for the word at `first` + `place`, from a block that no word uses."""
        block = _cipher(self._key, _ASIDE + first + place).update(bytes(16))
        return int.from_bytes(block[: _REST // 8], "little")


def values(words: Array, levels: Levels, further: Callable[[int], int]) -> Integers:
    """One value for every `len(levels)` words; `further(place)` has 96 more bits for the word
    there, asked for in a tie only.
    """
    out = np.empty(len(words) // len(levels), np.int32)
    first, rest = table(levels[0]).cells, table(levels[-1]).cells
    draw = _two if len(levels) == 2 else _three
    if draw(words, first, rest, out):
        for k, difference in corrections(words, levels, further):
            out[k] += difference
    return out


def corrections(
    words: Array, levels: Levels, further: Callable[[int], int]
) -> list[tuple[int, int]]:
    """[(value, what to add to it)] for ties, which the kernels took for the other cell: one word in
    2^20 is one.
    """
    found = []
    for level, name in enumerate(levels):
        which, mine = table(name), words[level :: len(levels)]
        cell = mine >> np.uint32(20)
        entry = which.cells[cell]
        for k in np.flatnonzero((mine & _LOW) == entry >> np.uint32(12)).tolist():
            if further(len(levels) * k + level) < which.rest[int(cell[k])]:
                found.append((k, COARSE**level * (int(cell[k]) - int(entry[k] & np.uint32(4095)))))
    return found


class Table(NamedTuple):
    """An alias table of 4096 cells: `cells` has 20 bits of a threshold and the other cell's number
    in 12, `rest` the next 96.
    """

    cells: Array
    rest: list[int]


@cache
def table(name: str) -> Table:
    held = files(__package__).joinpath(f"{name}-{FINE}.table").read_bytes()
    if hashlib.sha256(held).hexdigest() != _DIGESTS[name]:
        raise DecorError(
            f"the table {name}-{FINE}.table of this installation is damaged; install decor again"
        )
    # the file has 52 bits of each threshold beside the other cell's number, then 64 bits of each
    both = np.frombuffer(held, dtype="<u8").tolist()
    thresholds = [
        (entry >> 12) << 64 | more for entry, more in zip(both[:4096], both[4096:], strict=True)
    ]
    others = [entry & 4095 for entry in both[:4096]]
    cells = [
        threshold >> _REST << 12 | other
        for threshold, other in zip(thresholds, others, strict=True)
    ]
    return Table(
        np.array(cells, np.uint32), [threshold & (1 << _REST) - 1 for threshold in thresholds]
    )


def _joined(key: bytes, count: int, levels: Levels) -> Integers:
    out, first = np.empty(count, np.int32), 0
    for part in parts(key, count, levels):
        out[first : first + len(part)] = part
        first += len(part)
    return out


def _cipher(key: bytes, counter: int) -> CipherContext:
    return Cipher(AES256(key), CTR(counter.to_bytes(16, "big"))).encryptor()


@lru_cache(maxsize=4)
def _zeros(size: int) -> memoryview:
    """What the cipher is given to encrypt: its stream alone."""
    return memoryview(bytes(size))


@njit(cache=True, nogil=True)
def _two(words: Array, first: Array, rest: Array, out: Array) -> bool:
    tied = False
    for k in range(len(out)):
        a, tie = one(words[2 * k], first)
        b, also = one(words[2 * k + 1], rest)
        out[k] = a + COARSE * b
        tied |= tie | also
    return tied


@njit(cache=True, nogil=True)
def _three(words: Array, first: Array, rest: Array, out: Array) -> bool:
    tied = False
    for k in range(len(out)):
        a, tie = one(words[3 * k], first)
        b, also = one(words[3 * k + 1], rest)
        c, too = one(words[3 * k + 2], rest)
        out[k] = a + COARSE * (b + COARSE * c)
        tied |= tie | also | too
    return tied


@njit(cache=True, nogil=True, inline="always")
def one(word: np.uint32, cells: Array) -> tuple[np.int32, bool]:
    """(the value of one word, whether its first bits do not decide): 12 bits choose a cell, 20 are
    compared.
    """
    cell = word >> np.uint32(20)
    entry = cells[cell]
    threshold, low = entry >> np.uint32(12), word & _LOW
    return np.int32(cell if low < threshold else entry & np.uint32(4095)) - np.int32(
        2048
    ), low == threshold
