"""Access to the server: hosts, sites, the token, sizes, and the files it serves."""

import json
import socket
import subprocess
import sys

import pytest

from decor.errors import InputError
from decor.ui import answer
from decor.ui import server as serving
from decor.ui.dispatcher import Dispatcher
from decor.ui.server import MAX_REQUEST, Server

from .client import RING, json_headers, post, running, send


def assert_refused(reply, status, *words):
    assert reply[0] == status, reply
    answer = json.loads(reply[-1]) if isinstance(reply[-1], bytes) else reply[-1]
    error = answer["error"]
    assert all(word in error for word in words), error
    assert "\n" not in error and "Traceback" not in error


def test_only_loopback_is_bound(planner):
    assert planner.server_address[0] == "127.0.0.1" and planner.socket.family == socket.AF_INET
    # nothing listens on the other addresses of this machine
    entries = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    for address in {entry[4][0] for entry in entries}:
        with socket.socket() as line:
            line.settimeout(1)
            if not address.startswith("127."):
                assert line.connect_ex((address, planner.server_port)) != 0


def test_the_token_is_fresh_and_long_and_after_the_hash(planner):
    with Server(Dispatcher()) as other:
        assert other.token != planner.token and len(other.token) >= 43
        assert other.url == f"http://127.0.0.1:{other.server_port}/#{other.token}"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer ",
        "Bearer wrong",
        "Basic {token}",
        "Bearer {token}x",
        "bearer {token}",
        "Bearer \xe9",
    ],
)
def test_without_the_token_nothing_is_answered(planner, given):
    given = given.format(token=planner.token)
    assert_refused(
        post(planner, "plan", RING, Authorization=given), 401, "token", "decor ui printed"
    )
    assert_refused(post(planner, "watch", {}, Authorization=given), 401)


def test_with_the_token_questions_are_answered(planner):
    status, answer = post(planner, "plan", RING)
    assert status == 200 and answer["epsilon"] == pytest.approx(3, rel=1e-4)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1.evil.example:{port}",
        "[::1]:{port}",
        "",
    ],
)
def test_another_host_name_is_refused(planner, host):
    """DNS rebinding: the browser believes that it talks to evil.example, and sends that name."""
    host = host.format(port=planner.server_port)
    assert_refused(post(planner, "plan", RING, Host=host), 403, "only at")
    assert_refused(send(planner, "GET", "/", Host=host), 403)


def test_two_host_headers_are_refused(planner):
    with socket.create_connection(("127.0.0.1", planner.server_port), timeout=60) as line:
        own = f"Host: 127.0.0.1:{planner.server_port}\r\n"
        line.sendall(f"GET / HTTP/1.1\r\n{own}Host: evil.example\r\n\r\n".encode())
        assert line.recv(100).startswith(b"HTTP/1.1 403")


def test_localhost_is_this_machine_too(planner):
    host = f"localhost:{planner.server_port}"
    assert post(planner, "plan", RING, Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:1",
        "http://localhost:{port}",
    ],
)
def test_a_page_of_another_site_is_refused(planner, origin):
    assert_refused(
        post(planner, "plan", RING, Origin=origin.format(port=planner.server_port)),
        403,
        "only its own page",
    )


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_sec_fetch_site_of_another_site_is_refused(planner, site):
    assert_refused(post(planner, "plan", RING, Sec_Fetch_Site=site), 403)
    # a link may open the page, which is empty without the token
    assert send(planner, "GET", "/", Sec_Fetch_Site=site)[0] == 200


def test_no_other_site_is_ever_allowed_by_cors(planner):
    for method, path in (("GET", "/"), ("OPTIONS", "/api/plan"), ("POST", "/api/plan")):
        _, headers, _ = send(planner, method, path, Origin="http://evil.example")
        assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/%2e%2e/server.py", "/planner.js/../../server.py", "//etc/passwd", "/etc/passwd", "/.", "/page/planner.js",
     "/planner.css%00", "/api/plan", "*"],
)  # fmt: skip
def test_no_path_leads_anywhere_but_to_the_page(planner, path):
    assert_refused(send(planner, "GET", path), 404, "nothing here")


