"""Connections that come and go, and what their owner is told: without a network, by hand."""

import asyncio

import pytest

from decor.net import connections
from decor.net.connections import Calls
from decor.net.identity import Identity
from decor.net.link import Link, Neighbour
from decor.net.session import Ended, Heard


class Said:
    """A session over which the same is heard with every byte."""

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


def made(session=None):
    """The calls to one neighbour; what their owner is told; the lines of the log."""
    link = Link(Neighbour(1, "n1", bytes(32), "127.0.0.1:9000", True, True))
    told, logged = [], []
    one = Calls(
        Identity.new(),
        {1: link},
        "",
        5.0,
        lambda event, **facts: logged.append((event, facts)),
        lambda neighbour: session,
        lambda link, event: told.append(event),
    )
    return one, link, told, logged


async def connected(one, link):
    """A connection over which one byte comes, and then its end."""
    reader = asyncio.StreamReader()
    reader.feed_data(b"x")
    reader.feed_eof()
    await one._converse(link, reader, Writer())


def test_what_is_heard_over_a_line_counts_until_a_newer_one_has_taken_its_place():
    session = Said(Heard())
    one, link, told, _ = made(session)
    asyncio.run(connected(one, link))
    assert told == [Heard()] and link.line is None
    newer = object()
    session.meanwhile, session.is_over = lambda: setattr(link, "line", newer), False
    asyncio.run(connected(one, link))
    assert told == [Heard()] and link.line is newer


def test_who_has_said_goodbye_is_lost_at_once_and_not_heard_afterwards():
    one, link, told, logged = made(Said(Ended("done"), Heard()))
    link.is_open = True
    asyncio.run(connected(one, link))
    assert told == [] and logged == [("lost", {"neighbour": "n1", "why": "said goodbye: done"})]


def test_what_goes_wrong_here_is_raised_where_the_owner_waits():
    async def waited():
        one, *_ = made()

        async def broken():
            raise RuntimeError("ours")

        one._spawn(broken())
        for _ in range(2):  # for as long as anybody asks
            with pytest.raises(RuntimeError, match="ours"):
                await one.change(5)

    asyncio.run(waited())


def test_many_strangers_are_one_line_in_the_log(monkeypatch):
    one, _, _, logged = made()
    for _ in range(5):
        one._refuse("no certificate")
    assert logged == [("stranger refused", {"why": "no certificate", "so_far": 1})]
    monkeypatch.setattr(connections.time, "monotonic", lambda: one._quiet_until)
    one._refuse("no certificate")
    assert logged[1:] == [("stranger refused", {"why": "no certificate", "so_far": 6})]
