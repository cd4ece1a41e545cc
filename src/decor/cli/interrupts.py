"""How a command is told to stop before its own work handles signals."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Meanwhile SIGTERM ends the command like Ctrl-C: `main` says so, and the exit code is 130.

    For the time in which libraries are loaded and files are read: a supervisor that stops a node
    then must not take it for one that was killed.
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
