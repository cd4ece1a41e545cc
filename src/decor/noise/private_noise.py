# mypy: disallow-untyped-decorators=False
"""Randomness of a private run: one secret from the operating system, and noise drawn from it.

Guarantee: `GridNoise` adds to the gradients of all users what `Grid.add_noise` adds to those of
one: integers of the same distribution, without rounding. Keys are HMAC-SHA256 of the secret, the
step and the place, so no key is used twice. The secret is never written, printed or sent.
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
from numba import njit
from numpy.typing import NDArray

from decor.array_types import Array
from decor.errors import InputError, require

from .grid import Grid, round_with_dither
from .integer_gaussians import (
    COARSE,
    OWN,
    SHARED,
    WORD_BYTES,
    Words,
    corrections,
    decode,
    table,
    values,
)

WORDS_PER_KEY = 1 << 18
"""Words of one key at most: a megabyte, which stays in the L2 cache, and few enough for
`Grid.slack`.
"""
_NARROW, _WIDE = 256, 8192
"""Coordinates of a chunk, at least and at most: short rows cost calls, long ones the cache."""
# one label for each use of the secret
_NOISE, _DITHER, _BATCH = b"decor noise 2", b"decor dither 2", b"decor batch 2"
_LOCAL, _HANDSHAKE, _BESIDE = b"decor local 2", b"decor handshake 2", b"decor own beside 2"


class Secret:
    """256 bits from the operating system, for one run, and the keys derived from them."""

    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        # before anything is computed: without the cipher the first step would fail
        require("cryptography", "train", "private runs")
        self._value = random(32)
        if len(self._value) != 32:
            raise InputError(f"a secret has 32 bytes, not {len(self._value)}")

    def __repr__(self) -> str:
        return "Secret()"

    def __reduce__(self) -> str:
        raise TypeError("a run's secret must not be written anywhere")

    def key(self, label: bytes, *numbers: int) -> bytes:
        """32 bytes from the secret, a label (one for each use) and integers from 0 to 2^64 - 1."""
        # eight bytes for each number: (1, 23) and (12, 3) must not give one key
        message = label + struct.pack(f"<{len(numbers)}Q", *numbers)
        return hmac.digest(self._value, message, "sha256")

    def batch_words(self, step: int, count: int) -> NDArray[np.uint32]:
        """`count` uniform words for the batches of a step, at most WORDS_PER_KEY from each key."""
        # a cipher's blocks never repeat, uniform ones may: few words of a key keep that rare
        sizes = [min(WORDS_PER_KEY, count - first) for first in range(0, count, WORDS_PER_KEY)]
        words = [Words(self.key(_BATCH, step, k), size).take(size) for k, size in enumerate(sizes)]
        return words[0] if len(words) == 1 else np.concatenate(words)

    def local_words(self, step: int, count: int) -> NDArray[np.uint32]:
        """`count` uniform words for a model's own randomness in a step, such as dropout."""
        return Words(self.key(_LOCAL, step), count).take(count)


