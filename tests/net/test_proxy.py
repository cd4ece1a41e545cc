"""The recording proxy, between two little programs that are sessions over real TLS."""

import asyncio
import socket
import threading
import time

import pytest
from proxy import Proxy, Record, second_messages

from decor.errors import RemoteProtocolError
from decor.net import transport
from decor.net.identity import Identity
from decor.net.messages import Bye, Confirmation, Hello, Model, NoiseTag, Offer
from decor.net.session import Agreed, Ended, Received, Session, SessionConfig, State, Tagged

SIZE, FEDERATION, FIELDS = 40_000, bytes(32), (("steps", b"12345678"),)
NAMES = ("aachen", "bonn")


class Program(threading.Thread):
    """One end of an edge in a thread: connects, again and again, and writes down what happens.

    0 dials, 1 listens.
    """

    def __init__(self, k, keys, port=None):
        super().__init__(daemon=True)
        self.k, self.keys, self.port = k, keys, port
        self.events, self.problems, self.epoch, self.step = [], [], 1, 0
        self.session = self.writer = None
        self.ready = threading.Event()

    def __enter__(self):
        self.start()
        assert self.ready.wait(60)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.stop.set)
        self.join(60)
        assert not self.is_alive()

    def run(self):
        asyncio.run(self.work())

    async def work(self):
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        server = dialling = None
        if self.k == 1:
            server = await asyncio.start_server(self.talk, "127.0.0.1", 0, ssl=self.tls())
            self.port = server.sockets[0].getsockname()[1]
        else:
            dialling = asyncio.create_task(self.dial())
        self.ready.set()
        await self.stop.wait()
        if server is not None:
            server.close()
        if dialling is not None:
            dialling.cancel()
        if self.writer is not None:
            self.writer.transport.abort()
        await asyncio.sleep(0.05)

    def tls(self):
        return transport.tls_context(self.keys[self.k], [self.keys[1 - self.k].public], self.k == 1)

    async def dial(self):
        while not self.stop.is_set():
            try:
                await self.talk(*await transport.dial(f"127.0.0.1:{self.port}", self.tls()))
            except (OSError, TimeoutError) as problem:
                self.problems.append(problem)
            await asyncio.sleep(0.02)

    async def talk(self, reader, writer):
        ends = SessionConfig(
            self.keys[self.k].key,
            NAMES[1 - self.k],
            self.keys[1 - self.k].public,
            self.k == 0,
            FEDERATION,
            FIELDS,
            SIZE,
        )
        self.session = Session(ends, self.epoch, self.step, lambda: (self.step, bytes(32)))
        self.writer = writer
        try:
            writer.write(self.session.outgoing())
            while data := await reader.read(1 << 16):
                for event in self.session.receive(data):
                    self.events.append(event)
                    self.epoch += isinstance(event, Agreed)
                writer.write(self.session.outgoing())
        except (OSError, RemoteProtocolError) as problem:
            self.problems.append(problem)
        finally:
            writer.transport.abort()

    def say(self, *acts):
        def do():
            for act, *what in acts:
                getattr(self.session, act)(*what)
            self.writer.write(self.session.outgoing())

        self.loop.call_soon_threadsafe(do)

    @property
    def agreed(self):
        return [e for e in self.events if isinstance(e, Agreed)]

    @property
    def models(self):
        return [(e.step, e.round) for e in self.events if isinstance(e, Received)]


@pytest.fixture
def edge():
    """Two programs and the proxy between them, when the first connection is open."""
    keys = Identity.new(), Identity.new()
    with Program(1, keys) as bonn, Proxy(*keys, f"127.0.0.1:{bonn.port}", SIZE, NAMES) as proxy:
        with Program(0, keys, proxy.port) as aachen:
            proxy.until(lambda: aachen.agreed and bonn.agreed)
            yield proxy, aachen, bonn


def model(step, fill=0, round_=0):
    return "send_model", step, round_, bytes([fill]) * SIZE


