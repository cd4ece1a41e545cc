"""The status of a running node: over a socket for its own user, or for Prometheus."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from decor.errors import InputError

from .accepting import Acceptor, Log, Throttle, open_streams

Describe = Callable[[], dict[str, Any]]
_LONGEST = 100
"""Bytes of a socket's path; Linux allows 107."""
_SECONDS = 5.0
"""The longest that one question may take."""
_MOST = 16
"""Questions at a time."""
_BACKLOG = 128
"""Connections that wait to be accepted: the system lets those beyond it wait for a second."""
_FAILURES = OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
"""How whoever asks can fail."""


def _no_log(event: str, **facts: object) -> None:
    pass


@asynccontextmanager
async def serve_socket(path: Path, describe: Describe, log: Log = _no_log) -> AsyncIterator[None]:
    """While this lasts, each connection to the socket gets one line of JSON.

    Args:
        path: The socket.
        describe: Gives the status.
        log: Receives connections that were closed because there were too many.
    """

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # no request: connecting is the question
        writer.write(json.dumps(describe()).encode() + b"\n")
        await writer.drain()

    if len(os.fsencode(path)) > _LONGEST:
        raise InputError(
            f"the path of the socket {str(path)!r} is too long; name a ledger in a folder nearer "
            "to the root"
        )
    if path.exists() and not path.is_socket():
        raise InputError(f"{str(path)!r} is not a socket, and this node needs its name; move it")
    path.unlink(missing_ok=True)
    # from its first moment on no other user of this machine may connect
    before = os.umask(0o177)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(os.fspath(path))
    except OSError as problem:
        listener.close()
        raise InputError(
            f"the socket {str(path)!r} cannot be made: {problem.strerror}; name a ledger elsewhere"
        ) from None
    finally:
        os.umask(before)
    try:
        async with _answering(listener, answer, log, "the status socket"):
            yield
    finally:
        path.unlink(missing_ok=True)


def query(path: Path) -> dict[str, Any]:
    """The status of the node behind a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        try:
            _connect(connection, path)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            status: dict[str, Any] = json.loads(answer)
        # refused: the node was killed, and left its socket
        except (FileNotFoundError, ConnectionRefusedError):
            raise InputError(
                f"no node is running behind {str(path)!r}; start it with decor node"
            ) from None
        except (OSError, ValueError) as problem:
            raise InputError(f"the node behind {str(path)!r} does not answer: {problem}") from None
    return status


def _connect(connection: socket.socket, path: Path) -> None:
    """Connects within _SECONDS, also while many others wait to be accepted."""
    until = time.monotonic() + _SECONDS
    while True:
        try:
            connection.connect(os.fspath(path))
            return
        # a socket with a timeout does not wait for a place in the queue of a Unix socket
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.02)


@asynccontextmanager
async def serve_metrics(port: int, describe: Describe, log: Log = _no_log) -> AsyncIterator[None]:
    """While this lasts, http://127.0.0.1:port/metrics has the status for Prometheus.

    Args:
        port: On this machine.
        describe: Gives the status.
        log: Receives connections that were closed because there were too many.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        # nothing else of the request matters
        if request.startswith((b"GET /metrics ", b"GET / ")):
            code, body = "200 OK", prometheus_text(describe()).encode()
        else:
            code, body = "404 Not Found", b"see /metrics\n"
        head = (
            f"HTTP/1.1 {code}\r\n"
            "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()

    try:
        # loopback only: the status is for this machine
        listener = socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as problem:
        raise InputError(
            f"metrics cannot be served at port {port}: {problem}; name another"
        ) from None
    async with _answering(listener, answer, log, "the metrics port"):
        yield


@asynccontextmanager
async def _answering(
    listener: socket.socket,
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    log: Log,
    where: str,
) -> AsyncIterator[None]:
    """While this lasts, connections are answered: _MOST at a time, each within _SECONDS."""
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def serve(accepted: socket.socket) -> None:
        with suppress(*_FAILURES):
            async with asyncio.timeout(_SECONDS):
                reader, writer = await open_streams(accepted)
                try:
                    await answer(reader, writer)
                    writer.close()
                    await writer.wait_closed()
                finally:
                    # whoever does not read its answer must not keep a descriptor
                    writer.transport.abort()

    with listener:
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        acceptor = Acceptor(listener, _MOST, serve, spawn, Throttle(log), where)
        spawn(acceptor.run())
        try:
            yield
        finally:
            ending = list(tasks)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)


def prometheus_text(status: dict[str, Any]) -> str:
    """A status in Prometheus's text format."""
    labels = f'federation="{_escape(status["federation"])}",user="{_escape(status["user"])}"'
    metrics = {
        "step": status["step"],
        "steps": status["steps"],
        "messages_total": status["messages"],
        "missed_steps_total": status["missed"],
        "late_messages_total": status["late"],
        "epsilon_spent": status["epsilon"],
        "paused": int(status["paused"] is not None),
    }
    lines = []
    for name, value in metrics.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE decor_{name} {kind}", f"decor_{name}{{{labels}}} {value}"]
    lines.append("# TYPE decor_neighbour_here gauge")
    for neighbour in status["neighbours"]:
        label = f'{labels},neighbour="{_escape(neighbour["name"])}"'
        lines.append(f"decor_neighbour_here{{{label}}} {int(neighbour['here'])}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    # as Prometheus's text format wants it: backslash, quote and line break
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
