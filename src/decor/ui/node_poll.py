"""Asks nodes for their status, all at once, and remembers what each has said last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from decor.errors import InputError

from .node_status import NodeStatus

Query = Callable[[], dict[str, Any]]
"""Asks one node; InputError where there is no answer."""

_PATIENCE = 0.5
"""Seconds for which a page waits for answers; later ones are in the next picture."""
_MAX_SECONDS = 6.0
"""After so many without an answer a node counts as not reachable; a question ends before."""


@dataclass
class Observation:
    """One node as it has been seen.

    Attributes:
        source: Where it is asked: an address, or the name of its ledger.
        status: Its last answer; None if there has been none.
        reachable: Whether it has answered the last question.
        problem: Why it has not.
        alive: Whether a running node was behind the last answer; None before the first question.
        changed_at: When that changed, in seconds since 1970; None if it never has.
        progress_at: When it was last seen to get on; None if it never was.
        asked_at: When the question was asked that `status` answers, on the monotonic clock.
        steps_seen: (time on the monotonic clock, step) of the last two answers.
    """

    source: str
    status: NodeStatus | None = None
    reachable: bool = False
    problem: str = "has not answered yet"
    alive: bool | None = None
    changed_at: float | None = None
    progress_at: float | None = None
    asked_at: float = 0.0
    steps_seen: list[tuple[float, int]] = field(default_factory=list)

    def record(self, answer: NodeStatus, asked_at: float) -> None:
        """Takes an answer.

        Args:
            answer: The status.
            asked_at: When the question was asked, on the monotonic clock.
        """
        known = self.status.step if self.status is not None else None
        if answer.last_progress is not None:
            self.progress_at = answer.last_progress
        # older nodes do not tell it
        elif known is not None and answer.step is not None and answer.step > known:
            self.progress_at = time.time()
        if answer.step is not None:
            self.steps_seen = [*self.steps_seen[-1:], (time.monotonic(), answer.step)]
        self.status = answer if self.status is None else answer.complete_from(self.status)
        self.asked_at, self.reachable, self.problem = asked_at, True, ""
        self._note_alive(answer.running)

    def record_silence(self, problem: str) -> None:
        """Takes a question that was not answered.

        Args:
            problem: Why.
        """
        self.reachable, self.problem = False, problem
        self._note_alive(False)

    def step_known_at(self, moment: float) -> int | None:
        """The last step that it had told before a moment; None if it had told none.

        Args:
            moment: On the monotonic clock.
        """
        before = [step for at, step in self.steps_seen if at <= moment]
        return before[-1] if before else None

    def _note_alive(self, alive: bool) -> None:
        if self.alive is not None and alive != self.alive:
            self.changed_at = time.time()
        self.alive = alive


class NodePoll:
    """Asks the same nodes again and again; one question to each at a time.

    Args:
        list_queries: Gives source -> how to ask it. Nodes that are no longer listed are kept.
    """

    def __init__(self, list_queries: Callable[[], Mapping[str, Query]]) -> None:
        self._list_queries = list_queries
        self._lock = threading.Lock()
        self._seen: dict[str, Observation] = {}
        self._asking: dict[str, tuple[threading.Thread, float]] = {}

    def observe(self) -> list[Observation]:
        """Asks all nodes, waits a moment for their answers, and gives what is known then.

        A node that takes long delays nobody: its answer is taken when it comes.
        """
        queries = self._list_queries()
        for source, query in queries.items():
            self._seen.setdefault(source, Observation(source))
            if source not in self._asking or not self._asking[source][0].is_alive():
                # daemons: a question under way must not keep the program from ending
                thread = threading.Thread(target=self._ask, args=(source, query), daemon=True)
                self._asking[source] = thread, time.monotonic()
                thread.start()
        until = time.monotonic() + _PATIENCE
        for thread, _ in self._asking.values():
            thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            for source, (thread, began) in self._asking.items():
                if thread.is_alive() and time.monotonic() - began > _MAX_SECONDS:
                    self._seen[source].record_silence("no answer in time")
                elif source not in queries:
                    self._seen[source].record_silence("its ledger is gone")
            # copies: a late answer must not change what is being drawn
            return [replace(each) for each in self._seen.values()]

    def _ask(self, source: str, query: Query) -> None:
        asked_at = time.monotonic()
        try:
            answer = NodeStatus.of_json(query())
        except InputError as problem:
            with self._lock:
                self._seen[source].record_silence(str(problem))
            return
        with self._lock:
            self._seen[source].record(answer, asked_at)
