# mypy: disallow-untyped-decorators=False
"""Gradient and noise on one integer grid: what a user releases in a step is an integer multiple of
`unit`, and so are its parts.

Guarantee: a run of n users whose messages all come from `Grid.noised` (or from `noise.secret`, for
many users at once), each with fresh keys, is as private as the same run with continuous Gaussian
noise of the planned deviations and no grid, but for `slack(epsilon)` on delta. It holds for the
gradients passed in: `shift` must bound how far two neighbouring ones are apart, their own
floating-point errors included. docs/noise.md has the proof.
"""

from __future__ import annotations

import hmac
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from decor.arrays import Array
from decor.errors import InputError

from .stream import (
    COARSE,
    DISTANCE,
    EDGE_LARGEST,
    EDGE_SIGMA,
    FINE,
    OWN,
    OWN_SIGMA,
    PART,
    SHARED,
    Integers,
    parts,
)

TAG_BYTES = 8
OWN_DEPARTURE, EDGE_DEPARTURE = 1.08e-53, 5.44e-54
"""Bounds of |log| of a law over a Gaussian one: of a user's own value before it is rounded, and of
an edge's on the integers.
"""
LARGEST_DEPARTURE = 1e-12
"""How much the logarithm of a likelihood ratio of the whole run may change because the noise is on
a grid.
"""

_OWN_SQUARE, _EDGE_SQUARE = 1 + COARSE**2 + COARSE**4, 1 + COARSE**2
_FRACTION = 16
_FARTHEST = float(1 << 52)
_ROUNDING = Decimal(1) + Decimal(1) / (1 << 14)
_DIGITS = Context(prec=12, rounding=ROUND_CEILING)
_OWN_KEY, _DITHER_KEY, _TAG_KEY = b"decor own noise 1", b"decor dither 1", b"decor noise tag 1"


@dataclass(frozen=True)
class Grid:
    """The grid of a run, the same at every user: made by `Grid.of`."""

    unit: float
    """The value of one step of the grid: a number of 24 bits, so that messages are exact in
    float64.
    """
    multiples: tuple[int, ...]
    """By how much each edge's values are multiplied, in the order in which the edges were given."""
    values: int
    """How many values all users together draw in the run, at most."""
    departure: float
    """A bound of the total variation between all messages and Gaussian ones, were every value's
    table its ideal law.
    """

    @staticmethod
    def of(
        sigma_cdp: float,
        sigma_cor: Sequence[float],
        edges: ArrayLike,
        users: int,
        shift: float,
        parameters: int,
        steps: int,
        words_per_key: int | None = None,
        batch_words: int = 0,
    ) -> Grid:
        """The grid for noise `sigma_cdp` of every user's own and `sigma_cor` of every edge, edges
        being pairs of user numbers.

        `shift` is how far apart two neighbouring gradients can be in norm: noise grows a little to
        hide their rounding as well. Deviations count with 12 decimal digits, rounded up, and all
        that follows is exact or has a fixed precision: machines whose plans agree that far have the
        same grid. `words_per_key`: None where every user and every edge has a key of its own in
        every step; else the most words that one key serves, of streams that serve several users and
        edges one after the other, and the `batch_words` from which batches of a step are drawn.
        """
        ends = [(int(i), int(j)) for i, j in np.asarray(edges, np.int64).reshape(-1, 2)]
        _meant(sigma_cdp, sigma_cor, ends, users, shift, (parameters, steps))
        s = _DIGITS.create_decimal_from_float(float(sigma_cdp))
        found = {
            float(c): _multiple(_DIGITS.create_decimal_from_float(float(c)), s) for c in sigma_cor
        }
        multiples = tuple(found[float(c)] for c in sigma_cor)
        values = int(parameters) * int(steps) * (users + 2 * len(ends))
        departure = _departure(multiples, ends, users, int(parameters) * int(steps))
        departure += int(steps) * _unrepeated(
            users, len(ends), int(parameters), words_per_key, batch_words
        )
        return Grid(_unit(s, Decimal(float(shift)), int(parameters)), multiples, values, departure)

    @property
    def distance(self) -> float:
        """A bound of the total variation between all messages and Gaussian ones: the tables, the
        cipher's blocks, the grid.
        """
        return self.values * DISTANCE + self.departure

    def slack(self, epsilon: float) -> float:
        """What is to be added to delta for all that is not exactly Gaussian."""
        if not epsilon >= 0:
            raise InputError(f"an epsilon is a number from 0 on, not {epsilon!r}")
        return min(1.0, (1 + math.exp(min(epsilon, 700.0))) * self.distance)

    def largest_epsilon(self, delta: float) -> float:
        """The largest epsilon whose slack is at most `delta`."""
        return max(0.0, math.log(max(delta / self.distance - 1, 1e-300)))

    @property
    def scale(self) -> float:
        """What a gradient is multiplied by before it is rounded to an integer: there are 2^16 of
        these in a grid step.
        """
        return 2.0**_FRACTION / self.unit

    def noised(
        self,
        gradient: Array,
        own_key: bytes,
        edges: Sequence[tuple[bytes, int]],
        factor: float = 1.0,
        over: bool = False,
    ) -> tuple[Array, list[bytes]]:
        """A step's message, for `factor` times the gradient, and every edge's `tag`.

        `own_key`: 32 bytes of this step that nobody else knows. `edges`: for every edge its key of
        this step and its multiple, positive at the user with the lower number and negative at the
        other. Keys that served once must not serve again. The message is in float64, where it is
        exact; or, with `over`, in the gradient's place and type. Nothing about the gradient's
        values is refused, because neighbours would see a refusal: entries beyond 2^36 grid steps
        count as that far, which brings no two gradients further apart, and an entry that is not a
        number counts as zero.
        """
        numbers = np.ascontiguousarray(
            gradient, None if gradient.dtype in (np.float32, np.float64) else np.float64
        )
        if numbers.ndim != 1:
            raise InputError(
                "a gradient is one row of numbers, not an array of shape "
                f"{numbers.shape}; flatten it"
            )
        _summable(own_key, edges)
        message, total = (
            numbers if over else np.empty(len(numbers)),
            np.empty(min(len(numbers), PART), np.int64),
        )
        seed = np.uint32(int.from_bytes(_keyed(own_key, _DITHER_KEY)[:4], "little"))
        streams, sums, first = (
            [parts(key, len(numbers), SHARED) for key, _ in edges],
            [0] * len(edges),
            0,
        )
        for own in parts(_keyed(own_key, _OWN_KEY), len(numbers), OWN):
            there, some = slice(first, first + len(own)), total[: len(own)]
            _place(numbers[there], self.scale * factor, seed, first, own, some)
            for e, (_, multiple) in enumerate(edges):
                values = next(streams[e])
                _add(values, np.int64(multiple), some)
                sums[e] = zlib.crc32(_bytes(values), sums[e])
            _scale(some, self.unit, message[there])
            first += len(own)
        return message, [_tag(key, sum_, first) for (key, _), sum_ in zip(edges, sums, strict=True)]


