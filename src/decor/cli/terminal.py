"""What a person sees in a terminal: tables, progress, and numbers that fit."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from decor import progress
from decor.distributed.world import World
from decor.text import json_safe

INTERRUPTED = 130
"""The exit status of a command that a person stopped: 128 and the number of SIGINT."""


def typed() -> str:
    """What was typed, to be typed again."""
    kept = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    return shlex.join(["decor", *kept])


def write_json(value: dict[str, Any]) -> None:
    print(json.dumps(json_safe(value), allow_nan=False))


def _progress(what: str, fraction: float | None, seconds: float) -> str:
    """What is being done, how much of it, and how long it will take."""
    if not fraction:
        return f"{what} ({seconds:.0f} s)"
    bar = "█" * round(20 * fraction) + "░" * (20 - round(20 * fraction))
    early = fraction < 0.03 or seconds < 2  # too early to say how long
    left = "" if early else f", {_time(seconds / fraction - seconds)} left"
    return f"{bar} {fraction:4.0%}  {what}{left}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def shown_progress() -> Iterator[None]:
    """One line on standard error, when it is a terminal and the work takes more than a second."""
    if not sys.stderr.isatty():
        yield
        return
    start = drawn = time.monotonic()

    def listener(what: str, fraction: float | None) -> None:
        nonlocal drawn
        now = time.monotonic()
        if not World.joined().is_first:  # known only after the group was joined
            return
        if not what:  # what comes next is for standard output
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            return
        if now - start > 1 and now - drawn > 0.1:
            drawn = now
            print(
                f"\r\x1b[K{_progress(what, fraction, now - start)}",
                end="",
                file=sys.stderr,
                flush=True,
            )

    try:
        with progress.listening(listener):
            yield
    finally:
        if drawn != start:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
