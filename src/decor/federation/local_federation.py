"""A whole federation on one machine, to try it out: one process per user, forked from this one."""

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

from .local_gradient import LocalGradient
from .node import Node
from .operator import EventLog, error_text, run_node
from .recording import Recorder
from .terms import Terms

_POLL, _STATUS = 0.05, 2.0
"""Seconds between looks at which processes have ended, and between questions for their status."""
_STOP_SECONDS = 10
"""How long a process may take to stop after SIGTERM, before it is killed."""


@dataclass(frozen=True)
class UserProcess:
    """One user: its key, its data, and where it writes its files."""

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
    def run_folder(self) -> Path:
        return self.folder / self.name

    @property
    def recording(self) -> Path:
        return self.folder / f"{self.name}.witness"


@dataclass
class LocalFederation:
    """Starts and watches one process per user.

    Attributes:
        terms: What all users have agreed on.
        identities: Their keys, in the order of `terms.members`.
        tasks: Their data.
        folder: Where ledgers, logs and runs are written.
        crash: A user's number -> after how many messages it is killed, and started again.
        notify: Receives sentences for a person.
        on_status: Receives the statuses of all running users, every few seconds.
        record: For an audit: every user writes down what it receives, and its secrets.
    """

    terms: Terms
    identities: Sequence[Identity]
    tasks: Sequence[Task]
    folder: Path
    crash: Mapping[int, int] = field(default_factory=dict)
    notify: Callable[[str], object] = field(default=lambda sentence: None)
    on_status: Callable[[list[dict[str, Any]]], object] = field(default=lambda statuses: None)
    record: bool = False

    def __post_init__(self) -> None:
        parts = zip(self.terms.members, self.identities, self.tasks, strict=True)
        self.users = [
            UserProcess(number, member.name, identity, task, self.folder)
            for number, (member, identity, task) in enumerate(parts)
        ]
        self.finished_before: set[int] = set()
        """Users that had finished before any process was started here."""
        # running processes, and the exit codes of others
        self.pids: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(
                f"the folder {str(self.folder)!r} cannot be made: {problem.strerror}"
            ) from None

    def run(self) -> list[Run]:
        """Trains; returns each user's run.

        A user that has finished and saved its model has done all its work. If its process then
        fails, that is reported by `notify`, and it is no failure of the run.

        Raises:
            DecorError: A user could not go on.
        """
        # before the first fork, so that children share what is loaded
        self._preload()
        crash = dict(self.crash)
        self.finished_before = {user.number for user in self.users if self._has_final_model(user)}
        try:
            for user in self.users:
                self.start(user.number)
            asked = time.monotonic()
            while self.pids and not self._failures():
                self.reap()
                # a crash has to come after the right message, so statuses are then asked for often
                if time.monotonic() >= asked + (_POLL if crash else _STATUS):
                    asked = time.monotonic()
                    self._watch(crash)
                time.sleep(_POLL)
        finally:
            self.stop()
        if failures := self._failures():
            first = failures[0]
            done = [user.name for user in self.users if self._has_finished(user)]
            others = f"; finished all the same: {', '.join(done)}" if done else ""
            raise DecorError(
                f"{first.name} stopped early: {_last_log_line(first.log)}{others}; see {first.log}"
            )
        for user in self.users:
            if code := self.codes.get(user.number):
                self.notify(
                    f"{user.name} had finished its work when its process ended with code {code}; "
                    f"see {user.log}"
                )
        return [Run.load(user.run_folder) for user in self.users]

    def _failures(self) -> list[UserProcess]:
        """Users whose process ended before their work did."""
        ended = [user for user in self.users if self.codes.get(user.number)]
        failed = [user for user in ended if not self._has_finished(user)]
        # code 2 first: that user failed by itself, others perhaps because of it
        return sorted(failed, key=lambda user: self.codes[user.number] != 2)

    def _has_finished(self, user: UserProcess) -> bool:
        """Whether a user has come to the end since these processes were started."""
        return user.number not in self.finished_before and self._has_final_model(user)

    def _has_final_model(self, user: UserProcess) -> bool:
        """Whether a user's folder has its last model of this federation."""
        try:
            # a user that was interrupted has saved a run too: its manifest says so
            manifest = json.loads((user.run_folder / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return (
            isinstance(manifest, dict)
            and manifest.get("federation") == self.terms.digest.hex()
            and manifest.get("stopped") is None
        )

    def _preload(self) -> None:
        """Loads and compiles before the forks what every user needs; fails once, not per user."""
        terms = self.terms
        terms.grid.add_noise(np.zeros(1), bytes(32), [])
        terms.guarantee_after(1)
        LocalGradient(self.tasks[0], terms.plan.exposure, terms.recipe, terms.dtype, os.urandom)

    def _watch(self, crash: dict[int, int]) -> None:
        statuses = self.statuses()
        self.on_status(statuses)
        numbers = {user.name: user.number for user in self.users}
        for each in statuses:
            number = numbers[each["user"]]
            if number in crash and each["messages"] >= crash[number]:
                self._crash_and_restart(number, crash.pop(number))

    def start(self, number: int) -> int:
        """Starts a user's process; returns its id."""
        # what is buffered would be written by both processes
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of forks beside threads; the child uses only its own
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _child_main(self.terms, self.users[number], self.record)
        self.pids[number] = pid
        self.codes.pop(number, None)
        return pid

    def reap(self) -> None:
        """Notes the exit codes of processes that have ended."""
        for number, pid in list(self.pids.items()):
            done, result = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.pids[number]
                self.codes[number] = os.waitstatus_to_exitcode(result)

    def statuses(self) -> list[dict[str, Any]]:
        """The status of each user that answers."""
        statuses = []
        for number in self.pids:
            try:
                statuses.append(status.query(self.users[number].socket))
            except InputError:  # not yet, or not any more
                continue
        return statuses

    def stop(self) -> None:
        """Ends all processes that are still running."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        while self.pids and time.monotonic() < until:
            self.reap()
            time.sleep(0.02)
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
        while self.pids:
            self.reap()

    def _crash_and_restart(self, number: int, step: int) -> None:
        user = self.users[number]
        self.notify(f"killing {user.name} with SIGKILL after step {step}")
        # no chance to clean up: that is what a crash is
        os.kill(self.pids[number], signal.SIGKILL)
        os.waitpid(self.pids.pop(number), 0)
        if self._has_finished(user):
            self.notify(f"{user.name} had finished its work, and is not started again")
            return
        time.sleep(1.0)  # long enough for its neighbours to notice
        self.notify(f"starting {user.name} again")
        self.start(number)


def _child_main(terms: Terms, user: UserProcess, record: bool) -> NoReturn:
    """Runs one user in a forked process, and exits without the parent's exit handlers."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            # the parent's handlers are not this process's
            signal.signal(number, signal.SIG_DFL)
        # threads do not survive a fork, and users share the cores
        torch.set_num_threads(1)
        with user.log.open("a", encoding="utf-8") as stream:
            log = EventLog(user.name, stream)
            try:
                # a federation on one machine makes its users' ledgers with their keys
                if not user.ledger.exists():
                    Ledger.create(user.ledger, user.identity.public, terms.name)
                with Ledger(user.ledger, user.identity.public) as ledger:
                    node = Node(
                        terms,
                        user.number,
                        user.identity,
                        user.task,
                        ledger,
                        log,
                        save=lambda run: run.save(user.run_folder, overwrite=True),
                        recorder=Recorder(user.recording) if record else None,
                    )
                    run = asyncio.run(run_node(node, user.socket, None))
                # 130 as shells report SIGINT
                code = 0 if run.stopped is None else 130
            except Exception as problem:
                log("failed", why=error_text(problem))
                code = 2
                # a bug: its traceback goes to stderr
                if not isinstance(problem, DecorError):
                    raise
    except Exception:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _last_log_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except OSError:
        return "it left no log"
    return lines[-1].partition("event=")[2] if lines else "its log is empty"