class Handshake:
    """One process's half of a secret with each other process, by X25519; send them `public`.

    It protects against eavesdroppers between the processes, not against an impostor who can change
    what they send.
    """

    def __init__(self, secret: Secret) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        # derived and not drawn: the secret stays the only randomness of the run
        self._own = X25519PrivateKey.from_private_bytes(secret.key(_HANDSHAKE))
        self.public = self._own.public_key().public_bytes_raw()

    def agree(self, other: bytes, info: bytes) -> Secret:
        """The secret with the process whose public key is `other`, for the use named by `info`."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        shared = self._own.exchange(X25519PublicKey.from_public_bytes(other))
        # sorted: both processes must have the same salt
        salt = hashlib.sha256(b"".join(sorted((self.public, other)))).digest()
        secret = HKDF(SHA256(), 32, salt=salt, info=b"decor process edge 2" + info).derive(shared)
        return Secret(lambda count: secret)


@dataclass(frozen=True)
class RemoteEdge:
    """An edge to a user in another process.

    Attributes:
        user: The user in this process.
        multiple: With the sign of this end.
        secret: The secret that both processes have, or this one alone.
    """

    user: int
    multiple: int
    secret: Secret


def own_noise(multiples: Sequence[int], users: Array, secret: Secret) -> list[RemoteEdge]:
    """What users draw beside their own noise: edges whose other end is nobody.

    Args:
        multiples: `own_multiples` of the grid, of all users; empty where there are none.
        users: The users of this process, in the order of its rows.
        secret: This process's.
    """
    here = [(row, int(multiples[user])) for row, user in enumerate(users)] if multiples else []
    return [
        RemoteEdge(row, multiple, Secret(partial(_key_beside, secret, row)))
        for row, multiple in here
        if multiple
    ]


def _key_beside(secret: Secret, row: int, count: int) -> bytes:
    return secret.key(_BESIDE, row)[:count]


class GridNoise:
    """The noise of many users, and of the edges between them, on one grid."""

    def __init__(
        self,
        grid: Grid,
        secret: Secret,
        users: int,
        edges: Array,
        multiples: Sequence[int],
        width: int,
        remote_edges: Sequence[RemoteEdge] = (),
    ) -> None:
        """The noise of the users of one process.

        Args:
            grid: The run's grid.
            secret: This process's.
            users: Number of users.
            edges: Pairs of user numbers: what is added at the first is subtracted at the second.
            multiples: Of these edges.
            width: Coordinates of a chunk, the same in all processes of a run (`width_for`).
            remote_edges: Edges with one end in another process.
        """
        self.grid, self.users, self.remote_edges = grid, users, remote_edges
        self._secret = secret
        self._ends = np.ascontiguousarray(edges, np.int64).reshape(-1, 2)
        self._multiples = np.array(multiples, np.int64)
        self._width = width
        self._groups = _groups(users, len(self._ends), width)
        # each thread has scratch arrays of its own
        self._local = threading.local()
        self._dither_key: tuple[int, int, bytes] = (-1, -1, b"")

    def chunks(self, parameters: int) -> list[tuple[int, int]]:
        """The coordinates [first, last) of each call of `add`; threads may share them."""
        width = self._width
        return [(first, min(first + width, parameters)) for first in range(0, parameters, width)]

    def add(self, step: int, messages: Array, offset: int, chunk: tuple[int, int]) -> None:
        """Turns gradients [users, parameters] into messages, in place, in one of the `chunks`.

        Args:
            step: The step, which has noise of its own.
            messages: Gradients before, messages after the call.
            offset: How many of the model's parameters are in arrays before this one.
            chunk: The coordinates.

        Guarantee: a message is `unit` times an integer, rounded once to the type of `messages`.
        """
        first, last = chunk
        width = last - first
        total = self._scratch("total", self.users * width, np.int64).reshape(self.users, -1)
        # 32 bits are enough: a dither affects bias and not privacy (docs/noise.md)
        dither = np.uint32(int.from_bytes(self._dither(step, offset)[:4], "little"))
        rounded, discrete = table(OWN[0]).cells, table(OWN[1]).cells
        scale, ends, multiples = self.grid.scale, self._ends, self._multiples
        for number, (users, edges) in enumerate(self._groups):
            words, stream = self._words(step, offset + first, number, width)
            tied = np.zeros(len(users) + len(edges), np.bool_)
            user, edge = users.start, edges.start
            _own_rows(words, rounded, discrete, messages, scale, dither, user, first, total, tied)
            # three words for a user's own value, R + 64 D + 4096 D', and two for that of an edge
            rest = words[3 * width * len(users) :]
            _edge_rows(rest, discrete, ends, multiples, edge, len(users), total, tied)
            # ties are rare, and leave the kernels to have their further bits drawn here
            if tied.any():
                self._resolve_ties(words, stream, users, edges, total, tied)
        for remote in self.remote_edges:
            noise = self._remote_noise(remote, step, offset + first, width)
            # the multiple at an edge's other end has the other sign: their sum loses the noise
            total[remote.user] += remote.multiple * noise
        _scale_rows(total, self.grid.unit, messages, first)

    def edge_integers(self, step: int, parameters: int, offset: int = 0) -> Array:
        """[edges, parameters]: what each edge adds at its first end. For audits only."""
        integers = np.empty((len(self._ends), parameters), np.int64)
        for first, last in self.chunks(parameters):
            width = last - first
            for number, (users, edges) in enumerate(self._groups):
                words, stream = self._words(step, offset + first, number, width)
                for e in edges:
                    start = width * (3 * len(users) + 2 * (e - edges.start))
                    row, bits = words[start : start + 2 * width], partial(stream.tie_bits, start)
                    integers[e, first:last] = self._multiples[e] * values(row, SHARED, bits)
        return integers

    def _words(self, step: int, first: int, group: int, width: int) -> tuple[Array, Words]:
        """The words of one group's rows, users before edges, and the stream they come from."""
        users, edges = self._groups[group]
        count = width * (3 * len(users) + 2 * len(edges))
        buffer = self._scratch("words", WORD_BYTES * count + 32, np.uint8)
        stream = Words(self._secret.key(_NOISE, step, first, group), count, buffer)
        return stream.take(count), stream

    def _dither(self, step: int, offset: int) -> bytes:
        """One for all chunks of a step; kept, because each chunk asks for it."""
        if self._dither_key[:2] != (step, offset):
            self._dither_key = (step, offset, self._secret.key(_DITHER, step, offset))
        return self._dither_key[2]

    def _scratch(self, name: str, count: int, kind: type) -> Array:
        """An array of this thread, allocated once.

        Asking the system for memory in each chunk would cost as much as the noise.
        """
        array: Array | None = getattr(self._local, name, None)
        if array is None or len(array) < count:
            array = np.empty(count, kind)
            setattr(self._local, name, array)
        return array[:count]

    def _resolve_ties(
        self, words: Array, stream: Words, users: range, edges: range, total: Array, tied: Array
    ) -> None:
        """Corrects the values of this group's ties."""
        width = total.shape[1]
        for row in np.flatnonzero(tied).tolist():
            is_edge = row >= len(users)
            start = width * (3 * min(row, len(users)) + 2 * max(0, row - len(users)))
            levels = SHARED if is_edge else OWN
            own = words[start : start + len(levels) * width]
            for k, difference in corrections(own, levels, partial(stream.tie_bits, start)):
                if is_edge:
                    e = edges.start + row - len(users)
                    total[self._ends[e, 0], k] += self._multiples[e] * difference
                    total[self._ends[e, 1], k] -= self._multiples[e] * difference
                else:
                    total[users.start + row, k] += difference

    def _remote_noise(self, edge: RemoteEdge, step: int, first: int, width: int) -> Array:
        """The noise of an edge to another process, which draws the same from the shared secret."""
        count = 2 * width
        # no number of a group: the other process has other groups of rows
        stream = Words(edge.secret.key(_NOISE, step, first), count)
        return values(stream.take(count), SHARED, partial(stream.tie_bits, 0)).astype(np.int64)


