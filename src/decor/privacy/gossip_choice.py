"""gossip_rounds="auto": the fewest designed rounds that are nearly as good as perfect averaging.

Rounds cost bytes and no privacy. What they are worth is the predicted error, each number of rounds
with its own best ratio, relative to the error of perfect averaging against the same adversary.
Ratios beyond `steady_ratio` are not considered: there one absent user would cost too much. Neither
are rounds that amplify what a missing neighbour leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from decor.array_types import Array, Floats
from decor.choices import Method, OwnNoise
from decor.graph.eigenmodes import modes_of
from decor.graph.gossip import ONE_ROUND, Gossip
from decor.graph.gossip_polynomial import design_roots, loss_left
from decor.graph.topology import Topology

from . import theory
from .adversary import Adversary
from .budget import Budget, Exposure
from .leverage.limit import LeverageLimit
from .plan import NoisePlan

MOST_ROUNDS = 16
WITHIN = 1.05
"""The error that is good enough, relative to perfect averaging."""
_ABOUT = 1.01
"""Errors that are as good as the best, where none is good enough."""
_LEAST_RATIO = 1e-3
_RATIOS = 128
_FEW_RATIOS = 6
"""Ratios to try where each takes a search."""


@dataclass(frozen=True)
class RoundsRow:
    """One number of rounds per step.

    Attributes:
        gossip: The rounds.
        error: Predicted error relative to perfect averaging against the same adversary.
        is_steady: Whether the rounds leave no more of what a missing neighbour leaves than one
            plain round: after a crash, and with a tenth of all messages lost at one end.
    """

    gossip: Gossip
    error: float
    is_steady: bool


@dataclass(frozen=True)
class GossipChoice:
    """What "auto" chooses, and what it chose from.

    Attributes:
        row: The fewest rounds within 5 % of perfect averaging; or about as good as the best.
        perfect: Predicted error of perfect averaging, as of `theory.predicted_error`.
        largest_ratio: sigma_cor^2 / sigma_cdp^2 is at most this.
    """

    row: RoundsRow
    perfect: float
    largest_ratio: float
    _every_row: Callable[[], Iterator[RoundsRow]] = field(repr=False, compare=False)

    @cached_property
    def rows(self) -> tuple[RoundsRow, ...]:
        """For 1 to 16 rounds. Only tables need them all: to design rounds takes time."""
        return tuple(self._every_row())

    @property
    def gossip(self) -> Gossip:
        return self.row.gossip

    @property
    def note(self) -> str | None:
        """Which fewer rounds were passed over because they amplify what is missing."""
        unsteady = _fewest(replace(row, is_steady=True) for row in self.rows)
        if unsteady.gossip.rounds == self.gossip.rounds:
            return None
        return (
            f"{unsteady.gossip.rounds} designed rounds would do, but they amplify what a missing "
            f"neighbour leaves: {self.gossip.rounds} are taken"
        )


def steady_ratio(users: int, steps: int) -> float:
    """The ratio at which one absence is cheap: a quarter of the noise of the whole run.

    The average of all models gets users * sigma_cdp^2 in a step (and a factor that both share). In
    one step an edge whose other end is absent adds sigma_cor^2.
    """
    return users * steps / 4


def choose_gossip(
    topology: Topology,
    exposure: Exposure,
    adversary: Adversary,
    budget: Budget,
    method: Method = "exact",
    own: OwnNoise = "uniform",
) -> GossipChoice:
    """What `gossip_rounds="auto"` means for a plan; arguments as of `calibrate`."""
    # checked before they are a key of the cache
    LeverageLimit.of(topology, exposure, adversary, budget, method)
    return _choose(topology, exposure, adversary, budget, method, own)


@lru_cache(maxsize=64)
def _choose(
    topology: Topology,
    exposure: Exposure,
    adversary: Adversary,
    budget: Budget,
    method: Method,
    own: OwnNoise,
) -> GossipChoice:
    limit = LeverageLimit.of(topology, exposure, adversary, budget, method)
    largest = steady_ratio(topology.users, exposure.steps)
    ratios, noise = _noise_curve(limit, largest, own)
    # perfect averaging leaves the error of the average alone, which rounds do not change
    plain = theory.error_weights(topology, exposure.steps, ONE_ROUND)
    perfect = float((noise * plain.average).min())

    def rows() -> Iterator[RoundsRow]:
        for gossip in _candidates(topology):
            each = theory.error_weights(topology, exposure.steps, gossip)
            error = float((noise * (each.average + each.consensus(ratios))).min())
            yield RoundsRow(gossip, error / perfect, is_steady(topology, gossip))

    return GossipChoice(_fewest(rows()), perfect, largest, rows)


def gossip_for(plan: NoisePlan) -> Gossip:
    """What "auto" means for a plan that is made already: for its own noise, if it was fixed.

    Args:
        plan: The plan.
    """
    topology, steps = plan.topology, plan.exposure.steps
    if plan.budget is None or plan.adversary.average_only:
        return _for_noise(plan, theory.average_error(plan))
    # only in one noise pair for all do users who can be isolated decide the rounds of the others
    own: OwnNoise = "per-user" if isinstance(plan.sigma_cdp, tuple) else "uniform"
    chosen = choose_gossip(topology, plan.exposure, plan.adversary, plan.budget, own=own)
    if theory.predicted_error(plan, chosen.gossip) <= _ABOUT * chosen.row.error * chosen.perfect:
        return chosen.gossip
    # a ratio or a noise level of the caller's
    return _for_noise(plan, max(chosen.perfect, theory.average_error(plan)) if steps else 1.0)


def _for_noise(plan: NoisePlan, perfect: float) -> Gossip:
    def rows() -> Iterator[RoundsRow]:
        for gossip in _candidates(plan.topology):
            if perfect > 0:
                error = theory.predicted_error(plan, gossip) / perfect
            else:  # without any noise, what gossip does to unit noise of the users
                weights = theory.error_weights(plan.topology, plan.exposure.steps, gossip)
                error = 1 + weights.constant / weights.average
            yield RoundsRow(gossip, error, is_steady(plan.topology, gossip))

    return _fewest(rows()).gossip


def _fewest(rows: Iterable[RoundsRow]) -> RoundsRow:
    """The first row that is good enough; of rows that are not, one about as good as the best."""
    steady = []
    for row in rows:
        if row.is_steady:
            # rows with more rounds need not be designed
            if row.error <= WITHIN:
                return row
            steady.append(row)
    # one plain round is always steady
    enough = _ABOUT * min(row.error for row in steady)
    return next(row for row in steady if row.error <= enough)


def _candidates(topology: Topology) -> list[Gossip]:
    """1 to 16 rounds; Chebyshev's on graphs that are too large to design rounds for."""
    how = "designed" if modes_of(topology).exact else "chebyshev"
    more = [Gossip(rounds, how) for rounds in range(2, MOST_ROUNDS + 1)]  # type: ignore[arg-type]
    return [ONE_ROUND, *(more if topology.edge_count else [])]


