"""The status of a node that serves metrics, asked over HTTP."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from decor.errors import InputError

from .addresses import split_address
from .transport import reason

_SECONDS = 4.0
"""The longest that one question may take, from the first byte to the last."""
_MAX_BYTES = 1 << 20
"""Of an answer. A node with a thousand neighbours needs a fifth of it."""


def query_remote(address: str) -> dict[str, Any]:
    """The answer of http://address/status, which is that of the node's status socket.

    The answer is an object of JSON, and nothing else about it is checked: the other end may be any
    program. No redirection is followed and no proxy is used, so that nothing else is asked.

    Args:
        address: host:port of a node's --metrics.

    Raises:
        InputError: If the address is not valid, or no status comes in time; says why, without the
            address.
    """
    host, port = split_address(address)
    until = time.monotonic() + _SECONDS
    name = f"[{host}]" if ":" in host else host.encode("idna").decode()
    try:
        with socket.create_connection((host, port), _SECONDS) as connection:
            # HTTP/1.0: the answer comes in one piece, and the connection ends with it
            connection.sendall(f"GET /status HTTP/1.0\r\nHost: {name}:{port}\r\n\r\n".encode())
            head, _, body = _read_answer(connection, until).partition(b"\r\n\r\n")
    except OSError as problem:
        raise InputError(reason(problem)) from None
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or words[1] != b"200":
        raise InputError(
            "it has no /status: it is no --metrics port, or that of a node of an earlier version"
        )
    try:
        status = json.loads(body)
    # a deep nesting of brackets ends in a RecursionError
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict):
        raise InputError("it answers with something else than the status of a node")
    return status


def _read_answer(connection: socket.socket, until: float) -> bytes:
    """All bytes up to the end of the connection, within a limit on their number and on the time."""
    parts: list[bytes] = []
    left = _MAX_BYTES
    while left > 0:
        # a timeout is about one read; whoever sends a byte at a time must not take for ever
        connection.settimeout(max(until - time.monotonic(), 1e-3))
        part = connection.recv(min(left, 1 << 16))
        if not part:
            return b"".join(parts)
        parts.append(part)
        left -= len(part)
    raise InputError(f"its answer is longer than {_MAX_BYTES:,} bytes, and so is no node's")
