"""The relay: whom it joins, whom it refuses, and how little it holds."""

import asyncio
import os
import socket
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest

from decor.errors import RemoteProtocolError
from decor.net import relay as relay_module
from decor.net.addresses import Address, free_ports, listen
from decor.net.identity import Identity
from decor.net.reach import Reach
from decor.net.relay import Admission, Relay
from decor.net.relay_protocol import CALL_BYTES, GREETING, NONCE_BYTES, Call, relay_id
from decor.net.relay_side import BUFFER_BYTES

FEDERATION = bytes(range(32))
A, B, C, STRANGER = (Identity.new() for _ in range(4))
TCP_REPAIR = 19
"""Of Linux's tcp.h: with it a connection is closed without a packet."""
PAIRS = frozenset({(A.public, B.public), (B.public, A.public)})
ADMISSION = Admission("heart", {A.public: "bonn", B.public: "ulm", C.public: "kiel"}, PAIRS)


class Running:
    def __init__(self, relay, address, logged):
        self.relay, self.address, self.logged = relay, address, logged
        self.admission = relay.admissions[FEDERATION]

    async def meet(self, own, other, federation=FEDERATION, on_wait=lambda: None, at=None):
        reach = Reach(federation)
        return await reach.meet(at or self.address, own.key, other.public, None, on_wait)

    def start(self, own, other, **more):
        return asyncio.create_task(self.meet(own, other, **more))

    async def pair(self):
        ends = await asyncio.gather(self.meet(A, B), self.meet(B, A))
        return ends

    async def waits(self, count):
        await self.until(lambda: self.relay.waiting == count)

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)

    def held(self):
        """Bytes that the relay has read and not passed on."""
        return sum(side.transport.get_write_buffer_size() for side in self.relay._sides.values())


def refused(running):
    return {kind: count for kind, count in running.relay.refusals.items() if count}


def vanish(end):
    """Closes a connection without a packet."""
    try:
        end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:
        pytest.skip("a connection can vanish silently only where the test may administer networks")
    end.close()


async def check_ended(end):
    """Nothing more comes: an orderly end, or a reset."""
    with suppress(ConnectionError):
        assert await asyncio.get_running_loop().sock_recv(end, 1) == b""


@asynccontextmanager
async def run_relay(bytes_per_second=1e9):
    (port,) = free_ports(1)
    logged = []
    address = Address("127.0.0.1", port, is_relay=True)
    relay = Relay(
        {FEDERATION: replace(ADMISSION, relays=frozenset({relay_id(address)}))},
        lambda event, **facts: logged.append((event, facts)),
        bytes_per_second,
    )
    relay.open(listen(f"127.0.0.1:{port}"))
    try:
        yield Running(relay, address, logged)
    finally:
        await relay.close()


def test_two_neighbours_are_joined_and_bytes_pass_both_ways_unchanged():
    async def work():
        loop = asyncio.get_running_loop()
        async with run_relay() as running:
            one = running.start(A, B)
            await running.waits(1)
            two = await running.meet(B, A)
            one = await one
            with one, two:
                for sender, receiver in ((one, two), (two, one)):
                    sent = os.urandom(300_000)
                    sending = asyncio.create_task(loop.sock_sendall(sender, sent))
                    got = b""
                    while len(got) < len(sent):
                        got += await loop.sock_recv(receiver, 1 << 16)
                    await sending
                    assert got == sent
                assert running.relay.passed_bytes == 600_000 and running.relay.joined == 1
                one.close()
                assert await loop.sock_recv(two, 1) == b"", "an end is passed on"
            assert ("joined", {"federation": "heart", "users": "bonn and ulm"}) in running.logged

    asyncio.run(work())


@pytest.mark.parametrize(
    ("own", "other", "federation", "kind", "why"),
    [
        (STRANGER, B, FEDERATION, "unknown_key", "the key is of no user of the federation"),
        (A, C, FEDERATION, "not_neighbours", "the two users are not neighbours"),
        (A, B, bytes(32), "unknown_federation", "does not know the federation file"),
    ],
)
def test_only_neighbours_of_known_federations_are_admitted(own, other, federation, kind, why):
    async def work():
        async with run_relay() as running:
            with pytest.raises(RemoteProtocolError, match=why):
                await running.meet(own, other, federation=federation)
            assert refused(running) == {kind: 1} and running.relay.waiting == 0
            assert any(why in facts.get("why", "") for _, facts in running.logged)

    asyncio.run(work())


