"""What a running node tells its operator over a socket, and over HTTP."""

import asyncio
import json
import os
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress

import pytest
from example_status import STATUS

from decor.errors import InputError, TransientError
from decor.net import status
from decor.net.addresses import free_ports
from decor.net.metrics import prometheus_text

READY, NOT_READY = lambda: None, lambda: "0 of 2 neighbours connected"


def test_a_node_answers_over_a_socket_that_only_its_own_user_can_open(tmp_path):
    path = tmp_path / "bonn.socket"

    async def ask():
        async with status.serve_socket(path, lambda: STATUS):
            assert os.stat(path).st_mode & 0o777 == 0o600
            return await asyncio.to_thread(status.query, path)

    assert asyncio.run(ask()) == STATUS and not path.exists()
    with pytest.raises(InputError, match="no node is running"):
        status.query(path)


@pytest.mark.parametrize(("name", "error"), [("x" * 120, "too long"), ("file", "not a socket")])
def test_a_path_that_cannot_be_a_socket_is_refused_and_left_alone(tmp_path, name, error):
    (tmp_path / "file").write_text("mine")

    async def serve():
        async with status.serve_socket(tmp_path / name, lambda: STATUS):
            pass

    with pytest.raises(InputError, match=error):
        asyncio.run(serve())
    assert (tmp_path / "file").read_text() == "mine"


def test_an_answer_that_is_no_json_is_an_error_and_not_a_status(tmp_path):
    async def ask():
        async def answer(_, writer):
            writer.write(b"hello")
            writer.close()

        server = await asyncio.start_unix_server(answer, tmp_path / "socket")
        try:
            await asyncio.to_thread(status.query, tmp_path / "socket")
        finally:
            server.close()

    with pytest.raises(InputError, match="does not answer"):
        asyncio.run(ask())


def fetch(port, page, host="127.0.0.1", **request):
    """(code, content type, text) of a page."""
    asked = urllib.request.Request(f"http://{host}:{port}{page}", **request)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.headers["Content-Type"], problem.read().decode()


def served(address, ask, why_not_ready=READY, describe=lambda: STATUS):
    """What a function finds while an address is served."""

    async def serve():
        async with status.serve_metrics(address, describe, why_not_ready):
            return await asyncio.to_thread(ask)

    return asyncio.run(serve())


TEXT = "text/plain; charset=utf-8"


def test_each_question_has_its_page():
    (port,) = free_ports(1)
    pages = ("/healthz", "/readyz", "/metrics", "/status", "/readyz?verbose", "/", "/else")
    found = served(f"127.0.0.1:{port}", lambda: {page: fetch(port, page) for page in pages})
    metrics = (200, "text/plain; version=0.0.4; charset=utf-8", prometheus_text(STATUS))
    assert found["/healthz"] == (200, TEXT, "alive\n")
    assert found["/readyz"] == found["/readyz?verbose"] == (200, TEXT, "ready\n")
    assert found["/metrics"] == found["/"] == metrics
    code, kind, text = found["/status"]
    assert (code, kind) == (200, "application/json; charset=utf-8")
    assert json.loads(text) == STATUS
    assert found["/else"][0] == 404


def test_a_node_that_is_alive_may_not_be_ready_and_says_why():
    (port,) = free_ports(1)

    def fail():
        raise AssertionError("health needs no status, which may take a moment to compute")

    def ask():
        return fetch(port, "/healthz"), fetch(port, "/readyz")

    alive, ready = served(f"127.0.0.1:{port}", ask, NOT_READY, fail)
    assert alive == (200, TEXT, "alive\n")
    assert ready == (503, TEXT, "not ready: 0 of 2 neighbours connected\n")


def test_health_is_told_to_those_who_ask_for_the_head_alone():
    """As `wget --spider`, `curl --head` and some load balancers do."""
    (port,) = free_ports(1)

    def ask():
        return [fetch(port, page, method="HEAD") for page in ("/healthz", "/readyz")]

    assert served(f"127.0.0.1:{port}", ask, NOT_READY) == [(200, TEXT, ""), (503, TEXT, "")]


def test_nothing_can_be_sent_to_a_node():
    (port,) = free_ports(1)
    found = served(f"127.0.0.1:{port}", lambda: fetch(port, "/metrics", data=b"step=9"))
    assert found == (405, TEXT, "use GET\n")


