"""Outgoing connections through an HTTP proxy."""

import asyncio
import os
import shutil
import socket
import subprocess
import time

import pytest

from decor.errors import InputError, RemoteProtocolError
from decor.net import transport
from decor.net.addresses import Address, free_ports
from decor.net.http_proxy import HttpProxy, connect_by
from decor.net.identity import Identity


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://proxy.example.org:3128", HttpProxy("proxy.example.org", 3128)),
        ("proxy:3128", HttpProxy("proxy", 3128)),
        ("http://bonn:s%40cret@[::1]:80/", HttpProxy("::1", 80, "bonn:s@cret")),
    ],
)
def test_a_proxy_is_read_from_its_url(url, proxy):
    assert HttpProxy.parse(url) == proxy


@pytest.mark.parametrize(
    "url", ["", "http://", "socks5://p:1", "http://u:secret@p", "http://p:1/x"]
)
def test_what_is_no_proxy_is_refused_without_repeating_a_password(url):
    with pytest.raises(InputError, match="--proxy http://host:port") as caught:
        HttpProxy.parse(url)
    assert "secret" not in str(caught.value)


def test_a_proxys_password_is_never_shown():
    assert "secret" not in repr(HttpProxy.parse("http://u:secret@p:1"))


def ask(answer, proxy="http://127.0.0.1:{port}", then=b""):
    """What comes through a proxy that gives this answer; and what it was asked."""
    asked = []

    async def work():
        async def serve(reader, writer):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer + then)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            made = await connect_by(
                HttpProxy.parse(proxy.format(port=port)), Address("2001:db8::1", 7400), 30.0
            )
            with made:
                return await asyncio.get_running_loop().sock_recv(made, 100)

    return asyncio.run(work()), asked


def test_a_proxy_is_asked_by_connect_and_not_a_byte_behind_it_is_lost():
    came, asked = ask(b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\n", then=b"the neighbour's")
    assert came == b"the neighbour's"
    assert asked == [b"CONNECT [2001:db8::1]:7400 HTTP/1.1\r\nHost: [2001:db8::1]:7400\r\n\r\n"]


def test_a_proxy_gets_its_user_and_password():
    _, asked = ask(b"HTTP/1.0 200 fine\r\n\r\n", "http://bonn:s%40cret@127.0.0.1:{port}", b"x")
    assert b"Proxy-Authorization: Basic Ym9ubjpzQGNyZXQ=\r\n" in asked[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "wants a user and a password"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", r"refuses to connect to \[2001:db8::1\]:7400.*403"),
        (b"nonsense\r\n\r\n", "refuses to connect"),
        (b"HTTP/1.1 200 OK\r\n", "gave no valid answer"),
        (b"x" * 20_000, "gave no valid answer"),
    ],
)
def test_a_proxy_that_refuses_is_told_in_a_sentence(answer, said):
    with pytest.raises(RemoteProtocolError, match=said):
        ask(answer)


@pytest.mark.skipif(shutil.which("tinyproxy") is None, reason="tinyproxy is not installed")
def test_tls_with_pinned_keys_goes_through_a_real_proxy(tmp_path):
    port, there = free_ports(2)
    config = tmp_path / "tinyproxy.conf"
    config.write_text(f"Port {port}\nListen 127.0.0.1\nTimeout 60\nAllow 127.0.0.1\n")
    a, b = Identity.new(), Identity.new()

    async def talk():
        server_tls = transport.tls_context(a, [b.public], server=True)
        client_tls = transport.tls_context(b, [a.public], server=False)

        async def serve(reader, writer):
            writer.write(await reader.readexactly(5))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", there, ssl=server_tls)
        async with server:
            reader, writer = await transport.dial(
                f"127.0.0.1:{there}", client_tls, HttpProxy("127.0.0.1", port)
            )
            transport.identify(writer, {a.public: 0})
            writer.write(b"hello")
            got = await reader.readexactly(5)
            writer.close()
            return got

    # as another user, if it can: it refuses to run as root without one that exists
    command = ["tinyproxy", "-d", "-c", str(config)]
    os.chmod(tmp_path, 0o755)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as proxy:
        try:
            wait_until_listening(port)
            assert asyncio.run(talk()) == b"hello"
        finally:
            proxy.terminate()


def wait_until_listening(port):
    for _ in range(600):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the proxy has not started")
