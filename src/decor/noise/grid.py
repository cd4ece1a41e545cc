# mypy: disallow-untyped-decorators=False
"""Gradient and noise on one integer grid: messages and their parts are multiples of `unit`.

Guarantee: a run of n users whose messages all come from `Grid.add_noise` (or from
`private_noise`, for many users at once), each with fresh keys, is as private as the same run with
continuous Gaussian noise of the planned deviations and no grid, but for `slack(epsilon)` on delta.
This holds for the gradients passed in: `shift` must bound how far two neighbouring ones are apart,
including their own floating-point errors. docs/noise.md has the proof.
"""

from __future__ import annotations

import hmac
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from decor.array_types import Array
from decor.errors import InputError

from .integer_gaussians import (
    COARSE,
    DISTANCE,
    EDGE_LARGEST,
    EDGE_SIGMA,
    FINE,
    OWN,
    OWN_LARGEST,
    OWN_SIGMA,
    PART,
    SHARED,
    Integers,
    parts,
)

TAG_BYTES = 8
OWN_DEPARTURE, EDGE_DEPARTURE = 1.08e-53, 5.44e-54
"""Bounds of |log| of a density over a Gaussian one: of a user's own value before it is rounded, and
of an edge's on the integers.
"""
LARGEST_DEPARTURE = 1e-12
"""Largest change of the run's log likelihood ratio that the grid may cause."""

_OWN_SQUARE, _EDGE_SQUARE = 1 + COARSE**2 + COARSE**4, 1 + COARSE**2
_FRACTION = 16
"""Bits of a grid step in which a gradient is rounded before its dither is added."""
_FARTHEST = float(1 << 52)
_ROUNDING = Decimal(1) + Decimal(1) / (1 << 14)
_DIGITS = Context(prec=12, rounding=ROUND_CEILING)
_OWN_KEY, _DITHER_KEY, _TAG_KEY = b"decor own noise 1", b"decor dither 1", b"decor noise tag 1"
_BESIDE_KEY = b"decor own noise beside 1"


