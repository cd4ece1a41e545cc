"""A step's noise of an edge: (key, count) -> integers with the law of a discrete Gaussian, the same bits on every processor.

AES-256 in counter mode turns the key into 64-bit words, two for every value, and an alias table turns each word into a whole
number of deviation 224; the first plus 64 times the second has deviation `SIGMA`. Integers only, and always two words a value:
no rounding mode, vector width or library can make the two ends differ, and nothing can shift the rest of a stream.

Guarantee: a value's law is within `DISTANCE` (total variation) of a discrete Gaussian with deviation `SIGMA`.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numba import njit
from numpy.typing import NDArray

from decor.errors import DecorError, InputError

Integers = NDArray[np.int32]

FINE, COARSE = 224, 64
SIGMA = FINE * math.sqrt(1 + COARSE**2)
"""The deviation of a value: about 14,338 steps of the grid."""
LARGEST = 2048 * (1 + COARSE)
DISTANCE = 2.0**-52
"""Per value: thresholds are rounded at 2^-65 in each of 4096 cells, twice; tails beyond 9.1 deviations weigh less."""

_DIGEST = "aa2ecbe131e370312c6ef1b9cf8c2cd5a5a27ef7b2a7398abeacd3da89464edf"
_CHUNK = 1 << 15
_ONES = np.uint64((1 << 52) - 1)


def gaussians(key: bytes, count: int) -> Integers:
    """`count` values of the stream that `key`, 32 bytes used for nothing else, begins."""
    if len(key) != 32:
        raise InputError(f"a step's key has 32 bytes, not {len(key)}")
    cipher = Cipher(AES256(key), CTR(bytes(16))).encryptor()
    out = np.empty(count, np.int32)
    buffer = bytearray(16 * min(count, _CHUNK) + 16)  # and room for a block, as the cipher asks
    nothing = memoryview(bytes(16 * min(count, _CHUNK)))
    cells = table()
    for first in range(0, count, _CHUNK):
        some = min(_CHUNK, count - first)
        cipher.update_into(nothing[: 16 * some], buffer)
        # read anew for every part: a view made once would be a copy, and stay zero, where words have the other byte order
        _draw(np.frombuffer(buffer, "<u8", 2 * some).astype(np.uint64), cells, out[first : first + some])
    return out


@cache
def table() -> NDArray[Any]:
    """The alias table: a threshold of 52 bits and the other cell's number in 12, for each of 4096 cells."""
    held = files(__package__).joinpath(f"gaussian-{FINE}.table").read_bytes()
    if hashlib.sha256(held).hexdigest() != _DIGEST:
        raise DecorError(f"the table gaussian-{FINE}.table of this installation is damaged; install decor again")
    return np.frombuffer(held, dtype="<u8").astype(np.uint64)


@njit(cache=True, nogil=True)
def _draw(words: NDArray[Any], cells: NDArray[Any], out: NDArray[Any]) -> None:
    for k in range(len(out)):
        out[k] = _one(words[2 * k], cells) + COARSE * _one(words[2 * k + 1], cells)


@njit(cache=True, nogil=True, inline="always")
def _one(word: np.uint64, cells: NDArray[Any]) -> np.int64:
    cell = word >> np.uint64(52)
    entry = cells[cell]
    other = entry & np.uint64(4095)
    return np.int64(cell if (word & _ONES) < (entry >> np.uint64(12)) else other) - np.int64(2048)
