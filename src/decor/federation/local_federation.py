"""A whole federation on one machine, to try it out: a process for every user, forked from one that
has everything loaded.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from decor.errors import DecorError, InputError
from decor.learning.task import Task
from decor.net import status
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.results.run import Run

from .local_gradient import Local
from .node import Node
from .operator import Logbook, attended, told
from .recording import Witness
from .terms import Terms

_POLL, _ASK = 0.05, 2.0
"""Seconds between looks at who has ended, and between questions to those who have not."""


@dataclass(frozen=True)
class Seat:
    """One user: its key, its data, and where it keeps what it writes."""

    number: int
    name: str
    identity: Identity
    task: Task
    folder: Path

    @property
    def ledger(self) -> Path:
        return self.folder / f"{self.name}.ledger"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def socket(self) -> Path:
        return self.folder / f"{self.name}.ledger.socket"

    @property
    def run(self) -> Path:
        return self.folder / self.name

    @property
    def witness(self) -> Path:
        return self.folder / f"{self.name}.witness"


@dataclass
class Together:
    """Starts and watches users.

    `crash`: a user's number -> after how many messages it is killed, and started again.
    """

    terms: Terms
    identities: Sequence[Identity]
    tasks: Sequence[Task]
    folder: Path
    crash: Mapping[int, int] = field(default_factory=dict)
    tell: Callable[[str], object] = field(default=lambda sentence: None)
    on_status: Callable[[list[dict[str, Any]]], object] = field(default=lambda said: None)
    witnessed: bool = False
    """For an audit: everybody writes down what it hears, and its secrets."""

    def __post_init__(self) -> None:
        members = self.terms.members
        self.seats = [
            Seat(k, member.name, identity, task, self.folder)
            for k, (member, identity, task) in enumerate(
                zip(members, self.identities, self.tasks, strict=True)
            )
        ]
        self.earlier: set[int] = set()
        """Who had finished before anybody was started here."""
        self.pids: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(
                f"the folder {str(self.folder)!r} cannot be made: {problem.strerror}"
            ) from None

    def trained(self) -> list[Run]:
        """Everybody's run, when all are done; raises if somebody could not go on.

        Who has finished and saved its model has done all its work: if its process then ends badly,
        that is told, and no failure.
        """
        self._warm()
        crash = dict(self.crash)
        self.earlier = {seat.number for seat in self.seats if self._kept(seat)}
        try:
            for seat in self.seats:
                self.start(seat.number)
            asked = time.monotonic()
            while self.pids and not self._failed():
                self.reap()
                if time.monotonic() >= asked + (_POLL if crash else _ASK):
                    asked = time.monotonic()
                    self._watch(crash)
                time.sleep(_POLL)
        finally:
            self.stop()
        if failed := self._failed():
            done = [seat.name for seat in self.seats if self._finished(seat)]
            others = f"; finished all the same: {', '.join(done)}" if done else ""
            raise DecorError(
                f"{failed[0].name} stopped early: {_last(failed[0].log)}{others}; "
                f"see {failed[0].log}"
            )
        for seat in self.seats:
            if code := self.codes.get(seat.number):
                self.tell(
                    f"{seat.name} had finished its work when its process ended with code "
                    f"{code}; see {seat.log}"
                )
        return [Run.load(seat.run) for seat in self.seats]

    def _failed(self) -> list[Seat]:
        """Whose process ended before its work did; first the one that failed by itself, and not
        because of another.
        """
        ended = [
            seat for seat in self.seats if self.codes.get(seat.number) and not self._finished(seat)
        ]
        return sorted(ended, key=lambda seat: self.codes[seat.number] != 2)

    def _finished(self, seat: Seat) -> bool:
        """Whether a user has come to the end since these processes were started."""
        return seat.number not in self.earlier and self._kept(seat)

    def _kept(self, seat: Seat) -> bool:
        """Whether a user's folder has the model of this federation's end."""
        try:
            held = json.loads((seat.run / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return (
            isinstance(held, dict)
            and held.get("federation") == self.terms.digest.hex()
            and held.get("stopped") is None
        )

    def _warm(self) -> None:
        """What every user would have to load or find out is here before they part; what is refused
        is refused once.
        """
        self.terms.grid.noised(np.zeros(1), bytes(32), [])
        self.terms.spent(1)
        Local(
            self.tasks[0], self.terms.plan.exposure, self.terms.recipe, self.terms.dtype, os.urandom
        )

    def _watch(self, crash: dict[int, int]) -> None:
        said = self.statuses()
        self.on_status(said)
        for each in said:
            number = next(seat.number for seat in self.seats if seat.name == each["user"])
            if each["messages"] >= crash.get(number, each["messages"] + 1):
                self._crashed(number, crash.pop(number))

    def start(self, number: int) -> int:
        """A process for a user; gives its number."""
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # of forks beside threads: the child uses one alone
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _live(self.terms, self.seats[number], self.witnessed)
        self.pids[number] = pid
        self.codes.pop(number, None)
        return pid

    def reap(self) -> None:
        for number, pid in list(self.pids.items()):
            done, result = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.pids[number]
                self.codes[number] = os.waitstatus_to_exitcode(result)

    def statuses(self) -> list[dict[str, Any]]:
        """Of those who answer."""
        said = []
        for number in self.pids:
            try:
                said.append(status.asked(self.seats[number].socket))
            except InputError:  # not yet, or not any more
                continue
        return said

    def stop(self) -> None:
        """Ends everybody who is still at work."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + 10
        while self.pids and time.monotonic() < until:
            self.reap()
            time.sleep(0.02)
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
        while self.pids:
            self.reap()

    def _crashed(self, number: int, step: int) -> None:
        name = self.seats[number].name
        self.tell(f"killing {name} with SIGKILL after step {step}")
        os.kill(self.pids[number], signal.SIGKILL)
        os.waitpid(self.pids.pop(number), 0)
        if self._finished(self.seats[number]):
            self.tell(f"{name} had finished its work, and is not started again")
            return
        time.sleep(1.0)
        self.tell(f"starting {name} again")
        self.start(number)


def _live(terms: Terms, seat: Seat, witnessed: bool) -> NoReturn:
    """All that a child does; it leaves without what its parent has planned for its own end."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        torch.set_num_threads(1)
        with seat.log.open("a", encoding="utf-8") as stream:
            log = Logbook(seat.name, stream)
            try:
                with Ledger(seat.ledger) as ledger:
                    witness = Witness(seat.witness) if witnessed else None
                    node = Node(
                        terms, seat.number, seat.identity, seat.task, ledger, log, witness=witness
                    )
                    node.keep = lambda run: run.save(seat.run, overwrite=True)
                    run = asyncio.run(attended(node, seat.socket, None))
                code = 0 if run.stopped is None else 130
            except Exception as problem:
                log("failed", why=told(problem))
                code = 2
                if not isinstance(problem, DecorError):
                    raise
    except Exception:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _last(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except OSError:
        return "it left no log"
    return lines[-1].partition("event=")[2] if lines else "its log is empty"
