"""PlanAnswer: what a plan says. The commands, the planner's page and reports all show this."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decor.errors import FragileGraphWarning
from decor.graph.gossip import ONE_ROUND, Gossip
from decor.graph.topology import Topology
from decor.text import amount, rounded_up, rounded_up_range

from . import baselines, theory
from .adversary import Adversary
from .budget import Budget, Exposure
from .calibrate import calibrate
from .guarantee import Guarantee
from .plan import NoisePlan

_PAYS = 1.5
"""Own noise over the median from which a user is named."""
_NAMED = 8


@dataclass(frozen=True)
class AdversaryRow:
    """What one adversary learns.

    Attributes:
        adversary: The adversary.
        epsilon: Epsilon of the most exposed user.
        exact: False where epsilon is only an upper bound.
        worst_user: The most exposed user.
        most_exposed: Its name.
        coalition: Names of the colluding users to whom it is most exposed.
        alike: Whether all users are known to be equally exposed.
    """

    adversary: Adversary
    epsilon: float
    exact: bool
    worst_user: int
    most_exposed: str
    coalition: tuple[str, ...]
    alike: bool

    @classmethod
    def of(cls, guarantee: Guarantee) -> AdversaryRow:
        name = guarantee.topology.name
        return cls(
            guarantee.adversary,
            guarantee.epsilon,
            guarantee.exact,
            guarantee.worst_user,
            name(guarantee.worst_user),
            tuple(name(user) for user in guarantee.worst_coalition),
            guarantee.alike,
        )

    def epsilon_text(self, bound: str = "<=") -> str:
        """Epsilon rounded up, after the sign `bound` if it is an upper bound."""
        return rounded_up(self.epsilon) if self.exact else f"{bound} {rounded_up(self.epsilon)}"


@dataclass(frozen=True)
class UserRow:
    """One user's name, number of examples (None at user level), epsilon and own noise."""

    name: str
    records: int | None
    epsilon: float
    sigma_cdp: float


@dataclass(frozen=True)
class NoisePairRow:
    """A plan within the same budget, and its predicted error relative to that of central DP."""

    name: str
    plan: NoisePlan
    relative_error: float


@dataclass(frozen=True, eq=False)
class PlanAnswer:
    """A plan, what it guarantees against its own adversary, and the warnings of its calibration.

    Attributes:
        plan: The plan.
        guarantee: Its guarantee; delta and method of the tables are those of this guarantee.
        warnings: Sentences.
    """

    plan: NoisePlan
    guarantee: Guarantee
    warnings: tuple[str, ...] = ()

    @classmethod
    def calibrate(
        cls,
        topology: Topology,
        exposure: Exposure,
        adversary: Adversary,
        budget: Budget,
        **options: Any,
    ) -> PlanAnswer:
        """Calibrates a plan, and keeps the warnings as sentences; `options` as of `calibrate`."""
        with warnings.catch_warnings(record=True) as caught:
            # Python shows a warning once for each place: a second plan would have none
            warnings.simplefilter("always", FragileGraphWarning)
            plan = calibrate(topology, exposure, adversary, budget, **options)
        guarantee = plan.guarantee(method=options.get("method", "exact"))
        return cls(plan, guarantee, tuple(str(warning.message) for warning in caught))

    def adversary_rows(
        self,
        adversaries: Iterable[Adversary] | None = None,
        account: Callable[[Adversary], Guarantee] | None = None,
    ) -> list[AdversaryRow]:
        """What each adversary learns.

        Args:
            adversaries: By default those that `plan.listed_adversaries` names.
            account: Gives the guarantee against an adversary; by default that of the plan. A
                federation and a run account for their own noise.
        """

        def of_plan(adversary: Adversary) -> Guarantee:
            return self.plan.guarantee(self.guarantee.delta, adversary, self.guarantee.method)

        if adversaries is None:
            adversaries = self.plan.listed_adversaries()
        rows = []
        for adversary in adversaries:
            # the plan's own adversary is accounted for already; a search may take a minute
            known = adversary == self.guarantee.adversary
            guarantee = self.guarantee if known else (account or of_plan)(adversary)
            rows.append(AdversaryRow.of(guarantee))
        return rows

    def user_rows(self) -> list[UserRow]:
        """Each user's epsilon, in the graph's order."""
        topology, exposure = self.plan.topology, self.plan.exposure
        known = exposure.counts_are_public
        counts = exposure.records_of(topology) if known else (None,) * topology.users
        epsilons = self.guarantee.per_user.tolist()
        names = map(topology.name, range(topology.users))
        own = self.plan.sigma_cdp_per_user.tolist()
        return [UserRow(*row) for row in zip(names, counts, epsilons, own, strict=True)]

    def noise_pair_rows(
        self, gossip: Gossip = ONE_ROUND, ratios: Sequence[float] = ()
    ) -> list[NoisePairRow]:
        """Central DP, a noise pair for each ratio, this plan and local DP, at the plan's budget.

        Args:
            gossip: The gossip of each step, for the predicted error.
            ratios: Values of sigma_cor^2 / sigma_cdp^2; none are shown for the adversary everyone.
        """
        plan = self.plan
        assert plan.budget is not None
        asked = (plan.topology, plan.exposure, plan.budget)
        # any_delta: the plan has passed the check of delta, or the caller has waived it
        central = baselines.central(*asked, any_delta=True)
        pairs = {}
        if ratios and plan.adversary.colluders is not None:
            curve = plan.couples(ratios)
            for x, s, c in zip(curve.ratio, curve.sigma_cdp, curve.sigma_cor, strict=True):
                pair = NoisePlan(plan.topology, plan.exposure, plan.adversary, float(s), float(c))
                pairs[f"ratio {x:g}"] = pair
        pairs["this plan"] = plan
        pairs["local DP"] = baselines.local(*asked, any_delta=True)
        # central DP averages all models, so its only error is that of the average
        best = theory.average_error(central)
        rows = [NoisePairRow("central DP", central, 1.0)]
        for name, pair in pairs.items():
            rows.append(NoisePairRow(name, pair, theory.predicted_error(pair, gossip) / best))
        return rows

    def to_json(self) -> dict[str, Any]:
        """The answer as plain values: what `decor plan --json` prints."""
        plan, guarantee, topology = self.plan, self.guarantee, self.plan.topology
        users = []
        for row in self.user_rows():
            records = {} if row.records is None else {"records": row.records}
            own = {"sigma_cdp": row.sigma_cdp} if isinstance(plan.sigma_cdp, tuple) else {}
            users.append({"user": row.name, **records, "epsilon": row.epsilon, **own})
        # a list of noises by edge can only be read beside the order of the edges
        per_edge = isinstance(plan.sigma_cor, tuple)
        return {
            "sigma_cdp": plan.sigma_cdp,
            "sigma_cor": plan.sigma_cor,
            **({"edges": topology.edges.tolist()} if per_edge else {}),
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            # delta is the probability for each unit: this is the mean over all units
            "expected_failures": guarantee.delta * plan.exposure.units(topology),
            "adversary": str(guarantee.adversary),
            "worst_user": guarantee.worst_user,
            "worst_coalition": list(guarantee.worst_coalition),
            "per_user": users,
            "per_user_epsilon": guarantee.per_user.tolist(),
            "exact": guarantee.exact,
            "users": topology.users,
            **({"labels": list(topology.labels)} if topology.labels is not None else {}),
            "unit": plan.exposure.unit,
            "steps": plan.exposure.steps,
            "clip": plan.exposure.clip,
            "statement": str(guarantee),
            "warnings": list(self.warnings),
        }


