"""NoisePlan: the noise of a run, everything it derives from, and what it guarantees."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decor import checks
from decor.array_types import Floats
from decor.choices import Method
from decor.errors import BudgetError, InputError
from decor.graph import families
from decor.graph.own_weights import mixing_matrix
from decor.graph.topology import Topology
from decor.text import html_table, rounded_up_range

from .adversary import Adversary
from .budget import ACCOUNTED, Budget, Exposure
from .guarantee import Guarantee
from .loss.accountant import Segment, account
from .noise_pairs import Couples, couples

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


_FORMAT = "decor-plan-1"
_FAMILIES = ("ring", "path", "star", "complete", "hypercube", "torus", "grid")
"""Graph families that a saved plan may name: nothing else in a file is looked up by name."""
_MANY = 2000
"""Above this many users no coalitions are listed beside the plan's own: a search takes too long."""


@dataclass(frozen=True)
class NoisePlan:
    """Independent noise sigma_cdp at each user, and shared noise sigma_cor on each edge.

    The covariance of a step's noise is diag(sigma_cdp^2) + the graph's Laplacian weighted by
    sigma_cor^2.

    Attributes:
        topology: The graph of the users.
        exposure: What the run does with private data.
        adversary: Against whom the plan was made; `guarantee` accounts against others too.
        sigma_cdp: Standard deviation of each user's independent noise, per coordinate. One number,
            or one per user in the order of the graph, none of them 0.
        sigma_cor: Standard deviation of the noise that the two ends of an edge share, which one
            adds and the other subtracts. One number, or one per edge in the order of
            `topology.edges` (which is sorted, whatever was given).
        budget: What `calibrate` made the plan for; None for a plan made by hand.
    """

    topology: Topology
    exposure: Exposure
    adversary: Adversary
    sigma_cdp: float | tuple[float, ...]
    sigma_cor: float | tuple[float, ...]
    budget: Budget | None = None

    def __post_init__(self) -> None:
        kinds = {"topology": Topology, "exposure": Exposure, "adversary": Adversary}
        if self.budget is not None:
            kinds["budget"] = Budget
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")
        # here and not in the accountant alone: a plan that exists can be accounted
        self.exposure.check(self.topology)
        self.adversary.check(self.topology.users)
        users, edges = self.topology.users, self.topology.edge_count
        sigma_cdp = _noise_levels("sigma_cdp", self.sigma_cdp, users, "user")
        if isinstance(sigma_cdp, tuple) and min(sigma_cdp) == 0:
            # as one number, 0 says on purpose that there is no privacy
            name = self.topology.name(sigma_cdp.index(0.0))
            raise BudgetError(
                f"sigma_cdp of user {name} is 0; give every user noise of its own, or one number "
                "for all"
            )
        object.__setattr__(self, "sigma_cdp", sigma_cdp)
        sigma_cor = _noise_levels("sigma_cor", self.sigma_cor, edges, "edge")
        object.__setattr__(self, "sigma_cor", sigma_cor)

    def __repr__(self) -> str:
        # rounded up: whoever copies a printed sigma does not take less noise
        noise = [f"{name} {text}" for name, text in self._noise_texts()]
        budget = "" if self.budget is None else f", {self.budget!r}"
        return f"NoisePlan({self.topology!r}, {self.exposure!r}, {', '.join(noise)}{budget})"

    def _noise_texts(self) -> list[tuple[str, str]]:
        """Each kind of noise, as one number or its range."""
        noises = (("sigma_cdp", self.sigma_cdp), ("sigma_cor", self.sigma_cor))
        texts = []
        for name, sigma in noises:
            levels = np.atleast_1d(sigma)
            texts.append((name, rounded_up_range(min(levels, default=0), max(levels, default=0))))
        return texts

    def _repr_html_(self) -> str:
        """What the plan says, as a notebook shows it; `guarantee` is computed on request."""
        rows = [
            ("graph", self.topology.description),
            *self.exposure.rows(),
            ("adversary", str(self.adversary)),
            *self._noise_texts(),
        ]
        if self.budget is not None:
            budget = f"epsilon {self.budget.epsilon:g}, delta {self.budget.delta:g}"
            rows.append(("budget", budget))
        return html_table((), rows)

    @property
    def sigma_cdp_per_user(self) -> Floats:
        """sigma_cdp of each user, in the order of the graph."""
        return np.broadcast_to(np.asarray(self.sigma_cdp), self.topology.users)

    @property
    def least_sigma_cdp(self) -> float:
        """The smallest sigma_cdp of any user."""
        return min(self.sigma_cdp) if isinstance(self.sigma_cdp, tuple) else self.sigma_cdp

    def uniform_sigma_cdp(self, what: str) -> float:
        """The one sigma_cdp of all users.

        Args:
            what: What takes no plan with own noise per user, to begin the error with.

        Raises:
            InputError: If users have noise levels of their own.
        """
        if isinstance(self.sigma_cdp, tuple):
            raise InputError(
                f'{what} takes one sigma_cdp for all users; make the plan with own="uniform"'
            )
        return self.sigma_cdp

    def guarantee(
        self,
        delta: float | None = None,
        adversary: Adversary | None = None,
        method: Method = "exact",
    ) -> Guarantee:
        """What this noise guarantees.

        Args:
            delta: Failure probability; by default the budget's.
            adversary: Against whom; by default the plan's adversary.
            method: "exact", or "paper" for the paper's looser conversion.

        Guarantee: epsilon is never below the truth.
        """
        # a plan is a run with one phase
        return Phases((self,)).guarantee(delta, adversary, method)

    def guarantee_on_grid(
        self,
        distance: float,
        delta: float | None = None,
        adversary: Adversary | None = None,
        steps: int | None = None,
    ) -> Guarantee:
        """What messages guarantee whose distribution is close to this plan's Gaussian one.

        Private runs draw their noise from tables on a grid, which are such a distribution.

        Args:
            distance: Total variation distance between the two distributions of all messages.
            delta: Failure probability; by default the budget's.
            adversary: Against whom; by default the plan's adversary.
            steps: Accounts for the first steps alone, if their number was fixed in advance.

        Guarantee: `delta` includes the share that the distance takes, and epsilon is infinite where
        that is more than is left of delta.
        """
        plan = self if not steps else replace(self, exposure=replace(self.exposure, steps=steps))
        if delta is None and self.budget is not None:
            delta = self.budget.delta
        exact = plan.guarantee(None if delta is None else ACCOUNTED * delta, adversary)
        whole = exact.delta / ACCOUNTED if delta is None else delta

        def with_tables(epsilon: Any) -> Any:
            # a distance d adds (1 + e^epsilon) d to delta: within the reserved share, or no promise
            taken = (1 + np.exp(np.minimum(epsilon, 700.0))) * distance
            return np.where(taken <= (1 - ACCOUNTED) * whole * (1 + 1e-9), epsilon, math.inf)

        epsilon, everybody = float(with_tables(exact.epsilon)), exact.everybody
        guarantee = replace(
            exact,
            delta=whole,
            epsilon=epsilon,
            in_advance=steps is not None,
            everybody=lambda: np.asarray(with_tables(everybody())),
        )
        if steps == 0:  # nothing was sent
            zeros = np.zeros(self.topology.users)
            return replace(guarantee, epsilon=0.0, steps=0, exact=True, everybody=zeros.copy)
        return guarantee

    def couples(self, ratios: ArrayLike | None = None) -> Couples:
        """All noise pairs (sigma_cdp, sigma_cor) that meet the same budget, as a curve.

        Args:
            ratios: Values of sigma_cor^2 / sigma_cdp^2; by default 25 from 0.1 to a million.

        Raises:
            BudgetError: If the plan was made without a budget.
        """
        if self.budget is None:
            raise BudgetError(
                "this plan was made without a budget, so it has no curve of noise pairs; make it "
                "with calibrate()"
            )
        return couples(self.topology, self.exposure, self.adversary, self.budget, ratios)

    def listed_adversaries(self) -> list[Adversary]:
        """The adversaries of a table: the paper's four types, and the plan's own.

        Up to three colluders, and no more than can isolate some user: more learn nothing more.
        """
        n, q = self.topology.users, self.adversary.colluders
        counts: set[int] = {0} if q is None else {0, q}
        # as many colluders as the least degree isolate a user: that is local DP already
        if n <= _MANY:
            counts |= set(range(1, min(3, int(self.topology.degrees.min()), n - 1) + 1))
        return [Adversary(k) for k in sorted(counts)] + [Adversary.everyone()]

    def scaled(self, factor: float) -> NoisePlan:
        """The plan with all noise multiplied.

        Args:
            factor: What to multiply by; below 1 the result has no budget, which it would exceed.
        """

        def times(sigma: float | tuple[float, ...]) -> float | tuple[float, ...]:
            return tuple(factor * s for s in sigma) if isinstance(sigma, tuple) else factor * sigma

        budget = self.budget if factor >= 1 else None
        sigma_cdp, sigma_cor = times(self.sigma_cdp), times(self.sigma_cor)
        return replace(self, sigma_cdp=sigma_cdp, sigma_cor=sigma_cor, budget=budget)

    def to_json(self) -> str:
        """The plan as text; equal plans have equal texts."""
        budget = asdict(self.budget) if self.budget is not None else None
        exposure = self.exposure.to_json()
        if isinstance(self.exposure.records, Mapping):
            # in the graph's order, not in that of the mapping
            names = map(self.topology.name, range(self.topology.users))
            counts = self.exposure.records_of(self.topology)
            exposure["records"] = dict(zip(names, counts, strict=True))
        value = {
            "format": _FORMAT,
            "topology": _topology_to_json(self.topology),
            "exposure": exposure,
            "adversary": str(self.adversary),
            "sigma_cdp": self.sigma_cdp,
            "sigma_cor": self.sigma_cor,
            "budget": budget,
        }
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str) -> NoisePlan:
        """The plan that `to_json` wrote, checked like one made by hand.

        Args:
            text: The text of a saved plan.

        Raises:
            InputError: If the text is not a saved plan.
        """
        try:
            value = json.loads(text)
            if not isinstance(value, dict) or value.get("format") != _FORMAT:
                raise InputError(
                    f'not a saved plan: "format" must be "{_FORMAT}"; save plans with '
                    "plan.save(path)"
                )
            topology, exposure = _topology_from_json(value["topology"]), dict(value["exposure"])
            counts, names = exposure.get("records"), topology.labels
            if isinstance(counts, list) and names is not None and len(counts) == len(names):
                # plans older than records by name have a list, in the graph's order
                exposure["records"] = dict(zip(names, counts, strict=True))
            if exposure.get("unit") == "user":
                exposure.pop("relation", None)  # always "replace"
            budget = Budget(**value["budget"]) if value["budget"] is not None else None
            adversary = Adversary.parse(value["adversary"])
            noise = value["sigma_cdp"], value["sigma_cor"]
            return cls(topology, Exposure(**exposure), adversary, *noise, budget)
        # every way in which a file that was not written by `to_json` can fail
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
            raise InputError(
                f"not a saved plan: {error!r}; save plans with plan.save(path)"
            ) from None

    @property
    def digest(self) -> str:
        """SHA-256 of the file that `save` writes, as `sha256sum` prints it."""
        return hashlib.sha256(self._file_text.encode()).hexdigest()

    @property
    def _file_text(self) -> str:
        return self.to_json() + "\n"

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON.

        Args:
            path: The file, which is overwritten.

        Raises:
            InputError: If the file cannot be written.
        """
        try:
            Path(path).write_text(self._file_text, encoding="utf-8")
        except OSError as problem:
            raise InputError(
                f"the plan cannot be written to {str(path)!r}: {problem.strerror}"
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> NoisePlan:
        """The plan in a file that `save` wrote.

        Args:
            path: The file.

        Raises:
            InputError: If the file cannot be read, or holds no plan.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, InputError) as problem:
            raise InputError(f"the plan {str(path)!r} cannot be read: {problem}") from None