def tag(key: bytes, values: Integers) -> bytes:
    """Eight bytes for the two ends of an edge to compare: whoever holds the step's `key` and drew
    the same has the same.

    Different values have different tags but for one chance in 2^32; to others a tag tells nothing.
    """
    return _tag(key, zlib.crc32(_bytes(values)), len(values))


def _bytes(values: Integers) -> memoryview:
    return np.ascontiguousarray(values, "<i4").data  # the same on processors of either byte order


def _tag(key: bytes, sum_: int, count: int) -> bytes:
    return _keyed(_keyed(key, _TAG_KEY), struct.pack("<IQ", sum_, count))[:TAG_BYTES]


def _keyed(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _unit(s: Decimal, shift: Decimal, parameters: int) -> float:
    """s' / OWN_SIGMA rounded up to 24 bits: with s' = s / (1 - share) the shift, and a grid step a
    coordinate, are hidden.
    """
    with localcontext(Context(prec=50)):
        deviation = FINE * Decimal(_OWN_SQUARE).sqrt()
        share = s * Decimal(parameters).sqrt() * _ROUNDING / (shift * deviation)
        if share > Decimal("0.5"):
            raise InputError(
                f"noise {s:g} for a shift of {float(shift):g} in {parameters} coordinates: "
                "rounding to the grid alone would "
                f"move a gradient by {float(share):.2g} of that shift. Use fewer parameters, "
                "fewer steps or a larger epsilon"
            )
        exact = Fraction(s / (1 - share) / deviation * (1 + Decimal(10) ** -40))
    step = Fraction(2) ** (exact.numerator.bit_length() - exact.denominator.bit_length() - 23)
    return float(math.ceil(exact / step) * step)


def _multiple(c: Decimal, s: Decimal) -> int:
    """The least M with M EDGE_SIGMA / OWN_SIGMA >= c / s, in whole numbers."""
    square = math.ceil(Fraction(c) ** 2 * _OWN_SQUARE / (Fraction(s) ** 2 * _EDGE_SQUARE))
    return math.isqrt(square - 1) + 1 if square else 0


def _departure(
    multiples: Sequence[int], ends: Sequence[tuple[int, int]], users: int, coordinates: int
) -> float:
    """A bound of |log| of the density of all messages over a Gaussian one, whichever edges are
    known or drawn apart.
    """
    squares = [0] * users
    for (i, j), multiple in zip(ends, multiples, strict=True):
        squares[i] += multiple**2
        squares[j] += multiple**2
    heaviest = min(max(squares), 10**300)
    widest = 1 / EDGE_SIGMA**2 + 2 * heaviest / OWN_SIGMA**2
    # 2 sum_k exp(-2 pi^2 k^2 / widest) is below 2.1 of its first exponential for widest < 2, and
    # what is wider is refused
    ripple, independent = 2.1 * math.exp(-2 * math.pi**2 / widest), 2 * len(multiples)
    one = (
        users * OWN_DEPARTURE
        + independent * EDGE_DEPARTURE
        + math.expm1(min(1.0, independent * math.log1p(ripple)))
    )
    # the thousandth is for roundings here, and for log(1 + x) against x
    found = 1.001 * coordinates * one
    if 2 * found > LARGEST_DEPARTURE:
        raise InputError(
            f"the edges of one user have {math.sqrt(heaviest) * EDGE_SIGMA / OWN_SIGMA:.3g} times "
            "its own noise: too wide for "
            f"the integer grid. A sigma_cor below {_room(independent, coordinates, widest):.2g} "
            "of this one fits; plan with a "
            "smaller ratio"
        )
    return found


def _unrepeated(
    users: int, edges: int, parameters: int, words_per_key: int | None, batch_words: int
) -> float:
    """What a step owes to blocks of one key never being equal: at most the expected number of equal
    pairs of uniform blocks.

    q blocks have less than q^2 / 2 pairs. Blocks for ties, for one word in 2^20, are within the
    thousandth that is added.
    """
    # blocks of four words: three quarters of one for a user's own value, half of one for an edge's,
    # drawn apart at both ends
    pairs = users * (0.75 * parameters + 1) ** 2 + 2 * edges * (0.5 * parameters + 1) ** 2
    if words_per_key is not None:
        for words in (parameters * (3 * users + 2 * edges), batch_words):
            keys = math.ceil(words / words_per_key)
            pairs += (words / 4 + keys) * (min(words, words_per_key) / 4 + 1)
    return 1.001 * pairs * 2.0**-129


def _room(independent: int, coordinates: int, widest: float) -> float:
    """To what part edges' noise has to shrink, with a little to spare."""
    return 0.97 * math.sqrt(
        2 * math.pi**2 / math.log(5.0 * independent * coordinates / LARGEST_DEPARTURE) / widest
    )


def _meant(
    sigma_cdp: float,
    sigma_cor: Sequence[float],
    ends: Sequence[tuple[int, int]],
    users: int,
    shift: float,
    counts: tuple[int, int],
) -> None:
    for name, value in (("sigma_cdp", sigma_cdp), ("shift", shift)):
        if not 0 < value < math.inf:
            raise InputError(f"{name} is a number above 0, not {value!r}")
    for name, count in (("users", users), ("parameters", counts[0]), ("steps", counts[1])):
        if count < 1 or int(count) != count:
            raise InputError(f"{name} is a whole number from 1 on, not {count!r}")
    if len(sigma_cor) != len(ends):
        raise InputError(
            f"{len(sigma_cor)} deviations for {len(ends)} edges; give one for every edge"
        )
    for c in sigma_cor:
        if not 0 <= c < math.inf:
            raise InputError(f"an edge's deviation is a number from 0 on, not {c!r}")
    for i, j in ends:
        if not (0 <= i < users and 0 <= j < users and i != j):
            raise InputError(
                f"an edge joins two different users from 0 to {users - 1}, not {i} and {j}"
            )


def _summable(own_key: bytes, edges: Sequence[tuple[bytes, int]]) -> None:
    """Raises unless keys are keys, each used once, and no sum can leave the 64-bit integers (grids
    of `of` are far below).
    """
    keys = [own_key, *(key for key, _ in edges)]
    if any(len(key) != 32 for key in keys):
        raise InputError("a step's keys have 32 bytes each")
    if len(set(keys)) < len(keys):
        raise InputError("two of a step's keys are the same; every edge has its own")
    if sum(abs(multiple) for _, multiple in edges) * EDGE_LARGEST >= 1 << 62:
        raise InputError(
            "the edges' multiples are too large for 64-bit sums; take those of the grid"
        )


@njit(cache=True, nogil=True)
def _place(
    gradient: Array, scale: float, seed: np.uint32, first: int, own: Array, total: Array
) -> None:
    """total = floor(gradient / unit + dither) + own, in integers after one rounding to a fraction
    of a grid step.
    """
    for k in range(len(own)):
        total[k] = placed(np.float64(gradient[k]) * scale, seed, first + k)
    for k in range(len(own)):
        total[k] += np.int64(own[k])


@njit(cache=True, nogil=True, inline="always")
def placed(x: float, seed: np.uint32, place: int) -> np.int64:
    """x / 2^16 rounded to an integer by the dither of this place: down or up, to x in the mean."""
    # comparisons with nan are false: it becomes zero, and what is far off the farthest
    near = min(max(x, -_FARTHEST), _FARTHEST) if x == x else 0.0
    # the finaliser of MurmurHash3: dither decides how gradients round and hides nothing, so that
    # speed may choose
    z = np.uint32(place) * np.uint32(0x9E3779B9) + seed
    z = np.uint32(z ^ (z >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    z = np.uint32(z ^ (z >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    dither = np.int64(np.uint32(z) >> np.uint32(32 - _FRACTION))
    return (np.int64(np.rint(near)) + dither) >> np.int64(_FRACTION)


@njit(cache=True, nogil=True)
def _add(values: Array, multiple: np.int64, total: Array) -> None:
    for k in range(len(values)):
        total[k] += multiple * np.int64(values[k])


@njit(cache=True, nogil=True)
def _scale(total: Array, unit: float, message: Array) -> None:
    for k in range(len(total)):
        message[k] = unit * np.float64(total[k])
