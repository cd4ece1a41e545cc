"""The desk: takes questions as JSON, answers one at a time, and leaves a question when its page has
asked another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from decor import progress
from decor.errors import InputError
from decor.text import json_safe

from . import answer
from .question import from_text, graph_of, question
from .watch import Watch

_PAGES = 64
"""Pages whose last question is remembered."""


class Superseded(Exception):
    """The page that asked has asked something else since."""


class Desk:
    """Answers for all pages.

    One question at a time: warnings are caught for the whole process, and so is BLAS's thread.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch
        self._turn = threading.Lock()
        self._latest: OrderedDict[str, int] = OrderedDict()
        self._kinds: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "graph": lambda value: answer.drawing(graph_of(value)),
            "edge-list": lambda value: answer.drawing(from_text(_text(value))),
            "plan": lambda value: answer.planned(question(value)),
            "against": lambda value: answer.against(question(value)),
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        return (*self._kinds, "watch")

    def answer(self, kind: str, asked: Any) -> dict[str, Any]:
        """`asked` is {page, number, question}: of one page's questions the one with the highest
        number counts.
        """
        if not isinstance(asked, dict) or not isinstance(asked.get("question"), dict):
            raise InputError('ask {"page": NAME, "number": N, "question": {...}}')
        if kind == "watch":
            seen = asked["question"].get("seen")
            return {"folder": None} if self.watch is None else json_safe(self.watch.since(seen))
        page, number = str(asked.get("page", ""))[:64], asked.get("number", 0)
        if isinstance(number, bool) or not isinstance(number, int):
            raise InputError(f"a question's number is a whole number, not {number!r}")
        with self._alone(f"{kind in ('graph', 'edge-list')} {page}", number):
            return self._kinds[kind](asked["question"])

    @contextmanager
    def _alone(self, page: str, number: int) -> Iterator[None]:
        self._latest[page] = max(number, self._latest.get(page, number))
        self._latest.move_to_end(page)
        while len(self._latest) > _PAGES:
            self._latest.popitem(last=False)

        def leave_if_superseded(*_: object) -> None:
            if self._latest.get(page, number) > number:
                raise Superseded

        with self._turn, progress.listening(leave_if_superseded):
            leave_if_superseded()
            yield


def warm() -> None:
    """Loads what searches for coalitions: numba takes a second, and once a machine a quarter of a
    minute to compile.
    """
    from decor.graph.families import complete
    from decor.privacy.leverage import branch
    from decor.privacy.leverage.solve import Noise

    branch.worst_coalition(Noise(complete(5), 1.0).network(), 2)


def _text(value: dict[str, Any]) -> str:
    text = value.get("text")
    if not isinstance(text, str) or not text.strip():
        raise InputError("the edge list is empty; write one edge a line, such as: 0 1")
    return text