@dataclass(frozen=True)
class Grid:
    """The grid of a run, the same for all users: made by `Grid.of`.

    Attributes:
        unit: The value of one grid step, a number of 24 bits: messages are exact in float64.
        multiples: By how much each edge's values are multiplied, in the order of the edges.
        own_multiples: By how much values that each user draws beside its own noise are multiplied,
            where users have own noise at different levels: they are drawn like an edge's, but
            nobody else knows them. Empty where all users have the same.
        values: How many values all users together draw in the run, at most.
        departure: A bound of the total variation between all messages and Gaussian ones, if the
            table of each value were its ideal distribution.
    """

    unit: float
    multiples: tuple[int, ...]
    values: int
    departure: float
    own_multiples: tuple[int, ...] = ()

    @staticmethod
    def of(
        sigma_cdp: float | Sequence[float] | Array,
        sigma_cor: Sequence[float],
        edges: ArrayLike,
        users: int,
        shift: float,
        parameters: int,
        steps: int,
        words_per_key: int | None = None,
        batch_words: int = 0,
    ) -> Grid:
        """The grid for a plan's noise.

        Args:
            sigma_cdp: Standard deviation of each user's own noise, one number or one per user. The
                smallest sets the unit; the rest is drawn beside it (`own_multiples`).
            sigma_cor: Standard deviation of each edge's noise.
            edges: Pairs of user numbers.
            users: Number of users.
            shift: How far apart two neighbouring gradients can be in norm. Noise grows a little, to
                hide their rounding as well.
            parameters: Number of the model's parameters.
            steps: Number of steps.
            words_per_key: None if each user and each edge has its own key in each step. Else the
                most words that one key serves, in streams for several users and edges.
            batch_words: Words from which the batches of a step are drawn.

        Raises:
            InputError: If the noise does not fit on a grid: edge noise is too large, or the noise
                is too small for the rounding of this many parameters.

        Standard deviations count with 12 decimal digits, rounded up. All that follows is exact or
        of fixed precision: machines whose plans agree that far have the same grid.
        """
        ends = [(int(i), int(j)) for i, j in np.asarray(edges, np.int64).reshape(-1, 2)]
        by_user = [float(s) for s in np.atleast_1d(np.asarray(sigma_cdp, np.float64))]
        _check(by_user, sigma_cor, ends, users, shift, (parameters, steps))
        parameters, steps = int(parameters), int(steps)
        s = _DIGITS.create_decimal_from_float(min(by_user))
        own = tuple(_multiple_beside(_DIGITS.create_decimal_from_float(o), s) for o in by_user)
        own = own if any(own) else ()
        # edges with equal noise are the rule: each level is computed once
        by_level = {
            float(c): _multiple(_DIGITS.create_decimal_from_float(float(c)), s) for c in sigma_cor
        }
        multiples = tuple(by_level[float(c)] for c in sigma_cor)
        # an edge is drawn twice, at both of its ends
        beside = sum(multiple > 0 for multiple in own)
        values = parameters * steps * (users + 2 * len(ends) + beside)
        departure = _departure(multiples, own, ends, users, parameters * steps)
        departure += steps * _block_collisions(
            users, len(ends), beside, parameters, words_per_key, batch_words
        )
        unit = _unit(s, Decimal(float(shift)), parameters)
        return Grid(unit, multiples, values, departure, own)

    @property
    def distance(self) -> float:
        """A bound of the total variation between all messages and Gaussian ones: all errors."""
        return self.values * DISTANCE + self.departure

    def slack(self, epsilon: float) -> float:
        """What must be added to delta for all that is not exactly Gaussian."""
        if not epsilon >= 0:
            raise InputError(f"epsilon must be at least 0, not {epsilon!r}")
        # total variation t changes (epsilon, delta) by (1 + e^epsilon) t; exp overflows from 710
        return min(1.0, (1 + math.exp(min(epsilon, 700.0))) * self.distance)

    def largest_epsilon(self, delta: float) -> float:
        """The largest epsilon whose slack is at most `delta`."""
        return max(0.0, math.log(max(delta / self.distance - 1, 1e-300)))

    @property
    def scale(self) -> float:
        """Turns a gradient into fractions of a grid step, 2^16 of them, before it is rounded."""
        return 2.0**_FRACTION / self.unit

    def largest_noise(self, multiples: Iterable[int]) -> float:
        """The largest noise that a parameter of a user can get: the tables end somewhere.

        Args:
            multiples: Of the user's edges, and its own.
        """
        edges = sum(abs(multiple) for multiple in multiples)
        return self.unit * (OWN_LARGEST + edges * EDGE_LARGEST)

    def add_noise(
        self,
        gradient: Array,
        own_key: bytes,
        edges: Sequence[tuple[bytes, int]],
        factor: float = 1.0,
        over: bool = False,
        own_multiple: int = 0,
    ) -> tuple[Array, list[bytes]]:
        """A step's message for `factor` times the gradient, and the `tag` of each edge.

        Args:
            gradient: One row of floats. No value is refused, because neighbours would see a
                refusal: entries beyond 2^36 grid steps count as that far, which brings no two
                gradients further apart, and nan counts as zero.
            own_key: 32 bytes for this step that no other user knows.
            edges: For each edge its key of this step, and its multiple: positive at the user with
                the lower number, negative at the other. No key may be used twice.
            factor: Multiplies the gradient.
            over: Writes the message into `gradient`, in its type, instead of into a float64 array,
                where it is exact.
            own_multiple: The user's of `own_multiples`; 0 where there are none.
        """
        is_float = gradient.dtype in (np.float32, np.float64)
        values = np.ascontiguousarray(gradient, None if is_float else np.float64)
        if values.ndim != 1:
            raise InputError(
                f"a gradient is one row of values, not an array of shape {values.shape}; flatten it"
            )
        _check_keys(own_key, edges, own_multiple)
        message = values if over else np.empty(len(values))
        total = np.empty(min(len(values), PART), np.int64)
        # own noise and dither from different keys, so that they are independent
        seed = np.uint32(int.from_bytes(_hmac(own_key, _DITHER_KEY)[:4], "little"))
        streams = [parts(key, len(values), SHARED) for key, _ in edges]
        # like an edge to nobody: from a key of its own, so that it is independent of the rest
        beside = parts(_hmac(own_key, _BESIDE_KEY), len(values), SHARED) if own_multiple else None
        checksums, first = [0] * len(edges), 0
        # part by part, so that the noise of all edges need never be kept
        for own in parts(_hmac(own_key, _OWN_KEY), len(values), OWN):
            here, part = slice(first, first + len(own)), total[: len(own)]
            _place(values[here], self.scale * factor, seed, first, own, part)
            if beside is not None:
                _add(next(beside), np.int64(own_multiple), part)
            for e, (_, multiple) in enumerate(edges):
                noise = next(streams[e])
                _add(noise, np.int64(multiple), part)
                checksums[e] = zlib.crc32(_bytes(noise), checksums[e])
            _scale(part, self.unit, message[here])
            first += len(own)
        tags = [_tag(key, crc, first) for (key, _), crc in zip(edges, checksums, strict=True)]
        return message, tags


