"""How a user takes part in the network; relays themselves are tested in test_relay.py."""

import asyncio
import socket

import pytest

from decor.net.addresses import Address
from decor.net.identity import Identity
from decor.net.reach import Reach
from decor.net.relay_protocol import CALL_BYTES, GREETING, WAIT


def test_a_neighbour_is_waited_for_no_longer_than_asked_and_the_connection_is_closed():
    """At a relay that greets, and then keeps its callers waiting."""

    async def work():
        ended, waits = asyncio.Event(), []

        async def serve(reader, writer):
            writer.write(GREETING + bytes(32))
            await reader.readexactly(CALL_BYTES)
            writer.write(WAIT)
            assert await reader.read() == b""
            if waits:
                ended.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            relay = Address(*server.sockets[0].getsockname()[:2], is_relay=True)
            # longer where a busy machine had no time for the greeting
            for seconds in (0.5, 2.0, 8.0, 32.0):
                with pytest.raises(TimeoutError):
                    await Reach(bytes(32)).meet(
                        relay, Identity.new().key, bytes(32), seconds, lambda: waits.append(1)
                    )
                if waits:
                    break
            async with asyncio.timeout(60):
                await ended.wait()
            assert waits == [1]

    asyncio.run(work())


def test_a_relay_that_is_not_there_is_an_ordinary_failure():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        relay = Address(*taken.getsockname(), is_relay=True)
        with pytest.raises(OSError):
            asyncio.run(
                Reach(bytes(32)).meet(relay, Identity.new().key, bytes(32), None, lambda: None)
            )
