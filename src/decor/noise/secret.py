# mypy: disallow-untyped-decorators=False
"""A private run's randomness: one secret from the operating system, and the noise of many users and
edges drawn from it.

Guarantee: `GridNoise` puts on the gradients of all users what `Grid.noised` puts on those of one:
integers of the same law, added without rounding. Keys are HMAC-SHA256 of the secret, the step and
the place, so that no key serves twice. The secret is never written, printed or sent.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numba import njit
from numpy.typing import NDArray

from decor.arrays import Array
from decor.errors import InputError

from .grid import Grid, placed
from .stream import COARSE, OWN, SHARED, WORD_BYTES, Words, corrections, one, table, values

WORDS_PER_KEY = 1 << 18
"""Words that one key serves at most: a megabyte, which stays in the second cache, and few enough
for `Grid.slack`.
"""
_NARROW, _WIDE = 256, 8192
"""Coordinates that are worked on together, at least and at most: short rows cost calls, long ones
the cache.
"""
_NOISE, _DITHER, _BATCH, _LOCAL = (
    b"decor noise 2",
    b"decor dither 2",
    b"decor batch 2",
    b"decor local 2",
)
_HANDSHAKE = b"decor handshake 2"


class Secret:
    """256 bits from the operating system, for one run, and the keys that follow from them."""

    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        self._value = random(32)
        if len(self._value) != 32:
            raise InputError(f"a secret has 32 bytes, not {len(self._value)}")

    def __repr__(self) -> str:
        return "Secret()"

    def __reduce__(self) -> str:
        raise TypeError("a run's secret is not to be written anywhere")

    def key(self, label: bytes, *numbers: int) -> bytes:
        """32 bytes that follow from the secret, a label (one for each use) and integers from 0 to
        2^64 - 1.
        """
        return hmac.digest(
            self._value, label + struct.pack(f"<{len(numbers)}Q", *numbers), "sha256"
        )

    def batch_words(self, step: int, count: int) -> NDArray[np.uint32]:
        """`count` uniform words for the batches of a step; a key serves WORDS_PER_KEY of them at
        most.
        """
        parts = [min(WORDS_PER_KEY, count - first) for first in range(0, count, WORDS_PER_KEY)]
        drawn = [Words(self.key(_BATCH, step, k), some).take(some) for k, some in enumerate(parts)]
        return drawn[0] if len(drawn) == 1 else np.concatenate(drawn)

    def local_words(self, step: int, count: int) -> NDArray[np.uint32]:
        """`count` uniform words for what a model draws itself in a step, such as dropout."""
        return Words(self.key(_LOCAL, step), count).take(count)


class Handshake:
    """One process's half of a secret with each of the others, by X25519; `public` is to be sent to
    them.

    It protects from those who listen between the processes, not from an impostor who can change
    what they send.
    """

    def __init__(self, secret: Secret) -> None:
        self._own = X25519PrivateKey.from_private_bytes(secret.key(_HANDSHAKE))
        self.public = self._own.public_key().public_bytes_raw()

    def agree(self, other: bytes, info: bytes) -> Secret:
        """The secret shared with the process whose public key is `other`, for the use that `info`
        names.
        """
        shared = self._own.exchange(X25519PublicKey.from_public_bytes(other))
        said = hashlib.sha256(b"".join(sorted((self.public, other)))).digest()
        drawn = HKDF(SHA256(), 32, salt=said, info=b"decor process edge 2" + info).derive(shared)
        return Secret(lambda count: drawn)


@dataclass(frozen=True)
class Crossing:
    """An edge to a user in another process: which user here, its signed multiple, and the secret
    that both ends hold.
    """

    user: int
    multiple: int
    secret: Secret


class GridNoise:
    """The noise of `users` users, and of the edges between them, on one grid; `crossing` are edges
    with one end elsewhere.

    `edges` are pairs of user numbers with their `multiples`: what is added at the first is
    subtracted at the second. `width` is the number of coordinates worked on together, the same at
    all processes of a run (`width_for`).
    """

    def __init__(
        self,
        grid: Grid,
        secret: Secret,
        users: int,
        edges: Array,
        multiples: Sequence[int],
        width: int,
        crossing: Sequence[Crossing] = (),
    ) -> None:
        self.grid, self.users, self.crossing = grid, users, crossing
        self._secret = secret
        self._ends = np.ascontiguousarray(edges, np.int64).reshape(-1, 2)
        self._multiples = np.array(multiples, np.int64)
        self._width = width
        self._groups = _groups(users, len(self._ends), width)
        self._local = threading.local()
        self._dithered: tuple[int, int, bytes] = (-1, -1, b"")

    def chunks(self, parameters: int) -> list[tuple[int, int]]:
        """The coordinates [first, last) that `add` takes one after the other, or each in a thread
        of its own.
        """
        return [
            (first, min(first + self._width, parameters))
            for first in range(0, parameters, self._width)
        ]

    def add(self, step: int, messages: Array, offset: int, chunk: tuple[int, int]) -> None:
        """Turns gradients [users, parameters] into messages, in place, in the coordinates of one of
        the `chunks`.

        `offset` is how many parameters of the model come before these, where a model is kept in
        several arrays.

        Guarantee: what is there then is `unit` times integers, rounded once to the type of
        `messages`.
        """
        first, last = chunk
        total = self._room("total", self.users * (last - first), np.int64).reshape(self.users, -1)
        dither = np.uint32(int.from_bytes(self._dither(step, offset)[:4], "little"))
        rounded, discrete = table(OWN[0]).cells, table(OWN[1]).cells
        for number, (users, edges) in enumerate(self._groups):
            words, stream = self._words(step, offset + first, number, last - first)
            tied = np.zeros(len(users) + len(edges), np.bool_)
            _own_rows(
                words,
                rounded,
                discrete,
                messages,
                self.grid.scale,
                dither,
                users.start,
                first,
                total,
                tied,
            )
            rest = words[3 * total.shape[1] * len(users) :]
            _edge_rows(
                rest, discrete, self._ends, self._multiples, edges.start, len(users), total, tied
            )
            if tied.any():
                self._settle(words, stream, users, edges, total, tied)
        for edge in self.crossing:
            total[edge.user] += edge.multiple * self._crossing_values(
                edge, step, offset + first, last - first
            )
        _scale_rows(total, self.grid.unit, messages, first)

    def edge_integers(self, step: int, parameters: int, offset: int = 0) -> Array:
        """[edges, parameters]: what every edge adds at its first end and subtracts at its second.

        For audits only.
        """
        found = np.empty((len(self._ends), parameters), np.int64)
        for first, last in self.chunks(parameters):
            for number, (users, edges) in enumerate(self._groups):
                words, stream = self._words(step, offset + first, number, last - first)
                for e in edges:
                    start = (last - first) * (3 * len(users) + 2 * (e - edges.start))
                    row = words[start : start + 2 * (last - first)]
                    found[e, first:last] = self._multiples[e] * values(
                        row, SHARED, partial(stream.further, start)
                    )
        return found

    def _words(self, step: int, first: int, group: int, width: int) -> tuple[Array, Words]:
        """The words of some rows, users' before edges', and the stream that they come from."""
        users, edges = self._groups[group]
        count = width * (3 * len(users) + 2 * len(edges))
        room = self._room("words", WORD_BYTES * count + 32, np.uint8)
        stream = Words(self._secret.key(_NOISE, step, first, group), count, room)
        return stream.take(count), stream

    def _dither(self, step: int, offset: int) -> bytes:
        """One for all chunks of a step; kept, because it is asked for once a chunk."""
        if self._dithered[:2] != (step, offset):
            self._dithered = (step, offset, self._secret.key(_DITHER, step, offset))
        return self._dithered[2]

    def _room(self, name: str, count: int, kind: type) -> Array:
        """An array of this thread's, made once: asking the system for memory in every chunk would
        cost as much as the noise.
        """
        held: Array | None = getattr(self._local, name, None)
        if held is None or len(held) < count:
            held = np.empty(count, kind)
            setattr(self._local, name, held)
        return held[:count]

    def _settle(
        self, words: Array, stream: Words, users: range, edges: range, total: Array, tied: Array
    ) -> None:
        """Ties of this group's rows, whose further bits decide."""
        width = total.shape[1]
        for row in np.flatnonzero(tied).tolist():
            is_edge = row >= len(users)
            start = width * (3 * min(row, len(users)) + 2 * max(0, row - len(users)))
            levels = SHARED if is_edge else OWN
            own = words[start : start + len(levels) * width]
            for k, difference in corrections(own, levels, partial(stream.further, start)):
                if is_edge:
                    e = edges.start + row - len(users)
                    total[self._ends[e, 0], k] += self._multiples[e] * difference
                    total[self._ends[e, 1], k] -= self._multiples[e] * difference
                else:
                    total[users.start + row, k] += difference

    def _crossing_values(self, edge: Crossing, step: int, first: int, width: int) -> Array:
        count = 2 * width
        stream = Words(edge.secret.key(_NOISE, step, first), count)
        return values(stream.take(count), SHARED, partial(stream.further, 0)).astype(np.int64)


