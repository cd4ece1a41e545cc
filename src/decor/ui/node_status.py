"""What a node says of itself, or its ledger of it: read with care, because anybody may have
written it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

_MAX_TEXT = 300
"""Characters of a text that are kept."""
_MAX_NEIGHBOURS = 1000


@dataclass(frozen=True)
class NeighbourStatus:
    """A neighbour as a node sees it.

    Attributes:
        name: Of the neighbour.
        here: Whether it is connected.
        done: Whether it has its final model.
        way: "direct" or "relay", if it is connected.
        problem: Why it is not connected; "" where nothing is said.
    """

    name: str
    here: bool
    done: bool
    way: str
    problem: str


@dataclass(frozen=True)
class NodeStatus:
    """A node; None and "" are unknown, which is not 0. Older nodes say less than newer ones.

    Attributes:
        user: Its name.
        federation: The name of its federation.
        digest: Of the federation's file, in hexadecimal.
        running: Whether the node itself has answered, and not its ledger for it.
        done: Whether it has its final model.
        in_use: Whether a process that does not answer holds the ledger.
        step: Steps that it has behind it.
        steps: Of the plan.
        messages: Steps that it has made a message of.
        missed: Steps that others made without it.
        late: Messages that came too late for it.
        noise_left: Noise in the average model over the planned noise.
        epsilon: The promise: of the whole plan from the first message on, and 0 before.
        epsilon_if_fixed: Of the messages so far, if their number was fixed in advance.
        epsilon_planned: Of the whole plan.
        delta: Failure probability.
        ledger_epsilon: Of all runs of its ledger together, for the question of the limit.
        ledger_limit: The most that this may be: the limit that leaves least for another run.
        last_progress: When its last step or round ended, in seconds since 1970.
        paused: What it waits for; "" if it does not.
        problem: What is wrong with it.
        neighbours: As it sees them.
        users: All users of its federation, as its ledger has them.
        edges: The names of each two of them that are neighbours.
    """

    user: str = ""
    federation: str = ""
    digest: str = ""
    running: bool = True
    done: bool = False
    in_use: bool = False
    step: int | None = None
    steps: int | None = None
    messages: int | None = None
    missed: int | None = None
    late: int | None = None
    noise_left: float | None = None
    epsilon: float | None = None
    epsilon_if_fixed: float | None = None
    epsilon_planned: float | None = None
    delta: float | None = None
    ledger_epsilon: float | None = None
    ledger_limit: float | None = None
    last_progress: float | None = None
    paused: str = ""
    problem: str = ""
    neighbours: tuple[NeighbourStatus, ...] = ()
    users: tuple[str, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of_json(answer: dict[str, Any]) -> NodeStatus:
        """Reads what is as it should be, and takes the rest for unknown.

        Args:
            answer: As a node's status socket gives it, with what its ledger adds.
        """
        return NodeStatus(
            user=_text(answer.get("user")),
            federation=_text(answer.get("federation")),
            digest=_text(answer.get("digest")),
            # a node that answers over its port does not say that it is running
            running=answer.get("running") is not False,
            # the first from a ledger, the second from a node
            done=answer.get("finished") is True or answer.get("done") is True,
            in_use=answer.get("in_use") is True,
            step=_count(answer.get("step")),
            steps=_count(answer.get("steps")),
            messages=_count(answer.get("messages")),
            missed=_count(answer.get("missed")),
            late=_count(answer.get("late")),
            noise_left=_figure(answer.get("noise_left")),
            epsilon=_figure(answer.get("epsilon")),
            epsilon_if_fixed=_figure(answer.get("epsilon_if_fixed")),
            epsilon_planned=_figure(answer.get("epsilon_planned")),
            delta=_figure(answer.get("delta")),
            ledger_epsilon=_figure(answer.get("ledger_epsilon")),
            ledger_limit=_figure(answer.get("ledger_limit")),
            last_progress=_moment(answer.get("last_progress")),
            paused=_text(answer.get("paused")),
            problem=_text(answer.get("problem")),
            neighbours=tuple(_neighbours(answer.get("neighbours"))),
            users=_texts(answer.get("users")),
            edges=tuple(_edges(answer.get("edges"))),
        )

    def complete_from(self, earlier: NodeStatus) -> NodeStatus:
        """This status, with what only an earlier one of the same run knew.

        Args:
            earlier: The last that was known of the node.
        """
        # another file is another run, of which the old figures say nothing
        if self.digest and earlier.digest and self.digest != earlier.digest:
            return self
        # true at their moment alone: an old problem may be solved by now
        passing = ("running", "done", "in_use", "paused", "problem")
        missing = {
            each.name: getattr(earlier, each.name)
            for each in fields(self)
            if each.name not in passing and getattr(self, each.name) in (None, "", ())
        }
        return replace(self, **missing)


def _text(value: object) -> str:
    """At most _MAX_TEXT characters, without those that change how others are shown."""
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in value[:_MAX_TEXT])


def _texts(value: object) -> tuple[str, ...]:
    texts = value[:_MAX_NEIGHBOURS] if isinstance(value, list | tuple) else ()
    return tuple(text for text in map(_text, texts) if text)


def _count(value: object) -> int | None:
    # True is an int for Python; beyond 2^53 JavaScript counts in twos
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        return None
    return value


def _figure(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # an epsilon may be infinite; NaN is not at least 0, and float() cannot take a huge int
    return float(value) if 0 <= value < 1e300 or value == math.inf else None


def _moment(value: object) -> float | None:
    """A time that a calendar has; whether it is right is for the reader to see."""
    moment = _figure(value)
    return moment if moment is not None and moment < 1e11 else None


def _neighbours(value: object) -> Iterable[NeighbourStatus]:
    # cut, because an answer from anybody must not fill the memory
    for each in value[:_MAX_NEIGHBOURS] if isinstance(value, list) else ():
        name = _text(each.get("name")) if isinstance(each, dict) else ""
        if name:
            flags = each.get("here") is True, each.get("done") is True
            yield NeighbourStatus(name, *flags, _text(each.get("way")), _text(each.get("problem")))


def _edges(value: object) -> Iterable[tuple[str, str]]:
    for pair in value if isinstance(value, list | tuple) else ():
        names = _texts(pair)
        if len(names) == 2:
            yield names[0], names[1]
