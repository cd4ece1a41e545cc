"""How long work tells a person that it is alive: deep code reports, whoever faces the person
listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, float | None], None]
"""Gets what is being done, and the fraction done when that is known."""

_listener: ContextVar[Listener | None] = ContextVar("decor_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within this block, reports go to `listener`; without one they go nowhere and cost nothing."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(what: str, done: float | None = None, total: float | None = None) -> None:
    listener = _listener.get()
    if listener is not None:
        listener(what, done / total if done is not None and total else None)


@contextmanager
def share(first: float, last: float) -> Iterator[None]:
    """Within this block, what is reported as whole counts as the share from `first` to `last` of
    the work outside.
    """
    outer = _listener.get()
    if outer is None:
        yield
        return
    with listening(lambda what, fraction: outer(what, first + (last - first) * (fraction or 0.0))):
        yield
