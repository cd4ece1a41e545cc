"""Accepting connections, a limited number at a time, whatever strangers and descriptors do.

asyncio's own servers have no limit, and print a traceback for each attempt to accept while the
process has no descriptor left.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

Log = Callable[..., None]
"""log(event, **facts): one line for people and programs; never a secret, never data."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

READ_BYTES = 1 << 18
"""Read at a time."""
_PAUSE = 0.1
"""Seconds without accepting after the system has refused to."""
_THROTTLED_SECONDS = 10.0


class Throttle:
    """A log that writes an event at most once in so many seconds, with how often it was so far.

    Args:
        log: Where lines go.
        seconds: Between two lines of one event.
    """

    def __init__(self, log: Log, seconds: float = _THROTTLED_SECONDS) -> None:
        self._log, self._seconds = log, seconds
        self.counts: Counter[str] = Counter()
        self._next: dict[str, float] = {}

    def __call__(self, event: str, **facts: object) -> None:
        self.counts[event] += 1
        now = time.monotonic()
        if now >= self._next.get(event, 0.0):
            self._next[event] = now + self._seconds
            self._log(event, **facts, so_far=self.counts[event])


class Acceptor:
    """Accepts connections and starts a task for each.

    If more than `most` of them are new at a time, one is closed: the oldest of the network address
    that has most of them. Whoever has business here needs a moment only, and silent strangers must
    not keep anyone out, nor a fast one from a single place.

    Args:
        listener: A listening socket that does not block.
        most: New connections at a time.
        serve: Serves one connection, and closes it also when it is cancelled.
        spawn: Starts a task, and keeps it.
        log: Receives what was closed and what could not be accepted; throttled by the owner.
        where: What people call the listener, such as "the metrics port".
    """

    def __init__(
        self,
        listener: socket.socket,
        most: int,
        serve: Callable[[socket.socket], Coroutine[Any, Any, None]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        log: Log,
        where: str,
    ) -> None:
        self._listener, self._most, self._serve = listener, most, serve
        self._spawn, self._log, self._where = spawn, log, where
        # in the order of their arrival; from where
        self._new: dict[asyncio.Task[None], object] = {}

    async def run(self) -> None:
        """Accepts until it is cancelled."""
        while True:
            await _wait_until_readable(self._listener)
            await self._accept_one()

    def release(self, task: asyncio.Task[None] | None) -> None:
        """The task's connection is not new any more: it stays as long as it likes."""
        if task is not None:
            self._new.pop(task, None)

    async def _accept_one(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the client has gone again
        except OSError as problem:  # too many open files, say: existing connections go on
            why = os.strerror(problem.errno).lower() if problem.errno else "refused by the system"
            self._log("cannot accept", at=self._where, why=why)
            await asyncio.sleep(_PAUSE)
            return
        accepted.setblocking(False)
        if len(self._new) >= self._most:
            closed = self._in_the_way()
            del self._new[closed]
            closed.cancel()
            why = f"more than {self._most} at a time, of which this was the oldest from one place"
            self._log("connection closed", at=self._where, why=why)
        task = self._spawn(self._serve(accepted))
        self._new[task] = _origin(address)
        task.add_done_callback(self.release)
        try:
            # lets the task begin: one that is cancelled before would never close its socket
            await asyncio.sleep(0)
        finally:
            # its owner ends everything in this very turn of the loop
            if task.done():
                accepted.close()

    def _in_the_way(self) -> asyncio.Task[None]:
        counts = Counter(self._new.values())
        most = max(counts.values())
        return next(task for task, origin in self._new.items() if counts[origin] == most)


def _origin(address: object) -> object:
    """What one host has one of: an IPv4 address, or half an IPv6 address."""
    if not isinstance(address, tuple):  # of a socket in the file system
        return None
    host = str(address[0]).partition("%")[0]
    return host if ":" not in host else socket.inet_pton(socket.AF_INET6, host)[:8]


async def open_streams(accepted: socket.socket, **tls: Any) -> Streams:
    """The streams of an accepted connection, as asyncio's servers make them.

    Args:
        accepted: The socket; closed if this fails.
        tls: As of `loop.connect_accepted_socket`: `ssl` and `ssl_handshake_timeout`.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, **tls)
    except BaseException:
        accepted.close()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _wait_until_readable(listener: socket.socket) -> None:
    # not loop.sock_accept: it prints a traceback if a client connects while it is cancelled
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        # while it is not waited for, a client in the queue would wake the loop without end
        loop.remove_reader(listener)
