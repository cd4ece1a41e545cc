"""NoisePlan: the noise, all that it derives from, and what it promises."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decor import checks
from decor.choices import Method
from decor.errors import BudgetError, InputError
from decor.graph import families
from decor.graph.topology import Topology

from .adversary import Adversary
from .budget import ACCOUNTED, Budget, Exposure
from .guarantee import Guarantee
from .loss.accountant import Segment, account
from .noise_pairs import Couples, couples

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


_FORMAT = "decor-plan-1"
_MANY = 2000
"""Above this many users only the adversary asked about is listed, beside the two ends."""


@dataclass(frozen=True)
class NoisePlan:
    """Independent noise sigma_cdp at every user, and sigma_cor on every edge.

    sigma_cor is one number, or one for every edge in the order of `topology.edges` (which is
    sorted, whatever was given).

    `budget` is what `calibrate` made the plan for; a plan made by hand has none.
    """

    topology: Topology
    exposure: Exposure
    adversary: Adversary
    sigma_cdp: float
    sigma_cor: float | tuple[float, ...]
    budget: Budget | None = None

    def __post_init__(self) -> None:
        for name, kind in (
            ("topology", Topology),
            ("exposure", Exposure),
            ("adversary", Adversary),
        ):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")
        self.exposure.check(self.topology)
        self.adversary.check(self.topology.users)
        object.__setattr__(
            self, "sigma_cdp", checks.not_negative("sigma_cdp", self.sigma_cdp, error=BudgetError)
        )
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise InputError(f"budget must be a Budget, not {self.budget!r}")
        given: Any = (
            self.sigma_cor.tolist() if isinstance(self.sigma_cor, np.ndarray) else self.sigma_cor
        )
        if not isinstance(given, list | tuple):
            object.__setattr__(
                self, "sigma_cor", checks.not_negative("sigma_cor", given, error=BudgetError)
            )
            return
        per_edge = tuple(checks.not_negative("sigma_cor", c, error=BudgetError) for c in given)
        if len(per_edge) != self.topology.edge_count:
            raise BudgetError(
                f"sigma_cor has {len(per_edge)} numbers for {self.topology.edge_count} edges; "
                "give one for each edge"
            )
        object.__setattr__(self, "sigma_cor", per_edge)

    def guarantee(
        self,
        delta: float | None = None,
        adversary: Adversary | None = None,
        method: Method = "exact",
    ) -> Guarantee:
        """What this noise promises at `delta` (default: the budget's), against `adversary`
        (default: the plan's).

        Guarantee: epsilon is never below the truth.
        """
        return Phases((self,)).guarantee(delta, adversary, method)

    def guarantee_on_grid(
        self,
        distance: float,
        delta: float | None = None,
        adversary: Adversary | None = None,
        steps: int | None = None,
    ) -> Guarantee:
        """What is promised by messages whose law is within `distance` (total variation) of this
        plan's Gaussian one.

        `delta` and `adversary` are as in `guarantee`; `steps`: of these first steps alone, if that
        number was fixed in advance. Guarantee: `delta` includes what the distance takes of it, and
        epsilon is infinite where that is more than is left.
        """
        plan = self if not steps else replace(self, exposure=replace(self.exposure, steps=steps))
        if delta is None and self.budget is not None:
            delta = self.budget.delta
        found = plan.guarantee(None if delta is None else ACCOUNTED * delta, adversary)
        whole = found.delta / ACCOUNTED if delta is None else delta

        def with_tables(epsilon: Any) -> Any:
            """What is left of a promise once the tables have taken their part of delta: all of it
            or nothing.
            """
            taken = (1 + np.exp(np.minimum(epsilon, 700.0))) * distance
            return np.where(taken <= (1 - ACCOUNTED) * whole * (1 + 1e-9), epsilon, math.inf)

        promised, each = float(with_tables(found.epsilon)), found.everybody
        found = replace(found, delta=whole, epsilon=promised, in_advance=steps is not None)
        found = replace(found, everybody=lambda: np.asarray(with_tables(each())))
        if steps == 0:
            return replace(
                found,
                epsilon=0.0,
                steps=0,
                exact=True,
                everybody=lambda: np.zeros(self.topology.users),
            )
        return found

    def couples(self, ratios: ArrayLike | None = None) -> Couples:
        """All couples (sigma_cdp, sigma_cor) that meet the same budget, as a curve over their
        ratio.
        """
        if self.budget is None:
            raise BudgetError(
                "this plan was made without a budget, so it has no curve of "
                "couples; make it with calibrate()"
            )
        return couples(self.topology, self.exposure, self.adversary, self.budget, ratios)

    def listed_adversaries(self) -> list[Adversary]:
        """Those worth a row: the paper's four, up to as many colluders as can isolate somebody; the
        plan's own in any case.
        """
        n, q = self.topology.users, self.adversary.colluders
        counts: set[int] = {0} if q is None else {0, q}
        if n <= _MANY:
            counts |= set(range(1, min(3, int(self.topology.degrees.min()), n - 1) + 1))
        return [Adversary(k) for k in sorted(counts)] + [Adversary.everyone()]

    def scaled(self, factor: float) -> NoisePlan:
        """The plan with all noise multiplied; with less noise than before it meets no budget any
        more.
        """
        c = self.sigma_cor
        scaled = tuple(factor * each for each in c) if isinstance(c, tuple) else factor * c
        return replace(
            self,
            sigma_cdp=factor * self.sigma_cdp,
            sigma_cor=scaled,
            budget=self.budget if factor >= 1 else None,
        )

    def to_json(self) -> str:
        budget = asdict(self.budget) if self.budget is not None else None
        exposure = asdict(self.exposure)
        if isinstance(self.exposure.records, Mapping):  # equal plans, equal text
            names = (self.topology.name(user) for user in range(self.topology.users))
            exposure["records"] = dict(
                zip(names, self.exposure.records_of(self.topology), strict=True)
            )
        value = {
            "format": _FORMAT,
            "topology": _topology_out(self.topology),
            "exposure": exposure,
            "adversary": str(self.adversary),
            "sigma_cdp": self.sigma_cdp,
            "sigma_cor": self.sigma_cor,
            "budget": budget,
        }
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str) -> NoisePlan:
        """A plan as `to_json` wrote it, checked like one made by hand."""
        try:
            value = json.loads(text)
            if not isinstance(value, dict) or value.get("format") != _FORMAT:
                raise InputError(
                    f'not a saved plan: "format" must be "{_FORMAT}"; save plans '
                    "with plan.save(path)"
                )
            topology, exposure = _topology_in(value["topology"]), dict(value["exposure"])
            counts, names = exposure.get("records"), topology.labels
            if isinstance(counts, list) and names is not None and len(counts) == len(names):
                # plans of before records went by name have them in the graph's order
                exposure["records"] = dict(zip(names, counts, strict=True))
            if exposure.get("unit") == "user":
                exposure.pop("relation", None)
            return cls(
                topology,
                Exposure(**exposure),
                Adversary.parse(value["adversary"]),
                value["sigma_cdp"],
                value["sigma_cor"],
                Budget(**value["budget"]) if value["budget"] is not None else None,
            )
        except (
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            json.JSONDecodeError,
        ) as problem:
            raise InputError(
                f"not a saved plan: {problem!r}; save plans with plan.save(path)"
            ) from None

    def save(self, path: str | Path) -> None:
        try:
            Path(path).write_text(self.to_json() + "\n", encoding="utf-8")
        except OSError as problem:
            raise InputError(
                f"the plan cannot be written to {str(path)!r}: {problem.strerror}"
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> NoisePlan:
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, InputError) as problem:
            raise InputError(f"the plan {str(path)!r} cannot be read: {problem}") from None


@dataclass(frozen=True)
class Phases:
    """A run whose graph, noise or clip changes on the way: plans, each for its own number of steps,
    one after the other.
    """

    plans: tuple[NoisePlan, ...]

    def __init__(self, plans: Iterable[NoisePlan]) -> None:
        object.__setattr__(self, "plans", tuple(plans) if isinstance(plans, Iterable) else ())
        if not self.plans or not all(isinstance(plan, NoisePlan) for plan in self.plans):
            raise InputError(
                "Phases takes one NoisePlan or more, in the order in which they are run"
            )

    def guarantee(
        self,
        delta: float | None = None,
        adversary: Adversary | None = None,
        method: Method = "exact",
    ) -> Guarantee:
        """What the whole run promises: per user first, then the worst; the colluding users are the
        same throughout.
        """
        adversaries = {plan.adversary for plan in self.plans}
        if adversary is None and len(adversaries) > 1:
            raise InputError(
                "the plans name different adversaries "
                f"({', '.join(map(str, adversaries))}); say adversary=..."
            )
        if delta is None:
            deltas = {plan.budget.delta for plan in self.plans if plan.budget is not None}
            if len(deltas) != 1:
                raise BudgetError(
                    "delta is not known from a budget; say guarantee(delta=...), such as 1e-5"
                )
            delta = deltas.pop()
        segments = [Segment(p.topology, p.exposure, p.sigma_cdp, p.sigma_cor) for p in self.plans]
        return account(segments, adversary or self.plans[0].adversary, delta, method)


def _topology_out(topology: Topology) -> dict[str, Any]:
    if topology.family is not None:
        return {"family": topology.family.name, "sizes": list(topology.family.sizes)}
    labels = list(topology.labels) if topology.labels is not None else None
    return {"users": topology.users, "edges": topology.edges.tolist(), "labels": labels}


def _topology_in(value: dict[str, Any]) -> Topology:
    if "family" in value:
        known = ("ring", "path", "star", "complete", "hypercube", "torus", "grid")
        if value["family"] not in known:
            raise InputError(f"the saved plan names an unknown graph family {value['family']!r}")
        topology = getattr(families, value["family"])(*value["sizes"])
        assert isinstance(topology, Topology)
        return topology
    return families.from_edges(value["users"], value["edges"], value["labels"])
