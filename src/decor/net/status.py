"""What a running node tells its own operator: over a socket that only this machine's same user can
open, or to Prometheus.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from decor.errors import InputError

Describe = Callable[[], dict[str, Any]]
_LONGEST = 100
"""Of a socket's path: the system takes 107 bytes."""
_PATIENCE = 5.0


@asynccontextmanager
async def answering(path: Path, describe: Describe) -> AsyncIterator[None]:
    """While this lasts, whoever connects to the socket gets one line of JSON."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            writer.write(json.dumps(describe()).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), _PATIENCE)
        writer.close()

    if len(os.fsencode(path)) > _LONGEST:
        raise InputError(
            f"the socket {str(path)!r} has too long a path; name a ledger in a "
            "folder nearer to the root"
        )
    if path.exists() and not path.is_socket():
        raise InputError(
            f"{str(path)!r}, where this node would answer questions, is another kind "
            "of file; move it away"
        )
    path.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(answer, path)
    finally:
        os.umask(before)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


def asked(path: Path) -> dict[str, Any]:
    """What the node behind a socket says of itself."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_PATIENCE)
        try:
            line.connect(os.fspath(path))
            said = b"".join(iter(lambda: line.recv(1 << 16), b""))
            found: dict[str, Any] = json.loads(said)
        except (FileNotFoundError, ConnectionRefusedError):
            raise InputError(
                f"no node is running behind {str(path)!r}; start it with decor node"
            ) from None
        except (OSError, ValueError) as problem:
            raise InputError(f"the node behind {str(path)!r} does not answer: {problem}") from None
    return found


@asynccontextmanager
async def measured(port: int, describe: Describe) -> AsyncIterator[None]:
    """While this lasts, http://127.0.0.1:port/metrics has the node's figures as Prometheus reads
    them. Loopback only.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            asked = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE)
            found = asked.startswith((b"GET /metrics ", b"GET / "))
            body = figures(describe()).encode() if found else b"see /metrics\n"
            head = (
                f"HTTP/1.1 {'200 OK' if found else '404 Not Found'}\r\nContent-Type: text/plain; "
                "version=0.0.4; charset=utf-8\r\n"
            )
            writer.write(
                f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
            )
            await asyncio.wait_for(writer.drain(), _PATIENCE)
        writer.close()

    try:
        server = await asyncio.start_server(answer, "127.0.0.1", port)
    except (OSError, OverflowError) as problem:
        raise InputError(
            f"metrics cannot be served at port {port}: {problem}; name another"
        ) from None
    try:
        yield
    finally:
        server.close()


def figures(said: dict[str, Any]) -> str:
    """A status as Prometheus's text format."""
    labels = f'federation="{_label(said["federation"])}",user="{_label(said["user"])}"'
    lines = []
    for name, value in (
        ("step", said["step"]),
        ("steps", said["steps"]),
        ("messages_total", said["messages"]),
        ("missed_steps_total", said["missed"]),
        ("late_messages_total", said["late"]),
        ("epsilon_spent", said["epsilon"]),
        ("paused", int(said["paused"] is not None)),
    ):
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE decor_{name} {kind}", f"decor_{name}{{{labels}}} {value}"]
    lines.append("# TYPE decor_neighbour_here gauge")
    for each in said["neighbours"]:
        lines.append(
            f'decor_neighbour_here{{{labels},neighbour="{_label(each["name"])}"}} '
            f"{int(each['here'])}"
        )
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