@pytest.mark.parametrize(
    "path", ["/api/", "/api/plans", "/api/../api/plan", "/api/plan/", "/api/__init__", "/plan", "/"]
)
def test_only_known_questions_are_answered(planner, path):
    headers = json_headers(planner)
    assert_refused(send(planner, "POST", path, b"{}", **headers), 404)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(planner, method):
    assert send(planner, method, "/")[0] == 501


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_other_script(planner):
    for path in serving.static_files():
        status, headers, body = send(planner, "GET", path)
        assert status == 200 and headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        known = body.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"http:" not in known and b"https:" not in known, path
    html = send(planner, "GET", "/")[2].decode()
    assert not any(inline in html for inline in ("<style", "style=", "onclick", planner.token))
    assert html.count("<script") == 1


def test_a_request_that_is_too_long_is_refused_before_it_is_read(planner):
    headers = json_headers(planner)
    for length in (str(MAX_REQUEST + 1), "9" * 30):
        reply = send(planner, "POST", "/api/plan", b"", Content_Length=length, **headers)
        assert_refused(reply, 413, "at most")
    assert_refused(send(planner, "POST", "/api/plan", b"", Content_Length="-1", **headers), 411)
    assert_refused(send(planner, "POST", "/api/plan", iter([b"{}"]), **headers), 411)  # in chunks


@pytest.mark.parametrize(
    "body", [b"", b"{", b"NaN", b'{"number": NaN}', b"\xff", b"[" * 100_000, b'{"a": Infinity}']
)
def test_what_is_not_json_is_refused_with_a_sentence(planner, body):
    headers = json_headers(planner)
    assert_refused(send(planner, "POST", "/api/plan", body, **headers), 400, "not JSON")


def test_only_json_is_taken(planner):
    """A form of another site can send text/plain without a preflight request, but never JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert_refused(post(planner, "plan", RING, Content_Type=kind), 415)


def test_an_error_does_not_quote_all_that_was_sent(planner):
    for value in (
        {"steps": 10**4000},
        {"adversary": "x" * 100_000},
        {"x" * 100_000: 1},
        {"topology": "y" * 100_000},
    ):
        assert len(post(planner, "plan", RING | value)[1]["error"]) <= 600


def test_bytes_that_are_no_http_do_not_stop_the_server(planner):
    for noise in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"A" * 70_000 + b"\r\n\r\n",
        b"\r\n",
    ):
        with socket.create_connection(("127.0.0.1", planner.server_port), timeout=60) as line:
            line.sendall(noise)
            line.shutdown(socket.SHUT_WR)
            while line.recv(1 << 16):
                pass
    assert post(planner, "plan", RING)[0] == 200


def test_a_connection_too_many_is_closed_and_open_ones_stay(monkeypatch):
    monkeypatch.setattr(serving, "_MAX_CONNECTIONS", 2)
    with running() as server:
        address = ("127.0.0.1", server.server_port)
        lines = [socket.create_connection(address, timeout=60) for _ in range(3)]
        try:
            assert lines[2].recv(10) == b""
            host = f"127.0.0.1:{server.server_port}"
            lines[0].sendall(f"GET /icon.svg HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert lines[0].recv(100).startswith(b"HTTP/1.1 200")
        finally:
            for line in lines:
                line.close()


def test_a_bug_is_reported_without_details(planner, monkeypatch, capfd):
    monkeypatch.setattr(answer, "describe_plan", lambda question: 1 / 0)
    assert_refused(post(planner, "plan", RING), 500, "bug")
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_port_that_is_taken_or_invalid_is_refused(planner):
    with pytest.raises(InputError, match="cannot be used"):
        Server(Dispatcher(), planner.server_port)
    with pytest.raises(InputError, match="65535"):
        Server(Dispatcher(), 70_000)


def test_the_planner_starts_without_heavy_libraries():
    heavy = ("torch", "numba", "matplotlib", "networkx", "cryptography")
    code = (
        "import sys, decor.cli.main, decor.ui.dispatcher, decor.ui.server; sys.exit(' "
        f"'.join(set({heavy}) & set(sys.modules)) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
