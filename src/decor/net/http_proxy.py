"""Outgoing connections through an HTTP proxy, by its method CONNECT.

The proxy passes bytes on. TLS and pinned keys are end to end, so it learns addresses and sizes.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from decor.errors import InputError, RemoteProtocolError

from .addresses import Address, connect, split_address

_LONGEST = 1 << 14
"""Bytes of a proxy's answer."""


@dataclass(frozen=True)
class HttpProxy:
    """A proxy; its password is never shown."""

    host: str
    port: int
    credentials: str = field(default="", repr=False)
    """`user:password`, or empty."""

    @staticmethod
    def parse(url: str) -> HttpProxy:
        """From `http://host:port` or `http://user:password@host:port`."""
        rest = url.removeprefix("http://").rstrip("/")
        credentials, _, place = rest.rpartition("@")
        # the URL is not repeated in messages: it may hold a password
        wanted = "give --proxy http://host:port, or http://user:password@host:port"
        if "://" in rest or "/" in place or urlsplit(f"//{place}").path:
            raise InputError(f"the proxy is not a URL that can be used; {wanted}")
        try:
            host, port = split_address(place)
        except InputError:
            raise InputError(f"the proxy's address {place!r} is not host:port; {wanted}") from None
        return HttpProxy(host, port, unquote(credentials))


async def connect_by(proxy: HttpProxy | None, address: Address, seconds: float) -> socket.socket:
    """A TCP connection to an address, through a proxy if there is one.

    Args:
        proxy: The proxy; None: none.
        address: Where to connect to.
        seconds: For all of it.

    Raises:
        OSError: The address, or the proxy, does not answer.
        RemoteProtocolError: The proxy refuses.
    """
    if proxy is None:
        return await connect(address.host, address.port, seconds)
    async with asyncio.timeout(seconds):
        made = await connect(proxy.host, proxy.port, seconds)
        try:
            await _ask(made, proxy, address)
        except BaseException:
            made.close()
            raise
        return made


async def _ask(made: socket.socket, proxy: HttpProxy, address: Address) -> None:
    loop = asyncio.get_running_loop()
    target = str(Address(address.host, address.port))
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.credentials:
        encoded = base64.b64encode(proxy.credentials.encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {encoded}")
    await loop.sock_sendall(made, "\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        # byte by byte: what follows the answer belongs to the connection behind the proxy
        byte = await loop.sock_recv(made, 1)
        if not byte or len(answer) >= _LONGEST:
            raise RemoteProtocolError(f"the proxy {proxy.host}:{proxy.port} gave no valid answer")
        answer += byte
    status = answer.split(b"\r\n", 1)[0].split(b" ", 2)
    code = status[1].decode("ascii", "replace") if len(status) > 1 else ""
    if code == "407":
        raise RemoteProtocolError(
            f"the proxy {proxy.host}:{proxy.port} wants a user and a password; give them as "
            "--proxy http://user:password@host:port"
        )
    if not (code.isdecimal() and 200 <= int(code) < 300):
        raise RemoteProtocolError(
            f"the proxy {proxy.host}:{proxy.port} refuses to connect to {target} "
            f"(status {code[:8]!r})"
        )