async def answer_to(running, call):
    """What the relay says to these bytes after its nonce, up to the end."""
    loop = asyncio.get_running_loop()
    with socket.socket() as made:
        made.setblocking(False)
        await loop.sock_connect(made, (running.address.host, running.address.port))
        await loop.sock_sendall(made, call)
        said = b""
        while part := await loop.sock_recv(made, 1000):
            said += part
    return said[len(GREETING) + NONCE_BYTES :]


def test_who_owns_no_key_is_not_told_which_keys_and_federations_there_are():
    """All that is in a call but its signature can be seen by those who listen on the way."""
    seen = [
        (federation, relay, own.public, other.public)
        for federation, relay, own, other in (
            (FEDERATION, bytes(32), A, B),
            (FEDERATION, bytes(32), A, C),
            (FEDERATION, bytes(32), STRANGER, B),
            (bytes(32), bytes(32), A, B),
        )
    ]

    async def work():
        async with run_relay() as running:
            said = {await answer_to(running, b"".join(each) + bytes(64)) for each in seen}
            assert len(said) == 1 and b"the signature is not of that key" in said.pop()
            assert refused(running) == {"wrong_signature": len(seen)}

    asyncio.run(work())


def test_a_user_of_two_federations_meets_in_each_only_its_neighbours_there():
    """A and B are neighbours in one federation, A and C in the other."""
    other, pairs = bytes(31) + b"x", frozenset({(A.public, C.public), (C.public, A.public)})

    async def work():
        async with run_relay() as running:
            relays = running.admission.relays
            second = Admission("lung", {A.public: "bonn", C.public: "kiel"}, pairs, relays)
            running.relay.admissions = {FEDERATION: running.admission, other: second}
            waiting = running.start(A, B)
            await running.waits(1)
            for own, neighbour, federation, why in (
                (B, A, other, "of no user"),
                (A, B, other, "not neighbours"),
                (A, C, FEDERATION, "not neighbours"),
                (C, A, FEDERATION, "not neighbours"),
            ):
                with pytest.raises(RemoteProtocolError, match=why):
                    await running.meet(own, neighbour, federation=federation)
            assert running.relay.waiting == 1 and not waiting.done()
            # and a signature for one federation is none for the other
            nonce = bytes(NONCE_BYTES)
            call = Call.make(A.key, FEDERATION, running.address, C.public, nonce)
            assert not replace(call, federation=other).is_signed(nonce)
            with await running.meet(B, A), await waiting:
                assert running.relay.joined == 1

    asyncio.run(work())


@pytest.mark.parametrize("named", ["one", "two, and this one knows its own"])
def test_another_relay_cannot_hand_on_the_calls_that_it_gets(named):
    """It passes on this relay's nonce, and gets a signature for it; so it could push users out."""

    async def work():
        async with run_relay() as running:
            place = running.address.host, running.address.port

            async def copy(reader, writer):
                while data := await reader.read(1000):
                    writer.write(data)
                writer.close()

            async def hand_on(reader, writer):
                there, to_there = await asyncio.open_connection(*place)
                await asyncio.gather(copy(reader, to_there), copy(there, writer))

            server = await asyncio.start_server(hand_on, "127.0.0.1", 0)
            async with server:
                false = Address(*server.sockets[0].getsockname(), is_relay=True)
                if named != "one":
                    both = frozenset({relay_id(false), relay_id(running.address)})
                    admission = replace(running.admission, relays=both)
                    running.relay.admissions = {FEDERATION: admission}
                    running.relay._own = frozenset({relay_id(running.address)})
                waiting = running.start(A, B)
                await running.waits(1)
                with pytest.raises(RemoteProtocolError, match="for a relay at another address"):
                    async with asyncio.timeout(60):
                        await running.meet(A, B, at=false)
                assert running.relay.waiting == 1 and refused(running) == {"wrong_relay": 1}
                with await running.meet(B, A), await waiting:
                    assert running.relay.joined == 1

    asyncio.run(work())


def test_nobody_waits_in_the_place_of_another_user():
    """A stranger that knows all public keys, and replays what it has seen."""

    async def work():
        async with run_relay() as running:
            waiting = running.start(A, B)
            await running.waits(1)
            nonce, here = bytes(NONCE_BYTES), running.address
            old = Call.make(A.key, FEDERATION, here, B.public, nonce).to_bytes()
            forged = Call.make(STRANGER.key, FEDERATION, here, A.public, nonce)
            forged = replace(forged, own=B.public).to_bytes()
            for call in [old, forged] * relay_module.CALLS:
                assert (await answer_to(running, call)).startswith(b"!")
            assert running.relay.waiting == 1
            assert refused(running) == {"wrong_signature": 2 * relay_module.CALLS}
            # and B's own calls are not used up
            two = await running.meet(B, A)
            (await waiting).close()
            two.close()

    asyncio.run(work())


