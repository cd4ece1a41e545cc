"""The door: who may ask, from where, how much, and what is served without being asked."""

import json
import socket
import subprocess
import sys
import threading

import pytest
from asking import asked, running, sent

from decor.errors import InputError
from decor.ui import server as serving
from decor.ui.desk import Desk, Superseded
from decor.ui.server import LARGEST, Server

RING = {"topology": "ring", "users": 8, "epsilon": 3, "steps": 100, "clip": 1}


def refused(reply, status, *words):
    assert reply[0] == status, reply
    said = json.loads(reply[-1]) if isinstance(reply[-1], bytes) else reply[-1]
    assert all(word in said["error"] for word in words), said
    assert "\n" not in said["error"] and "Traceback" not in said["error"]


def test_only_loopback_is_bound(planner):
    assert planner.server_address[0] == "127.0.0.1" and planner.socket.family == socket.AF_INET
    # other addresses of this machine, if it has any, have nobody listening
    for address in {
        entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    } - {"127.0.0.1"}:
        with socket.socket() as line:
            line.settimeout(1)
            if not address.startswith("127."):
                assert line.connect_ex((address, planner.server_port)) != 0


def test_the_token_is_fresh_and_long_and_stands_where_browsers_keep_it_to_themselves(planner):
    with Server(Desk()) as other:
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
    refused(asked(planner, "plan", RING, Authorization=given), 401, "token", "decor ui printed")
    refused(asked(planner, "watch", {}, Authorization=given), 401)


def test_with_the_token_questions_are_answered(planner):
    status, answer = asked(planner, "plan", RING)
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
def test_a_name_that_somebody_points_here_is_refused(planner, host):
    """DNS rebinding: the browser believes to speak with evil.example, and says so."""
    host = host.format(port=planner.server_port)
    refused(asked(planner, "plan", RING, Host=host), 403, "and nowhere else")
    refused(sent(planner, "GET", "/", Host=host), 403)


def test_two_hosts_are_none(planner):
    with socket.create_connection(("127.0.0.1", planner.server_port), timeout=10) as line:
        own = f"Host: 127.0.0.1:{planner.server_port}\r\n"
        line.sendall(f"GET / HTTP/1.1\r\n{own}Host: evil.example\r\n\r\n".encode())
        assert line.recv(100).startswith(b"HTTP/1.1 403")


def test_localhost_is_this_machine_too(planner):
    host = f"localhost:{planner.server_port}"
    assert asked(planner, "plan", RING, Host=host, Origin=f"http://{host}")[0] == 200


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
    refused(
        asked(planner, "plan", RING, Origin=origin.format(port=planner.server_port)),
        403,
        "its own page alone",
    )


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_the_browsers_own_word_on_where_a_request_comes_from_counts(planner, site):
    refused(asked(planner, "plan", RING, Sec_Fetch_Site=site), 403)
    # a link may open the page, which knows nothing yet
    assert sent(planner, "GET", "/", Sec_Fetch_Site=site)[0] == 200


def test_no_other_site_is_ever_allowed_in(planner):
    for method, path in (("GET", "/"), ("OPTIONS", "/api/plan"), ("POST", "/api/plan")):
        _, headers, _ = sent(planner, method, path, Origin="http://evil.example")
        assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/%2e%2e/server.py", "/planner.js/../../server.py", "//etc/passwd", "/etc/passwd", "/.", "/page/planner.js",
     "/planner.css%00", "/api/plan", "*"],
)  # fmt: skip
def test_no_path_leads_anywhere_but_to_the_page(planner, path):
    refused(sent(planner, "GET", path), 404, "nothing here")


@pytest.mark.parametrize(
    "path", ["/api/", "/api/plans", "/api/../api/plan", "/api/plan/", "/api/__init__", "/plan", "/"]
)
def test_only_known_questions_are_answered(planner, path):
    headers = {"Authorization": f"Bearer {planner.token}", "Content_Type": "application/json"}
    refused(sent(planner, "POST", path, b"{}", **headers), 404)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(planner, method):
    assert sent(planner, method, "/")[0] == 501


def test_the_page_loads_nothing_from_elsewhere_and_lets_no_other_script_run(planner):
    for path in serving.files():
        status, headers, body = sent(planner, "GET", path)
        assert (
            status == 200
            and headers["X-Content-Type-Options"] == "nosniff"
            and headers["Cache-Control"] == "no-store"
        )
        policy = headers["Content-Security-Policy"]
        assert (
            "default-src 'none'" in policy
            and "script-src 'self';" in policy
            and "frame-ancestors 'none'" in policy
        )
        assert (
            "unsafe" not in policy
            and "http" not in policy
            and headers["Referrer-Policy"] == "no-referrer"
        )
        known = body.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"http:" not in known and b"https:" not in known, path
    html = sent(planner, "GET", "/")[2].decode()
    assert (
        "<style" not in html
        and "style=" not in html
        and "onclick" not in html
        and html.count("<script") == 1
    )
    assert planner.token not in html


