"""Answers the page's requests, one at a time, and drops a request that its page has replaced."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from decor import progress
from decor.errors import InputError
from decor.text import json_safe

from . import answer
from .question import parse_edge_list, parse_graph, parse_question

_PAGES = 64
"""Pages whose last request is remembered."""
_DRAWINGS = ("graph", "edge-list")
"""Kinds of requests that a page sends beside one for a plan, and that do not replace it."""


class Watch(Protocol):
    """What `decor ui` watches beside planning: a folder, or the nodes of a federation."""

    def changes_since(self, seen: object) -> dict[str, Any]:
        """The state, or only "unchanged" if the page has `seen` it."""


class Superseded(Exception):
    """The page has sent a newer request."""


class Dispatcher:
    """Answers the requests of all pages.

    One request at a time: catching warnings and limiting BLAS threads act on the whole process.

    Args:
        watch: What to show; None where `decor ui` got neither --watch nor --metrics.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch
        self._busy = threading.Lock()
        self._latest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._kinds: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "graph": lambda value: answer.describe_graph(parse_graph(value)),
            "edge-list": lambda value: answer.describe_graph(parse_edge_list(_text(value))),
            "plan": lambda value: answer.describe_plan(parse_question(value)),
            "against": lambda value: answer.describe_adversaries(parse_question(value)),
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        return (*self._kinds, "watch")

    def answer(self, kind: str, request: Any) -> dict[str, Any]:
        """The answer to a request.

        Args:
            kind: One of `kinds`.
            request: {page, number, question}. Of the requests of one page the highest number
                counts.

        Raises:
            InputError: If the question is not valid.
            Superseded: If the page has sent a newer request.
        """
        if not isinstance(request, dict) or not isinstance(request.get("question"), dict):
            raise InputError('send {"page": NAME, "number": N, "question": {...}}')
        question = request["question"]
        if kind == "watch":
            if self.watch is None:
                return {"source": None}
            return dict(json_safe(self.watch.changes_since(question.get("seen"))))
        # cut, because the name is kept
        page, number = str(request.get("page", ""))[:64], request.get("number", 0)
        if isinstance(number, bool) or not isinstance(number, int):
            raise InputError(f"the number of a request must be a whole number, not {number!r}")
        queue = "drawing" if kind in _DRAWINGS else "planning"
        with self._turn((queue, page), number):
            return self._kinds[kind](question)

    @contextmanager
    def _turn(self, sender: tuple[str, str], number: int) -> Iterator[None]:
        """Waits for other requests; leaves the block as soon as the sender has a newer one."""
        self._latest[sender] = max(number, self._latest.get(sender, number))
        self._latest.move_to_end(sender)
        # a page that is forgotten is answered as if it were new
        while len(self._latest) > _PAGES:
            self._latest.popitem(last=False)

        def leave_if_superseded(*_: object) -> None:
            if self._latest.get(sender, number) > number:
                raise Superseded

        # long searches report progress, and each report is a chance to leave
        with self._busy, progress.listening(leave_if_superseded):
            leave_if_superseded()
            yield


def preload() -> None:
    """Loads the search for coalitions: numba takes a second, and 15 on its first use to compile."""
    from decor.graph.families import complete
    from decor.privacy.leverage import branch
    from decor.privacy.leverage.solve import ScaledCovariance

    branch.worst_coalition(ScaledCovariance(complete(5), 1.0).network(), 2)


def _text(value: dict[str, Any]) -> str:
    text = value.get("text")
    if not isinstance(text, str) or not text.strip():
        raise InputError("the edge list is empty; write one edge per line, such as: 0 1")
    return text