def tag(key: bytes, values: Integers) -> bytes:
    """Eight bytes for the two ends of an edge to compare: the same if key and values are the same.

    Different values have different tags but for one chance in 2^32. Without the key a tag reveals
    nothing.
    """
    return _tag(key, zlib.crc32(_bytes(values)), len(values))


def _bytes(values: Integers) -> memoryview:
    return np.ascontiguousarray(values, "<i4").data  # the same on CPUs of either byte order


def _tag(key: bytes, crc: int, count: int) -> bytes:
    return _hmac(_hmac(key, _TAG_KEY), struct.pack("<IQ", crc, count))[:TAG_BYTES]


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _unit(s: Decimal, shift: Decimal, parameters: int) -> float:
    """s' / OWN_SIGMA, rounded up to 24 bits, where s' = s / (1 - share).

    s' hides the shift and, in each coordinate, one more grid step.
    """
    with localcontext(Context(prec=50)):
        deviation = FINE * Decimal(_OWN_SQUARE).sqrt()
        share = s * Decimal(parameters).sqrt() * _ROUNDING / (shift * deviation)
        if share > Decimal("0.5"):
            raise InputError(
                f"noise {s:g} for a shift of {float(shift):g} in {parameters} coordinates: "
                f"rounding to the grid alone would move a gradient by {float(share):.2g} of that "
                "shift. Use fewer parameters, fewer steps or a larger epsilon"
            )
        # 10^-40 covers the roundings of 50 digits
        exact = Fraction(s / (1 - share) / deviation * (1 + Decimal(10) ** -40))
    # the spacing of numbers with 24 bits at this size
    step = Fraction(2) ** (exact.numerator.bit_length() - exact.denominator.bit_length() - 23)
    return float(math.ceil(exact / step) * step)


def _multiple(c: Decimal, s: Decimal) -> int:
    """The least M with M EDGE_SIGMA / OWN_SIGMA >= c / s, in whole numbers."""
    # exact: a float could round an edge below the plan
    return _root_up(math.ceil(Fraction(c) ** 2 * _OWN_SQUARE / (Fraction(s) ** 2 * _EDGE_SQUARE)))


def _root_up(square: int) -> int:
    """The square root, rounded up."""
    return math.isqrt(square - 1) + 1 if square else 0


def _multiple_beside(own: Decimal, s: Decimal) -> int:
    """The least M with S_o^2 + M^2 S_e^2 >= (own / s)^2 S_o^2: a user's own noise beyond s."""
    beyond = max(Fraction(own) ** 2 / Fraction(s) ** 2 - 1, Fraction(0))
    return _root_up(math.ceil(beyond * _OWN_SQUARE / _EDGE_SQUARE))


def _departure(
    multiples: Sequence[int],
    own: Sequence[int],
    ends: Sequence[tuple[int, int]],
    users: int,
    coordinates: int,
) -> float:
    """A bound of |log| of the density of all messages over a Gaussian one.

    It holds whichever edges are known, or have different values at their ends. What a user draws
    beside its own noise is one such end.
    """
    squares = [multiple**2 for multiple in own] or [0] * users
    for (i, j), multiple in zip(ends, multiples, strict=True):
        squares[i] += multiple**2
        squares[j] += multiple**2
    heaviest = min(max(squares), 10**300)
    widest = 1 / EDGE_SIGMA**2 + 2 * heaviest / OWN_SIGMA**2
    # 2 sum_k exp(-2 pi^2 k^2 / widest) is below 2.1 times its first exponential for widest < 2;
    # anything wider is refused below
    ripple, independent = 2.1 * math.exp(-2 * math.pi**2 / widest), 2 * len(multiples)
    independent += sum(multiple > 0 for multiple in own)
    one = (
        users * OWN_DEPARTURE
        + independent * EDGE_DEPARTURE
        + math.expm1(min(1.0, independent * math.log1p(ripple)))
    )
    # the thousandth covers roundings here, and log(1 + x) against x
    departure = 1.001 * coordinates * one
    if 2 * departure > LARGEST_DEPARTURE:
        ratio = math.sqrt(heaviest) * EDGE_SIGMA / OWN_SIGMA
        # the width at which 2 x 2.1 x 1.001 < 5 times all ripples reach the limit, less 3 %
        limit = math.log(5.0 * independent * coordinates / LARGEST_DEPARTURE)
        factor = 0.97 * math.sqrt(2 * math.pi**2 / limit / widest)
        beside = " and what it adds beside" if own else ""
        raise InputError(
            f"the edges of one user{beside} have {ratio:.3g} times the least own noise: too wide "
            f"for the integer grid. A sigma_cor below {factor:.2g} of this one fits; plan with a "
            "smaller ratio"
        )
    return departure