def test_metrics_are_for_this_machine_unless_a_host_is_named():
    assert status.metrics_address("9464") == "127.0.0.1:9464"
    for named in ("0.0.0.0:9464", "[::1]:9464", "metrics.example.org:9464", ":9464"):
        assert status.metrics_address(named) == named
    for wrong in ("metrics", "0.0.0.0", "70000", "0", "-1", "::1:9464"):
        with pytest.raises(InputError, match="is not an address"):
            status.metrics_address(wrong)


@pytest.mark.parametrize(
    ("address", "host", "answers"),
    [
        ("127.0.0.1", "127.0.0.2", False),
        ("0.0.0.0", "127.0.0.2", True),
        ("", "127.0.0.2", True),
        ("[::1]", "[::1]", True),
    ],
)
def test_metrics_are_served_at_the_interfaces_named_and_nowhere_else(address, host, answers):
    if address == "[::1]" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    (port,) = free_ports(1)

    def ask():
        try:
            return fetch(port, "/healthz", host)[0] == 200
        except urllib.error.URLError:
            return False

    assert served(f"{address}:{port}", ask) is answers


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_a_port_in_use_is_refused_with_its_option():
    (port,) = free_ports(1)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(TransientError, match=f"127.0.0.1:{port}: address already in use"),
    ):
        served(f"127.0.0.1:{port}", lambda: None)
    with pytest.raises(InputError, match=f"try --metrics :{port}"):
        served(f"192.0.2.1:{port}", lambda: None)


@pytest.mark.parametrize("kind", ["metrics", "socket"])
def test_silent_connections_are_closed_oldest_first_and_questions_are_answered(tmp_path, kind):
    (port,) = free_ports(1)
    path, lines = tmp_path / "bonn.socket", []

    def log(event, **facts):
        lines.append((event, facts["at"]))

    def connect():
        family = socket.AF_INET if kind == "metrics" else socket.AF_UNIX
        one = socket.socket(family)
        one.connect(("127.0.0.1", port) if kind == "metrics" else os.fspath(path))
        one.settimeout(60)
        return one

    def ask(stack):
        before = len(os.listdir("/proc/self/fd"))
        silent = [stack.enter_context(connect()) for _ in range(300)]
        if kind == "metrics":
            # all but the last sixteen are hung up on
            assert [one.recv(1) for one in silent[:280]] == [b""] * 280
            held = len(os.listdir("/proc/self/fd")) - before - len(silent)
            assert held <= 20, "this side holds no more than sixteen, and what it listens with"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                assert answer.status == 200
        else:
            assert status.query(path) == STATUS

    async def serve():
        serving = (
            status.serve_metrics(f"127.0.0.1:{port}", lambda: STATUS, READY, log)
            if kind == "metrics"
            else status.serve_socket(path, lambda: STATUS, log)
        )
        with ExitStack() as stack:
            async with serving:
                await asyncio.to_thread(ask, stack)

    asyncio.run(serve())
    if kind == "metrics":  # one in ten seconds
        assert 1 <= len(lines) <= 10 and set(lines) == {("connection closed", "the metrics port")}


def test_a_question_that_is_never_asked_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(status, "_SECONDS", 0.2)
    (port,) = free_ports(1)

    async def serve():
        async with status.serve_metrics(f"127.0.0.1:{port}", lambda: STATUS, READY):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1")
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(serve())


def test_a_question_waits_for_its_place_in_the_queue(tmp_path):
    """A Unix socket whose queue is full refuses at once whoever has a timeout."""
    path = tmp_path / "bonn.socket"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(os.fspath(path))
        listener.listen(0)

        def connect():
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.settimeout(60)
            one.connect(os.fspath(path))

        with pytest.raises(BlockingIOError):
            while True:
                connect()
        asked = stack.enter_context(ThreadPoolExecutor(1)).submit(status.query, path)
        wait([asked], timeout=0.5)
        assert not asked.done(), "it has given up while the queue was full"
        # those before it, and then itself
        listener.settimeout(0.1)
        while not asked.done():
            with suppress(TimeoutError):
                answered, _ = listener.accept()
                with answered, suppress(BrokenPipeError):
                    answered.sendall(json.dumps(STATUS).encode())
        assert asked.result() == STATUS