def test_the_newer_connection_of_a_user_wins_waiting_or_joined():
    async def work():
        async with run_relay() as running:
            first = running.start(A, B)
            await running.waits(1)
            second = running.start(A, B)
            with pytest.raises(RemoteProtocolError, match="called again"):
                await first
            two = await running.meet(B, A)
            with await second as joined, two:
                again = running.start(A, B)
                # both old ends are told, so that the neighbour calls again
                for end in (joined, two):
                    await check_ended(end)
            with await running.meet(B, A), await again:
                assert running.relay.joined == 1

    asyncio.run(work())


def test_a_user_that_calls_again_and_again_is_refused_for_a_while(monkeypatch):
    # no more than at once, however slow this machine is
    monkeypatch.setattr(relay_module, "CALLS_PER_SECOND", 1e-9)

    async def work():
        async with run_relay() as running:
            calls = []
            for _ in range(relay_module.CALLS):
                waits = asyncio.Event()
                calls.append(running.start(A, B, on_wait=waits.set))
                await waits.wait()
            with pytest.raises(RemoteProtocolError, match="too many calls"):
                await running.meet(A, B)
            assert refused(running) == {"rate_limited": 1}
            # its neighbours are not affected
            with await running.meet(B, A), await calls[-1]:
                pass
            await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(work())


def test_silent_and_babbling_strangers_do_not_keep_users_out(monkeypatch):
    """A thousand that say nothing, and two hundred that say something wrong, while two meet."""
    monkeypatch.setattr(relay_module, "UNIDENTIFIED", 64)

    async def work():
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with run_relay() as running:
            place = running.address.host, running.address.port
            strangers = []
            try:
                for k in range(1200):
                    made = socket.socket()
                    made.setblocking(False)
                    strangers.append(made)
                    await loop.sock_connect(made, place)
                    if k % 6 == 0:
                        await loop.sock_sendall(made, os.urandom(CALL_BYTES + k))
                    if k == 600:
                        one, two = await running.pair()
                await loop.sock_sendall(one, b"still here")
                assert await loop.sock_recv(two, 100) == b"still here"
                one.close()
                two.close()
                for end in await running.pair():
                    end.close()
            finally:
                for made in strangers:
                    made.close()
            counts = running.relay.refusals
            assert counts["too_many_bytes"] > 0 and counts["too_many"] > 0
            # throttled: a line of each of two kinds in ten seconds, whatever strangers do
            lines = [event for event, _ in running.logged if event != "joined"]
            assert set(lines) == {"refused", "connection closed"}
            assert len(lines) <= 2 * (1 + (loop.time() - began) / 10), lines

    asyncio.run(work())


def test_who_makes_no_call_in_time_is_refused_and_who_has_made_one_may_wait(monkeypatch):
    async def work():
        async with run_relay() as running:
            waiting = running.start(A, B)
            await running.waits(1)
            monkeypatch.setattr(relay_module, "ANSWER_SECONDS", 0.2)
            async with asyncio.timeout(60):
                said = await asyncio.gather(
                    answer_to(running, b""), answer_to(running, bytes(CALL_BYTES - 1))
                )
            assert [each[2:] for each in said] == [b"made no call in time"] * 2
            assert refused(running) == {"no_call": 2}
            await running.until(lambda: running.relay.connections == 1)
            assert running.relay.waiting == 1 and not waiting.done()
            monkeypatch.undo()
            with await running.meet(B, A), await waiting:
                assert running.relay.joined == 1

    asyncio.run(work())


def test_a_user_whose_call_has_come_is_not_one_of_too_many_any_more(monkeypatch):
    """A crowd makes the relay close its connection in the same moment."""

    async def work():
        loop = asyncio.get_running_loop()
        async with run_relay() as running:
            relay = running.relay
            receive = relay.receive_call

            def receive_then_close(side, call):
                receive(side, call)
                for task in relay._tasks:
                    if task.get_coro().__name__ == "_serve":
                        task.cancel()

            monkeypatch.setattr(relay, "receive_call", receive_then_close)
            waits = asyncio.Event()
            one = running.start(A, B, on_wait=waits.set)
            await waits.wait()
            two = await running.meet(B, A)
            with await one as one, two:
                await loop.sock_sendall(one, b"x")
                assert await loop.sock_recv(two, 1) == b"x"

    asyncio.run(work())


