"""Connections that open and close, and the events their owner gets, without a network."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from decor.errors import RemoteProtocolError
from decor.net import addresses, connections, relay, relay_protocol, transport
from decor.net.addresses import Address
from decor.net.connections import LONGEST_QUARANTINE, Connections
from decor.net.identity import Identity
from decor.net.neighbour import FIRST_QUARANTINE, Connection, Link, Neighbour
from decor.net.rate_limit import RateLimit
from decor.net.reach import Reach
from decor.net.relay import Admission, Relay
from decor.net.relay_protocol import relay_id
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


def one_neighbour(session=None, listen=()):
    """Connections to one neighbour, its link, the owner's events, and the lines of the log."""
    link = Link(Neighbour(1, "n1", Identity.new().public, "127.0.0.1:9000", True, True))
    events, logged, lost = [], [], []
    connections_ = Connections(
        Identity.new(),
        {1: link},
        Reach(bytes(32), listen),
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
    (port,) = addresses.free_ports(1)

    async def work():
        one, link, _, logged = one_neighbour(listen=(f"127.0.0.1:{port}",))
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


def test_a_connection_that_was_ending_when_all_are_closed_is_ended():
    """Its last bytes wait for a neighbour that does not read, and the owner is in a hurry."""
    ended, is_blocked = [], asyncio.Event()

    class Full(Writer):
        class transport:  # noqa: N801
            abort = staticmethod(lambda: ended.append(True))

        def write(self, data):
            pass

        async def drain(self):
            is_blocked.set()
            await asyncio.Event().wait()

    class Bye(FixedEvents):
        def parts(self):
            return [b"bye"] if self.is_over else []

    async def work():
        one, link, *_ = one_neighbour(Bye())
        reader = asyncio.StreamReader()
        reader.feed_eof()
        ending = asyncio.create_task(one._run_connection(link, reader, Full()))
        await is_blocked.wait()
        assert not ended
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        assert ended and not one._connections

    asyncio.run(work())


# neighbours that break the rules, and those that come too often


class Broken(FixedEvents):
    """A session whose neighbour breaks the rules."""

    def receive(self, data):
        self.meanwhile()
        raise RemoteProtocolError("n1 sent nonsense")


class Clock:
    """Time as the test says."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(connections.time, "monotonic", lambda: self.now)


def test_a_neighbour_that_breaks_the_rules_is_not_talked_to_each_time_twice_as_long(monkeypatch):
    one, link, _, logged = one_neighbour()
    clock, made = Clock(monkeypatch), []

    def broken_when_open(neighbour):
        made.append(neighbour)
        return Broken(meanwhile=lambda: setattr(link.conn, "is_open", True))

    one._new_session = broken_when_open
    expected = FIRST_QUARANTINE
    for count in range(1, 12):
        asyncio.run(run_one_byte(one, link))
        assert len(made) == count and logged[-1][1]["why"] == "sent nonsense"
        clock.now += 0.99 * expected
        asyncio.run(run_one_byte(one, link))
        assert len(made) == count, "it is not answered yet"
        assert "it broke the rules" in link.conn.problem
        # as often as that it may connect
        link.conn.calls = RateLimit(10, 0.5)
        clock.now += 0.02 * expected
        expected = min(2 * expected, LONGEST_QUARANTINE)
    assert expected == LONGEST_QUARANTINE


def test_who_fails_before_a_secret_is_agreed_is_not_quarantined():
    """It may be a neighbour with another version, or with a stolen name."""
    one, link, events, _ = one_neighbour(Broken())
    asyncio.run(run_one_byte(one, link))
    assert link.conn.quarantined_until == 0.0 and link.conn.quarantine == FIRST_QUARANTINE


def test_a_neighbour_that_connects_too_often_is_not_answered_for_a_while():
    one, link, events, _ = one_neighbour()
    one._new_session = lambda neighbour: FixedEvents(Heard())
    now = [0.0]
    link.conn.calls = RateLimit(10, 0.5, lambda: now[0])
    for _ in range(50):
        asyncio.run(run_one_byte(one, link))
    assert len(events) == 10 and "it connects too often" in link.conn.problem
    now[0] += 4.0
    for _ in range(50):
        asyncio.run(run_one_byte(one, link))
    assert len(events) == 12


def test_the_owner_is_told_of_every_connection_that_ends_once():
    lost = []
    for session in (FixedEvents(Heard()), FixedEvents(Ended("done")), Broken()):
        one, link, _, _ = one_neighbour(session)
        one._on_lost = lost.append
        asyncio.run(run_one_byte(one, link))
        assert lost == [link]
        lost.clear()
    # also of one that a newer one replaces, before the newer one begins
    one, link, _, _ = one_neighbour()
    one._on_lost = lost.append
    one._new_session = lambda neighbour: FixedEvents(meanwhile=lambda: order.append(len(lost)))
    order = []

    async def twice():
        link.conn.connection = Connection(FixedEvents(), Writer())
        await run_one_byte(one, link)

    asyncio.run(twice())
    assert order == [1] and len(lost) == 2


@pytest.mark.parametrize("awaits", [None, "awaits_key", "awaits_proof"])
def test_what_comes_after_a_model_is_read_when_it_is_used_or_if_it_is_awaited(awaits):
    session = FixedEvents(Heard())
    one, link, events, _ = one_neighbour(session)

    async def read():
        if awaits:
            setattr(link, awaits, True)
        session.meanwhile = lambda: setattr(link.conn, "is_open", True)
        link.inbox.put(0, 0, b"model")
        reader = asyncio.StreamReader()
        reader.feed_data(b"x")
        running = asyncio.create_task(one._run_connection(link, reader, Writer()))
        await logged_until(events, 1)
        reader.feed_data(b"x")
        await (logged_until(events, 2) if awaits else asyncio.sleep(0.05))
        assert len(events) == (2 if awaits else 1)
        link.awaits_key = link.awaits_proof = False
        link.inbox.clear()
        await logged_until(events, 2)
        reader.feed_eof()
        await running

    asyncio.run(read())


def test_a_neighbour_that_hangs_up_is_lost_also_while_its_model_waits_to_be_used():
    """Else three users can wait for each other for ever, each for one that does not know it."""
    session = FixedEvents()
    session.meanwhile = lambda: setattr(link.conn, "is_open", True)
    one, link, _, logged = one_neighbour(session)

    class Closed(Writer):
        def write(self, part):
            raise ConnectionResetError

    async def run():
        link.inbox.put(0, 0, b"model")
        reader = asyncio.StreamReader()
        reader.feed_data(b"x")
        running = asyncio.create_task(one._run_connection(link, reader, Closed()))
        async with asyncio.timeout(60):
            while not link.conn.is_open:
                await asyncio.sleep(0.01)
            reader.feed_eof()
            session.parts = lambda: [b"alive"]
            link.conn.connection.flush()
            await running

    asyncio.run(run())
    assert logged == [("lost", {"neighbour": "n1", "why": "hung up"})]


# two users and two relays, all of them real


BONN, ULM = Identity.new(), Identity.new()
FEDERATION = bytes(32)


@asynccontextmanager
async def two_relays():
    """Two relays that run, and their addresses."""
    places = [Address("127.0.0.1", port, is_relay=True) for port in addresses.free_ports(2)]
    ids = frozenset(map(relay_id, places))
    pairs = frozenset({(BONN.public, ULM.public), (ULM.public, BONN.public)})
    admission = Admission("heart", {BONN.public: "bonn", ULM.public: "ulm"}, pairs, ids)
    async with AsyncExitStack() as stack:
        made = []
        for place in places:
            own = frozenset({relay_id(place)})
            made.append(Relay({FEDERATION: admission}, lambda *_, **__: None, 1e9, own))
            stack.push_async_callback(made[-1].close)
            made[-1].open(addresses.listen(f"{place.host}:{place.port}"))
        yield made, places


@asynccontextmanager
async def two_users(at, reached):
    """ulm, which dials bonn at the addresses `at`, and bonn, which waits at the relays `reached`;
    gives their links.
    """
    links = []
    async with AsyncExitStack() as stack:
        for own, other, name, dials, relays in (
            (ULM, BONN, "bonn", True, ()),
            (BONN, ULM, "ulm", False, tuple(reached)),
        ):
            text = " ".join(map(str, at))
            link = Link(Neighbour(0, name, other.public, text, dials, not dials))
            one = Connections(
                own,
                {0: link},
                Reach(FEDERATION, (), relays),
                5.0,
                lambda *_, **__: None,
                lambda neighbour: FixedEvents(),
                lambda *_: None,
                lambda *_: None,
            )
            stack.push_async_callback(one.close)
            one.open()
            links.append(link)
        yield links


async def until_connected(links, relay):
    async with asyncio.timeout(60):
        while not (relay.joins and all(link.conn.connection is not None for link in links)):
            await asyncio.sleep(0.01)
    assert relay.joined == 1 and {link.conn.way for link in links} == {"relay"}


def test_users_of_a_relay_that_goes_down_meet_at_the_other_one():
    async def work():
        async with two_relays() as ((one, two), places), two_users(places, places) as links:
            await until_connected(links, one)
            assert two.joins == 0, "the first of the file comes first"
            await one.close()
            await until_connected(links, two)

    asyncio.run(work())


def test_a_user_that_cannot_reach_the_first_relay_is_met_at_the_second(monkeypatch):
    """The first one runs, and only the user that dials comes as far as there."""
    monkeypatch.setattr(connections, "RELAY_SECONDS", 0.5)

    async def work():
        async with two_relays() as ((one, two), places), two_users(places, places[1:]) as links:
            await until_connected(links, two)
            assert one.accepted >= 1 and one.joins == 0

    asyncio.run(work())


@pytest.mark.parametrize("dials", [True, False])
def test_an_absent_neighbour_with_two_addresses_does_not_fill_the_log(monkeypatch, dials):
    """Its problems take turns: each is logged once, and again when it has been long ago."""
    monkeypatch.setattr(connections, "RELAY_SECONDS", 0.05)
    monkeypatch.setattr(connections, "LONGEST_WAIT", 0.1)
    for module in (relay, relay_protocol):
        monkeypatch.setattr(module, "WAIT_SECONDS", 0.05)
    logged = []

    async def until_tried(relays, times, told):
        known = [each.accepted for each in relays]
        async with asyncio.timeout(60):
            # one that waits stays, and is told at once and every WAIT_SECONDS
            while not (
                told()
                and all(
                    each.accepted >= before + (times if dials else 0)
                    for each, before in zip(relays, known, strict=True)
                )
            ):
                await asyncio.sleep(0.01)

    async def work():
        async with two_relays() as (relays, places):
            text = " ".join(map(str, places)) if dials else ""
            link = Link(Neighbour(0, "bonn", BONN.public, text, dials, not dials))
            one = Connections(
                ULM,
                {0: link},
                Reach(FEDERATION, (), () if dials else tuple(places)),
                5.0,
                lambda event, **facts: logged.append((event, facts["why"])),
                lambda neighbour: FixedEvents(),
                lambda *_: None,
                lambda *_: None,
            )
            one.open()
            try:
                await until_tried(relays, 6, lambda: len(set(logged)) > 1)
                await asyncio.sleep(0.2)  # time for one that is logged twice
                assert len(logged) == len(set(logged)), logged
                monkeypatch.setattr(connections, "REPEAT_SECONDS", 0.0)
                await until_tried(relays, 3, lambda: len(logged) > len(set(logged)))
            finally:
                await one.close()

    asyncio.run(work())