def test_every_message_of_both_is_recorded_and_the_secret_stays_theirs(edge):
    proxy, aachen, bonn = edge
    aachen.say(model(0, 7), ("send_tag", 0, b"12345678"), ("close", "done"))
    proxy.until(lambda: Ended("done") in bonn.events)
    heard = proxy.messages()
    assert [type(r.message) for r in heard if r.sender == "aachen"] == [
        Hello,
        Offer,
        Confirmation,
        Model,
        NoiseTag,
        Bye,
    ]
    assert [type(r.message) for r in heard if r.sender == "bonn"][:3] == [
        Hello,
        Offer,
        Confirmation,
    ]
    assert (
        heard[-1].message == Bye("done")
        and heard[-1].receiver == "bonn"
        and all(r.delivered for r in heard[:9])
    )
    assert {r.connection for r in heard[:9]} == {0} and [r.time for r in heard] == sorted(
        r.time for r in heard
    )
    assert Received(0, 0, b"\7" * SIZE) in bonn.events and Tagged(0, b"12345678") in bonn.events
    assert aachen.agreed[0].secret.key(3) == bonn.agreed[0].secret.key(3)
    assert second_messages(heard) == []


def test_a_cut_connection_comes_again_with_another_secret(edge):
    proxy, aachen, bonn = edge
    proxy.cut()
    proxy.until(lambda: len(aachen.agreed) == len(bonn.agreed) == 2)
    assert aachen.agreed[1].epoch == bonn.agreed[1].epoch == 2 and proxy.dialled == 2
    aachen.say(model(0))
    proxy.until(lambda: bonn.models == [(0, 0)])
    assert {r.connection for r in proxy.messages()} == {0, 1}
    first, second = (
        [
            r.message
            for r in proxy.messages()
            if r.connection == n and isinstance(r.message, Offer | Confirmation)
        ]
        for n in (0, 1)
    )
    assert not set(first) & set(second)


def test_nobody_gets_in_until_it_is_healed(edge):
    proxy, aachen, bonn = edge
    proxy.refuse()
    before = len(aachen.problems)
    proxy.until(lambda: len(aachen.problems) > before + 2)
    assert (
        proxy.connections == []
        and all(isinstance(p, OSError) for p in aachen.problems)
        and proxy.dialled == 1
    )
    proxy.heal()
    proxy.until(lambda: len(bonn.agreed) == 2)


def test_what_is_held_arrives_when_it_is_healed(edge):
    proxy, aachen, bonn = edge
    proxy.hold()
    aachen.say(model(0), model(1))
    proxy.until(
        lambda: [r.message.step for r in proxy.messages() if isinstance(r.message, Model)] == [0, 1]
    )
    time.sleep(0.2)
    assert bonn.models == []
    proxy.heal()
    proxy.until(lambda: bonn.models == [(0, 0), (1, 0)])
    assert proxy.dialled == 1
    proxy.hold()
    aachen.say(model(2))
    proxy.cut()
    proxy.heal()
    proxy.until(lambda: len(bonn.agreed) == 2)


def test_what_falls_into_the_black_hole_is_recorded_all_the_same_and_the_connection_does_not_go_on(
    edge,
):
    proxy, aachen, bonn = edge
    proxy.lose()
    aachen.say(model(0))
    lost = proxy.until(lambda: [r for r in proxy.messages() if isinstance(r.message, Model)])
    assert [r.delivered for r in lost] == [False]
    time.sleep(0.2)
    assert (
        bonn.models == []
        and proxy.connections == [0]
        and not bonn.problems
        and bonn.session.state is State.OPEN
    )
    proxy.heal()
    proxy.until(lambda: len(bonn.agreed) == len(aachen.agreed) == 2)
    aachen.say(model(0))
    proxy.until(lambda: bonn.models == [(0, 0)])


