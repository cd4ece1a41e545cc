"""Connections are accepted, a limited number at a time, and logs are not filled."""

import asyncio
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from decor.net import accepting
from decor.net.accepting import Acceptor, Throttle, open_streams

PATIENCE = 60


def test_many_events_of_a_kind_are_one_line_with_their_number(monkeypatch):
    lines, now = [], [100.0]
    monkeypatch.setattr(accepting.time, "monotonic", lambda: now[0])
    log = Throttle(lambda event, **facts: lines.append((event, facts)), 10.0)
    for _ in range(5):
        log("stranger refused", why="no certificate")
    log("cannot accept", why="too many open files")
    assert lines == [
        ("stranger refused", {"why": "no certificate", "so_far": 1}),
        ("cannot accept", {"why": "too many open files", "so_far": 1}),
    ]
    now[0] += 10.0
    log("stranger refused", why="no certificate")
    assert lines[2:] == [("stranger refused", {"why": "no certificate", "so_far": 6})]


def test_the_oldest_new_connection_is_closed_and_one_that_was_released_stays():
    lines = []

    async def work():
        tasks, served, released = set(), [], asyncio.Event()

        def spawn(work):
            tasks.add(task := asyncio.create_task(work))
            return task

        async def serve(accepted):
            served.append(accepted)
            reader, writer = await open_streams(accepted)
            try:
                if len(served) == 1:
                    acceptor.release(asyncio.current_task())
                    released.set()
                await reader.read()
            finally:
                writer.transport.abort()

        with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
            listener.setblocking(False)
            address = listener.getsockname()
            log = Throttle(lambda *event, **facts: lines.append((event, facts)))
            acceptor = Acceptor(listener, 2, serve, spawn, log, "the port")
            running = spawn(acceptor.run())
            clients = []
            async with asyncio.timeout(PATIENCE):
                for k in range(5):
                    reader, writer = await asyncio.open_connection(*address)
                    stack.callback(writer.close)
                    clients.append(reader)
                    if k == 0:
                        await released.wait()
                # the second and third make place for the fourth and fifth
                assert [await clients[k].read() for k in (1, 2)] == [b"", b""]
            assert not any(clients[k].at_eof() for k in (0, 3, 4))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert running.cancelled()

    asyncio.run(work())
    ((event, facts),) = lines
    assert event == ("connection closed",) and facts["at"] == "the port"
    assert "more than 2 at a time" in facts["why"]


def test_a_connection_that_is_accepted_as_everything_ends_is_closed():
    accepted = []

    async def work():
        async def serve(given):
            pytest.fail("it was cancelled before it began")

        def spawn(served):
            accepted.append(served.cr_frame.f_locals["given"])
            # as an owner that closes in the same turn of the loop
            for each in (running, task := asyncio.create_task(served)):
                each.cancel()
            return task

        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            acceptor = Acceptor(listener, 2, serve, spawn, lambda *_, **__: None, "the port")
            running = asyncio.create_task(acceptor.run())
            with socket.create_connection(listener.getsockname()):
                await asyncio.wait([running], timeout=PATIENCE)
            assert running.cancelled()

    asyncio.run(work())
    assert [each.fileno() for each in accepted] == [-1]


def test_a_crowd_from_one_place_closes_its_own_connections_and_nobody_elses():
    async def work():
        tasks = set()

        def spawn(work):
            tasks.add(task := asyncio.create_task(work))
            return task

        async def serve(accepted):
            _, writer = await open_streams(accepted)
            try:
                await asyncio.Event().wait()
            finally:
                writer.transport.abort()

        with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
            listener.setblocking(False)
            address = listener.getsockname()
            acceptor = Acceptor(listener, 4, serve, spawn, Throttle(lambda *_, **__: None), "here")
            spawn(acceptor.run())

            async def call(host):
                local = host, 0
                reader, writer = await asyncio.open_connection(*address, local_addr=local)
                stack.callback(writer.close)
                return reader

            async with asyncio.timeout(PATIENCE):
                first = await call("127.0.0.1")
                crowd = [await call("127.0.0.2") for _ in range(20)]
                # all but the last three, in the order of their arrival
                assert [await each.read() for each in crowd[:-3]] == [b""] * 17
                # who comes later finds a place too
                second = await call("127.0.0.1")
                assert await crowd[-3].read() == b""
            assert not any(each.at_eof() for each in (first, second, *crowd[-2:]))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (("192.0.2.1", 1), ("192.0.2.1", 2), True),
        (("192.0.2.1", 1), ("192.0.2.2", 1), False),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::2:3:4:5", 2, 0, 0), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0), False),
        (("fe80::1%lo", 1, 0, 1), ("fe80::2%lo", 1, 0, 1), True),
        ("", "", True),
    ],
)
def test_one_host_is_one_place(one, other, is_same):
    """One host has all addresses of half an IPv6 address; a socket in the file system has none."""
    assert (accepting._origin(one) == accepting._origin(other)) == is_same


NO_DESCRIPTORS = """
import asyncio, resource, socket, sys
from decor.net.accepting import Acceptor, Throttle, open_streams

async def main():
    tasks = set()
    def spawn(work):
        tasks.add(task := asyncio.create_task(work))
        return task
    async def serve(accepted):
        reader, writer = await open_streams(accepted)
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
    listener = socket.create_server(("127.0.0.1", 0), backlog=200)
    listener.setblocking(False)
    log = Throttle(lambda event, **facts: print(event, facts, flush=True))
    print(listener.getsockname()[1], flush=True)
    await Acceptor(listener, 1000, serve, spawn, log, "the port").run()

resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
asyncio.run(main())
"""


def test_without_descriptors_it_says_so_once_and_goes_on_when_there_are_some():
    command = [sys.executable, "-c", NO_DESCRIPTORS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            address = "127.0.0.1", int(process.stdout.readline())
            silent = [socket.create_connection(address, timeout=PATIENCE) for _ in range(100)]
            assert "cannot accept" in (said := process.stdout.readline())
            assert "too many open files" in said
            for one in silent:
                one.close()
            with socket.create_connection(address, timeout=PATIENCE) as last:
                last.sendall(b"here\n")
                assert last.recv(10) == b"here\n"
        finally:
            process.terminate()
        out, errors = process.communicate(timeout=PATIENCE)
    assert out.count("cannot accept") <= 3 and "Traceback" not in errors, errors[-2000:]
