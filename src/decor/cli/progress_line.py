"""A line of progress on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from decor import progress
from decor.distributed.world import World

_CLEAR_LINE = "\r\x1b[K"


def _progress_line(what: str, fraction: float | None, seconds: float) -> str:
    """What is being done, the share of it that is done, and the time left."""
    if not fraction:
        return f"{what} ({seconds:.0f} s)"
    filled = round(20 * fraction)
    # an estimate from the first seconds is worse than none
    early = fraction < 0.03 or seconds < 2
    left = "" if early else f", {_duration(seconds / fraction - seconds)} left"
    return f"{'█' * filled}{'░' * (20 - filled)} {fraction:4.0%}  {what}{left}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def show_progress() -> Iterator[None]:
    """One line on standard error, if it is a terminal and the work takes more than a second."""
    if not sys.stderr.isatty():
        yield
        return
    start = drawn = time.monotonic()

    def write(text: str) -> None:
        print(_CLEAR_LINE + text, end="", file=sys.stderr, flush=True)

    def listener(what: str, fraction: float | None) -> None:
        nonlocal drawn
        now = time.monotonic()
        # asked at every report: the rank is known only after the process has joined its group
        if not World.current().is_first:
            return
        if not what:  # an empty report: the next output goes to standard output
            write("")
        elif now - start > 1 and now - drawn > 0.1:
            drawn = now
            write(_progress_line(what, fraction, now - start))

    try:
        with progress.listening(listener):
            yield
    finally:
        if drawn != start:
            write("")
