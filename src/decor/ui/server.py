"""The HTTP server of the planner: for this machine, and for a browser that has the token.

Guarantee: it listens on 127.0.0.1. A request that names another host, or comes from the page of
another site, is refused: neither a DNS name that points here nor a foreign page can use the browser
to ask. Without the token only the empty page is served. The files served are a fixed table, so that
no path leads to another file.
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

from .dispatcher import Dispatcher, Superseded

HOST = "127.0.0.1"
MAX_REQUEST = 1 << 20
"""Bytes of a request."""
_MAX_ERROR = 600
"""Characters of an error message, which may quote the request."""
_MAX_CONNECTIONS = 64
_IDLE_TIMEOUT, _DRAIN_TIMEOUT = 60.0, 0.5
"""Seconds after which a silent connection is closed, and one that was refused."""

_SCRIPTS = (
    *("dom", "format", "axes", "graph"),
    *("asking", "controls", "sketch", "canvas", "answers"),
    *("peers", "live", "watching", "planner"),
)
"""In the order in which they are joined: helpers first, and `planner` starts the page."""

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
def static_files() -> dict[str, tuple[str, bytes]]:
    """Path -> (content type, content) of all that is served without the token."""
    own, report = (resources.files(f"decor.{package}") / "page" for package in ("ui", "results"))
    scripts = "\n".join((own / f"{name}.js").read_text("utf-8") for name in _SCRIPTS)
    # the report's style comes first, so that both pages look alike
    own_sheets = (own / f"{name}.css" for name in ("plots", "planner", "live"))
    sheets = (report / "report.css", *own_sheets)
    style = "".join(sheet.read_text("utf-8") for sheet in sheets)
    script = f"(function () {{\n'use strict';\n{scripts}\n}})();\n"
    return {
        "/": ("text/html; charset=utf-8", (own / "planner.html").read_bytes()),
        "/planner.css": ("text/css; charset=utf-8", style.encode()),
        "/planner.js": ("text/javascript; charset=utf-8", script.encode()),
        "/icon.svg": ("image/svg+xml", (own / "icon.svg").read_bytes()),
    }


class Refused(Exception):
    """A request that is not answered, with its HTTP status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Server(socketserver.ThreadingMixIn, HTTPServer):
    """One planner. `url` opens it; the token is after the #, which browsers do not send.

    Args:
        dispatcher: Answers the requests.
        port: On 127.0.0.1; 0 takes any free port.

    Raises:
        InputError: If the port cannot be used.
    """

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, dispatcher: Dispatcher, port: int = 0) -> None:
        self.dispatcher, self.token = dispatcher, secrets.token_urlsafe(32)
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        # socket would raise OverflowError
        if not 0 <= port <= 65535:
            raise InputError(f"the port must be from 0 (any free port) to 65535, not {port}")
        try:
            super().__init__((HOST, port), Handler)
        except OSError as problem:
            raise InputError(
                f"port {port} cannot be used: {problem.strerror}; name another, or none"
            ) from None
        self.names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def server_bind(self) -> None:
        """As in HTTPServer, without its reverse DNS lookup, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/#{self.token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        # connections beyond the limit are closed: each would get a thread
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a page that was closed is no error
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "decor", ""
    timeout = _IDLE_TIMEOUT
    wbufsize = 1 << 16  # header and body in one packet, else the body waits for an ACK
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        try:
            self._check_origin()
            kind, body = static_files().get(self.path.partition("?")[0]) or self._not_found()
            self._send(200, kind, body)
        except Refused as problem:
            self._refuse(problem)

    def do_POST(self) -> None:
        try:
            # the order matters: nothing is read or computed for a request without the token
            self._check_origin()
            self._check_token()
            prefix, _, kind = self.path.rpartition("/")
            if prefix != "/api" or kind not in self.server.dispatcher.kinds:
                self._not_found()
            self._send_json(200, self._answer(kind, self._read_json()))
        except Refused as problem:
            self._refuse(problem)

    def _answer(self, kind: str, request: Any) -> dict[str, Any]:
        """The answer; invalid questions get status 200, because browsers log any other one."""
        try:
            return self.server.dispatcher.answer(kind, request)
        except DecorError as problem:
            return {"error": str(problem)[:_MAX_ERROR]}
        except Superseded:
            return {"superseded": True}
        except Exception as problem:
            # details go to the terminal, and not to the page
            traceback.print_exc()
            kind_of_error = type(problem).__name__
            raise Refused(
                500, f"the planner failed on this question ({kind_of_error}); this is a bug"
            ) from None

    def _check_origin(self) -> None:
        """Refuses other host names (DNS rebinding) and the pages of other sites (CSRF)."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.names:
            raise Refused(
                403,
                f"the planner answers only at {HOST}:{self.server.server_port}; open the address "
                "that decor ui printed",
            )
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        # a link from another site may open the page, which is empty without the token; only the
        # page itself may send requests
        foreign = self.command == "POST" and site not in (None, "same-origin", "none")
        if origin not in (None, f"http://{hosts[0]}") or foreign:
            raise Refused(403, "the planner answers only its own page, not that of another site")

    def _check_token(self) -> None:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        # compared in constant time: an early exit would reveal the token byte by byte
        matches = hmac.compare_digest(given.encode(), self.server.token.encode())
        if scheme != "Bearer" or not matches:
            raise Refused(
                401,
                "the token is missing, or belongs to another planner; open the address that decor "
                "ui printed",
            )

    def _read_json(self) -> Any:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        # a form of another site can send text/plain, but never JSON, without a preflight request
        if kind != "application/json":
            raise Refused(415, "requests are JSON; send them as application/json")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            raise Refused(411, "the length of the request is missing; send Content-Length")
        # int() of a long text is slow
        if len(length) > 9 or int(length) > MAX_REQUEST:
            raise Refused(
                413,
                f"a request has at most {MAX_REQUEST:,} bytes, not {length[:12]}; draw a smaller "
                "graph",
            )
        try:
            return json.loads(self.rfile.read(int(length)).decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError) as problem:
            raise Refused(400, f"the request is not JSON: {str(problem)[:100]}") from None

    def _not_found(self) -> NoReturn:
        raise Refused(404, "there is nothing here; the planner is at /")

    def _refuse(self, problem: Refused) -> None:
        # the rest of a refused request may be anything, and must not be read as the next one
        self.close_connection = True
        self._send_json(problem.status, {"error": str(problem)})
        # closing now would reset a connection that is still sending, and lose the answer: the rest
        # of the request is read first, for a short time
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_DRAIN_TIMEOUT)
            left = MAX_REQUEST
            while left > 0 and (received := self.rfile.read1(left)):
                left -= len(received)

    def _send_json(self, status: int, value: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(value, allow_nan=False).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        headers = _HEADERS | {"Content-Type": kind, "Content-Length": str(len(body))}
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses; its own page would quote the request."""
        self._refuse(Refused(code, "the planner does not understand this request"))

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing: the terminal belongs to the user."""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
