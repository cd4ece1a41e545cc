"""What several runs on one user's data cost together, for one question at a time.

A question names what is protected (a user or an example), how neighbouring data sets differ, and
how many users of each run collude. Runs of different plans are composed for the same question:
epsilons of different questions are never added.

The adversary pools what it learns in all runs. In each run it has the up to q colluders who expose
this user most. So each run counts with its own worst leverage: the coalitions of two runs may
differ, and the maximum over one coalition for all runs would understate them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from decor import checks
from decor.choices import Relation, Unit
from decor.errors import BudgetError, InputError

from .adversary import Adversary
from .budget import ACCOUNTED, validate_delta
from .leverage.coalition import Phase, worst_leverages
from .loss import batch_sizes, gaussian
from .loss.accountant import Segment
from .loss.batch_sizes import SizedSteps
from .loss.example_losses import ExampleLosses
from .loss.subsampled import SubsampledStep
from .plan import NoisePlan

_ROUNDING = 1 + 2.0**-48
"""Covers the few roundings between leverages and mu, as in the accountant."""
_GAUSSIAN_SHARES = (ACCOUNTED, 0.99, 0.9, 0.5)
"""Shares of delta for the Gaussian noise, the rest for its tables; the first is that of plans."""


@dataclass(frozen=True)
class Question:
    """What a figure is about: what is protected, and against whom.

    Attributes:
        unit: "user" for all data of a user, "example" for one example.
        relation: How neighbouring data sets differ; at user level always "replace".
        colluders: Up to this many users of each run pool their secrets, also over runs: 0 is an
            eavesdropper, 1 a curious user, None everyone else. A run with too few users for it
            counts as against everyone.
    """

    unit: Unit = "user"
    relation: Relation = "replace"
    colluders: int | None = 1

    def __post_init__(self) -> None:
        checks.one_of("unit", self.unit, ("user", "example"), error=BudgetError)
        checks.one_of("relation", self.relation, ("add-remove", "replace"), error=BudgetError)
        if self.unit == "user" and self.relation != "replace":
            raise BudgetError(
                f"at user level neighbours replace one user's data; relation {self.relation!r} is "
                "not offered"
            )
        Adversary(self.colluders)  # validates the number

    @classmethod
    def of(cls, plan: NoisePlan) -> Question:
        """The question that a plan itself answers.

        Args:
            plan: Names unit, relation and adversary.
        """
        relation = plan.exposure.relation or "replace"
        return cls(plan.exposure.unit, relation, plan.adversary.colluders)

    @property
    def adversary(self) -> Adversary:
        return Adversary(self.colluders)

    @property
    def protected(self) -> str:
        """What is protected, in words."""
        return "all data of one user" if self.unit == "user" else f"one example, {self.relation}"


@dataclass(frozen=True)
class PastRun:
    """One run on a user's data, as far as it counts.

    Attributes:
        plan: The noise of the run, and what it did with private data.
        number: This user in the plan's graph. None if it is not known: the worst user counts.
        steps_made: Messages that the user has made; read only if `whole_plan` is False.
        repeated: Steps that were made once more, because the ledger had been set back. Each counts
            as one more step of the plan.
        whole_plan: Whether all steps of the plan count: a run that may still go on reserves them.
            Otherwise a question about a user counts the steps made, unless batches are Poisson; all
            others count all steps of a run with any message.
        distance: Total variation between the planned steps' messages and Gaussian ones: what the
            noise tables add. It holds for every question: the grid hides its own rounding beside
            the shift of the plan's unit, and so beside every larger one.
        public_size: Whether the user's number of examples is public, as in a federation's file.
    """

    plan: NoisePlan
    number: int | None = None
    steps_made: int = 0
    repeated: int = 0
    whole_plan: bool = True
    distance: float = 0.0
    public_size: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.plan, NoisePlan):
            raise InputError(f"plan must be a NoisePlan, not {self.plan!r}")
        if self.number is not None:
            checks.count("number", self.number, 0, self.plan.topology.users - 1)
        checks.count("steps_made", self.steps_made, 0)
        checks.count("repeated", self.repeated, 0)
        if not 0 <= self.distance < math.inf:
            raise InputError(f"distance must be a number of at least 0, not {self.distance!r}")

    @property
    def all_steps(self) -> int:
        """The steps of the plan and those made once more; 0 for a run without any message."""
        if not self.whole_plan and not self.steps_made + self.repeated:
            return 0
        return max(self.plan.exposure.steps, self.steps_made) + self.repeated

    @property
    def gaussian_steps(self) -> int:
        """The steps to count at user level where each is a Gaussian shift of fixed length.

        A Gaussian privacy filter covers any rule that ends a run, and what is left may be spent
        later. Sampled steps have no such filter here.
        """
        return self.all_steps if self.whole_plan else self.steps_made + self.repeated

    @property
    def whole_distance(self) -> float:
        """The distance of all messages, with that of repeated steps; it is the same for each."""
        return self.distance * max(1.0, self.all_steps / self.plan.exposure.steps)


def compose(runs: Iterable[PastRun], question: Question, delta: float) -> float:
    """Epsilon of all runs together.

    Args:
        runs: All runs on the user's data; their order does not matter.
        question: What is protected, and against whom.
        delta: Failure probability of all runs together.

    Returns:
        Epsilon; infinite where there is no bound, such as a user-level question about a run with
        Poisson sampling and a private number of examples (always so with `Exposure.rate`).

    Raises:
        CannotBound: If no finite bound was found within double precision.

    Guarantee: never below the truth, if no plan is chosen from results of earlier runs. At user
    level, plans without Poisson sampling may be chosen from results too, as long as each run begins
    only if all together are within a limit that was fixed before the first.
    """
    delta = validate_delta(delta)
    counted = [run for run in runs if run.all_steps]
    losses = _losses(counted, question)
    distance = math.fsum(run.whole_distance for run in counted) * _ROUNDING
    if not distance:
        return losses.epsilon(delta)
    # total variation t adds (1 + e^epsilon) t to delta: as much as is set aside, or more of it
    for share in _GAUSSIAN_SHARES:
        value = losses.epsilon(share * delta)
        slack = _slack(value, distance)
        if slack <= (1 - share) * delta * (1 + 1e-9):
            return value
        # a smaller share has a larger epsilon, and leaves the tables no more than all of delta
        if slack > delta:
            break
    return math.inf


def compose_delta(runs: Iterable[PastRun], question: Question, epsilon: float) -> float:
    """Delta of all runs together at a given epsilon.

    Args:
        runs: All runs on the user's data.
        question: What is protected, and against whom.
        epsilon: Bound on the privacy loss of all runs together.

    Guarantee: as of `compose`.
    """
    if not 0 <= epsilon < math.inf:
        raise BudgetError(f"epsilon must be a number of at least 0, not {epsilon!r}")
    counted = [run for run in runs if run.all_steps]
    distance = math.fsum(run.whole_distance for run in counted) * _ROUNDING
    return min(1.0, _losses(counted, question).delta(epsilon) + _slack(epsilon, distance))


def _slack(epsilon: float, distance: float) -> float:
    """What a total variation distance adds to delta."""
    return (1 + math.exp(min(epsilon, 700.0))) * distance if distance else 0.0


def _losses(runs: Sequence[PastRun], question: Question) -> _UserLosses | ExampleLosses:
    if question.unit == "user":
        return _UserLosses.of(runs, question)
    return example_losses(runs, question)


@dataclass(frozen=True)
class _UserLosses:
    """All runs for a question about a user: one Gaussian, and steps with random batch sizes."""

    mu_squared: float
    sized: tuple[SizedSteps, ...]

    @classmethod
    def of(cls, runs: Sequence[PastRun], question: Question) -> _UserLosses:
        squares, sized = [], Counter[tuple[float, int, tuple[int, ...]]]()
        for run in runs:
            exposure = run.plan.exposure
            # any gradient of norm C may become the opposite one; so may an average over a batch
            leverage, step = _leverage(run, question), _step(2 * exposure.clip, run)
            if exposure.rate is not None:
                # a user's batches, and so its shift, are as large as its private number of examples
                squares.append(math.inf)
            elif exposure.sampling != "poisson" or set(_records(run)) == {exposure.batch_size}:
                squares.append(step * step * run.gaussian_steps * leverage)
            elif not run.public_size or not math.isfinite(step):
                squares.append(math.inf)
            else:
                # a batch of B examples, divided by its expected size b, moves B/b times as far
                b = exposure.batch_size or 1
                weight = (step / b) ** 2 * leverage * _ROUNDING
                # the whole plan, however early it ended: its end may depend on the sizes
                sized[weight, b, _records(run)] += run.all_steps
        phases = (SizedSteps(*key, steps) for key, steps in sized.items())
        return cls(_total(squares), tuple(phases))

    def epsilon(self, delta: float) -> float:
        if not math.isfinite(self.mu_squared):
            return math.inf
        if self.sized:
            return batch_sizes.epsilon(self.sized, self.mu_squared * _ROUNDING**2, delta)
        return float(gaussian.epsilon(math.sqrt(self.mu_squared) * _ROUNDING, delta))

    def delta(self, epsilon: float) -> float:
        if not math.isfinite(self.mu_squared):
            return 1.0
        if self.sized:
            return batch_sizes.delta(self.sized, self.mu_squared * _ROUNDING**2, epsilon)
        return gaussian.delta(epsilon, math.sqrt(self.mu_squared) * _ROUNDING)


def example_losses(runs: Iterable[PastRun], question: Question) -> ExampleLosses:
    """What all runs cost one example, for a question about an example.

    Args:
        runs: The runs.
        question: Its unit is "example".
    """
    squares, sampled = [], Counter[SubsampledStep]()
    for run in runs:
        exposure = run.plan.exposure
        leverage, clip = _leverage(run, question), _step(exposure.clip, run)
        if exposure.unit == "user":
            # one example may turn the clipped gradient of all data around
            squares.append((2 * clip) ** 2 * run.all_steps * leverage)
            continue
        b, sampling = exposure.batch_size or 1, exposure.sampling or "poisson"
        # a batch of fixed size is accounted for an example replaced, whatever is asked
        relation: Relation = "replace" if sampling == "fixed" else question.relation
        rate = b / min(_records(run)) if exposure.rate is None else exposure.rate
        if rate == 1 or not math.isfinite(clip):
            shift = (1 if relation == "add-remove" else 2) * clip / b
            squares.append(shift * shift * run.all_steps * leverage)
            continue
        # the accountant's formula, digit by digit: a plan within its budget stays within it
        z = b * run.plan.least_sigma_cdp / (exposure.clip * math.sqrt(leverage) * _ROUNDING)
        sampled[SubsampledStep(z, rate, sampling, relation, 1)] += run.all_steps
    return ExampleLosses.of(_total(squares), sampled, question.relation)


def _total(squares: Sequence[float]) -> float:
    return math.fsum(squares) if all(map(math.isfinite, squares)) else math.inf


def _step(shift: float, run: PastRun) -> float:
    """The shift in units of the plan's least own noise; infinite without any."""
    own = run.plan.least_sigma_cdp
    return shift / own if own > 0 else math.inf


def _leverage(run: PastRun, question: Question) -> float:
    """This user's worst leverage, in units of the least own noise; the worst user's if unknown."""
    plan, q = run.plan, question.colluders
    if plan.least_sigma_cdp == 0:
        return 1.0
    # too few users for so many colluders, or none beside this one: then everyone else
    if q is not None and (q >= plan.topology.users or (q and plan.topology.users == 1)):
        q = None
    segment = Segment(plan.topology, plan.exposure, plan.sigma_cdp, plan.sigma_cor)
    worst = worst_leverages((Phase(segment.noise, 1.0),), q)
    return worst.worst if run.number is None else float(worst.per_user[run.number])


def _records(run: PastRun) -> tuple[int, ...]:
    """The user's number of examples; that of every user if it is unknown."""
    counts = run.plan.exposure.records_of(run.plan.topology)
    return tuple(sorted(set(counts))) if run.number is None else (counts[run.number],)
