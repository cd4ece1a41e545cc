"""Epsilon of the subsampled Gaussian over a run: privacy loss distributions, never below the truth.

One step is a pair of distributions on a line, in units of the noise: P = (1-q) N(0) + q N(up)
against Q = (1-q) N(0) + q N(-down). With mu = 1/z, these pairs dominate every two neighbouring
datasets, hence (Zhu, Dong and Wang 2022) every adaptive composition:

- Poisson, add-remove: (mu, 0) when the record is removed, (0, mu) when it is added. A record keeps
  its direction through the run, so each direction is composed on its own and the worse one counts.
- Poisson, replace: (mu, mu). For records u and v the divergence is E F(a e^X + b e^Y) with F(s) =
  (1 - s)_+ convex and X, Y normal of variances |u|^2, |u - v|^2 and covariance <u, u - v>; by
  Kahane's inequality it grows with all three: u = -v is worst.
- Fixed size, replace: the rest of the batch may lie where it hurts most, so the shift is 2 mu, and
  the profile is the larger of both directions: removal where the loss is positive, addition where
  it is negative, an atom at zero between. One direction composed alone would be too small.

Why not dp-accounting's composition: its rounding errors are absolute. It gives 7.213 for a plain
Gaussian at T = 1e4, delta = 1e-12, where the truth is 7.238; at T = 1e6 its grid can add 70 % of
mass. Here bin masses keep their relative accuracy, the loss is tilted exponentially so that epsilon
lies in the middle of the transformed range, and every rounding has a computed bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from decor import checks
from decor.array_types import Floats
from decor.choices import Relation, Sampling
from decor.errors import BudgetError, CannotBound
from decor.privacy.budget import validate_delta

from .loss_distribution import ROUNDING, DominatingPair, LossDistribution, RepeatedPair

_SHARE = 1e-6  # of delta, for the losses that are cut off
_OUTSIDE = 24.0  # minus the log of the tilted mass outside the window
_COARSE_ERROR = 2e-3, 1e-6  # target error of epsilon on the first grid: relative, absolute
_COARSE_POINTS, _MOST_POINTS = 2**17, 2**21
_LEAST_DELTA = 1e-250  # below, tails underflow


@dataclass(frozen=True)
class SubsampledStep:
    """`steps` noisy sums of clipped vectors, each over a fresh sample.

    Attributes:
        noise_multiplier: z = b sigma / C, the noise in units of the clip.
        rate: Expected share of the examples in a sample.
        sampling: "poisson", or "fixed" (a batch of fixed size, without replacement).
        relation: How neighbours differ in one example: "add-remove" or "replace".
        steps: Number of sums.
    """

    noise_multiplier: float
    rate: float
    sampling: Sampling
    relation: Relation
    steps: int

    def __post_init__(self) -> None:
        z, rate = self.noise_multiplier, self.rate
        if not 0 < z < math.inf:
            raise BudgetError(f"the noise multiplier must be a positive number, not {z!r}")
        if not 1e-100 <= rate <= 1:
            raise BudgetError(
                f"the sampling rate must be from 1e-100 to 1, not {rate!r}: give batch / examples"
            )
        if self.steps < 1:
            raise BudgetError(
                f"a phase has at least one step, not {self.steps!r}: leave it out instead"
            )
        checks.one_of("sampling", self.sampling, ("poisson", "fixed"), error=BudgetError)
        checks.one_of("relation", self.relation, ("add-remove", "replace"), error=BudgetError)
        if (self.sampling, self.relation) == ("fixed", "add-remove"):
            raise BudgetError(
                "batches of fixed size are not accounted for neighbours that add or remove an "
                "example, since the rate itself would change; use "
                'relation="replace" or sampling="poisson"'
            )


def epsilon(
    phases: Sequence[SubsampledStep], delta: float, *, fine: bool = True
) -> tuple[float, bool]:
    """Epsilon of the adaptive composition of all phases at delta, and whether it is tight.

    Args:
        phases: The phases of the run. Those with Poisson sampling name the relation of the result.
            Phases of fixed size beside them have "replace", which covers "add-remove": an example
            that is removed leaves an empty one in its place.
        delta: Failure probability.
        fine: False for searches: several times faster, and often within 1 %.

    Returns:
        Epsilon, and whether it is above that of the dominating pairs by 0.1 % or 1e-4 at most.

    Raises:
        CannotBound: If no finite bound was found, or delta is below 1e-250.

    Guarantee: never below the epsilon of the dominating pairs (see the module), on any grid.
    """
    check_delta(delta)
    if len({phase.relation for phase in phases if phase.sampling == "poisson"}) > 1:
        raise BudgetError(
            'phases mix the relations "add-remove" and "replace": account for all of them with the '
            "same one"
        )
    return _epsilon(phases, delta, fine)


def check_delta(delta: float) -> None:
    """Raises unless delta is a probability that this accountant can handle."""
    if validate_delta(delta) < _LEAST_DELTA:
        raise CannotBound(
            f"delta = {delta!r} is beyond double precision here: ask for {_LEAST_DELTA:g} or more"
        )


def _log_moments(losses: Sequence[LossDistribution], orders: Floats) -> Floats:
    """log E e^(order loss) of the composition."""
    moments = [loss.phase.steps * loss.log_moments(orders) for loss in losses]
    total: Floats = np.sum(moments, axis=0)
    return total


def _misplacement(losses: Sequence[LossDistribution]) -> float:
    """Bound on the rounding errors of the composed loss."""
    return sum(loss.phase.steps * loss.misplacement() for loss in losses)


def _chernoff(
    losses: Sequence[LossDistribution], delta: float, orders: Floats
) -> tuple[float, float]:
    """The least bound on epsilon from the moments of these orders, and an order that attains it.

    Delta is at most the moment times the largest (1 - e^(epsilon - loss)) e^(-order loss), plus
    the mass beyond the grids.
    """
    goal = math.log(delta) + math.log1p(-2 * _SHARE)
    moments = _log_moments(losses, orders)
    bounds = (moments - goal - np.log1p(orders)) / orders - np.log1p(1 / orders)
    # where losses are bounded the best order is infinite; the least order that loses one nat is as
    # good, and does not overflow
    order = float(orders[np.argmax(orders * (bounds - bounds.min()) <= 1)])
    return float(bounds.min()) + _misplacement(losses), order


def _directions(phases: Sequence[SubsampledStep]) -> list[list[RepeatedPair]]:
    """The compositions to take the worst of."""

    def phase(
        step: SubsampledStep, negative: tuple[int, int], positive: tuple[int, int]
    ) -> RepeatedPair:
        mu = 1 / step.noise_multiplier
        below, above = (
            DominatingPair(step.rate, up * mu, down * mu) for up, down in (negative, positive)
        )
        return RepeatedPair(below, above, step.steps)

    # added or removed: the same in all phases. The pairs of "replace" dominate both directions.
    mixed = any(step.relation == "add-remove" for step in phases)
    directions = []
    for way in ((1, 0), (0, 1)) if mixed else ((1, 1),):
        shifts = {
            ("poisson", "add-remove"): (way, way),
            ("poisson", "replace"): ((1, 1), (1, 1)),
            ("fixed", "replace"): ((0, 2), (2, 0)),
        }
        directions.append([phase(step, *shifts[step.sampling, step.relation]) for step in phases])
    return directions


@dataclass(frozen=True)
class _Window:
    """The window on the composed loss: tilted by e^(tilt loss), it is centred near epsilon."""

    tilt: float
    upwards: float  # orders whose moments bound the tails of the tilted loss
    downwards: float
    chernoff: float  # a first upper bound on epsilon
    reaches: list[tuple[float, float]]  # the losses of each phase that matter
    span: float
    steps: int

    @classmethod
    def around(cls, phases: Sequence[RepeatedPair], delta: float) -> _Window:
        steps = sum(phase.steps for phase in phases)
        sketches = [phase.sketch(_SHARE * delta / steps) for phase in phases]
        losses = [phase.distribution(grid) for phase, grid in zip(phases, sketches, strict=True)]
        # a loss that hardly varies would ask for orders that overflow: hence the second term
        variances = (
            loss.phase.steps * (loss.variance() + (1e-9 * loss.farthest()) ** 2) for loss in losses
        )
        orders = np.geomspace(1e-4, 1e4, 100) / math.sqrt(sum(variances))
        chernoff, tilt = _chernoff(losses, delta, orders)
        chernoff, tilt = _chernoff(losses, delta, tilt * np.geomspace(0.8, 1.6, 50))
        here = _log_moments(losses, np.array([tilt]))
        # Chernoff bounds on how far the tilted loss reaches but for a mass of e^-_OUTSIDE
        above = (_log_moments(losses, tilt + orders) - here + _OUTSIDE) / orders
        below = (_log_moments(losses, tilt - orders) - here + _OUTSIDE) / orders
        upwards, downwards = float(orders[np.argmin(above)]), float(orders[np.argmin(below)])
        width = above.min() + below.min()
        # losses so low that the sum cannot return to the window may be raised a little
        floor = -below.min() - width - sum(loss.phase.steps * loss.grid[-1] for loss in losses)
        reaches = [
            (max(float(loss.grid[0]), float(floor)), float(loss.grid[-1])) for loss in losses
        ]
        span = max(float(width), *(high - low for low, high in reaches))
        return cls(tilt, upwards, downwards, chernoff, reaches, span, steps)

    def coarse(self) -> float:
        """The spacing h of a first grid.

        Moving a loss to the ends of its bin keeps the mean of e^-loss and adds a variance of at
        most h^2/4. Each step raises log E e^(tilt loss) by tilt (tilt + 1) h^2/8, and epsilon by
        that over tilt.
        """
        error = max(_COARSE_ERROR[0] * self.chernoff, _COARSE_ERROR[1])
        return max(math.sqrt(8 * error / self.steps / (1 + self.tilt)), self.span / _COARSE_POINTS)


def _epsilon(phases: Sequence[SubsampledStep], delta: float, fine: bool) -> tuple[float, bool]:
    worst, tight = 0.0, True
    for direction in _directions(phases) if phases else []:
        window = _Window.around(direction, delta)
        if window.chernoff <= worst:  # cannot be the worse direction
            continue
        spacing = window.coarse()
        value, settled = _compose(direction, delta, window, spacing)[0], False
        if fine and value > worst:
            value, settled = _refine(direction, delta, window, spacing, value)
        value = min(value, window.chernoff)
        if value > worst:
            worst, tight = value, settled
    if not math.isfinite(worst):
        raise CannotBound(
            f"no finite epsilon at delta = {delta!r} for {list(phases)!r}: allow a larger delta"
        )
    return worst, tight


def _refine(
    phases: Sequence[RepeatedPair], delta: float, window: _Window, spacing: float, value: float
) -> tuple[float, bool]:
    """Epsilon on finer grids, and whether it is tight.

    Ends once epsilon settles, roundings outweigh the grid, or memory does not suffice.
    """
    doubt = math.inf
    while spacing * _MOST_POINTS >= 4 * window.span and doubt > max(3e-4 * value, 3e-5):
        spacing /= 4
        finer, rounding = _compose(phases, delta, window, spacing)
        # the error falls at least as fast as the spacing: at most a third of the change is left
        grid = max(value - finer, 0.0) / 3
        value, doubt = min(value, finer), rounding + grid
        if rounding > grid:
            break
    return value, doubt <= max(1e-3 * value, 1e-4)


def _compose(
    phases: Sequence[RepeatedPair], delta: float, window: _Window, spacing: float
) -> tuple[float, float]:
    """Epsilon of the composition on a grid, and how much of it comes from bounds on roundings.

    Guarantee: never below the truth. Losses that wrap around add to the mass in the window. Losses
    above it are given e^-24 of delta, which by Chernoff is more than they have. Every rounding is
    bounded, and the bound added.
    """
    losses = []
    for phase, (low, high) in zip(phases, window.reaches, strict=True):
        start, stop = math.floor(low / spacing) - 1, math.ceil(high / spacing) + 2
        losses.append(phase.distribution(spacing * np.arange(start, stop, dtype=np.float64)))
    orders = window.tilt + np.array([0.0, window.upwards, -window.downwards])
    here, above, below = _log_moments(losses, orders)
    goal = math.log(delta)
    highest = max(
        (above - here + _OUTSIDE) / window.upwards,
        (above - goal + _OUTSIDE) / (window.tilt + window.upwards),
    )
    first = math.floor(-(below - here + _OUTSIDE) / window.downwards / spacing)
    size = next_fast_len(math.ceil(highest / spacing) - first + 1, real=True)
    tilted, error = _convolve(losses, window.tilt, spacing, first, size)
    # of the tilt and of taking it back, each a product over the steps
    per_step = sum(loss.phase.steps * (4 + window.tilt * loss.farthest()) for loss in losses)
    rounding = ROUNDING * (size + per_step)
    exponents = here - goal + rounding - window.tilt * spacing * (first + np.arange(size))
    untilt = np.exp(np.minimum(exponents, 700.0))
    # in units of delta: what is left after the losses outside the window and beyond the grids
    beyond = sum(loss.phase.steps * loss.beyond for loss in losses)
    budget = 1 - math.exp(-_OUTSIDE) - beyond / delta
    if budget <= 0:
        return math.inf, math.inf
    value = _solve((tilted + error) * untilt, spacing, first, budget) + _misplacement(losses)
    bare = _solve(tilted * untilt, spacing, first, budget)
    return value, value - bare if bare > spacing * first else value


def _convolve(
    losses: Sequence[LossDistribution], tilt: float, spacing: float, first: int, size: int
) -> tuple[Floats, float]:
    """The tilted distribution of the sum of all losses, and a bound on each point's rounding error.

    The grid has `size` points from `first` on. A transform errs by a few roundings per level, times
    the mass, which is 1: call that gamma. Its powers err by no more than they grow when every
    magnitude is raised by gamma, and a point by no more than the mean of that growth over the
    frequencies.
    """
    gamma = 0.5 * ROUNDING * math.log2(size)
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    log_bound = np.zeros(product.size)
    start = 0
    for loss in losses:
        exponents = tilt * loss.grid - loss.log_moments(np.array([tilt]))
        weight = loss.probability * np.exp(np.minimum(exponents, 700.0))
        # a cyclic convolution: losses beyond the window wrap around, which only adds mass
        folded = np.pad(weight, (0, -weight.size % size)).reshape(-1, size).sum(axis=0)
        transform = rfft(folded)
        product *= transform**loss.phase.steps
        log_bound += loss.phase.steps * np.log(np.abs(transform) * (1 + ROUNDING) + gamma)
        start += loss.phase.steps * round(loss.grid[0] / spacing)
    magnitude = np.abs(product)
    error = 2 * float(np.sum(np.exp(log_bound) - magnitude + gamma * magnitude)) / size
    return np.maximum(np.roll(irfft(product, size), (start - first) % size), 0.0), error


def _solve(mass: Floats, spacing: float, first: int, budget: float) -> float:
    """The least epsilon >= 0 with sum of mass (1 - e^(epsilon - loss))_+ at most the budget.

    The losses are `spacing` apart, from `first` times it on; epsilon is not below the first loss.
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
