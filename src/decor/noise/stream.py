"""A step's noise: (key, count) -> integers of a law that is known exactly, the same bits on every processor.

AES-256 in counter mode turns the key into 64-bit words, and a table turns each word into a whole number of deviation 160. An
edge's value is the first plus 64 times the second; a user's own goes on with 4096 times a third. Integers only, and as many
words for every value: no rounding mode, vector width or library can make two ends differ, and nothing can shift a stream's rest.

Guarantee: if the cipher's bits are uniform, a value's law is within `DISTANCE` (total variation) of D + 64 D' for `shared` and
of R + 64 D + 4096 D' for `own`, where D, D' are discrete Gaussians and R a rounded one, all of deviation 160 and independent.
docs/noise.md says what follows for privacy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numba import njit
from numpy.typing import NDArray

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
"""Per value: a word is within 2^-118.8 of its law. Probabilities are whole multiples of 2^-128, and tails weigh 2^-122."""

SHARED: Levels = ("discrete", "discrete")
OWN: Levels = ("rounded", "discrete", "discrete")
PART = 1 << 13
"""Values made at a time: their words stay in the second cache."""

_DIGESTS = {
    "discrete": "c881c2e177faf148cefd3d197a194485a4fbff13c3ac171f82bc9099c67bb11c",
    "rounded": "721fdd073eec32bce414a0530a7e5e6e75df027ee277cb247b0b97f48ad9723a",
}
_ASIDE = 1 << 96
"""The counter where bits for ties begin: no stream is long enough to come here."""
_ONES = np.uint64((1 << 52) - 1)


def shared(key: bytes, count: int) -> Integers:
    """`count` values of the noise of an edge, for a step's `key` of 32 bytes that begins nothing else."""
    return _joined(key, count, SHARED)


def own(key: bytes, count: int) -> Integers:
    """`count` values of a user's own noise, for a `key` of 32 bytes that begins nothing else."""
    return _joined(key, count, OWN)


def parts(key: bytes, count: int, levels: Levels) -> Iterator[Integers]:
    """The values of `shared` (levels SHARED) or `own` (OWN) in order, `PART` at a time, so that none need be kept."""
    if len(key) != 32:
        raise InputError(f"a step's key has 32 bytes, not {len(key)}")
    each, most = len(levels), min(count, PART)
    cipher = _cipher(key, 0)
    buffer = bytearray(8 * each * most + 32)  # and room for two blocks, as the cipher asks
    nothing = memoryview(bytes(8 * each * most))
    for first in range(0, count, PART):
        some = each * min(PART, count - first)
        cipher.update_into(nothing[: 8 * some], buffer)
        # read anew for every part: a view made once would be a copy, and stay zero, where words have the other byte order
        words = np.frombuffer(buffer, "<u8", some).astype(np.uint64, copy=False)
        yield values(words, levels, partial(_further, key, each * first))


def values(words: NDArray[Any], levels: Levels, further: Callable[[int], int]) -> Integers:
    """One value for every `len(levels)` words; `further(place)` has 64 more bits for the word there, asked for in a tie only."""
    tables = [table(name) for name in levels]
    out = np.empty(len(words) // len(levels), np.int32)
    draw = _two if len(levels) == 2 else _three
    if draw(words, tables[0].cells, tables[-1].cells, out):
        for level, which in enumerate(tables):
            _settle(words, level, len(levels), which, further, out)
    return out


class Table(NamedTuple):
    """An alias table of 4096 cells: `cells` has 52 bits of a threshold and the other cell's number in 12, `more` the next 64."""

    cells: NDArray[Any]
    more: NDArray[Any]


@cache
def table(name: str) -> Table:
    held = files(__package__).joinpath(f"{name}-{FINE}.table").read_bytes()
    if hashlib.sha256(held).hexdigest() != _DIGESTS[name]:
        raise DecorError(f"the table {name}-{FINE}.table of this installation is damaged; install decor again")
    both = np.frombuffer(held, dtype="<u8").astype(np.uint64)
    return Table(both[:4096], both[4096:])


def _joined(key: bytes, count: int, levels: Levels) -> Integers:
    out, first = np.empty(count, np.int32), 0
    for part in parts(key, count, levels):
        out[first : first + len(part)] = part
        first += len(part)
    return out


def _cipher(key: bytes, counter: int) -> CipherContext:
    return Cipher(AES256(key), CTR(counter.to_bytes(16, "big"))).encryptor()


def _further(key: bytes, first: int, place: int) -> int:
    return int.from_bytes(_cipher(key, _ASIDE + first + place).update(bytes(8)), "little")


def _settle(words: NDArray[Any], level: int, each: int, which: Table, further: Callable[[int], int], out: Integers) -> None:
    """Gives ties, which the kernels took for the other cell, what their further bits say: one word in 2^52."""
    mine = words[level::each]
    cell = (mine >> np.uint64(52)).astype(np.int64)
    entry = which.cells[cell]
    for k in np.flatnonzero((mine & _ONES) == entry >> np.uint64(12)).tolist():
        if further(each * k + level) < int(which.more[cell[k]]):
            out[k] += COARSE**level * (int(cell[k]) - int(entry[k] & np.uint64(4095)))


@njit(cache=True, nogil=True)
def _two(words: NDArray[Any], first: NDArray[Any], rest: NDArray[Any], out: NDArray[Any]) -> bool:
    tied = False
    for k in range(len(out)):
        a, tie = _one(words[2 * k], first)
        b, also = _one(words[2 * k + 1], rest)
        out[k] = a + COARSE * b
        tied |= tie | also
    return tied


@njit(cache=True, nogil=True)
def _three(words: NDArray[Any], first: NDArray[Any], rest: NDArray[Any], out: NDArray[Any]) -> bool:
    tied = False
    for k in range(len(out)):
        a, tie = _one(words[3 * k], first)
        b, also = _one(words[3 * k + 1], rest)
        c, too = _one(words[3 * k + 2], rest)
        out[k] = a + COARSE * (b + COARSE * c)
        tied |= tie | also | too
    return tied


@njit(cache=True, nogil=True, inline="always")
def _one(word: np.uint64, cells: NDArray[Any]) -> tuple[np.int64, bool]:
    cell = word >> np.uint64(52)
    entry = cells[cell]
    threshold, low = entry >> np.uint64(12), word & _ONES
    return np.int64(cell if low < threshold else entry & np.uint64(4095)) - np.int64(2048), low == threshold
