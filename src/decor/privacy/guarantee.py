"""Guarantee: what a run promises, in numbers and in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from html import escape

import numpy as np

from decor.array_types import Floats
from decor.choices import Method, Relation, Unit
from decor.graph.topology import Topology
from decor.text import amount, rounded_up

from .adversary import Adversary

_SHOWN = 12
"""Most members of a coalition that the sentence names."""


@dataclass(frozen=True, eq=False, repr=False)
class Guarantee:
    """(epsilon, delta) of each user against one adversary.

    Attributes:
        epsilon: The most exposed user's epsilon.
        delta: Failure probability.
        adversary: Against whom.
        unit: What is protected: all data of one "user", or one "example".
        relation: In what neighbouring data sets differ: "replace" or "add-remove".
        steps: Number of steps that epsilon covers.
        worst_user: The most exposed user.
        worst_coalition: The colluding users to whom it is most exposed; empty if there are none, or
            if they were not found.
        exact: False where epsilon is a certified upper bound and not the value itself.
        method: "exact", or "paper" for the paper's looser conversion.
        topology: The graph, for the names of the users.
        everybody: Computes each user's epsilon; `per_user` calls it once.
        simulated: True for a run whose noise can be subtracted by anyone who knows its seed.
        stopped: How a run ended early; the guarantee is that of the whole plan all the same.
        in_advance: True if it holds only if the number of steps was fixed in advance.
        counts_are_public: Example level: whether everyone knows each user's number of examples.
            Otherwise a removed example is gone, and not replaced by an empty one.
        alike: Whether all users are known to be equally exposed, as `worst_user` is.
        void: Why there is no guarantee at all; epsilon is then infinite.
        assumption: What the caller's own program must have kept to, which nobody could check.

    Guarantee: `epsilon` and `per_user` are never below the truth.
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
    topology: Topology
    everybody: Callable[[], Floats]
    simulated: bool = False
    stopped: str | None = None
    in_advance: bool = False
    counts_are_public: bool = True
    alike: bool = False
    void: str | None = None
    assumption: str | None = None

    @cached_property
    def per_user(self) -> Floats:
        """Each user's epsilon, computed when it is first read."""
        # bounds of single users may be looser than the bound of the worst one
        values = np.minimum(self.everybody(), self.epsilon)
        values[self.worst_user] = self.epsilon
        return values

    def __repr__(self) -> str:
        if self.void is not None:
            return f"Guarantee(none: {self.void})"
        # up, as in the sentence: a number that is copied from here is not below the truth
        parts = [
            f"epsilon {rounded_up(self.epsilon)}",
            f"delta {rounded_up(self.delta)}",
            str(self.adversary),
            f"unit {self.unit}",
            self.relation,
            amount(self.steps, "step"),
            *(["upper bound"] if not self.exact else []),
            *(["simulated"] if self.simulated else []),
            *(["if fixed in advance"] if self.in_advance else []),
        ]
        return f"Guarantee({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """The sentence, as a notebook shows it."""
        return f"<p>{escape(str(self))}</p>"

    def __str__(self) -> str:
        if self.void is not None:
            return f"No guarantee: {self.void}."
        sentence = f"{self._promise()}, against {self.adversary.sentence}.{self._most_exposed()}"
        if self.simulated:
            sentence = f"Simulation with a known seed. With secret noise this plan is {sentence}"
        if not self.exact:
            sentence += " This is a certified upper bound; the true value may be smaller."
        if self.assumption is not None:
            sentence += f" It holds only if {self.assumption}."
        return sentence

    def _promise(self) -> str:
        """What is promised, for which change of the data."""
        change = "the data of one user" if self.unit == "user" else "one example of one user"
        if self.relation == "replace":
            change += " replaced"
        elif self.counts_are_public:
            # removing an example leaves an empty one in its place
            change += " replaced by an empty one"
        else:
            change += " added or removed"
        if self.adversary.colluders is None:
            kind = "local DP"
        else:
            # SecLDP is about all messages, which this observer does not see
            kind = "central DP, not SecLDP" if self.adversary.average_only else "SecLDP"
        # up: a printed number below the true one would be a false promise
        epsilon, delta = rounded_up(self.epsilon), rounded_up(self.delta)
        # the condition comes first: without it the claim is false ("When a run stops early")
        if self.in_advance:
            return (
                f"epsilon {epsilon} (delta {delta}, {kind}) if {self.steps:,} was fixed in advance "
                f"as the number of steps, with {change}"
            )
        pair = f"({epsilon}, {delta})-{kind}"
        if self.stopped is not None:
            return f"{pair}, the whole plan's; {self.stopped}; with {change}"
        return f"{pair} over {amount(self.steps, 'step')}, with {change}"

    def _most_exposed(self) -> str:
        if self.adversary.average_only:
            return " It says nothing about the messages themselves: the curator must be trusted."
        user = f"user {self.topology.name(self.worst_user)}"
        names = [self.topology.name(v) for v in self.worst_coalition]
        to = f"to user{'s' if len(names) > 1 else ''} {', '.join(names[:_SHOWN])}"
        end = ", ...." if len(names) > _SHOWN else "."
        if not self.alike:
            return f" Most exposed: {user}" + (f", {to}{end}" if names else ".")
        # no user is worse off than another; the coalition is one of many
        return " All users are equally exposed" + (f", such as {user} {to}{end}" if names else ".")
