"""Connections are accepted, a limited number at a time, and logs are not filled."""

import asyncio
import socket
import subprocess
import sys
from contextlib import ExitStack

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
