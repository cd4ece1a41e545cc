"""What users and a relay tell each other before connections are joined."""

import asyncio
import socket
import time
from contextlib import suppress

import pytest

from decor.errors import RemoteProtocolError
from decor.net import relay_protocol
from decor.net.addresses import Address
from decor.net.identity import Identity
from decor.net.relay_protocol import CALL_BYTES, GREETING, JOINED, WAIT, Call, meet, refusal

FEDERATION, NONCE = bytes(range(32)), bytes(32)
A, B = Identity.new(), Identity.new()
RELAY = Address("relay.example.org", 7500, is_relay=True)


def test_a_call_is_signed_with_everything_in_it():
    call = Call.make(A.key, FEDERATION, RELAY, B.public, NONCE)
    data = call.to_bytes()
    assert len(data) == CALL_BYTES and Call.parse(data) == call
    assert call.is_signed(NONCE)
    assert not call.is_signed(bytes(31) + b"x"), "an old call is worth nothing"
    for at in range(0, CALL_BYTES, 7):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert not Call.parse(changed).is_signed(NONCE), at


def meet_with(*answers):
    """What a user makes of a relay that says these bytes, piece by piece; and its call."""

    async def work():
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            waits = []
            meeting = asyncio.create_task(
                meet(ours, A.key, FEDERATION, RELAY, B.public, lambda: waits.append(1))
            )
            for answer in answers:
                theirs.send(answer)
                await asyncio.sleep(0.01)
            await meeting
            rest = await loop.sock_recv(ours, 100)
            return Call.parse(await loop.sock_recv(theirs, 1000)), len(waits), rest

    return asyncio.run(work())


def test_not_a_byte_of_the_neighbour_is_lost():
    call, waits, rest = meet_with(GREETING + NONCE, WAIT, WAIT + JOINED + b"the neighbour's")
    assert call.is_signed(NONCE) and waits == 2 and rest == b"the neighbour's"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n" + bytes(40)], "does not answer as a relay"),
        ([GREETING.replace(b"2", b"1") + NONCE], "does not answer as a relay of this version"),
        ([GREETING + NONCE, b"?"], "does not answer as a relay"),
        ([GREETING + NONCE, refusal("the key is of no user")], "refuses: the key is of no user"),
        ([GREETING + NONCE, refusal("\x1b[31m\nx")], r"refuses: \?\[31m\?x"),
    ],
)
def test_what_is_no_relay_or_refuses_is_told_in_a_sentence(answers, said):
    with pytest.raises(RemoteProtocolError, match=said):
        meet_with(*answers)


def test_a_relay_that_says_nothing_any_more_is_left(monkeypatch):
    monkeypatch.setattr(relay_protocol, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(relay_protocol, "WAIT_SECONDS", 0.1)
    with pytest.raises(TimeoutError):
        meet_with(b"")
    with pytest.raises(TimeoutError):
        meet_with(GREETING + NONCE, WAIT)


def test_a_relay_that_says_wait_without_end_does_not_stop_its_user():
    async def work():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # seconds of this thread alone: on a busy machine others take any number
        longest, before = 0.0, time.thread_time()

        def pour():
            theirs.sendall(GREETING + NONCE)
            # seconds of work for a user that reads it byte by byte
            with suppress(OSError):
                theirs.sendall(WAIT * 300_000)

        async def tick():
            nonlocal longest, before
            while True:
                await asyncio.sleep(0.01)
                now = time.thread_time()
                longest, before = max(longest, now - before), now

        with ours, theirs:
            pouring, ticking = asyncio.to_thread(pour), asyncio.create_task(tick())
            pouring = asyncio.create_task(pouring)
            with pytest.raises(RemoteProtocolError, match="says wait too often"):
                async with asyncio.timeout(60):
                    await meet(ours, A.key, FEDERATION, RELAY, B.public)
            ours.close()
            ticking.cancel()
            await pouring
        return longest

    assert asyncio.run(work()) < 0.5


def test_a_refusal_has_at_most_255_bytes_of_a_reason():
    assert refusal("x" * 999) == b"!\xff" + b"x" * 255
