"""Addresses of users: `host:port`, or `relay://host:port` for users that nobody can connect to.

A user may have several, separated by spaces. Sockets are made for all addresses of a name, of IPv4
and IPv6.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from decor.errors import InputError, TransientError

RELAY = "relay://"
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""An address that this machine does not have; another one of the same name may do."""


@dataclass(frozen=True)
class Address:
    """One way to a user: connect to `host:port`, or meet at the relay there."""

    host: str
    port: int
    is_relay: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{RELAY if self.is_relay else ''}{host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """The addresses of a user, those without a relay first; none if the text is empty."""
    found = []
    for word in text.split():
        is_relay = word.startswith(RELAY)
        found.append(Address(*split_address(word.removeprefix(RELAY)), is_relay))
    # a direct connection is preferred; the order within each kind is the file's
    return tuple(sorted(found, key=lambda each: each.is_relay))


def split_address(address: str) -> tuple[str, int]:
    """host:port, [v6]:port or :port, as (host, port); without a host it is 127.0.0.1."""
    host, colon, port = address.rpartition(":")
    is_port = port.isdecimal() and 0 < int(port) < 65536
    is_bare_v6 = ":" in host and not host.startswith("[")
    if not colon or not is_port or is_bare_v6:
        raise InputError(
            f"{address!r} is not an address; give host:port, such as "
            "bonn.example.org:7400 or [2001:db8::1]:7400"
        )
    host = host.strip("[]") or "127.0.0.1"
    try:
        # asyncio would raise UnicodeError only when it connects, and that is no OSError
        host.encode("idna")
    except UnicodeError:
        raise InputError(f"{address!r} has no valid host name; give host:port") from None
    return host, int(port)


async def connect(host: str, port: int, seconds: float) -> socket.socket:
    """A TCP connection to the first address of a name that answers.

    Args:
        host: A name or an address; a link-local one may have a scope (`fe80::1%eth0`).
        port: The port.
        seconds: For all addresses together.

    Raises:
        OSError: None has answered; the reason is the last one's.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds) as whole:
        found = await _resolve(host, port)
        # never empty: getaddrinfo raises instead
        problem: OSError = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        for tried, (family, kind, protocol, _, place) in enumerate(found):
            made = socket.socket(family, kind, protocol)
            made.setblocking(False)
            try:
                # one address that does not answer must leave time for the others
                left = (whole.when() or loop.time()) - loop.time()
                async with asyncio.timeout(left / (len(found) - tried)):
                    await loop.sock_connect(made, place)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made
            except OSError as failure:  # TimeoutError is one
                problem = failure
                made.close()
            except BaseException:
                made.close()
                raise
        raise problem


async def _resolve(host: str, port: int) -> list[Any]:
    """As `loop.getaddrinfo`, in a thread of its own.

    The loop's threads compute: they must not all wait for a name server that does not answer.
    """
    own = ThreadPoolExecutor(1, "resolve")
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        return await asyncio.get_running_loop().run_in_executor(own, ask)
    finally:
        own.shutdown(wait=False)


def listen(address: str, option: str = "--listen") -> list[socket.socket]:
    """Sockets that accept connections at all addresses of `host:port`; `:port` is everywhere.

    Args:
        address: Where.
        option: Of the command that named it, for the hint of an error.
    """
    host, port = split_address(address)
    wanted = None if address.startswith(":") else host  # None: all interfaces
    made: list[socket.socket] = []
    missing: OSError | None = None
    try:
        found = socket.getaddrinfo(wanted, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, place in dict.fromkeys(found):
            try:
                # all of `place`: a link-local address has a scope
                one = socket.create_server(place, family=family, backlog=128, reuse_port=False)
            except OSError as problem:
                if problem.errno not in _NOT_HERE:
                    raise
                missing = problem
                continue
            one.setblocking(False)
            made.append(one)
        if not made and missing is not None:
            raise missing
    except OSError as problem:
        for one in made:
            one.close()
        raise _listening_error(address, f"try {option} :{port}", problem) from None
    return made


def _listening_error(address: str, way_out: str, problem: OSError) -> InputError | TransientError:
    in_use = problem.errno == errno.EADDRINUSE
    hint = "is another node running there?" if in_use else way_out
    # getaddrinfo's errors have negative numbers, which strerror does not know
    known = isinstance(problem.errno, int) and problem.errno > 0
    why = os.strerror(problem.errno or 0) if known else problem.strerror or str(problem)
    text = f"cannot listen at {address}: {why.lower()}; {hint}"
    # a port that is still closing, or a name server that is not up yet, may do in a moment
    may_pass = in_use or isinstance(problem, socket.gaierror)
    return TransientError(text) if may_pass else InputError(text)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that are free now, below those of outgoing connections."""
    ports: list[int] = []
    # in random order, so that two federations at a time rarely collide
    for port in random.SystemRandom().sample(range(10_000, 30_000), 20_000):
        if len(ports) == count:
            return ports
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            ports.append(port)
    raise InputError(f"this machine does not have {count} free ports; take fewer users")