def test_a_half_open_connection_is_open_at_one_end_until_it_is_healed(edge):
    proxy, aachen, bonn = edge
    proxy.half_open("aachen")  # bonn never gets aachen's proof
    proxy.until(lambda: len(aachen.agreed) == 2)
    aachen.say(model(0))
    lost = proxy.until(lambda: [r for r in proxy.messages() if isinstance(r.message, Model)])
    assert [r.delivered for r in lost] == [False]
    assert len(bonn.agreed) == 1 and bonn.session.state is State.CONFIRMING
    proxy.heal()
    # either may be the last to have the other's proof
    proxy.until(lambda: len(bonn.agreed) == 2 and aachen.session.state is State.OPEN)
    aachen.say(model(0))
    proxy.until(lambda: bonn.models == [(0, 0)])


def test_delayed_frames_come_late_and_in_order(edge):
    proxy, aachen, bonn = edge
    proxy.delay(0.3)
    began = time.monotonic()
    aachen.say(*(model(k) for k in range(5)))
    proxy.until(lambda: bonn.models == [(k, 0) for k in range(5)])
    assert time.monotonic() - began >= 0.3


def test_what_is_injected_comes_between_frames_and_garbage_is_refused(edge):
    proxy, aachen, bonn = edge
    aachen.say(model(0))
    proxy.until(lambda: bonn.models)
    proxy.inject("bonn", NoiseTag(9, b"abcdefgh"), Model(1, 0, bytes(SIZE)))
    proxy.until(lambda: Tagged(9, b"abcdefgh") in bonn.events and bonn.models == [(0, 0), (1, 0)])
    assert not any(isinstance(r.message, NoiseTag) for r in proxy.messages())
    proxy.inject("aachen", b"\xff" * 20, connection=0)
    proxy.until(lambda: any("unknown kind" in str(p) for p in aachen.problems))
    proxy.until(lambda: len(bonn.agreed) == 2)
    with pytest.raises(KeyError):
        proxy.inject("aachen", b"", connection=99)


def test_what_is_no_frame_passes_too(edge):
    proxy, aachen, bonn = edge
    aachen.loop.call_soon_threadsafe(aachen.writer.write, b"\xff" * 30)
    proxy.until(
        lambda: any("aachen sent a frame of an unknown kind" in str(p) for p in bonn.problems)
    )


def test_a_second_message_of_a_step_is_caught(edge):
    proxy, aachen, bonn = edge
    aachen.say(model(0, 1), model(0, 2, round_=1), model(1, 3))
    proxy.until(lambda: len(bonn.models) == 3)
    proxy.cut()
    proxy.until(lambda: len(bonn.agreed) == len(aachen.agreed) == 2)
    aachen.say(model(0, 1))
    proxy.until(lambda: len(bonn.models) == 4)
    assert second_messages(proxy.messages()) == []
    bonn.say(model(1, 4))  # another's message of the same step is another message
    aachen.say(model(1, 4))
    proxy.until(lambda: len(bonn.models) == 5 and len(aachen.models) == 1)
    assert second_messages(proxy.messages()) == [("aachen", 1)]


def test_second_messages_are_found_across_edges():
    seen = [
        Record(0.0, "aachen", to, 0, Model(step, 0, bytes([fill])), True)
        for to, step, fill in (("bonn", 0, 1), ("jena", 0, 2))
    ]
    assert second_messages(seen) == [("aachen", 0)] and second_messages(seen[:1] * 2) == []


def test_a_listener_that_is_away_is_seen_through_the_proxy():
    keys = Identity.new(), Identity.new()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Proxy(*keys, f"127.0.0.1:{port}", SIZE) as proxy, Program(0, keys, proxy.port) as aachen:
        proxy.until(lambda: len(aachen.problems) > 1)
        assert proxy.dialled == 0 and proxy.messages() == [] and aachen.session is None
        with pytest.raises(ValueError, match="nobody is connected"):
            proxy.inject("listener", b"x")
        with pytest.raises(TimeoutError, match="0 frames"):
            proxy.until(lambda: False, 0.05)