def width_for(users: int, edges: int) -> int:
    """Coordinates of a chunk, so that one key serves most of so many users and edges."""
    # a multiple of 16: each row then begins with a whole cipher block
    fit = WORDS_PER_KEY // (3 * users + 2 * edges)
    return min(max(fit // 16 * 16, _NARROW), _WIDE)


def _groups(users: int, edges: int, width: int) -> list[tuple[range, range]]:
    """Rows that share a key: as many users, then edges, as WORDS_PER_KEY words are enough for."""
    groups, u, e = [], 0, 0
    while u < users or e < edges:
        user_rows = min(users - u, WORDS_PER_KEY // (3 * width))
        left = WORDS_PER_KEY - 3 * width * user_rows
        # no edges before the last user: the words of a group are its users', then its edges'
        edge_rows = min(edges - e, left // (2 * width)) if u + user_rows == users else 0
        groups.append((range(u, u + user_rows), range(e, e + edge_rows)))
        u, e = u + user_rows, e + edge_rows
    return groups


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
    """total = floor(gradient / unit + dither) + own noise, for users from `user`, as words last."""
    width, parameters = total.shape[1], gradients.shape[1]
    rows = min(total.shape[0] - user, len(words) // (3 * width))
    for r in range(rows):
        tie = False
        row, out = gradients[user + r, first : first + width], total[user + r]
        # each coordinate of each user has a dither of its own
        place = parameters * (user + r) + first
        mine = words[3 * width * r : 3 * width * (r + 1)]
        for k in range(width):
            out[k] = round_with_dither(np.float64(row[k]) * scale, dither, place + k)
        for k in range(width):
            a, t0 = decode(mine[3 * k], rounded)
            b, t1 = decode(mine[3 * k + 1], discrete)
            c, t2 = decode(mine[3 * k + 2], discrete)
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
    """total += noise at first ends, -= at second ends, for edges from `edge`, as words last."""
    width = total.shape[1]
    for r in range(len(words) // (2 * width)):
        tie, multiple = False, multiples[edge + r]
        plus, minus = total[ends[edge + r, 0]], total[ends[edge + r, 1]]
        mine = words[2 * width * r : 2 * width * (r + 1)]
        for k in range(width):
            a, t0 = decode(mine[2 * k], discrete)
            b, t1 = decode(mine[2 * k + 1], discrete)
            value = multiple * np.int64(a + COARSE * b)
            plus[k] += value
            minus[k] -= value
            tie |= t0 | t1
        tied[before + r] = tie


@njit(cache=True, nogil=True)
def _scale_rows(total: Array, unit: float, messages: Array, first: int) -> None:
    for u in range(total.shape[0]):
        for k in range(total.shape[1]):
            # unit has 24 bits: the product is exact for integers below 2^29 (docs/noise.md)
            messages[u, first + k] = unit * np.float64(total[u, k])
