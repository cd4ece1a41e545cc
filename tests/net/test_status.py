"""What a running node tells its operator: over a socket, and to Prometheus."""

import asyncio
import json
import os
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress

import pytest

from decor.errors import InputError
from decor.net import status
from decor.net.transport import free_ports

STATUS = {
    "federation": 'heart "one"',
    "user": "bonn",
    "step": 5,
    "steps": 9,
    "messages": 5,
    "missed": 1,
    "late": 2,
    "epsilon": 2.5,
    "paused": None,
    "neighbours": [{"name": "ulm", "here": True}, {"name": "kiel", "here": False}],
}


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


def test_prometheus_gets_every_metric_with_escaped_labels():
    lines = status.prometheus_text(STATUS).splitlines()
    own = 'federation="heart \\"one\\"",user="bonn"'
    assert f"decor_step{{{own}}} 5" in lines and "# TYPE decor_step gauge" in lines
    assert "# TYPE decor_messages_total counter" in lines
    assert f"decor_paused{{{own}}} 0" in lines
    assert f'decor_neighbour_here{{{own},neighbour="kiel"}} 0' in lines
    paused = status.prometheus_text(STATUS | {"paused": "waits for ulm"})
    assert f"decor_paused{{{own}}} 1" in paused


def test_metrics_are_served_at_one_page_and_a_port_in_use_is_refused():
    (port,) = free_ports(1)

    def fetch(page):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as problem:
            with problem:
                return problem.code, ""

    async def serve():
        async with status.serve_metrics(port, lambda: STATUS):
            pages = [await asyncio.to_thread(fetch, page) for page in ("/metrics", "/else")]
            with pytest.raises(InputError, match=f"port {port}.*name another"):
                async with status.serve_metrics(port, lambda: STATUS):
                    pass
        return pages

    found, other = asyncio.run(serve())
    assert found == (200, status.prometheus_text(STATUS)) and other[0] == 404


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
            status.serve_metrics(port, lambda: STATUS, log)
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
        async with status.serve_metrics(port, lambda: STATUS):
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