@lru_cache(maxsize=512)
def is_steady(topology: Topology, gossip: Gossip) -> bool:
    """Whether gossip amplifies nothing of what a missing neighbour leaves, as of `RoundsRow`."""
    if gossip.rounds < 2 or gossip.accelerate != "designed":
        return True
    eigenvalues = modes_of(topology).eigenvalues
    # without some edges W has its eigenvalues between its least one and 1 (Loewner order)
    between = np.linspace(float(eigenvalues.min()), 1.0, 2001)
    # beyond one, the rounds enlarge some disagreement that a missing edge leaves
    if np.abs(gossip.value_at(topology, between)).max() > 1 + 1e-6:
        return False
    return loss_left(topology, np.array(design_roots(topology, gossip.rounds))) <= loss_left(
        topology
    )


def _noise_curve(limit: LeverageLimit, largest: float, own: OwnNoise) -> tuple[Floats, Floats]:
    """Ratios, and the smallest sigma_cdp^2 at each of them."""
    topology, adversary, none = limit.topology, limit.adversary, np.zeros(1)
    if adversary.colluders is None or adversary.average_only or not topology.edge_count:
        return none, np.array([limit.sigma_cdp_squared(0.0)])
    isolated = topology.degrees <= adversary.colluders
    if isolated.all() or (isolated.any() and own == "uniform" and _decide(limit, isolated)):
        return none, np.array([limit.sigma_cdp_squared(0.0)])
    if isolated.any():
        # with noise of their own they do not decide that of the others
        limit = replace(limit, allowed=np.where(isolated, np.inf, limit.allowed))
    ratios = np.geomspace(min(_LEAST_RATIO, largest), largest, _RATIOS)
    # the coalition that isolates some users is not the worst for the others, who decide
    if not (adversary.colluders and isolated.any()):
        if adversary.colluders:
            # as `calibrate`: against the coalition that is worst at one ratio
            limit = limit.without(limit.worst_at(10.0).coalition)
        curve = limit.curve()
        if curve is not None:
            return ratios, curve(ratios)
    ratios = np.geomspace(min(1.0, largest), largest, _FEW_RATIOS)
    return ratios, np.array([limit.sigma_cdp_squared(float(x)) for x in ratios])


def _decide(limit: LeverageLimit, isolated: Array) -> bool:
    """Whether users who can be isolated decide the noise, as in `calibrate`."""
    if limit.rates is not None:
        limit.sharpen([int(np.where(isolated, limit.rates, 0.0).argmax())])
    return bool(limit.allowed[isolated].min() <= limit.allowed.min())