def width_for(users: int, edges: int) -> int:
    """Coordinates to be worked on together in a run of so many users and edges in all, so that one
    key serves most of them.
    """
    fit = WORDS_PER_KEY // (3 * users + 2 * edges)
    return min(max(fit // 16 * 16, _NARROW), _WIDE)


def _groups(users: int, edges: int, width: int) -> list[tuple[range, range]]:
    """Rows that share a key: as many users, then edges, as WORDS_PER_KEY words are enough for."""
    found, u, e = [], 0, 0
    while u < users or e < edges:
        some = min(users - u, WORDS_PER_KEY // (3 * width))
        left = WORDS_PER_KEY - 3 * width * some
        more = min(edges - e, left // (2 * width)) if u + some == users else 0
        found.append((range(u, u + some), range(e, e + more)))
        u, e = u + some, e + more
    return found


@njit(cache=True, nogil=True)
def _own_rows(
    words: Array,
    rounded: Array,
    discrete: Array,
    gradients: Array,
    scale: float,
    dither: np.uint32,
    user: int,
    first: int,
    total: Array,
    tied: Array,
) -> None:
    """total = floor(gradient / unit + dither) + own noise, for the users from `user` on that there
    are words for.
    """
    width, parameters = total.shape[1], gradients.shape[1]
    rows = min(total.shape[0] - user, len(words) // (3 * width))
    for r in range(rows):
        tie = False
        row, out, place = (
            gradients[user + r, first : first + width],
            total[user + r],
            parameters * (user + r) + first,
        )
        mine = words[3 * width * r : 3 * width * (r + 1)]
        for k in range(width):
            out[k] = placed(np.float64(row[k]) * scale, dither, place + k)
        for k in range(width):
            a, t0 = one(mine[3 * k], rounded)
            b, t1 = one(mine[3 * k + 1], discrete)
            c, t2 = one(mine[3 * k + 2], discrete)
            out[k] += np.int64(a + COARSE * (b + COARSE * c))
            tie |= t0 | t1 | t2
        tied[r] = tie


@njit(cache=True, nogil=True)
def _edge_rows(
    words: Array,
    discrete: Array,
    ends: Array,
    multiples: Array,
    edge: int,
    before: int,
    total: Array,
    tied: Array,
) -> None:
    """total += noise of the edges from `edge` on that there are words for, and -= at the
    other end.
    """
    width = total.shape[1]
    for r in range(len(words) // (2 * width)):
        tie, multiple = False, multiples[edge + r]
        plus, minus = total[ends[edge + r, 0]], total[ends[edge + r, 1]]
        mine = words[2 * width * r : 2 * width * (r + 1)]
        for k in range(width):
            a, t0 = one(mine[2 * k], discrete)
            b, t1 = one(mine[2 * k + 1], discrete)
            value = multiple * np.int64(a + COARSE * b)
            plus[k] += value
            minus[k] -= value
            tie |= t0 | t1
        tied[before + r] = tie


@njit(cache=True, nogil=True)
def _scale_rows(total: Array, unit: float, messages: Array, first: int) -> None:
    for u in range(total.shape[0]):
        for k in range(total.shape[1]):
            messages[u, first + k] = unit * np.float64(total[u, k])