@dataclass(frozen=True)
class Phases:
    """A run whose graph, noise or clip changes: plans, one after the other.

    Attributes:
        plans: The plans in the order of the run, each with its own number of steps.
    """

    plans: tuple[NoisePlan, ...]

    def __repr__(self) -> str:
        steps = sum(plan.exposure.steps for plan in self.plans)
        return f"Phases({len(self.plans)} plans, {steps:,} steps, the first {self.plans[0]!r})"

    def __init__(self, plans: Iterable[NoisePlan]) -> None:
        object.__setattr__(self, "plans", tuple(plans) if isinstance(plans, Iterable) else ())
        if not self.plans or not all(isinstance(plan, NoisePlan) for plan in self.plans):
            raise InputError("Phases takes one NoisePlan or more, in the order of the run")

    def guarantee(
        self,
        delta: float | None = None,
        adversary: Adversary | None = None,
        method: Method = "exact",
    ) -> Guarantee:
        """What the whole run guarantees: composed for each user, then the worst of them.

        Args:
            delta: Failure probability; by default that of the plans' budgets.
            adversary: Against whom; by default the plans' adversary. The colluding users are the
                same in all phases.
            method: "exact", or "paper" for the paper's looser conversion.

        Raises:
            InputError: If the plans differ in their users, unit or adversary.

        Guarantee: epsilon is never below the truth.
        """
        adversaries = {plan.adversary for plan in self.plans}
        if adversary is None and len(adversaries) > 1:
            names = ", ".join(map(str, adversaries))
            raise InputError(f"the plans name different adversaries ({names}); give adversary=...")
        if delta is None:
            # plans made by hand have no budget; the others must agree
            deltas = {plan.budget.delta for plan in self.plans if plan.budget is not None}
            if len(deltas) != 1:
                raise BudgetError(
                    "delta is not known from a budget; give guarantee(delta=...), such as 1e-5"
                )
            delta = deltas.pop()
        segments = [Segment(p.topology, p.exposure, p.sigma_cdp, p.sigma_cor) for p in self.plans]
        return account(segments, adversary or self.plans[0].adversary, delta, method)


