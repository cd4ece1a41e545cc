"""Which examples each user takes in a step: all, a fixed number, or each one independently.

In a simulation batches are a function of (seed, step, user): a resumed run takes the examples that
the uninterrupted run would have taken. In a private run, and at real peers, batches are drawn with
secret random words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from numba import njit
from torch import Tensor

from decor.array_types import Array
from decor.choices import Sampling
from decor.errors import DecorError, InputError

Words = Callable[[int, int], Array]
"""(step, count) -> that many uniform, secret 32-bit words."""

LARGEST_BATCH = 100_000
"""Largest expected batch: beyond, the rounding of sums would take too much of the clip."""
_SPARE = 64
"""Spare 64-bit words per batch of fixed size: each word is rejected with p < examples / 2^64."""


@dataclass(frozen=True)
class Batch:
    """Examples by their row in the users' joint data, with their weights in the gradient.

    Attributes:
        rows: [users * seeds, width]. Padding is the row after the last, with weight zero.
        weights: One number, or a tensor like `rows` if rows are padded.
        planned: The largest expected size of a batch, which is public; None where it is one over
            the weight of an example.
        counts: How many rows of each user are examples, where each user's mean is taken alone;
            `weights` then says nothing.
        fixed: Whether all batches have this size, which is public then.
    """

    rows: Tensor
    weights: float | Tensor
    planned: float | None = None
    counts: tuple[int, ...] | None = None
    fixed: bool = False

    def to(self, device: torch.device) -> Batch:
        weights = self.weights if isinstance(self.weights, float) else self.weights.to(device)
        return replace(self, rows=self.rows.to(device), weights=weights)

    def part(self, groups: slice) -> tuple[Tensor, float | Tensor]:
        """Rows [B, width] and weights of some users, or users times seeds."""
        rows = self.rows[groups]
        if self.counts is not None:
            # a ValueError for several: the padding of one would tell how many another has
            (count,) = self.counts[groups]
            return rows[:, :count], 1.0 / count
        return rows, self.weights if isinstance(self.weights, float) else self.weights[groups]


@dataclass(frozen=True)
class CommonRate:
    """Poisson sampling at one rate for users whose numbers of examples are private.

    Attributes:
        rate: The probability with which each example is taken.
        largest: No user's expected batch is larger. Bounds on rounding depend on this alone: they
            must not depend on a number of examples.
    """

    rate: float
    largest: float

    @classmethod
    def of(
        cls, rate: float | None, size: int | None, users: int | None = None
    ) -> CommonRate | None:
        """The common rate of an exposure, if it has one.

        Args:
            rate: The exposure's rate.
            size: What sums are divided by.
            users: Their number; no user has more examples than all together, so a small federation
                needs a smaller allowance for rounding.
        """
        if rate is None:
            return None
        return cls(
            rate, min(LARGEST_BATCH, LARGEST_BATCH if users is None else users * (size or 1))
        )


class Batches:
    """Draws the batches of all users and seeds together.

    Args:
        records: How many examples each user holds.
        size: The expected or fixed batch size; None takes all examples.
        sampling: "poisson" or "fixed".
        seeds: Of a simulation; one entry, which is ignored, if `words` is given.
        unit: Poisson batches are padded to a multiple of this width.
        names: The users' numbers if these are some of many: a user's batch does not depend on
            which other users are here. None numbers them from 0.
        words: Secret random words for a private run; None draws from the seeds.
        common: The rate of all users, instead of `size` examples of each; sums are divided by
            `size` all the same.
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
        common: CommonRate | None = None,
    ) -> None:
        self.unit, self.words, self.common = unit, words, common
        self.names = np.arange(len(records)) if names is None else np.asarray(names, dtype=np.int64)
        self.records = np.asarray(records, dtype=np.int64)
        # a user's examples are consecutive rows of the joint data
        self.starts = np.concatenate([[0], np.cumsum(self.records)[:-1]])
        self.seeds = np.array(seeds, dtype=np.uint64)
        self.size, self.sampling = size, "all" if size is None else sampling
        self.null = int(self.records.sum())
        check_size(records, size, common)
        if size is None:
            self._all = self._whole_shards()
            return
        self._rates = np.full(len(self.records), common.rate) if common else size / self.records
        width = size
        if sampling != "fixed":
            # twelve standard deviations: a batch that does not fit is rarer than 1 in 10^30
            expected = self.expected or size
            width = int(min(self.records.max(), expected + 12 * np.sqrt(expected) + 32))
        self._rows = np.empty((len(self.records) * len(self.seeds), width), dtype=np.int64)
        self._counts = np.empty(len(self._rows), dtype=np.int64)
        self._scratch = np.arange(self.records.max(), dtype=np.int64)
        self._batch = Batch(torch.from_numpy(self._rows), 1.0 / size, fixed=sampling == "fixed")

    @property
    def alone(self) -> bool:
        """Whether each user's mean is taken alone: in private runs, of all examples.

        A product over several users has the shape of the largest shard, and its shape decides in
        which order it adds. So one user's number of examples would change the others' last bits,
        and by a whole clip where their sums cancel.
        """
        return self.size is None and self.words is not None

    @property
    def expected(self) -> float | None:
        """The largest expected size of a batch; None where users take all examples."""
        if self.common is None:
            return self.size
        return float(self.common.rate * self.records.max())

    def draw(self, step: int) -> Batch:
        """The batches of a step, valid until the next are drawn."""
        if self.size is None:
            return self._all
        if self.words is not None:
            return self._draw_secretly(self.words, step, self.size)
        draws = (self.names, self.seeds, step)
        if self.sampling == "fixed":
            _draw_fixed(self._rows, self._scratch, self.starts, self.records, *draws)
            return self._batch
        while not _draw_poisson(
            self._rows, self._counts, self.starts, self.records, self._rates, *draws, self.null
        ):
            # dropping an example that does not fit would change the distribution: draw again, wider
            self._rows = np.empty((len(self._rows), 2 * self._rows.shape[1]), dtype=np.int64)
        return self._pad(self.size)

    def _draw_secretly(self, words: Words, step: int, size: int) -> Batch:
        """The batches of a private run, from each user's own words in the order of the users."""
        if self.sampling == "fixed":
            # one 64-bit word per example of the batch: two of 32 bits
            each = 2 * (size + _SPARE)
            drawn = words(step, each * len(self.records))
            for u, start, held in self._shards():
                choose(drawn[each * u : each * (u + 1)], held, self._scratch, self._rows[u])
                self._rows[u] += start
            return self._batch
        drawn = words(step, self.null)
        for u, start, held in self._shards():
            taken = start + sample(drawn[start : start + held], size, self.common)
            # dropping an example that does not fit would change the distribution
            if len(taken) > self._rows.shape[1]:
                wider = np.empty((len(self._rows), 2 * len(taken)), dtype=np.int64)
                wider[:, : self._rows.shape[1]] = self._rows
                self._rows = wider
            self._rows[u, : len(taken)], self._rows[u, len(taken) :] = taken, self.null
            self._counts[u] = len(taken)
        return self._pad(size)

    def _shards(self) -> Iterator[tuple[int, int, int]]:
        """(user, first row, number of examples) of each user."""
        yield from zip(
            range(len(self.records)), self.starts.tolist(), self.records.tolist(), strict=True
        )

    def _pad(self, size: int) -> Batch:
        """The rows just drawn, padded to the longest batch."""
        longest = max(1, int(self._counts.max()))
        width = min(self._rows.shape[1], -(-longest // self.unit) * self.unit)
        inside = torch.from_numpy(np.arange(width) < self._counts[:, None])
        # by the expected size, never the realised one: that depends on a single example's presence
        planned = None if self.common is None else self.common.largest
        return Batch(torch.from_numpy(self._rows[:, :width]), inside.double() / size, planned)

    def _whole_shards(self) -> Batch:
        width = int(self.records.max())
        inside = np.arange(width) < self.records[:, None]
        rows = np.where(inside, self.starts[:, None] + np.arange(width), self.null)
        if self.alone:
            return Batch(torch.from_numpy(rows), 1.0, counts=tuple(self.records.tolist()))
        if inside.all():
            return Batch(torch.from_numpy(rows), 1.0 / width)
        weights = np.where(inside, 1.0 / self.records[:, None], 0.0)
        return Batch(torch.from_numpy(rows), torch.from_numpy(weights))


def words_needed(records: Sequence[int], size: int | None, sampling: Sampling) -> int:
    """How many 32-bit words the secret batches of one step take; arguments as of `Batches`."""
    if size is None:
        return 0
    return 2 * (size + _SPARE) * len(records) if sampling == "fixed" else sum(records)


def check_size(records: Sequence[int], size: int | None, common: CommonRate | None = None) -> None:
    """Refuses batches that are larger than a user's shard, or than bounds on rounding allow."""
    if common is not None:
        if records and common.rate * max(records) > common.largest:
            raise InputError(
                f"{max(records):,} examples of one user at rate {common.rate:g} are more than "
                f"batch_size {size} of all users together; take a larger batch_size"
                if common.largest < LARGEST_BATCH
                else f"a batch of about {common.rate * max(records):,.0f} examples is too large to "
                f"be summed exactly enough; take a rate for at most {LARGEST_BATCH:,}"
            )
        return
    for user, held in enumerate(records):
        if held < (size or 0):
            raise InputError(
                f"batch_size {size} is larger than the shard of user {user}, {held} examples; "
                "lower it, or leave it out"
            )


def secret_batch(
    records: int,
    size: int | None,
    sampling: Sampling,
    random: Callable[[int], bytes],
    common: CommonRate | None = None,
) -> Batch:
    """One user's batch from secret random bytes, as amplification by sampling requires.

    Args:
        records: How many examples the user holds.
        size: The expected or fixed batch size; None takes all examples.
        sampling: "poisson" or "fixed".
        random: Gives that many uniform, secret bytes.
        common: As of `Batches`.

    Guarantee: that of `sample` for "poisson", and of `choose` for "fixed".
    """
    if size is None:
        return Batch(torch.arange(records).unsqueeze(0), 1.0 / records)
    # the number of words does not depend on what is drawn
    count = words_needed([records], size, sampling)
    words = np.frombuffer(random(4 * count), "<u4").astype(np.uint32, copy=False)
    if sampling == "fixed":
        taken = np.empty(size, np.int64)
        choose(words, records, np.arange(records), taken)
        # ascending, as `sample` gives them
        taken.sort()
    else:
        taken = sample(words, size, common)
    planned = None if common is None else common.largest
    if not len(taken):
        # an empty batch is one row of padding, so that its gradient has the usual shape
        return Batch(torch.tensor([[records]]), torch.zeros(1, 1, dtype=torch.float64), planned)
    fixed = sampling == "fixed"
    return Batch(torch.from_numpy(taken).unsqueeze(0), 1.0 / size, planned, fixed=fixed)


def sample(words: Array, size: int, common: CommonRate | None = None) -> Array:
    """Poisson sampling: the examples taken, given one word for each example.

    Guarantee: each example is taken independently, with probability at most size / examples, or the
    common rate (and at most 2^-32 less).
    """
    rate = Fraction(size, max(1, len(words))) if common is None else Fraction(common.rate)
    if rate >= 1:
        return np.arange(len(words))
    # rounded down: a larger rate would exceed the accounted one
    return np.flatnonzero(words < np.uint32(int(rate * 2**32)))


def choose(words: Array, records: int, scratch: Array, taken: Array) -> None:
    """Sampling of a fixed size: fills `taken` with different examples.

    Args:
        words: Uniform words, 2 per example of the batch and some spare.
        records: How many examples there are.
        scratch: Holds 0 to records - 1 or more, before and after.
        taken: The result.

    Guarantee: every subset of that size is exactly equally likely if the words are uniform.
    """
    # what is compiled would read and write beyond `scratch`
    if len(taken) > records:
        raise ValueError(f"{len(taken)} of {records} examples cannot be chosen")
    if not _choose(words.view(np.uint64), records, scratch, taken):
        raise DecorError(
            "the words for a batch ran out, which uniform words do not in 10^1000 years; is the "
            "machine broken?"
        )


@njit(cache=True, nogil=True, error_model="numpy")
def _mix64(x: np.uint64) -> np.uint64:
    """splitmix64's finisher: a bijection of 64 bits in which each bit depends on all."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, error_model="numpy")
def _start(seed: np.uint64, step: int, user: int) -> np.uint64:
    # a constant that the noise's generator does not use, so batches and noise are independent
    start: np.uint64 = _mix64(
        _mix64(_mix64(seed ^ np.uint64(0x6A09E667F3BCC909)) + np.uint64(step)) + np.uint64(user)
    )
    return start


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_fixed(
    rows: Array,
    scratch: Array,
    starts: Array,
    records: Array,
    names: Array,
    seeds: Array,
    step: int,
) -> None:
    """A Fisher-Yates shuffle, stopped after the batch and undone: all subsets equally likely."""
    b, some = rows.shape[1], len(seeds)
    swapped = np.empty(b, dtype=np.int64)
    for u in range(len(records)):
        for s in range(some):
            state = _start(seeds[s], step, names[u])
            out = rows[u * some + s]
            for k in range(b):
                # splitmix64: the state advances by 2^64 divided by the golden ratio
                state = np.uint64(state + np.uint64(0x9E3779B97F4A7C15))
                # 53 random bits; the bias of about examples / 2^53 is harmless in a simulation
                j = k + np.int64(
                    np.float64(_mix64(state) >> np.uint64(11)) * 2.0**-53 * (records[u] - k)
                )
                swapped[k] = j
                scratch[k], scratch[j] = scratch[j], scratch[k]
                out[k] = starts[u] + scratch[k]
            # swaps undone in reverse order leave the scratch sorted, for the next user
            for k in range(b - 1, -1, -1):
                scratch[k], scratch[swapped[k]] = scratch[swapped[k]], scratch[k]


@njit(cache=True, nogil=True, error_model="numpy")
def _choose(words: Array, records: int, scratch: Array, taken: Array) -> bool:
    """A Fisher-Yates shuffle, stopped after the batch and undone; False if words run out."""
    at, b = 0, len(taken)
    swapped = np.empty(b, dtype=np.int64)
    for k in range(b):
        left = np.uint64(records - k)
        # words below 2^64 mod left are rejected: the others are uniform modulo left
        uneven = (np.uint64(0) - left) % left
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
def _draw_poisson(
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
    """Each example independently at its user's rate; False if they do not fit into `rows`."""
    some = len(seeds)
    for u in range(len(records)):
        sure = rates[u] >= 1.0
        # log of the probability to skip an example; log1p keeps its digits for small rates
        scale = 1.0 if sure else 1.0 / np.log1p(-rates[u])
        for s in range(some):
            state = _start(seeds[s], step, names[u])
            out = rows[u * some + s]
            count, at = 0, -1
            while True:
                state = np.uint64(state + np.uint64(0x9E3779B97F4A7C15))
                # never 0, whose logarithm is infinite
                uniform = (np.float64(_mix64(state) >> np.uint64(11)) + 0.5) * 2.0**-53
                # the number of examples skipped before the next is geometric
                gap = 0.0 if sure else np.floor(np.log(uniform) * scale)
                # compared before the cast to an integer, which a huge gap would overflow
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
