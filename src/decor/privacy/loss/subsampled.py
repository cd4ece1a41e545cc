"""Epsilon of the subsampled Gaussian, composed over a run: privacy loss distributions on a grid,
never below the truth.

One step is a pair of laws on a line, in units of the noise: P = (1-q) N(0) + q N(up) against Q =
(1-q) N(0) + q N(-down). With mu = 1/z, these pairs dominate every two neighbouring datasets, hence
(Zhu, Dong and Wang 2022) every adaptive composition:

- Poisson, add-remove: (mu, 0) when the record is removed, (0, mu) when it is added. A record keeps
  its direction through the run, so each direction is composed on its own and the worse one counts.
- Poisson, replace: (mu, mu). For records u and v the divergence is E F(a e^X + b e^Y) with F(s) =
  (1 - s)_+ convex and X, Y normal of variances |u|^2, |u - v|^2 and covariance <u, u - v>; by
  Kahane's inequality it grows with all three: u = -v is worst.
- Fixed size, replace: the rest of the batch may lie where it hurts most, so the shift is 2 mu, and
  the profile is the larger of both directions: removal where the loss is positive, addition where
  it is negative, an atom at zero between. One direction composed alone is too little.

Why not dp-accounting's composition: its rounding errors are absolute. A plain Gaussian at T = 1e4,
delta = 1e-12 comes out at 7.213 where the truth is 7.238, and at T = 1e6 its grid can invent 70 %
of mass. Here bin masses keep their relative accuracy, the loss is tilted exponentially so that
epsilon lies amid what is transformed, and every rounding has a computed bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from decor.arrays import Floats
from decor.choices import Relation, Sampling
from decor.errors import BudgetError, CannotBound

from .loss_distribution import ROUNDING, Law, Pair, Repeated

_SHARE = 1e-6  # of delta, given away to the losses that are cut off
_OUTSIDE = 24.0  # minus the log of the tilted mass that the window leaves out
_COARSE_ERROR = 2e-3, 1e-6  # of epsilon that the first grid aims at: relative, absolute
_COARSE_POINTS, _MOST_POINTS = 2**17, 2**21
_LEAST_DELTA = 1e-250  # below, tails underflow


@dataclass(frozen=True)
class SubsampledStep:
    """`steps` noisy sums of clipped vectors, each over a fresh sample; the noise is
    noise_multiplier (b sigma / C) clips.

    rate is the expected share of the records in a sample; sampling is "poisson" or "fixed" (a batch
    of fixed size, without replacement); relation, what a neighbour may do to one record, is
    "add-remove" or "replace".
    """

    noise_multiplier: float
    rate: float
    sampling: Sampling
    relation: Relation
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.noise_multiplier < math.inf:
            raise BudgetError(
                f"the noise multiplier must be a positive number, not {self.noise_multiplier!r}"
            )
        if not 1e-100 <= self.rate <= 1:
            raise BudgetError(
                f"the sampling rate must be from 1e-100 to 1, not {self.rate!r}: "
                "give batch size / records"
            )
        if self.steps < 1:
            raise BudgetError(
                f"a phase has at least one step, not {self.steps!r}: leave it out instead"
            )
        if self.sampling not in ("poisson", "fixed") or self.relation not in (
            "add-remove",
            "replace",
        ):
            raise BudgetError(
                'sampling is "poisson" or "fixed", relation "add-remove" or '
                f'"replace", not {self!r}'
            )
        if (self.sampling, self.relation) == ("fixed", "add-remove"):
            raise BudgetError(
                "batches of fixed size are not accounted for neighbours that add or remove a "
                "record, since the rate itself would "
                'change. Use relation="replace", or sampling="poisson".'
            )


def epsilon(
    phases: Sequence[SubsampledStep], delta: float, *, fine: bool = True
) -> tuple[float, bool]:
    """Epsilon of the adaptive composition of all phases at delta, and whether it is tight.

    Guarantee: never below the epsilon of the dominating pairs (see the module), on any grid. Tight:
    above it by 0.1 % or 1e-4 at most. fine=False, for searches, is several times faster and often
    within 1 %. Raises CannotBound rather than guess.
    """
    check(delta)
    if len({phase.relation for phase in phases}) > 1:
        raise BudgetError(
            'phases mix the relations "add-remove" and "replace": account all of '
            "them for the same one"
        )
    return _epsilon(phases, delta, fine)


def check(delta: float) -> None:
    if not 0 < delta < 1:
        raise BudgetError(f"delta must be in (0, 1), not {delta!r}")
    if delta < _LEAST_DELTA:
        raise CannotBound(
            f"delta = {delta!r} is beyond double precision here: ask for {_LEAST_DELTA:g} or more"
        )


def _log_moments(laws: Sequence[Law], orders: Floats) -> Floats:
    """log E e^(order loss) of the composition."""
    total: Floats = np.sum([law.phase.steps * law.log_moments(orders) for law in laws], axis=0)
    return total


def _chernoff(laws: Sequence[Law], delta: float, orders: Floats) -> tuple[float, float]:
    """The least bound on epsilon from the moments of these orders, and an order that serves it.

    Delta is at most the moment times the largest (1 - e^(epsilon - loss)) e^(-order loss), plus
    what is beyond the grids.
    """
    goal = math.log(delta) + math.log1p(-2 * _SHARE)
    bounds = (_log_moments(laws, orders) - goal - np.log1p(orders)) / orders - np.log1p(1 / orders)
    # where losses are bounded the best order is infinite; the least that loses one nat is as good,
    # and tame
    order = float(orders[np.argmax(orders * (bounds - bounds.min()) <= 1)])
    return float(bounds.min()) + sum(law.phase.steps * law.misplacement() for law in laws), order


def _directions(phases: Sequence[SubsampledStep]) -> list[list[Repeated]]:
    """The compositions of which the worst counts."""

    def phase(
        step: SubsampledStep, negative: tuple[int, int], positive: tuple[int, int]
    ) -> Repeated:
        mu = 1 / step.noise_multiplier
        below, above = (Pair(step.rate, up * mu, down * mu) for up, down in (negative, positive))
        return Repeated(below, above, step.steps)

    if all(step.relation == "add-remove" for step in phases):
        return [[phase(step, way, way) for step in phases] for way in ((1, 0), (0, 1))]
    shifts = {"poisson": ((1, 1), (1, 1)), "fixed": ((0, 2), (2, 0))}
    return [[phase(step, *shifts[step.sampling]) for step in phases]]


@dataclass(frozen=True)
class _Window:
    """Where to look at the composed loss: tilted by e^(tilt loss), it is centred near epsilon."""

    tilt: float
    upwards: float  # orders whose moments bound the tails of the tilted loss
    downwards: float
    chernoff: float  # a first bound on epsilon, never below it
    reaches: list[tuple[float, float]]  # the losses of each phase that matter
    span: float
    steps: int

    @classmethod
    def around(cls, phases: Sequence[Repeated], delta: float) -> _Window:
        steps = sum(phase.steps for phase in phases)
        laws = [phase.law(phase.sketch(_SHARE * delta / steps)) for phase in phases]
        # a loss that hardly varies would ask for orders that overflow
        scale = math.sqrt(
            sum(law.phase.steps * (law.variance() + (1e-9 * law.farthest()) ** 2) for law in laws)
        )
        orders = np.geomspace(1e-4, 1e4, 100) / scale
        chernoff, tilt = _chernoff(laws, delta, orders)
        chernoff, tilt = _chernoff(laws, delta, tilt * np.geomspace(0.8, 1.6, 50))
        here = _log_moments(laws, np.array([tilt]))
        above = (_log_moments(laws, tilt + orders) - here + _OUTSIDE) / orders
        below = (_log_moments(laws, tilt - orders) - here + _OUTSIDE) / orders
        up, down, width = (
            orders[np.argmin(above)],
            orders[np.argmin(below)],
            above.min() + below.min(),
        )
        # losses so low that nothing brings the sum back to the window may as well be a little
        # higher
        floor = -below.min() - width - sum(law.phase.steps * law.grid[-1] for law in laws)
        reaches = [(max(float(law.grid[0]), float(floor)), float(law.grid[-1])) for law in laws]
        span = max(float(width), *(high - low for low, high in reaches))
        return cls(tilt, float(up), float(down), chernoff, reaches, span, steps)

    def coarse(self) -> float:
        """The spacing h of a first grid.

        Moving a loss to the ends of its bin keeps the mean of e^-loss and adds a variance of at
        most h^2/4. Over the steps that raises log E e^(tilt loss) by tilt (tilt + 1) h^2/8 each,
        and epsilon by a tilt-th of it.
        """
        error = max(_COARSE_ERROR[0] * self.chernoff, _COARSE_ERROR[1])
        return max(math.sqrt(8 * error / self.steps / (1 + self.tilt)), self.span / _COARSE_POINTS)


def _epsilon(phases: Sequence[SubsampledStep], delta: float, fine: bool) -> tuple[float, bool]:
    value, tight = 0.0, True
    for direction in _directions(phases) if phases else []:
        window = _Window.around(direction, delta)
        if window.chernoff <= value:
            continue
        spacing = window.coarse()
        found, settled = _composed(direction, delta, window, spacing)[0], False
        if fine and found > value:
            found, settled = _refined(direction, delta, window, spacing, found)
        found = min(found, window.chernoff)
        if found > value:
            value, tight = found, settled
    if not math.isfinite(value):
        raise CannotBound(
            f"no finite epsilon found at delta = {delta!r} for {list(phases)!r}: "
            "allow a larger delta"
        )
    return value, tight


def _refined(
    phases: Sequence[Repeated], delta: float, window: _Window, spacing: float, found: float
) -> tuple[float, bool]:
    """Epsilon on finer grids until it settles, roundings outweigh the grid or memory ends; and
    whether it is tight.
    """
    doubt = math.inf
    while spacing * _MOST_POINTS >= 4 * window.span and doubt > max(3e-4 * found, 3e-5):
        spacing /= 4
        finer, rounding = _composed(phases, delta, window, spacing)
        # or less: the error falls at least as fast as the spacing
        grid = max(found - finer, 0.0) / 3
        found, doubt = min(found, finer), rounding + grid
        if rounding > grid:
            break
    return found, doubt <= max(1e-3 * found, 1e-4)


def _composed(
    phases: Sequence[Repeated], delta: float, window: _Window, spacing: float
) -> tuple[float, float]:
    """Epsilon of the composition on a grid of that spacing, and how much of it is owed to bounds on
    roundings.

    Guarantee: never below the truth. Losses that wrap around add to the mass in the window; those
    above it are given e^-24 of delta, which by Chernoff is more than they have; every rounding is
    bounded, and the bound added.
    """
    laws = []
    for phase, (low, high) in zip(phases, window.reaches, strict=True):
        points = np.arange(
            math.floor(low / spacing) - 1, math.ceil(high / spacing) + 2, dtype=np.float64
        )
        laws.append(phase.law(spacing * points))
    here, above, below = _log_moments(
        laws, window.tilt + np.array([0.0, window.upwards, -window.downwards])
    )
    goal = math.log(delta)
    highest = max(
        (above - here + _OUTSIDE) / window.upwards,
        (above - goal + _OUTSIDE) / (window.tilt + window.upwards),
    )
    first = math.floor(-(below - here + _OUTSIDE) / window.downwards / spacing)
    size = next_fast_len(math.ceil(highest / spacing) - first + 1, real=True)
    tilted, error = _convolved(laws, window.tilt, spacing, first, size)
    rounding = ROUNDING * (
        size + sum(law.phase.steps * (4 + window.tilt * law.farthest()) for law in laws)
    )
    exponents = here - goal + rounding - window.tilt * spacing * (first + np.arange(size))
    untilt = np.exp(np.minimum(exponents, 700.0))
    budget = 1 - math.exp(-_OUTSIDE) - sum(law.phase.steps * law.beyond for law in laws) / delta
    if budget <= 0:
        return math.inf, math.inf
    misplacement = sum(law.phase.steps * law.misplacement() for law in laws)
    found = _solve((tilted + error) * untilt, spacing, first, budget) + misplacement
    bare = _solve(tilted * untilt, spacing, first, budget)
    return found, found - bare if bare > spacing * first else found


def _convolved(
    laws: Sequence[Law], tilt: float, spacing: float, first: int, size: int
) -> tuple[Floats, float]:
    """The tilted law of the sum of all losses on `size` points from `first` on, and a bound on the
    rounding error of each.

    A transform errs by a few roundings per level, times the mass, which is 1: call that gamma. Its
    powers err by no more than they grow when every magnitude is raised by gamma, and a point by no
    more than the mean of that growth over the frequencies.
    """
    gamma = 0.5 * ROUNDING * math.log2(size)
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    log_bound = np.zeros(product.size)
    start = 0
    for law in laws:
        weight = law.probability * np.exp(
            np.minimum(tilt * law.grid - law.log_moments(np.array([tilt])), 700.0)
        )
        folded = np.pad(weight, (0, -weight.size % size)).reshape(-1, size).sum(axis=0)
        transform = rfft(folded)
        product *= transform**law.phase.steps
        log_bound += law.phase.steps * np.log(np.abs(transform) * (1 + ROUNDING) + gamma)
        start += law.phase.steps * round(law.grid[0] / spacing)
    magnitude = np.abs(product)
    error = 2 * float(np.sum(np.exp(log_bound) - magnitude + gamma * magnitude)) / size
    return np.maximum(np.roll(irfft(product, size), (start - first) % size), 0.0), error


def _solve(mass: Floats, spacing: float, first: int, budget: float) -> float:
    """The least epsilon from zero and the first loss on with sum of mass (1 - e^(epsilon - loss))_+
    at most the budget.
    """
    gain = -np.expm1(-spacing * np.arange(mass.size))

    def divergence(index: int) -> float:
        return float(mass[index:] @ gain[: mass.size - index])

    low, high = max(0, -first), mass.size - 1
    if divergence(low) <= budget:
        return spacing * (first + low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if divergence(middle) <= budget else (middle, high)
    # between points the divergence is linear in e^epsilon
    slope = float(mass[high:] @ (1 - gain[: mass.size - high]))
    share = min((budget - divergence(high)) / slope, gain[1]) if slope > 0 else 0.0
    return float(spacing * (first + high) + math.log1p(-share))
