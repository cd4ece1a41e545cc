"""The status of a node or a relay: over a socket for its own user, and over HTTP for monitoring."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from decor.errors import InputError

from .accepting import Acceptor, Log, Throttle, open_streams
from .addresses import listen, split_address
from .metrics import prometheus_text

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


def metrics_address(text: str) -> str:
    """The address that `--metrics` names, as host:port.

    Args:
        text: A port of this machine alone, host:port, or :port for all interfaces.
    """
    address = f"127.0.0.1:{text}" if text.isdecimal() else text
    split_address(address)  # raises
    return address


@asynccontextmanager
async def serve_metrics(
    address: str,
    describe: Describe,
    why_not_ready: Callable[[], str | None],
    log: Log = _no_log,
    to_text: Callable[[Mapping[str, Any]], str] = prometheus_text,
) -> AsyncIterator[None]:
    """While this lasts, /healthz, /readyz, /metrics and /status are served over HTTP.

    Args:
        address: As of `addresses.listen`.
        describe: Gives the status.
        why_not_ready: Gives the reason for which the node is not ready; None if it is.
        log: Receives connections that were closed because there were too many.
        to_text: Writes the status for Prometheus; by default that of a node.
    """

    def metrics() -> str:
        return to_text(describe())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(_response(request, describe, why_not_ready, metrics))
        await writer.drain()

    async with AsyncExitStack() as stack:
        for listener in listen(address, "--metrics"):
            serving = _answering(listener, answer, log, "the metrics port")
            await stack.enter_async_context(serving)
        yield


def _response(
    request: bytes,
    describe: Describe,
    why_not_ready: Callable[[], str | None],
    metrics: Callable[[], str],
) -> bytes:
    """The whole response to a request."""
    # nothing of the request matters but its page
    method, _, rest = request.partition(b" ")
    page = rest.split(b" ", 1)[0].partition(b"?")[0]
    code, kind = "200 OK", "text/plain"
    if method not in (b"GET", b"HEAD"):
        code, body = "405 Method Not Allowed", "use GET\n"
    elif page == b"/healthz":
        # that this runs is the answer
        body = "alive\n"
    elif page == b"/readyz":
        why = why_not_ready()
        code = "200 OK" if why is None else "503 Service Unavailable"
        body = "ready\n" if why is None else f"not ready: {why}\n"
    elif page in (b"/metrics", b"/"):
        kind, body = "text/plain; version=0.0.4", metrics()
    elif page == b"/status":
        kind, body = "application/json", json.dumps(describe()) + "\n"
    else:
        code, body = "404 Not Found", "see /healthz, /readyz, /metrics and /status\n"
    content = body.encode()
    head = (
        f"HTTP/1.1 {code}\r\n"
        f"Content-Type: {kind}; charset=utf-8\r\n"
        f"Content-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else content)


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