def test_a_question_that_is_too_long_is_refused_before_it_is_read(planner):
    headers = {"Authorization": f"Bearer {planner.token}", "Content_Type": "application/json"}
    for length in (str(LARGEST + 1), "9" * 30):
        refused(
            sent(planner, "POST", "/api/plan", b"", Content_Length=length, **headers),
            413,
            "bytes at most",
        )
    refused(sent(planner, "POST", "/api/plan", b"", Content_Length="-1", **headers), 411)
    refused(sent(planner, "POST", "/api/plan", iter([b"{}"]), **headers), 411)  # in chunks


@pytest.mark.parametrize(
    "body", [b"", b"{", b"NaN", b'{"number": NaN}', b"\xff", b"[" * 100_000, b'{"a": Infinity}']
)
def test_what_is_not_json_is_refused_with_a_sentence(planner, body):
    headers = {"Authorization": f"Bearer {planner.token}", "Content_Type": "application/json"}
    refused(sent(planner, "POST", "/api/plan", body, **headers), 400, "not JSON")


def test_only_json_is_taken(planner):
    """A form of another site can send text/plain without asking the browser's leave, and never
    JSON.
    """
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        refused(asked(planner, "plan", RING, Content_Type=kind), 415)


@pytest.mark.parametrize(
    "body",
    [b"[]", b"3", b'"x"', b"null", b"{}", b'{"question": []}', b'{"question": {}, "number": "x"}'],
)
def test_json_of_another_shape_is_answered_with_a_sentence(planner, body):
    headers = {"Authorization": f"Bearer {planner.token}", "Content_Type": "application/json"}
    status, _, said = sent(planner, "POST", "/api/plan", body, **headers)
    assert status == 200 and json.loads(said)["error"]


def test_a_sentence_does_not_repeat_all_that_was_sent(planner):
    for value in (
        {"steps": 10**4000},
        {"adversary": "x" * 100_000},
        {"x" * 100_000: 1},
        {"topology": "y" * 100_000},
    ):
        assert len(asked(planner, "plan", RING | value)[1]["error"]) <= 600


def test_requests_that_are_no_http_do_not_end_the_server(planner):
    for noise in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"A" * 70_000 + b"\r\n\r\n",
        b"\r\n",
    ):
        with socket.create_connection(("127.0.0.1", planner.server_port), timeout=10) as line:
            line.sendall(noise)
            line.shutdown(socket.SHUT_WR)
            while line.recv(1 << 16):
                pass
    assert asked(planner, "plan", RING)[0] == 200


def test_many_ask_at_once_and_each_gets_its_own_answer(planner):
    found = {}

    def ask(k):
        found[k] = asked(planner, "plan", RING | {"epsilon": 1 + k}, page=f"page {k}")[1]

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {k: round(answer["epsilon"], 2) for k, answer in found.items()} == {
        k: 1 + k for k in range(12)
    }


def test_a_connection_too_many_is_closed_and_those_that_are_open_go_on(monkeypatch):
    monkeypatch.setattr(serving, "_CONNECTIONS", 2)
    with running() as server:
        lines = [
            socket.create_connection(("127.0.0.1", server.server_port), timeout=10)
            for _ in range(3)
        ]
        try:
            assert lines[2].recv(10) == b""
            lines[0].sendall(
                f"GET /icon.svg HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
            )
            assert lines[0].recv(100).startswith(b"HTTP/1.1 200")
        finally:
            for line in lines:
                line.close()


def test_a_question_is_left_when_its_page_asks_another(monkeypatch):
    from decor import progress
    from decor.ui import answer

    desk, begun, outcome = Desk(), threading.Event(), []

    def slow(_):
        begun.set()
        while True:
            progress.report("searching")

    monkeypatch.setattr(
        answer, "planned", lambda q: slow(q) if q.exposure.steps == 7 else {"done": True}
    )

    def first():
        try:
            outcome.append(
                desk.answer("plan", {"page": "a", "number": 1, "question": RING | {"steps": 7}})
            )
        except Superseded:
            outcome.append("left")

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(10)
    assert desk.answer("plan", {"page": "a", "number": 2, "question": RING}) == {"done": True}
    thread.join(10)
    assert outcome == ["left"]
    with pytest.raises(Superseded):
        desk.answer("plan", {"page": "a", "number": 1, "question": RING})


def test_a_bug_of_ours_is_said_without_its_insides(planner, monkeypatch, capfd):
    from decor.ui import answer

    monkeypatch.setattr(answer, "planned", lambda question: 1 / 0)
    refused(asked(planner, "plan", RING), 500, "bug of ours")
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_port_that_is_taken_or_none_is_refused(planner):
    with pytest.raises(InputError, match="cannot be used"):
        Server(Desk(), planner.server_port)
    with pytest.raises(InputError, match="65535"):
        Server(Desk(), 70_000)


def test_the_planner_starts_without_what_is_heavy():
    heavy = ("torch", "numba", "matplotlib", "networkx", "cryptography")
    code = (
        "import sys, decor.cli.main, decor.ui.desk, decor.ui.server; sys.exit(' "
        f"'.join(set({heavy}) & set(sys.modules)) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
