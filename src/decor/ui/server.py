"""The server: this machine alone, for whoever has the token, and nothing but the page and its
questions.

Guarantee: it listens on 127.0.0.1; a request that does not name this very address, or comes from
another site's page, is refused (so no name that points here, and no page elsewhere, can use a
browser to ask); without the token there is only the empty page; what is served is a fixed table, so
that no path leads to a file.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import socketserver
import sys
import threading
import traceback
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import resources
from typing import Any, NoReturn

from decor.errors import DecorError, InputError

from .desk import Desk, Superseded

HOST = "127.0.0.1"
LARGEST = 1 << 20
"""Bytes of a question."""
_LONGEST = 600
"""Letters of a sentence about a mistake: it may repeat what was sent."""
_CONNECTIONS = 64
_IDLE, _FAREWELL = 60.0, 0.5
"""Seconds after which a silent connection is closed, and one that was refused."""

_SHARED = ("dom", "format", "axes", "graph")
_OWN = ("asking", "controls", "sketch", "canvas", "answers", "watching", "planner")
"""Scripts in the order in which they are joined: the report's own first, so that both pages look
and round alike.
"""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@cache
def files() -> dict[str, tuple[str, bytes]]:
    """All that is served without the token, by its path; none of it is about anybody."""
    own, report = (resources.files(f"decor.{room}") / "page" for room in ("ui", "results"))
    parts = [(report / f"{name}.js") for name in _SHARED] + [(own / f"{name}.js") for name in _OWN]
    script = (
        "(function () {\n'use strict';\n"
        + "\n".join(part.read_text("utf-8") for part in parts)
        + "\n})();\n"
    )
    style = (report / "report.css").read_text("utf-8") + (own / "planner.css").read_text("utf-8")
    return {
        "/": ("text/html; charset=utf-8", (own / "planner.html").read_bytes()),
        "/planner.css": ("text/css; charset=utf-8", style.encode()),
        "/planner.js": ("text/javascript; charset=utf-8", script.encode()),
        "/icon.svg": ("image/svg+xml", (own / "icon.svg").read_bytes()),
    }


class Refused(Exception):
    """A request that is not answered: a status, and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Server(socketserver.ThreadingMixIn, HTTPServer):
    """One planner. `url` opens it: the token stands behind #, which browsers keep to themselves."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, desk: Desk, port: int = 0) -> None:
        self.desk, self.token = desk, secrets.token_urlsafe(32)
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        if not 0 <= port <= 65535:
            raise InputError(f"a port is a number from 0 (any that is free) to 65535, not {port}")
        try:
            super().__init__((HOST, port), Handler)
        except OSError as problem:
            raise InputError(
                f"port {port} cannot be used: {problem.strerror}; name another, or none"
            ) from None
        self.names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def server_bind(self) -> None:
        """Without the question to the name server that http.server would ask."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/#{self.token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):  # rather than a thread for everybody who knocks
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # not a page that went away
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "decor", ""
    timeout = _IDLE
    wbufsize = 1 << 16  # head and body in one piece, or the body waits for an acknowledgement
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        try:
            self._check_sender()
            kind, body = files().get(self.path.partition("?")[0]) or self._nothing()
            self._send(200, kind, body)
        except Refused as problem:
            self._refuse(problem)

    def do_POST(self) -> None:
        try:
            self._check_sender()
            self._check_token()
            prefix, _, kind = self.path.rpartition("/")
            if prefix != "/api" or kind not in self.server.desk.kinds:
                self._nothing()
            self._say(200, self._answer(kind, self._question()))
        except Refused as problem:
            self._refuse(problem)

    def _answer(self, kind: str, asked: Any) -> dict[str, Any]:
        """What is wrong with a question is an answer too: browsers log every other status as an
        error of the page.
        """
        try:
            return self.server.desk.answer(kind, asked)
        except DecorError as problem:
            return {"error": str(problem)[:_LONGEST]}
        except Superseded:
            return {"superseded": True}
        except Exception as problem:
            traceback.print_exc()
            raise Refused(
                500,
                f"the planner failed on this question ({type(problem).__name__}); "
                "that is a bug of ours",
            ) from None

    def _check_sender(self) -> None:
        """Before everything else: by which name this machine was called, and from whose page."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.names:
            raise Refused(
                403,
                f"this is the planner at {HOST}:{self.server.server_port} and nowhere else; "
                "open what decor ui printed",
            )
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        # a link from elsewhere may open the page, which knows nothing without the token; only the
        # page itself may ask
        strange = self.command == "POST" and site not in (None, "same-origin", "none")
        if origin not in (None, f"http://{hosts[0]}") or strange:
            raise Refused(
                403, "the planner answers its own page alone, and no page of another site"
            )

    def _check_token(self) -> None:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(
            given.encode(), self.server.token.encode()
        ):
            raise Refused(
                401,
                "the token is missing or of another planner; open the address that "
                "decor ui printed",
            )

    def _question(self) -> Any:
        if (
            self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            != "application/json"
        ):
            raise Refused(415, "questions are JSON; send them as application/json")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            raise Refused(411, "a question says how long it is; send its Content-Length")
        if len(length) > 9 or int(length) > LARGEST:
            raise Refused(
                413,
                f"a question has {LARGEST:,} bytes at most, not {length[:12]}; "
                "draw a smaller graph",
            )
        try:
            return json.loads(self.rfile.read(int(length)).decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError) as problem:
            raise Refused(400, f"the question is not JSON: {str(problem)[:100]}") from None

    def _nothing(self) -> NoReturn:
        raise Refused(404, "there is nothing here; the planner is at /")

    def _refuse(self, problem: Refused) -> None:
        self.close_connection = True
        self._say(problem.status, {"error": str(problem)})
        # whoever is still sending would lose the answer if the line were cut: it ends when they
        # have read it, or soon
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_FAREWELL)
            left = LARGEST
            while left > 0 and (got := self.rfile.read1(left)):
                left -= len(got)

    def _say(self, status: int, value: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(value, allow_nan=False).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            *_HEADERS.items(),
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
        ):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses, without its page that repeats what was sent."""
        self._refuse(Refused(code, "the planner does not understand this request"))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the person's."""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
