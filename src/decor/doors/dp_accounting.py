"""Behind the interface of dp-accounting: a run on a graph as an event, and an exact accountant.

dp-accounting has neither graphs nor neighbours who know some of the noise, and for batches of fixed
size it has Rényi bounds alone. `DecorAccountant` accounts for its Gaussian events, sampled or not,
as plans are accounted for, and composes them with runs on graphs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from decor import checks
from decor.choices import Relation, Sampling
from decor.errors import InputError, require
from decor.privacy.adversary import Adversary
from decor.privacy.composition import PastRun, Question, example_losses
from decor.privacy.loss.example_losses import ExampleLosses
from decor.privacy.loss.subsampled import SubsampledStep
from decor.privacy.plan import NoisePlan

require("dp_accounting", "doors", "events and accountants of dp-accounting")

import attr  # noqa: E402
from dp_accounting import dp_event  # noqa: E402
from dp_accounting.privacy_accountant import (  # noqa: E402
    NeighboringRelation,
    PrivacyAccountant,
)

_LEAST, _MOST = 1e-12, 1e12
"""Noise multipliers (and rates, from below) are rounded to these, towards a larger epsilon."""


@attr.s(frozen=True, slots=True, auto_attribs=True)
class CorrelatedGaussianDpEvent(dp_event.DpEvent):
    """All steps of a run of users on a graph, whose noise cancels between neighbours.

    In each step every user i releases a message m_i = g_i + n_i. User i's clipped gradient g_i has
    a norm of at most C, or is a sum over a sample of its examples, each clipped to C, divided by a
    public batch size; it may depend on all earlier messages. The noise of all users is Gaussian
    and fresh in each step, with covariance diag(s_i^2) + L(c^2) per coordinate, where L(c^2) is
    the Laplacian of the graph with weights c_e^2. The adversary of the plan sees all messages of
    all users, and knows the data and the noise of the users that collude.

    A record of the data set is all data of one user, or one example of one user: the unit of the
    plan's exposure. A run that is repeated has fresh noise.

    Attributes:
        plan: Graph, noise, exposure (clip, steps, sampling, unit) and adversary.
    """

    plan: NoisePlan


class _Unsupported(Exception):
    """Part of an event that cannot be accounted for, and why."""

    def __init__(self, event: dp_event.DpEvent, reason: str) -> None:
        super().__init__(reason)
        self.event = event


@dataclass
class _Events:
    """What was composed, by kind, and how many of each."""

    gaussians: Counter[float] = field(default_factory=Counter)  # by noise multiplier
    sampled: Counter[SubsampledStep] = field(default_factory=Counter)
    plans: Counter[NoisePlan] = field(default_factory=Counter)
    not_private: int = 0

    @property
    def nothing(self) -> bool:
        return not (self.gaussians or self.sampled or self.plans or self.not_private)

    def add(self, other: _Events) -> None:
        # counts of 0, of events that were only looked at, are dropped
        self.gaussians += other.gaussians
        self.sampled += other.sampled
        self.plans += other.plans
        self.not_private += other.not_private

    def add_gaussian(self, z: float, count: int) -> None:
        if z < _LEAST:
            self.not_private += count
        else:
            self.gaussians[min(z, _MOST)] += count

    def add_sampled(
        self, z: float, rate: float, sampling: Sampling, relation: Relation, count: int
    ) -> None:
        if rate == 1 or (rate > 0 and z < _LEAST):
            self.add_gaussian(z, count)
        elif rate > 0:
            step = SubsampledStep(min(z, _MOST), max(rate, _LEAST), sampling, relation, 1)
            self.sampled[step] += count


def _noise_multiplier(event: dp_event.DpEvent) -> float:
    """That of all queries on one sample together: in a composition their 1/z^2 add up.

    Given the sample, queries that depend on earlier ones are dominated by one Gaussian.
    """
    match event:
        case dp_event.GaussianDpEvent():
            z = checks.as_float(event.noise_multiplier)
            if not z >= 0:
                raise _Unsupported(event, f"noise_multiplier must be 0 or more, not {z!r}.")
            return z
        case dp_event.SelfComposedDpEvent() if checks.is_count(event.count):
            parts = [(_noise_multiplier(event.event), event.count)]
        case dp_event.ComposedDpEvent() if event.events:
            parts = [(_noise_multiplier(each), 1) for each in event.events]
        case _:
            raise _Unsupported(
                event,
                "Only a `GaussianDpEvent` or a composition of several may be in a sample; a run on "
                "a graph has its sampling in its plan.",
            )
    if min(z for z, _ in parts) < _LEAST:
        return 0.0
    # down, by more than the roundings
    return (1 - 2.0**-48) / math.sqrt(math.fsum(n / min(z, _MOST) ** 2 for z, n in parts))


def _check_question(plans: Sequence[NoisePlan]) -> None:
    """Raises if two runs have no epsilon together."""
    for plan in plans[1:]:
        for what, one, other in (
            ("units", plans[0].exposure.unit, plan.exposure.unit),
            ("adversaries", plans[0].adversary, plan.adversary),
        ):
            if one != other:
                raise _Unsupported(
                    CorrelatedGaussianDpEvent(plan),
                    f"Runs with different {what}, {one} and {other}, have no epsilon together: an "
                    "epsilon answers one question.",
                )


class DecorAccountant(PrivacyAccountant):
    """Exact accounting of Gaussian events: alone, sampled, and on graphs.

    Supported are `GaussianDpEvent`, `PoissonSampledDpEvent` and `SampledWithoutReplacementDpEvent`
    of Gaussians, `CorrelatedGaussianDpEvent`, and compositions. All others are refused.

    As `GaussianDpEvent` says, a noise multiplier is s / C where each value has a norm of at most C.
    So a record that is replaced by another moves a sum by 2C (`REPLACE_ONE`), and one that is
    added, removed or replaced by a zero record moves it by C.

    Runs on graphs must have the same unit and the same adversary: an epsilon answers one question.
    Each run counts with its own most exposed user and coalition.

    Guarantee: epsilons and deltas are never below the truth.

    Args:
        neighboring_relation: In what two data sets differ. `SampledWithoutReplacementDpEvent` and
            runs at user level need `REPLACE_ONE`, which covers `REPLACE_SPECIAL`.
    """

    def __init__(
        self, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
    ) -> None:
        if not isinstance(neighboring_relation, NeighboringRelation):
            raise InputError(
                "neighboring_relation must be a dp_accounting.NeighboringRelation, not "
                f"{neighboring_relation!r}"
            )
        super().__init__(neighboring_relation)
        self._events = _Events()

    @property
    def _replaces(self) -> bool:
        return bool(self.neighboring_relation is NeighboringRelation.REPLACE_ONE)

    @property
    def _relation(self) -> Relation:
        return "replace" if self._replaces else "add-remove"

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Any:
        """Composes an event with those before, or says which part of it cannot be, and why.

        Args:
            event: The event.
            count: How many times; 0 when an event is only looked at.
            do_compose: Whether to change the state.
        """
        # all of the event first: one that fails in its middle must leave nothing behind
        found = _Events()
        try:
            self._collect(event, count, found)
            _check_question([*self._events.plans, *found.plans])
        except _Unsupported as problem:
            return self.CompositionErrorDetails(problem.event, str(problem))
        if do_compose:
            self._events.add(found)
        return None

    def _collect(self, event: dp_event.DpEvent, count: int, found: _Events) -> None:
        match event:
            case dp_event.NoOpDpEvent():
                pass
            case dp_event.NonPrivateDpEvent():
                found.not_private += count
            case dp_event.SelfComposedDpEvent():
                if not checks.is_count(event.count, 0):
                    raise _Unsupported(event, f"count must be 0 or more, not {event.count!r}.")
                self._collect(event.event, count * event.count, found)
            case dp_event.ComposedDpEvent():
                for each in event.events:
                    self._collect(each, count, found)
            case dp_event.GaussianDpEvent():
                found.add_gaussian(_noise_multiplier(event), count)
            case dp_event.PoissonSampledDpEvent():
                self._collect_poisson(event, count, found)
            case dp_event.SampledWithoutReplacementDpEvent():
                self._collect_fixed(event, count, found)
            case CorrelatedGaussianDpEvent():
                self._check_run(event)
                found.plans[event.plan] += count
            case _:
                raise _Unsupported(event, "Unsupported event.")

    def _collect_poisson(
        self, event: dp_event.PoissonSampledDpEvent, count: int, found: _Events
    ) -> None:
        rate = checks.as_float(event.sampling_probability)
        if not 0 <= rate <= 1:
            raise _Unsupported(event, f"sampling_probability must be from 0 to 1, not {rate!r}.")
        if self._replaces and not isinstance(event.event, dp_event.GaussianDpEvent):
            # three data sets: with the old record, with the new one, with neither. What dominates
            # each pair need not dominate all three once a query depends on the one before
            raise _Unsupported(
                event,
                "With neighboring_relation `REPLACE_ONE` only a single `GaussianDpEvent` may be in "
                f"a `PoissonSampledDpEvent`. Found {event.event}.",
            )
        z = _noise_multiplier(event.event)
        found.add_sampled(z, rate, "poisson", self._relation, count)

    def _collect_fixed(
        self, event: dp_event.SampledWithoutReplacementDpEvent, count: int, found: _Events
    ) -> None:
        if self.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
            raise _Unsupported(
                event,
                "neighboring_relation must be `REPLACE_ONE` or `REPLACE_SPECIAL` for "
                f"`SampledWithoutReplacementDpEvent`. Found {self.neighboring_relation}.",
            )
        size, records = event.sample_size, event.source_dataset_size
        if not (checks.is_count(size, 0) and checks.is_count(records) and size <= records):
            raise _Unsupported(event, "sample_size must be from 0 to source_dataset_size.")
        # "replace" with either relation: a zero record is one that may replace another
        z = _noise_multiplier(event.event)
        found.add_sampled(z, size / records, "fixed", "replace", count)

    def _check_run(self, event: CorrelatedGaussianDpEvent) -> None:
        plan = event.plan
        if not isinstance(plan, NoisePlan):
            raise _Unsupported(event, f"plan must be a decor.NoisePlan, not {plan!r}.")
        if plan.adversary.average_only:
            raise _Unsupported(
                event,
                "An observer of the average alone is central DP: use a `GaussianDpEvent` with the "
                "noise of the average.",
            )
        if self.neighboring_relation is not NeighboringRelation.ADD_OR_REMOVE_ONE:
            return
        if plan.exposure.unit == "user":
            raise _Unsupported(
                event,
                "neighboring_relation must be `REPLACE_ONE` or `REPLACE_SPECIAL` for a run at user "
                "level: the graph is public, so no user is added or removed.",
            )
        if plan.exposure.counts_are_public:
            raise _Unsupported(
                event,
                "neighboring_relation must be `REPLACE_ONE` or `REPLACE_SPECIAL` for a run whose "
                "numbers of examples are public; or make its plan with decor.Exposure(rate=...).",
            )

    def _losses(self) -> ExampleLosses:
        """What a record loses; at user level a run moves the record's message by 2C whole."""
        events = self._events
        plans = list(events.plans.items())
        adversary = plans[0][0].adversary if plans else Adversary.everyone()
        question = Question("example", self._relation, adversary.colluders)
        runs = [PastRun(plan, repeated=(count - 1) * plan.exposure.steps) for plan, count in plans]
        of_runs = example_losses(runs, question)
        shift = 2 if self._replaces else 1
        squares = [count * (shift / z) ** 2 for z, count in events.gaussians.items()]
        sampled = events.sampled + Counter(
            {replace(phase, steps=1): phase.steps for phase in of_runs.phases}
        )
        return ExampleLosses.of(math.fsum([of_runs.mu_squared, *squares]), sampled, self._relation)

    def get_epsilon(self, target_delta: float) -> float:
        """Epsilon of all events together; 0 if there are none, infinite if one is not private.

        Args:
            target_delta: Failure probability, from 0 to 1.

        Raises:
            CannotBound: If no finite bound was found within double precision.

        Guarantee: never below the truth.
        """
        delta = checks.as_float(target_delta)
        if not 0 <= delta <= 1:
            raise InputError(f"target_delta must be from 0 to 1, not {target_delta!r}")
        events = self._events
        if events.not_private:
            return math.inf
        if delta == 1 or events.nothing:
            return 0.0
        if delta == 0:
            return math.inf
        if len(events.plans) == 1 and not events.gaussians and not events.sampled:
            # as the plan says it: with the worst user, not the worst rate and the worst leverage
            ((plan, count),) = events.plans.items()
            return self._in_a_row(plan, count).guarantee(delta).epsilon
        return self._losses().epsilon(delta)

    def _in_a_row(self, plan: NoisePlan, count: int) -> NoisePlan:
        exposure = plan.exposure
        relation = exposure.relation if exposure.unit == "user" else self._relation
        if exposure.sampling == "fixed":
            relation = "replace"
        return replace(
            plan, exposure=replace(exposure, steps=count * exposure.steps, relation=relation)
        )

    def get_delta(self, target_epsilon: float) -> float:
        """Delta of all events together; 0 if there are none, 1 if one is not private.

        Args:
            target_epsilon: Bound on the privacy loss, at least 0.

        Guarantee: never below the truth.
        """
        epsilon = checks.as_float(target_epsilon)
        if not epsilon >= 0:
            raise InputError(f"target_epsilon must be at least 0, not {target_epsilon!r}")
        if self._events.not_private:
            return 1.0
        if self._events.nothing or math.isinf(epsilon):
            return 0.0
        return self._losses().delta(epsilon)
