"""Guarantee: what a run promises, in numbers and in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from decor.arrays import Floats
from decor.choices import Method, Relation, Unit
from decor.graph.topology import Topology
from decor.text import rounded_up

from .adversary import Adversary


@dataclass(frozen=True, eq=False)
class Guarantee:
    """(epsilon, delta) for every user against one adversary.

    `epsilon` is the worst user's, `per_user` everybody's; both are never below the truth. `exact`
    is False where the worst one is a certified upper bound and not the value itself.
    """

    epsilon: float
    delta: float
    adversary: Adversary
    unit: Unit
    relation: Relation
    steps: int
    worst_user: int
    worst_coalition: tuple[int, ...]
    exact: bool
    method: Method
    topology: Topology = field(repr=False)
    everybody: Callable[[], Floats] = field(repr=False)
    simulated: bool = False
    """Of a run whose noise can be subtracted by anyone who knows its seed."""
    stopped: str | None = None
    """How a run ended early: the guarantee is the whole plan's all the same."""
    in_advance: bool = False
    """Whether it holds only if the number of steps was fixed in advance."""
    void: str | None = None
    """Why there is no guarantee at all; epsilon is then infinite."""

    @cached_property
    def per_user(self) -> Floats:
        """Every user's epsilon (computed when first asked for)."""
        values = np.minimum(self.everybody(), self.epsilon)
        values[self.worst_user] = self.epsilon
        return values

    def __str__(self) -> str:
        if self.void is not None:
            return f"No guarantee: {self.void}."
        known = (
            "Simulation with a known seed. With secret noise this plan is "
            if self.simulated
            else ""
        )
        certainty = (
            "" if self.exact else " This is a certified upper bound; the true value may be smaller."
        )
        return (
            f"{known}{self._promise()}, against "
            f"{self.adversary.sentence}.{self._exposed()}{certainty}"
        )

    def _promise(self) -> str:
        """What is promised, for which change of the data."""
        changed = "the data of one user" if self.unit == "user" else "one record of one user"
        # the number of records is public: a record that is taken away leaves an empty one behind
        changed += {"replace": " replaced", "add-remove": " replaced by an empty one"}[
            self.relation
        ]
        what = "central DP, not SecLDP" if self.adversary.average_only else "SecLDP"
        if self.adversary.colluders is None:
            what = "local DP"
        if self.in_advance:
            said = (
                f"epsilon {rounded_up(self.epsilon)} (delta {rounded_up(self.delta)}, {what}) "
                f"if {self.steps:,} was fixed in advance"
            )
            return f"{said} as the number of steps, with {changed}"
        pair = f"({rounded_up(self.epsilon)}, {rounded_up(self.delta)})-{what}"
        if self.stopped is not None:
            return f"{pair}, the whole plan's; {self.stopped}; with {changed}"
        return f"{pair} over {self.steps:,} steps, with {changed}"

    def _exposed(self) -> str:
        if self.adversary.average_only:
            return (
                " It says nothing about the messages themselves, which somebody has to be "
                "trusted with."
            )
        name = self.topology.name(self.worst_user)
        if not self.worst_coalition:
            return f" Most exposed: user {name}."
        coalition = [self.topology.name(v) for v in self.worst_coalition]
        shown = ", ".join(coalition[:12]) + (", ..." if len(coalition) > 12 else "")
        return f" Most exposed: user {name}, to user{'s' if len(coalition) > 1 else ''} {shown}."