def _block_collisions(
    users: int,
    edges: int,
    beside: int,
    parameters: int,
    words_per_key: int | None,
    batch_words: int,
) -> float:
    """Total variation of a step because a cipher never repeats a block under one key.

    It is at most the expected number of equal pairs of uniform blocks. q blocks have less than
    q^2 / 2 pairs. Blocks for ties, for one word in 2^20, are within the thousandth that is added.
    `beside` users draw more beside their own noise.
    """
    # a block has four words: a user's own value takes three, an edge's two at each of its ends, and
    # what is drawn beside two
    pairs = users * (0.75 * parameters + 1) ** 2
    pairs += (2 * edges + beside) * (0.5 * parameters + 1) ** 2
    if words_per_key is not None:
        for words in (parameters * (3 * users + 2 * (edges + beside)), batch_words):
            keys = math.ceil(words / words_per_key)
            pairs += (words / 4 + keys) * (min(words, words_per_key) / 4 + 1)
    # half of `pairs`, times the chance 2^-128 that two blocks are equal
    return 1.001 * pairs * 2.0**-129


def _check(
    sigma_cdp: Sequence[float],
    sigma_cor: Sequence[float],
    ends: Sequence[tuple[int, int]],
    users: int,
    shift: float,
    counts: tuple[int, int],
) -> None:
    if len(sigma_cdp) not in (1, users):
        raise InputError(
            f"{len(sigma_cdp)} deviations for {users} users; give one, or one for each user"
        )
    for name, value in (*(("sigma_cdp", s) for s in sigma_cdp), ("shift", shift)):
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be a number above 0, not {value!r}")
    for name, count in (("users", users), ("parameters", counts[0]), ("steps", counts[1])):
        if count < 1 or int(count) != count:
            raise InputError(f"{name} must be a whole number from 1, not {count!r}")
    if len(sigma_cor) != len(ends):
        raise InputError(
            f"{len(sigma_cor)} deviations for {len(ends)} edges; give one for each edge"
        )
    for c in sigma_cor:
        if not 0 <= c < math.inf:
            raise InputError(f"an edge's deviation must be a number from 0, not {c!r}")
    for i, j in ends:
        if not (0 <= i < users and 0 <= j < users and i != j):
            raise InputError(
                f"an edge joins two different users from 0 to {users - 1}, not {i} and {j}"
            )


def _check_keys(own_key: bytes, edges: Sequence[tuple[bytes, int]], own_multiple: int) -> None:
    """Raises unless each key has 32 bytes and is used once, and all sums fit in 64 bits."""
    keys = [own_key, *(key for key, _ in edges)]
    if any(len(key) != 32 for key in keys):
        raise InputError("a step's keys have 32 bytes each")
    # a key used twice would add the same noise twice, or cancel it
    if len(set(keys)) < len(keys):
        raise InputError("two of a step's keys are the same; each edge has its own")
    if sum(map(abs, (own_multiple, *(m for _, m in edges)))) * EDGE_LARGEST >= 1 << 62:
        raise InputError(
            "the edges' multiples are too large for 64-bit sums; use those of the grid"
        )


@njit(cache=True, nogil=True)
def _place(
    gradient: Array, scale: float, seed: np.uint32, first: int, own: Array, total: Array
) -> None:
    """total = floor(gradient / unit + dither) + own, in integers but for one rounding."""
    for k in range(len(own)):
        total[k] = round_with_dither(np.float64(gradient[k]) * scale, seed, first + k)
    for k in range(len(own)):
        total[k] += np.int64(own[k])


@njit(cache=True, nogil=True, inline="always")
def round_with_dither(x: float, seed: np.uint32, place: int) -> np.int64:
    """x / 2^16, rounded down or up by the dither of this place, so that its mean is x / 2^16."""
    # nan becomes zero (it is not equal to itself), and far values the farthest one
    near = min(max(x, -_FARTHEST), _FARTHEST) if x == x else 0.0
    # the finaliser of MurmurHash3: dither only decides how gradients round and hides nothing, so a
    # fast hash is enough
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
