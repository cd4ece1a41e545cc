"""Connections that open and close, and the events their owner gets, without a network."""

import asyncio

import pytest

from decor.net import connections, transport
from decor.net.connections import Connections
from decor.net.identity import Identity
from decor.net.neighbour import Link, Neighbour
from decor.net.session import Ended, Heard


class FixedEvents:
    """A session that gives the same events for all bytes."""

    is_over = False

    def __init__(self, *events, meanwhile=lambda: None):
        self.events, self.meanwhile = events, meanwhile

    def receive(self, data):
        self.meanwhile()
        return self.events

    def parts(self):
        return []

    def close(self, why):
        self.is_over = True


class Writer:
    class transport:  # noqa: N801
        abort = staticmethod(lambda: None)

    def close(self):
        pass


def one_neighbour(session=None, listen=""):
    """Connections to one neighbour, its link, the owner's events, and the lines of the log."""
    link = Link(Neighbour(1, "n1", Identity.new().public, "127.0.0.1:9000", True, True))
    events, logged, lost = [], [], []
    connections_ = Connections(
        Identity.new(),
        {1: link},
        listen,
        5.0,
        lambda event, **facts: logged.append((event, facts)),
        lambda neighbour: session,
        lambda link, event: events.append(event),
        lambda link: lost.append(link),
    )
    return connections_, link, events, logged


async def run_one_byte(one, link):
    """Runs a connection over which one byte arrives, and then its end."""
    reader = asyncio.StreamReader()
    reader.feed_data(b"x")
    reader.feed_eof()
    await one._run_connection(link, reader, Writer())


def test_what_is_heard_over_a_line_counts_until_a_newer_one_has_taken_its_place():
    session = FixedEvents(Heard())
    one, link, events, _ = one_neighbour(session)
    asyncio.run(run_one_byte(one, link))
    assert events == [Heard()] and link.conn.connection is None
    newer = object()
    session.meanwhile, session.is_over = lambda: setattr(link.conn, "connection", newer), False
    asyncio.run(run_one_byte(one, link))
    assert events == [Heard()] and link.conn.connection is newer


def test_who_has_said_goodbye_is_lost_at_once_and_not_heard_afterwards():
    one, link, events, logged = one_neighbour(FixedEvents(Ended("done"), Heard()))
    link.conn.is_open = True
    asyncio.run(run_one_byte(one, link))
    assert events == [] and logged == [("lost", {"neighbour": "n1", "why": "said goodbye: done"})]


def test_what_goes_wrong_here_is_raised_where_the_owner_waits():
    async def waited():
        one, *_ = one_neighbour()

        async def broken():
            raise RuntimeError("ours")

        one._spawn(broken())
        for _ in range(2):  # every time
            with pytest.raises(RuntimeError, match="ours"):
                await one.wait_for_change(5)

    asyncio.run(waited())


async def logged_until(lines, count):
    async with asyncio.timeout(60):
        while len(lines) < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("why", ["slow", "many"])
def test_a_connection_that_did_not_identify_itself_is_not_called_a_stranger(monkeypatch, why):
    """It may be a neighbour behind a slow line, or behind many strangers."""
    if why == "slow":
        monkeypatch.setattr(transport, "HANDSHAKE_SECONDS", 0.2)
    else:
        monkeypatch.setattr(connections, "UNIDENTIFIED", 2)
    (port,) = transport.free_ports(1)

    async def work():
        one, link, _, logged = one_neighbour(listen=f"127.0.0.1:{port}")
        link.done = True  # nobody is dialled
        one.open()
        ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        try:
            await logged_until(logged, 1)
            # the oldest: its handshake has taken longest
            async with asyncio.timeout(60):
                assert await ends[0][0].read() == b""
        finally:
            await one.close()
            for _, writer in ends:
                writer.close()
        return logged

    ((event, facts),) = asyncio.run(work())
    assert event == "connection closed" and facts["so_far"] == 1
    words = {"slow": "it did not identify itself in time", "many": "more than 2 at a time"}
    assert words[why] in facts["why"]
