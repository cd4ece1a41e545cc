"""Which records every user takes in a step: all, a fixed number without replacement, or each one
independently (Poisson).

In a simulation what is drawn is a function of (seed, step, user): a resumed run takes the records
that the uninterrupted one would have taken. In a private run, and at real peers, it follows from
words that nobody else knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from decor.arrays import Array
from decor.choices import Sampling
from decor.errors import DecorError, InputError

Words = Callable[[int, int], Array]
"""(step, count) -> that many uniform 32-bit words, which nobody else knows."""

_SPARE = 64
"""Words of 64 bits, beside one for each place, for those that are rejected: at most one in 2^64 /
records is.
"""


@dataclass(frozen=True)
class Batch:
    """Records by row of the users' joint data, [users * seeds, width], with the weight that each
    has in the gradient.

    Weights are one number, or a tensor like `rows` where rows are padded (with the row after the
    last, and weight zero).
    """

    rows: Tensor
    weights: float | Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(
            self.rows.to(device),
            self.weights if isinstance(self.weights, float) else self.weights.to(device),
        )


class Batches:
    """Draws the batches of all users and seeds together; sampled ones are padded to a multiple of
    `unit` records.

    `names` are the users' numbers, where these are some of many: a user's records do not depend on
    who else is here. `words` draws the batches of a private run, for which `seeds` has one entry
    that means nothing.
    """

    def __init__(
        self,
        records: Sequence[int],
        size: int | None,
        sampling: Sampling,
        seeds: Sequence[int],
        unit: int = 1,
        names: Sequence[int] | None = None,
        words: Words | None = None,
    ) -> None:
        self.unit, self.words = unit, words
        self.names = np.arange(len(records)) if names is None else np.asarray(names, dtype=np.int64)
        self.records = np.asarray(records, dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.records)[:-1]])
        self.seeds = np.array(seeds, dtype=np.uint64)
        self.size, self.sampling = size, "all" if size is None else sampling
        self.null = int(self.records.sum())
        check_size(records, size)
        if size is None:
            self._all = self._everything()
        else:
            wide = (
                size
                if sampling == "fixed"
                else int(min(self.records.max(), size + 12 * np.sqrt(size) + 32))
            )
            self._rows = np.empty((len(self.records) * len(self.seeds), wide), dtype=np.int64)
            self._counts = np.empty(len(self._rows), dtype=np.int64)
            self._scratch = np.arange(self.records.max(), dtype=np.int64)
            self._batch = Batch(torch.from_numpy(self._rows), 1.0 / size)

    def draw(self, step: int) -> Batch:
        """The batches of a step, valid until the next are drawn."""
        if self.size is None:
            return self._all
        if self.words is not None:
            return self._drawn_secretly(self.words, step)
        if self.sampling == "fixed":
            _fixed(
                self._rows, self._scratch, self.starts, self.records, self.names, self.seeds, step
            )
            return self._batch
        rates = self.size / self.records
        while not _poisson(
            self._rows,
            self._counts,
            self.starts,
            self.records,
            rates,
            self.names,
            self.seeds,
            step,
            self.null,
        ):
            # rarer than once in 10^30 steps; drawn again with room, because leaving a record out
            # would change the law
            self._rows = np.empty((len(self._rows), 2 * self._rows.shape[1]), dtype=np.int64)
        return self._sampled()

    def _drawn_secretly(self, words: Words, step: int) -> Batch:
        """The batches of a private run: each user's own words, in the order of the users."""
        assert self.size is not None
        if self.sampling == "fixed":
            each = 2 * (self.size + _SPARE)
            drawn = words(step, each * len(self.records))
            for u, (start, held) in enumerate(
                zip(self.starts.tolist(), self.records.tolist(), strict=True)
            ):
                choose(drawn[each * u : each * (u + 1)], held, self._scratch, self._rows[u])
                self._rows[u] += start
            return self._batch
        drawn, first = words(step, self.null), 0
        for u, (start, held) in enumerate(
            zip(self.starts.tolist(), self.records.tolist(), strict=True)
        ):
            taken = start + sample(drawn[first : first + held], self.size)
            first += held
            # rarer than once in 10^30 steps; leaving a record out would change the law
            if len(taken) > self._rows.shape[1]:
                wider = np.empty((len(self._rows), 2 * len(taken)), dtype=np.int64)
                wider[:, : self._rows.shape[1]] = self._rows
                self._rows = wider
            self._rows[u, : len(taken)], self._rows[u, len(taken) :] = taken, self.null
            self._counts[u] = len(taken)
        return self._sampled()

    def _sampled(self) -> Batch:
        """What has been drawn, padded to the longest batch."""
        assert self.size is not None
        wide = min(
            self._rows.shape[1], -(-max(1, int(self._counts.max())) // self.unit) * self.unit
        )
        rows = torch.from_numpy(self._rows[:, :wide])
        # by the expected size, never the realised one: dividing by what one record can change would
        # leak it
        return Batch(
            rows, torch.from_numpy(np.arange(wide) < self._counts[:, None]).double() / self.size
        )

    def _everything(self) -> Batch:
        wide = int(self.records.max())
        inside = np.arange(wide) < self.records[:, None]
        rows = np.where(inside, self.starts[:, None] + np.arange(wide), self.null)
        weights = np.where(inside, 1.0 / self.records[:, None], 0.0)
        alike = bool(inside.all())
        return Batch(torch.from_numpy(rows), 1.0 / wide if alike else torch.from_numpy(weights))


def words_needed(records: Sequence[int], size: int | None, sampling: Sampling) -> int:
    """How many words the secret batches of a step take."""
    if size is None:
        return 0
    return 2 * (size + _SPARE) * len(records) if sampling == "fixed" else sum(records)


def check_size(records: Sequence[int], size: int | None) -> None:
    """Refuses batches that are larger than somebody's shard."""
    for user, held in enumerate(records):
        if held < (size or 0):
            raise InputError(
                f"batch_size {size} is larger than the shard of user {user}, {held} records; "
                "lower it, or leave it out"
            )


def secretly(
    records: int, size: int | None, sampling: Sampling, random: Callable[[int], bytes]
) -> Batch:
    """One user's batch, by random bytes that nobody else knows: what amplification by sampling asks
    for.

    Guarantee: see `sample` "poisson" and `choose` "fixed".
    """
    if size is None:
        return Batch(torch.arange(records).unsqueeze(0), 1.0 / records)
    count = 2 * (size + _SPARE) if sampling == "fixed" else records
    words = np.frombuffer(random(4 * count), "<u4").astype(np.uint32, copy=False)
    if sampling == "fixed":
        taken = np.empty(size, np.int64)
        choose(words, records, np.arange(records), taken)
        taken.sort()
    else:
        taken = sample(words, size)
    if not len(taken):
        return Batch(torch.tensor([[records]]), torch.zeros(1, 1, dtype=torch.float64))
    return Batch(torch.from_numpy(taken).unsqueeze(0), 1.0 / size)


def sample(words: Array, size: int) -> Array:
    """Poisson: the records taken, one word for each.

    Guarantee: every record is taken with probability at most size / records (less by 2^-32 at
    most), independently.
    """
    if size >= len(words):
        return np.arange(len(words))
    return np.flatnonzero(words < np.uint32((size << 32) // len(words)))


def choose(words: Array, records: int, scratch: Array, taken: Array) -> None:
    """Fixed size: `taken` becomes different records.

    `scratch` holds 0 to records - 1 or more, before and after.

    Guarantee: every subset of that size is exactly equally likely, if words are uniform.
    """
    if not _choose(words.view(np.uint64), records, scratch, taken):
        raise DecorError(
            "the words for a batch ran out, which uniform words do not in 10^1000 "
            "years; is the machine broken?"
        )


@njit(cache=True, nogil=True, error_model="numpy")
def _mixed(x: np.uint64) -> np.uint64:
    """A bijection of 64 bits in which every bit depends on all (splitmix64's finisher)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, error_model="numpy")
def _start(seed: np.uint64, step: int, user: int) -> np.uint64:
    # another constant than the noise's generator knows: batches and noise are independent
    start: np.uint64 = _mixed(
        _mixed(_mixed(seed ^ np.uint64(0x6A09E667F3BCC909)) + np.uint64(step)) + np.uint64(user)
    )
    return start


@njit(cache=True, nogil=True, error_model="numpy")
def _fixed(
    rows: Array,
    scratch: Array,
    starts: Array,
    records: Array,
    names: Array,
    seeds: Array,
    step: int,
) -> None:
    """Fisher and Yates' shuffle stopped after the batch, and undone: every subset is equally
    likely, and nothing is kept.
    """
    b, some = rows.shape[1], len(seeds)
    swapped = np.empty(b, dtype=np.int64)
    for u in range(len(records)):
        for s in range(some):
            state = _start(seeds[s], step, names[u])
            out = rows[u * some + s]
            for k in range(b):
                state = np.uint64(state + np.uint64(0x9E3779B97F4A7C15))
                j = k + np.int64(
                    np.float64(_mixed(state) >> np.uint64(11)) * 2.0**-53 * (records[u] - k)
                )
                swapped[k] = j
                scratch[k], scratch[j] = scratch[j], scratch[k]
                out[k] = starts[u] + scratch[k]
            for k in range(b - 1, -1, -1):
                scratch[k], scratch[swapped[k]] = scratch[swapped[k]], scratch[k]


@njit(cache=True, nogil=True, error_model="numpy")
def _choose(words: Array, records: int, scratch: Array, taken: Array) -> bool:
    """Fisher and Yates' shuffle stopped after the batch, and undone; words in the uneven rest of
    2^64 are rejected.
    """
    at, b = 0, len(taken)
    swapped = np.empty(b, dtype=np.int64)
    for k in range(b):
        left = np.uint64(records - k)
        uneven = (np.uint64(0) - left) % left  # 2^64 mod left
        while at < len(words) and words[at] < uneven:
            at += 1
        if at == len(words):
            return False
        j = k + np.int64(words[at] % left)
        at += 1
        swapped[k] = j
        scratch[k], scratch[j] = scratch[j], scratch[k]
        taken[k] = scratch[k]
    for k in range(b - 1, -1, -1):
        scratch[k], scratch[swapped[k]] = scratch[swapped[k]], scratch[k]
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _poisson(
    rows: Array,
    counts: Array,
    starts: Array,
    records: Array,
    rates: Array,
    names: Array,
    seeds: Array,
    step: int,
    null: int,
) -> bool:
    """Every record with its user's rate, independently, by the geometric gaps between those taken;
    False if they do not fit.
    """
    some = len(seeds)
    for u in range(len(records)):
        sure = rates[u] >= 1.0
        scale = 1.0 if sure else 1.0 / np.log1p(-rates[u])
        for s in range(some):
            state = _start(seeds[s], step, names[u])
            out = rows[u * some + s]
            count, at = 0, -1
            while True:
                state = np.uint64(state + np.uint64(0x9E3779B97F4A7C15))
                uniform = (np.float64(_mixed(state) >> np.uint64(11)) + 0.5) * 2.0**-53
                gap = 0.0 if sure else np.floor(np.log(uniform) * scale)
                if gap >= records[u] - 1 - at:
                    break
                at += 1 + int(gap)
                if count == len(out):
                    return False
                out[count] = starts[u] + at
                count += 1
            counts[u * some + s] = count
            out[count:] = null
    return True