def who_pays(plan: NoisePlan) -> str | None:
    """Which users add more of their own noise than others, and how much; None if none does.

    Args:
        plan: The plan; in one with a single sigma_cdp nobody pays for another.
    """
    own = plan.sigma_cdp_per_user
    if not isinstance(plan.sigma_cdp, tuple):
        return None
    # not the mean: the few who pay would pull it towards themselves
    usual = float(np.median(own))
    # stable: users with equal noise are named in the order of the graph
    payers = [int(user) for user in np.argsort(-own, kind="stable") if own[user] > _PAYS * usual]
    # variances, because they are what adds up in the average of all models
    share = float(np.sum(own[payers] ** 2) / np.sum(own**2))
    # never empty: at least half of all users are at or below the median
    others = np.delete(own, payers)
    levels = rounded_up_range(float(others.min()), float(others.max()))
    if not payers:
        return f"Own noise differs by user, from {levels}; nobody adds much more than the others."
    shown = [
        f"{plan.topology.name(user)} {own[user] / usual:.1f} times" for user in payers[:_NAMED]
    ]
    others_paying = len(payers) - len(shown)
    more = f" and {amount(others_paying, 'more user')}" if others_paying else ""
    return (
        f"Who pays: {', '.join(shown)}{more} the usual own noise, {share:.0%} of the own variance "
        f"of all users; the others add {levels}."
    )


def note_on_parts(topology: Topology) -> str:
    """What it means that a graph is not connected."""
    return (
        f"The graph has {topology.component_count} parts that never hear of each other: noise "
        "cancels, and models agree, only within a part. Adding one edge between two parts helps "
        "all users in them."
    )


def advice(topology: Topology, connectivity: int | None) -> str:
    """Which users can isolate another one.

    Args:
        topology: The graph.
        connectivity: The vertex connectivity, where it is known.
    """
    if not topology.is_connected:
        return note_on_parts(topology)
    if topology.users == 1:
        return "One user alone has no other user to share noise with."
    least = int(topology.degrees.argmin())
    degree = int(topology.degrees[least])
    neighbours = "only neighbour" if degree == 1 else f"{degree} neighbours"
    isolate = "isolates" if degree == 1 else "together isolate"
    # against a coalition of all its neighbours a user has only its own noise
    text = (
        f"The {neighbours} of user {topology.name(least)} {isolate} it: against "
        f"{Adversary(degree).sentence} this is local DP."
    )
    # Whitney: vertex connectivity is at most the least degree; only a smaller one is news
    if connectivity is not None and connectivity < degree:
        users = "1 user" if connectivity == 1 else f"{connectivity} users"
        text += f" Already {users} can cut the graph in parts, which weakens it."
    return text
