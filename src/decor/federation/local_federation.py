"""A whole federation on one machine, to try it out: one process per user."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.errors import DecorError, InputError
from decor.net import status
from decor.net.identity import Identity
from decor.results.run import Run
from decor.results.safe_files import json_or_empty

from .exit_codes import INCOMPLETE, NEEDS_A_PERSON, PRIVACY
from .process_starter import ProcessStarter
from .terms import Terms
from .user_files import UserFiles

if TYPE_CHECKING:  # this module does without torch: the starter has it
    from decor.learning.task import Task

_POLL, _STATUS = 0.05, 2.0
"""Seconds between looks at which processes have ended, and between questions for their status."""
_STOP_SECONDS = 10
"""How long a process may take to stop after SIGTERM, before it is killed."""

_DONE = (None, 0, INCOMPLETE)
"""Exit codes of users that run, or have done their work."""


@dataclass
class LocalFederation:
    """Starts and watches one process per user.

    Attributes:
        starter: The process that starts them.
        terms: What all users have agreed on.
        identities: Their keys, in the order of `terms.members`.
        tasks: Gives each user's task; called in the starter, so all it holds is copied there.
        folder: Where ledgers, logs and runs are written.
        crash: A user's number -> after how many messages it is killed, and started again.
        notify: Receives sentences for a person.
        on_status: Receives the statuses of all running users, every few seconds.
        record: For an audit: every user writes down what it receives, and its secrets.
        ledgers: The folder of ledgers that go on from earlier runs; None: `folder`.
    """

    starter: ProcessStarter
    terms: Terms
    identities: Sequence[Identity]
    tasks: Callable[[], Sequence[Task]]
    folder: Path
    crash: Mapping[int, int] = field(default_factory=dict)
    notify: Callable[[str], object] = field(default=lambda sentence: None)
    on_status: Callable[[list[dict[str, Any]]], object] = field(default=lambda statuses: None)
    record: bool = False
    ledgers: Path | None = None

    def __post_init__(self) -> None:
        self.users = [
            UserFiles(number, member.name, self.folder, self.ledgers)
            for number, member in enumerate(self.terms.members)
        ]
        self.finished_before: set[int] = set()
        """Users that had finished before any process was started here."""
        # running processes, and the exit codes of others
        self.pids: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        try:
            for folder in (self.folder, self.ledgers or self.folder):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(
                f"the folder {str(folder)!r} cannot be made: {problem.strerror}"
            ) from None

    def run(self, models: bool = True) -> list[Run]:
        """Trains; returns each user's run.

        Args:
            models: Whether the runs have their models; without them torch is not loaded.

        A user that has finished and saved its model has done all its work. If its process then
        fails, that is reported by `notify`, and it is no failure of the run.

        Raises:
            DecorError: A user could not go on.
        """
        # before the first process, so that all users share what is loaded
        self.starter.prepare(self.terms, self.identities, self.tasks, self.users, self.record)
        crash = dict(self.crash)
        self.finished_before = {user.number for user in self.users if self._has_final_model(user)}
        try:
            self.start(*range(len(self.users)))
            asked = time.monotonic()
            while self.pids and not self._failures():
                self.reap(_POLL)
                # a crash has to come after the right message, so statuses are then asked for often
                if time.monotonic() >= asked + (_POLL if crash else _STATUS):
                    asked = time.monotonic()
                    self._watch(crash)
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
            if (code := self.codes.get(user.number)) not in _DONE:
                self.notify(
                    f"{user.name} had finished its work when its process ended with code {code}; "
                    f"see {user.log}"
                )
        return [Run.load(user.run_folder, models) for user in self.users]

    def _failures(self) -> list[UserFiles]:
        """Users whose process ended before their work did."""
        ended = [user for user in self.users if self.codes.get(user.number) not in _DONE]
        failed = [user for user in ended if not self._has_finished(user)]
        # these failed by themselves; others perhaps because of them, or were stopped after them
        own = (PRIVACY, NEEDS_A_PERSON)
        return sorted(failed, key=lambda user: self.codes[user.number] not in own)

    def _has_finished(self, user: UserFiles) -> bool:
        """Whether a user has come to the end since these processes were started."""
        return user.number not in self.finished_before and self._has_final_model(user)

    def _has_final_model(self, user: UserFiles) -> bool:
        """Whether a user's folder has its last model of this federation."""
        manifest = json_or_empty(user.run_folder / "manifest.json")
        is_ours = manifest.get("federation") == self.terms.digest.hex()
        # a user that was interrupted has saved a run too: its manifest says so
        return is_ours and manifest.get("stopped") is None

    def _watch(self, crash: dict[int, int]) -> None:
        statuses = self.statuses()
        self.on_status(statuses)
        numbers = {user.name: user.number for user in self.users}
        for each in statuses:
            number = numbers[each["user"]]
            if number in crash and each["messages"] >= crash[number]:
                self._crash_and_restart(number, crash.pop(number))

    def start(self, *numbers: int) -> list[int]:
        """Starts the processes of some users; returns their ids."""
        pids = self.starter.start(*numbers)
        for number, pid in zip(numbers, pids, strict=True):
            self.pids[number] = pid
            self.codes.pop(number, None)
        return pids

    def reap(self, timeout: float = 0.0) -> None:
        """Notes the exit codes of processes that have ended.

        Args:
            timeout: Seconds to wait for the first.
        """
        for number, code in self.starter.exit_codes(timeout):
            # unknown where an interrupt came between a start and its answer
            self.pids.pop(number, None)
            self.codes[number] = code

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
        for number in self.pids:
            self.starter.signal(number, signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        while self.pids and time.monotonic() < until:
            self.reap(_POLL)
        for number in self.pids:
            self.starter.signal(number, signal.SIGKILL)
        while self.pids:
            self.reap(_POLL)

    def _crash_and_restart(self, number: int, step: int) -> None:
        user = self.users[number]
        self.notify(f"killing {user.name} with SIGKILL after step {step}")
        # no chance to clean up: that is what a crash is
        self.starter.signal(number, signal.SIGKILL)
        while number in self.pids:
            self.reap(_POLL)
        # it was told to end: its code is no failure
        del self.codes[number]
        if self._has_finished(user):
            self.notify(f"{user.name} had finished its work, and is not started again")
            return
        time.sleep(1.0)  # long enough for its neighbours to notice
        self.notify(f"starting {user.name} again")
        self.start(number)


def _last_log_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except OSError:
        return "it left no log"
    return lines[-1].partition("event=")[2] if lines else "its log is empty"
