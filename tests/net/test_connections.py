"""Connections that open and close, and the events their owner gets, without a network."""

import asyncio

import pytest

from decor.net import connections
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


def one_neighbour(session=None):
    """Connections to one neighbour, its link, the owner's events, and the lines of the log."""
    link = Link(Neighbour(1, "n1", bytes(32), "127.0.0.1:9000", True, True))
    events, logged, lost = [], [], []
    connections_ = Connections(
        Identity.new(),
        {1: link},
        "",
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


def test_many_strangers_are_one_line_in_the_log(monkeypatch):
    one, _, _, logged = one_neighbour()
    for _ in range(5):
        one._log_refusal("no certificate")
    assert logged == [("stranger refused", {"why": "no certificate", "so_far": 1})]
    monkeypatch.setattr(connections.time, "monotonic", lambda: one._next_refusal_line)
    one._log_refusal("no certificate")
    assert logged[1:] == [("stranger refused", {"why": "no certificate", "so_far": 6})]
