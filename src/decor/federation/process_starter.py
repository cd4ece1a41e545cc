"""ProcessStarter: a fresh process that has loaded what every user needs, and starts the users.

The process of the caller may have threads, or have used CUDA or autograd; what is forked from it
could not use them. So it never forks: it starts a new interpreter, which loads everything once and
forks the users (`user_processes`). Terms and tasks go there once, in a file without a name whose
pages all users share. Private keys go through the connection alone: never to a file, an argument
or the environment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from typing import IO, TYPE_CHECKING, Any

from decor import errors
from decor.errors import DecorError, InputError, require

if TYPE_CHECKING:  # nothing heavy: the sooner the starter begins to load, the better
    import torch

    from decor.learning.task import Task
    from decor.net.identity import Identity

    from .terms import Terms
    from .user_files import UserFiles

_MAIN = (
    "import gc, json, sys; gc.disable(); sys.path[:] = json.loads(sys.argv[1]); "
    "from decor.federation.user_processes import main; main(int(sys.argv[2]))"
)
"""What the new interpreter runs: its modules come from where this process's come from.

It collects no garbage before everything is loaded: hardly anything of modules is ever free.
"""


@dataclass(frozen=True)
class Work:
    """What the users' processes need, beside their keys.

    Attributes:
        terms: What all users have agreed on.
        tasks: Gives the task of each user; called once, in the starter.
        files: Where each user writes.
        record: Whether users write down what they receive, and their secrets, for an audit.
        dtype: The default of torch in the caller's process; None: torch is not loaded there.
    """

    terms: Terms
    tasks: Callable[[], Sequence[Task]]
    files: Sequence[UserFiles]
    record: bool
    dtype: torch.dtype | None


class ProcessStarter:
    """A process that starts users' processes. It loads torch while the caller goes on.

    A context manager: at its end the process ends, and with it each user that is left. It also
    ends, after its users, when the caller's process has died.

    Raises:
        DecorError: No process can be started.
    """

    def __init__(self) -> None:
        require("cloudpickle", "train", "federations on one machine")
        self._connection, theirs = Pipe()
        self._ended: list[tuple[int, int]] = []
        # Ctrl-C reaches all processes of a terminal: the starter lets the caller decide, from its
        # first moment on, so it inherits a mask
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = _start_interpreter(theirs.fileno())
        except OSError as problem:
            self._connection.close()
            raise DecorError(f"no process can be started for the users: {problem}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def __enter__(self) -> ProcessStarter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of the starter's process."""
        return self._process.pid

    def prepare(
        self,
        terms: Terms,
        identities: Iterable[Identity],
        tasks: Callable[[], Sequence[Task]],
        files: Sequence[UserFiles],
        record: bool = False,
    ) -> None:
        """Sends what users need, and waits until it is loaded and compiled.

        Args:
            terms: What all users have agreed on.
            identities: The users' keys, in the order of `terms.members`.
            tasks: Gives the task of each user. It is called in the starter, once for all users, so
                it is copied there with everything it holds.
            files: Where each user writes.
            record: For an audit: every user writes down what it receives, and its secrets.

        Raises:
            InputError: Something that `tasks` holds cannot be copied to another process, or does
                not work there.
        """
        torch = sys.modules.get("torch")
        dtype = None if torch is None else torch.get_default_dtype()
        with _file_of(Work(terms, tasks, files, record, dtype)) as file:
            with suppress(BrokenPipeError):  # `_answer` says what has happened
                self._send("prepare")
                # in memory only: `Identity` itself refuses to be copied
                keys = (identity.key.private_bytes_raw() for identity in identities)
                self._connection.send_bytes(b"".join(keys))
                send_handle(self._connection, file.fileno(), self.pid)
            self._answer()

    def start(self, *numbers: int) -> list[int]:
        """Starts the processes of some users; returns their ids.

        All in one request: an answer for each would wait for the cores that users now work on.
        """
        self._send("start", *numbers)
        return list(self._answer())

    def signal(self, number: int, signal_number: int) -> None:
        """Sends a signal to a user's process, if it has not ended."""
        self._send("signal", number, int(signal_number))
        self._answer()

    def exit_codes(self, timeout: float = 0.0) -> list[tuple[int, int]]:
        """(user, exit code) of processes that have ended since the last call.

        Args:
            timeout: Seconds to wait for the first.
        """
        while self._connection.poll(0.0 if self._ended else timeout):
            self._receive()
        ended, self._ended = self._ended, []
        return ended

    def average_metrics(self) -> dict[str, float]:
        """Metrics of the average of all users' last models, measured by the starter.

        Raises:
            DecorError: They cannot be measured.
        """
        self._send("average_metrics")
        return dict(self._answer())

    def close(self) -> None:
        """Ends the starter, and with it all users."""
        self._connection.close()
        # nothing of it is worth waiting for: users notice, and end in good order
        self._process.kill()
        self._process.wait()

    def _send(self, *request: object) -> None:
        with suppress(BrokenPipeError):  # `_answer` says what has happened
            self._connection.send_bytes(json.dumps(request).encode())

    def _answer(self) -> Any:
        """The answer to the request that was sent last."""
        while True:
            match self._receive():
                case ["done", answer]:
                    return answer
                case ["failed", kind, why]:
                    raise getattr(errors, kind)(why)

    def _receive(self) -> list[Any]:
        """The starter's next message; those about processes that have ended are kept."""
        try:
            message: list[Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            # users hold their end of the connection too: by now they all have stopped
            code = self._process.wait()
            raise DecorError(
                f"the process that starts the users ended with code {code}, and so they have "
                "stopped; was it killed, or is the machine short of memory? Start again to go on"
            ) from None
        if message[0] == "ended":
            self._ended.append((message[1], message[2]))
        return message


def _start_interpreter(descriptor: int) -> subprocess.Popen[bytes]:
    """A new interpreter that runs `user_processes.main` with this end of the connection."""
    path = json.dumps([str(each) for each in sys.path])
    # -P: a file of the working folder must not take the place of a module
    command = [sys.executable, "-P", "-c", _MAIN, path, str(descriptor)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[descriptor])


def _file_of(work: Work) -> IO[bytes]:
    """A file without a name that holds the work; in memory where the system can do that."""
    import cloudpickle

    file: IO[bytes]
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("decor"), "w+b")
    else:
        file = tempfile.TemporaryFile()
    torch = sys.modules.get("torch")
    try:
        if torch is None:
            cloudpickle.dump(work, file)
        else:
            # each storage once, however many shards are parts of it, and such that it can be mapped
            torch.save(work, file, pickle_module=cloudpickle, pickle_protocol=5)
        file.flush()
    except OSError as problem:
        file.close()
        raise DecorError(f"the data cannot be copied for the users: {problem}") from None
    except Exception as problem:  # whatever the objects of a task raise
        file.close()
        what = _what_cannot_be_copied(work)
        raise InputError(
            f"{what} cannot be sent to the users' processes: {problem}; keep open files, locks and "
            "connections out of it"
        ) from None
    return file


def _what_cannot_be_copied(work: Work) -> str:
    """The part of the work that cannot be copied, in words."""
    import cloudpickle

    arguments = work.tasks.args if isinstance(work.tasks, partial) else ()
    for argument in arguments:
        for each in fields(argument) if is_dataclass(argument) else ():
            try:
                cloudpickle.dumps(getattr(argument, each.name))
            except Exception:
                return f"the {each.name} of the task"
    return "the task"