def test_a_slow_reader_holds_up_its_sender_and_not_the_relays_memory():
    async def work():
        loop = asyncio.get_running_loop()
        async with run_relay() as running:
            one, two = await running.pair()
            with one, two:
                for end in (one, two):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                total = 64 << 20
                sending = asyncio.create_task(loop.sock_sendall(one, bytes(total)))
                await running.until(lambda: running.held() >= BUFFER_BYTES)
                assert not sending.done(), "the sender waits"
                # what was read at once when the limit was passed comes on top
                assert running.held() <= 4 * BUFFER_BYTES, running.held()
                got = 0
                while got < total:
                    got += len(await loop.sock_recv(two, 1 << 20))
                await sending

    asyncio.run(work())


def test_a_user_that_never_reads_holds_one_buffer_for_each_neighbour_however_often_it_calls():
    """Two users together: one sends and leaves, the other leaves it at the relay, again and again."""

    async def work():
        loop = asyncio.get_running_loop()
        async with run_relay() as running:
            with ExitStack() as stack:
                for _ in range(4):
                    one, two = await running.pair()
                    stack.enter_context(two)
                    with one:
                        # a little at the relay: it still reads, and notices the end
                        while not running.held():
                            await loop.sock_sendall(one, bytes(1 << 14))
                            await asyncio.sleep(0.001)
                    await running.until(lambda: running.relay.connections == 1)
                    assert running.relay.waiting == 0, "it waits for nobody"
            await running.until(lambda: running.relay.connections == 0)
            assert running.relay._sides == {}

    asyncio.run(work())


def test_the_last_bytes_of_a_user_that_has_left_still_arrive():
    async def work():
        loop = asyncio.get_running_loop()
        async with run_relay() as running:
            one, two = await running.pair()
            # less than systems and the relay hold, and more than goes at once
            sent = os.urandom(3 << 20)
            with two:
                sending = asyncio.create_task(loop.sock_sendall(one, sent))
                got = await loop.sock_recv(two, 1 << 16)
                while not sending.done():
                    got += await loop.sock_recv(two, 1 << 16)
                one.close()
                while part := await loop.sock_recv(two, 1 << 16):
                    got += part
            assert got == sent

    asyncio.run(work())


def test_a_connection_whose_other_end_has_vanished_ends(monkeypatch):
    """Both users' machines are gone without a word, and nothing is on the way."""
    monkeypatch.setattr(relay_module, "KEEPALIVE", ((socket.TCP_KEEPIDLE, 1),))

    async def work():
        async with run_relay() as running:
            for end in await running.pair():
                vanish(end)
            assert running.relay.joined == 1
            await running.until(lambda: running.relay.connections == 0)

    asyncio.run(work())


def test_a_user_sends_no_faster_than_it_may():
    """Measured by the relay's own clock: it never passes on more than a second's worth ahead."""
    rate = 1 << 20

    async def work():
        loop = asyncio.get_running_loop()
        async with run_relay(rate) as running:
            one, two = await running.pair()
            with one, two:
                began = loop.time()
                sending = asyncio.create_task(loop.sock_sendall(one, bytes(5 * rate // 2)))
                got = 0
                while got < 5 * rate // 2:
                    got += len(await loop.sock_recv(two, 1 << 16))
                    # a piece that was read at once may go beyond
                    assert got <= rate * (1 + loop.time() - began) + (1 << 18)
                await sending

    asyncio.run(work())


def test_a_federation_that_is_not_admitted_any_more_is_left_and_others_stay():
    async def work():
        loop = asyncio.get_running_loop()
        async with run_relay() as running:
            one, two = await running.pair()
            running.relay.admissions = {FEDERATION: running.admission}
            await loop.sock_sendall(one, b"x")
            assert await loop.sock_recv(two, 1) == b"x"
            assert running.relay._calls and running.relay._bandwidth
            running.relay.admissions = {}
            with one, two:
                await check_ended(one)
            assert not running.relay._calls and not running.relay._bandwidth
            with pytest.raises(RemoteProtocolError, match="does not know the federation"):
                await running.meet(A, B)

    asyncio.run(work())


def test_users_that_wait_hear_from_the_relay_and_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(relay_module, "WAIT_SECONDS", 0.05)

    async def work():
        async with run_relay() as running:
            waits = []
            meeting = asyncio.create_task(
                Reach(FEDERATION).meet(
                    running.address, A.key, B.public, None, lambda: waits.append(1)
                )
            )
            async with asyncio.timeout(60):
                while len(waits) < 5:
                    await asyncio.sleep(0.01)
            meeting.cancel()
            await running.waits(0)
            assert running.relay._sides == {}

    asyncio.run(work())
