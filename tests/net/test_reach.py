"""How a user takes part in the network; relays themselves are tested in test_relay.py."""

import asyncio
import os
import shutil
import socket
import subprocess

import pytest
from test_http_proxy import wait_until_listening
from test_relay import FEDERATION, A, B, run_relay
from tunnels import SOURCE, serve_tunnels

from decor.net.addresses import Address, free_ports
from decor.net.http_proxy import HttpProxy
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


async def check_met_by(proxy):
    """Two users meet, one of them by the proxy: that one comes from the proxy's own address."""
    loop = asyncio.get_running_loop()
    async with run_relay() as running, asyncio.timeout(60):
        meeting = asyncio.create_task(
            Reach(FEDERATION, proxy=proxy).meet(
                running.address, A.key, B.public, None, lambda: None
            )
        )
        await running.waits(1)
        (side,) = running.relay._sides.values()
        assert side.transport.get_extra_info("peername")[0] == SOURCE
        with await running.meet(B, A) as two, await meeting as one:
            for sender, receiver in ((one, two), (two, one)):
                await loop.sock_sendall(sender, b"what TLS says")
                assert await loop.sock_recv(receiver, 100) == b"what TLS says"
    return running.address.port


def test_a_user_whose_only_way_out_is_a_proxy_meets_its_neighbour_at_a_relay():
    async def work():
        server, tunnels = await serve_tunnels()
        async with server:
            port = await check_met_by(HttpProxy(*server.sockets[0].getsockname()))
        assert tunnels == [port]

    asyncio.run(work())


@pytest.mark.skipif(shutil.which("tinyproxy") is None, reason="tinyproxy is not installed")
def test_a_relay_is_reached_by_a_real_proxy(tmp_path):
    (port,) = free_ports(1)
    config = tmp_path / "tinyproxy.conf"
    config.write_text(f"Port {port}\nListen 127.0.0.1\nBind {SOURCE}\nAllow 127.0.0.1\n")
    # as another user, if it can: it refuses to run as root without one that exists
    os.chmod(tmp_path, 0o755)
    command = ["tinyproxy", "-d", "-c", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as proxy:
        try:
            wait_until_listening(port)
            asyncio.run(check_met_by(HttpProxy("127.0.0.1", port)))
        finally:
            proxy.terminate()