def _noise_levels(name: str, given: Any, count: int, what: str) -> float | tuple[float, ...]:
    """One noise level, or one for each of `count` users or edges."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, list | tuple):
        return checks.not_negative(name, given, error=BudgetError)
    levels = tuple(checks.not_negative(name, each, error=BudgetError) for each in given)
    if len(levels) != count:
        raise BudgetError(
            f"{name} has {len(levels)} numbers for {count} {what}s; give one for each {what}"
        )
    return levels


def _topology_to_json(topology: Topology) -> dict[str, Any]:
    # a family is a name and sizes, so that a ring of a million users is a short file
    if topology.family is not None:
        return {"family": topology.family.name, "sizes": list(topology.family.sizes)}
    labels = list(topology.labels) if topology.labels is not None else None
    value = {"users": topology.users, "edges": topology.edges.tolist(), "labels": labels}
    # plans without own weights keep their text
    weights = topology.own_weights
    return value if weights is None else value | {"weights": weights.tolist()}


def _topology_from_json(value: dict[str, Any]) -> Topology:
    if "family" in value:
        if value["family"] not in _FAMILIES:
            raise InputError(f"the saved plan names an unknown graph family {value['family']!r}")
        topology = getattr(families, value["family"])(*value["sizes"])
        assert isinstance(topology, Topology)
        return topology
    topology = families.from_edges(value["users"], value["edges"], value["labels"])
    if "weights" not in value:
        return topology
    # the edges of a saved plan are in the topology's own order
    return topology.with_mixing(mixing_matrix(topology.users, topology.edges, value["weights"]))
