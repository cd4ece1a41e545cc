"""A node that lives as long as a runtime asks for it: for runtimes that end no work they started.

Flower 1.41 has two such gaps: neither `flwr stop` nor the end of a SuperNode ends a ClientApp that
is at work. So a process beside it, the keeper, runs the node, and stops it when nobody has asked
for it for some time. While the keeper lives it holds a lock: a site has one of each federation.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decor.federation.exit_codes import INTERRUPTED, NEEDS_A_PERSON

from .site_node import node_command, public_facts, run_site_node

_MAIN = "import sys; from decor.doors.lease import keep; keep(*sys.argv[1:])"
_POLL = 0.2


class Lease:
    """The keeper of one federation's node, and its files beside the site's own file.

    Args:
        site: The site's own file (see `run_site_node`).
        federation: The name of a table in it.

    Raises:
        InputError: If the site has not agreed to that federation.
    """

    def __init__(self, site: Path, federation: str) -> None:
        # before any file of that name is made: a job may name anything
        node_command(site, federation)
        self._site, self._federation = site, federation
        self._file, self._log, self._end = (
            site.with_name(f"{site.stem}.{federation}.{kind}") for kind in ("lease", "log", "end")
        )

    def renew(
        self, run: int, seconds: float, log: Callable[[str], object]
    ) -> dict[str, Any] | None:
        """Has the node run for some time more, and starts it if it does not run.

        Args:
            run: The runtime's number of the job. In one job a node that has ended is not started
                again, whyever it has.
            seconds: The node stops if this was not called for so long. The call takes a quarter.
            log: Receives new lines of the node's log.

        Returns:
            What is public of how the node has ended; None while it is at work.
        """
        with self._file.open("a+", encoding="utf-8") as file:
            os.utime(file.fileno())
            is_free = _lock(file.fileno())
            # how much of the log has been passed on
            file.seek(0)
            place = int(file.read() or 0)
            is_new = is_free and self._end_in(run) is None
            if is_new:
                place = 0
                self._start(run, seconds, file.fileno())
        until = time.monotonic() + seconds / 4
        while is_kept := self._is_kept():
            place = self._pass_on(place, log)
            if time.monotonic() > until:
                break
            time.sleep(_POLL)
        place = self._pass_on(place, log)
        self._file.write_text(str(place), encoding="utf-8")
        if is_kept:
            return None
        ended = self._end_in(run)
        # a keeper of which nothing is left at once will not do better when it is asked for again
        return public_facts(NEEDS_A_PERSON) if ended is None and is_new else ended

    def keep(self, run: int, seconds: float) -> None:
        """Runs the node until it ends, or until the lease does: the keeper's work."""

        def is_over() -> bool:
            return time.time() - self._file.stat().st_mtime > seconds

        outcome = run_site_node(self._site, self._federation, lambda line: print(line), is_over)
        if outcome.code == INTERRUPTED and is_over():
            return
        new = self._end.with_suffix(".new")
        new.write_text(json.dumps({"run": run, "public": outcome.public}), encoding="utf-8")
        new.replace(self._end)

    def _start(self, run: int, seconds: float, lock: int) -> None:
        words = [str(self._site), self._federation, str(run), str(seconds)]
        with self._log.open("w", encoding="utf-8") as lines:
            # it inherits the lock; whoever stops the runtime's processes stops it too
            subprocess.Popen(
                [sys.executable, "-c", _MAIN, *words],
                stdin=subprocess.DEVNULL,
                stdout=lines,
                stderr=lines,
                pass_fds=[lock],
            )

    def _end_in(self, run: int) -> dict[str, Any] | None:
        """How the node has ended in a job; None: it has not."""
        try:
            end = json.loads(self._end.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return dict(end["public"]) if end["run"] == run else None

    def _is_kept(self) -> bool:
        with self._file.open("a", encoding="utf-8") as file:
            return not _lock(file.fileno())

    def _pass_on(self, place: int, log: Callable[[str], object]) -> int:
        """Passes on the lines of the log from a place; returns the next place."""
        with self._log.open("rb") as lines:
            lines.seek(place)
            for line in lines:
                # the last one may not be complete yet
                if line.endswith(b"\n"):
                    place += len(line)
                    log(line.decode(errors="replace").rstrip("\n"))
        return place


def keep(site: str, federation: str, run: str, seconds: str) -> None:
    """What the keeper's process runs: `Lease.keep`."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    Lease(Path(site), federation).keep(int(run), float(seconds))


def _lock(number: int) -> bool:
    """Locks a file; False if another process has it locked."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
