"""A node as its operator sees it: its log, its answers to questions, and how it stops."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from decor.choices import LogFormat
from decor.errors import DecorError
from decor.net import status
from decor.net.accepting import Throttle

# types only: a relay has the same log and signals, and needs no torch
if TYPE_CHECKING:
    from decor.results.run import Run

    from .node import Node

_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of glibc's malloc.h."""
_EVENTS = dict.fromkeys(
    ("socket.send() raised exception.", "SSL connection is closed"),
    "wrote to a connection that had ended",
)
"""Messages of asyncio that an operator may see, in our words."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class EventLog:
    """One line per event: time, user, event, and its facts. Never a secret.

    Attributes:
        user: Whose log it is.
        to: Where lines go: standard error, or a file.
        form: Facts as name=value, or the whole line as a JSON object.
    """

    user: str
    to: TextIO
    form: LogFormat = "text"

    def __call__(self, event: str, **facts: object) -> None:
        now = time.time()
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        stamp = f"{seconds}.{int(now * 1000) % 1000:03d}Z"
        named = {"user": self.user, "event": event, **facts}
        if self.form == "json":
            # ASCII only: control characters are escaped
            line = json.dumps({"time": stamp, **named}, default=str)
        else:
            line = " ".join([stamp, *(f"{name}={_quote(fact)}" for name, fact in named.items())])
        # a log that cannot be written is no reason to stop: the ledger is what counts
        with suppress(OSError):
            print(line, file=self.to, flush=True)

    def reopen(self) -> None:
        """Goes on in a new file of the same name, after the present one was renamed."""
        old = self.to
        try:
            self.to = open(old.name, "a", encoding="utf-8")
        except OSError as problem:
            # the renamed file is better than none
            self("log not reopened", why=problem.strerror)
            return
        with suppress(OSError):
            old.close()


def _quote(value: object) -> str:
    # one event, one line: no line breaks or control characters
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if text and not set(text) & set(' "=') else '"' + text.replace('"', "'") + '"'


def error_text(problem: BaseException) -> str:
    """Our own message; of any other exception only its type: its message might repeat data."""
    return str(problem) if isinstance(problem, DecorError) else type(problem).__name__


class _AsyncioLog(logging.Handler):
    """asyncio's messages as events of a node's log: what they are, never what they say.

    They may quote anything: the representation of a callback and its arguments, or the message of
    an exception that repeats data.
    """

    def __init__(self, log: Callable[..., None]) -> None:
        super().__init__(logging.WARNING)
        # a connection that is reset while much is written gives one message for each piece
        self._log = Throttle(log)

    def emit(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        self._write(_EVENTS.get(str(record.msg), "asyncio reported a problem"), problem, record)

    def on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """As of `loop.set_exception_handler`: exceptions that nothing has handled."""
        del loop
        self._write("an error that nothing handled", context.get("exception"))

    def _write(
        self,
        event: str,
        problem: BaseException | None,
        record: logging.LogRecord | None = None,
    ) -> None:
        facts = {} if problem is None else {"why": error_text(problem)}
        # where in asyncio, for a report of a bug: a place in its code is no data
        place = {} if record is None else {"place": f"{record.module}.{record.funcName}"}
        self._log(event, **facts, **place)


@contextmanager
def asyncio_messages_to(log: Callable[..., None]) -> Iterator[None]:
    """Meanwhile asyncio's own messages are events of `log`; within a running loop.

    In a thread beside the main one only errors of this loop are: the logger is the program's.

    Args:
        log: As `EventLog`.

    Guarantee: nothing of a message but our own words, and of an exception its type, is written.
    """
    handler, logger = _AsyncioLog(log), logging.getLogger("asyncio")
    # not taken back: what goes wrong while the loop is closed is no traceback either
    asyncio.get_running_loop().set_exception_handler(handler.on_exception)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    others, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = others, propagate


def return_freed_memory() -> None:
    """Makes malloc return large blocks at once: glibc would keep several models' worth of them."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


@contextmanager
def hangups_to(handle: Callable[[], None]) -> Iterator[None]:
    """Meanwhile SIGHUP reopens the log, or more; within a running loop.

    Args:
        handle: Called at each SIGHUP, and once now: such as `EventLog.reopen`.
    """
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, handle)
    # the file may have been renamed while SIGHUP was ignored
    handle()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, before)


async def run_node(
    node: Node,
    socket: Path | None,
    metrics: str | None,
    reopen_log: Callable[[], None] | None = None,
) -> Run:
    """Runs a node until it ends, until it is cancelled, or until SIGINT or SIGTERM.

    In a thread beside the main one signals are left to the program.

    Args:
        node: The node.
        socket: Where to answer `decor status`; None: nowhere.
        metrics: Address of health checks and metrics over HTTP; None: none.
        reopen_log: Called at SIGHUP; None: SIGHUP does what it did before.

    Returns:
        The run, as far as it has come.
    """
    return_freed_memory()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        stack.enter_context(asyncio_messages_to(node.log))
        if socket is not None:
            await stack.enter_async_context(status.serve_socket(socket, node.status, node.log))
        if reopen_log is not None:
            stack.enter_context(hangups_to(reopen_log))
        if metrics is not None:
            await stack.enter_async_context(
                status.serve_metrics(metrics, node.status, node.why_not_ready, node.log)
            )
        work = asyncio.create_task(node.train())
        is_main = threading.current_thread() is threading.main_thread()
        signals = _SIGNALS if is_main else ()
        for number in signals:
            # cancelling ends the connections in good order
            loop.add_signal_handler(number, work.cancel)
        try:
            return await work
        except asyncio.CancelledError:
            node.log("stopped", step=node.step, why="by its operator; start it again to go on")
            # saved as far as it has come; the ledger lets it continue
            stopped = node.outcome()
            node.save(stopped)
            return stopped
        except Exception as problem:
            node.log("failed", step=node.step, why=error_text(problem))
            raise
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
