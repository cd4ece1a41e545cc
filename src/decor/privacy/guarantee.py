"""Guarantee: what a run promises, in numbers and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from decor.graph.topology import Topology

from .adversary import Adversary
from .network import Floats


def figure(value: float) -> str:
    """Four digits, rounded up in the last: a printed epsilon is not below the truth either."""
    if abs(value) < 1e-290 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    # what exceeds a figure by rounding alone (one part in 10^9) is that figure
    return f"{math.ceil(value / unit * (1 - 1e-9)) * unit:.4g}"


@dataclass(frozen=True, eq=False)
class Guarantee:
    """(epsilon, delta) for every user against one adversary.

    `epsilon` is the worst user's, `per_user` everybody's; both are never below the truth. `exact` is False where the worst
    one is a certified upper bound and not the value itself.
    """

    epsilon: float
    delta: float
    adversary: Adversary
    unit: str
    relation: str
    steps: int
    worst_user: int
    worst_coalition: tuple[int, ...]
    exact: bool
    method: str
    topology: Topology = field(repr=False)
    everybody: Callable[[], Floats] = field(repr=False)

    @cached_property
    def per_user(self) -> Floats:
        """Every user's epsilon (computed when first asked for)."""
        values = np.minimum(self.everybody(), self.epsilon)
        values[self.worst_user] = self.epsilon
        return values

    def __str__(self) -> str:
        changed = "the data of one user" if self.unit == "user" else "one record of one user"
        how = {"replace": "replaced", "add-remove": "added or removed"}[self.relation]
        what = "central DP, not SecLDP" if self.adversary.average_only else "SecLDP"
        if self.adversary.colluders is None:
            what = "local DP"
        certainty = "" if self.exact else " This is a certified upper bound; the true value may be smaller."
        return (
            f"({figure(self.epsilon)}, {figure(self.delta)})-{what} over {self.steps:,} steps, with {changed} {how}, "
            f"against {self.adversary.sentence}.{self._exposed()}{certainty}"
        )

    def _exposed(self) -> str:
        if self.adversary.average_only:
            return " It says nothing about the messages themselves, which somebody has to be trusted with."
        name = self.topology.name(self.worst_user)
        if not self.worst_coalition:
            return f" Most exposed: user {name}."
        coalition = [self.topology.name(v) for v in self.worst_coalition]
        shown = ", ".join(coalition[:12]) + (", ..." if len(coalition) > 12 else "")
        return f" Most exposed: user {name}, to user{'s' if len(coalition) > 1 else ''} {shown}."
