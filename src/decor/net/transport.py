"""Where sockets are: TLS 1.3 between neighbours who know each other's keys, and nobody else.

Both sides show a certificate, and each trusts exactly the certificates that it has made itself of
its neighbours' public keys (`identity.certificate`). A stranger's, an expired or a self-made one
fails in the handshake, before a byte of ours is read.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from decor.errors import InputError, RemoteProtocolError

from .identity import Identity, certificate

HANDSHAKE_SECONDS = 10.0
READ, WRITE = 1 << 18, 1 << 20
"""Bytes read and written at a time."""


def context(identity: Identity, neighbours: Iterable[bytes], server: bool) -> ssl.SSLContext:
    """What this user shows and whom it trusts: the neighbours with these public keys."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # addresses move; keys do not
    made.verify_mode = ssl.CERT_REQUIRED
    # a neighbour's own certificate is what is trusted, not its issuer
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusted = [ssl.DER_cert_to_PEM_cert(certificate(public)) for public in neighbours]
    if not trusted:
        raise InputError("this user has no neighbour to talk to")
    made.load_verify_locations(cadata="".join(trusted))
    own = ssl.DER_cert_to_PEM_cert(certificate(identity.public)).encode()
    _load(made, own + identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made


def who(writer: asyncio.StreamWriter, neighbours: dict[bytes, int]) -> int:
    """The number of the neighbour at the other end, by the certificate it has shown; `neighbours`
    is public key -> number.
    """
    held: Any = writer.get_extra_info("ssl_object")
    shown = held.getpeercert(binary_form=True) if held is not None else None
    for public, number in neighbours.items():
        if shown is not None and shown == certificate(public):
            return number
    raise RemoteProtocolError("somebody connected whose certificate is no neighbour's")


async def dial(
    address: str, tls: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to `host:port`; whoever answers there has shown a trusted certificate."""
    host, port = split(address)
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        return await asyncio.open_connection(host, port, ssl=tls, server_hostname="", limit=READ)


def listening(address: str) -> socket.socket:
    """A socket that takes connections at `host:port`."""
    host, port = split(address)
    host = "" if address.startswith(":") else host  # everywhere
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.create_server(found[4][:2], family=found[0], backlog=128, reuse_port=False)
    except OSError as problem:
        way = (
            "is another node running there?"
            if problem.errno == errno.EADDRINUSE
            else f"try --listen 0.0.0.0:{port}"
        )
        raise InputError(f"cannot listen at {address}: {reason(problem)}; {way}") from None
    made.setblocking(False)
    return made


async def welcomed(
    connection: socket.socket, tls: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The TLS of somebody who has called; it has shown a trusted certificate, or this raises."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        made, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
        )
    except BaseException:
        connection.close()
        raise
    return reader, asyncio.StreamWriter(made, protocol, reader, loop)


def reason(problem: BaseException) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return "its certificate is not the one of the key in the federation's file"
    if isinstance(problem, ssl.SSLError):
        return f"no TLS as we speak it ({(problem.reason or 'hung up').lower().replace('_', ' ')})"
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    if isinstance(problem, OSError):
        number = problem.errno if isinstance(problem.errno, int) and problem.errno > 0 else None
        return (
            os.strerror(number) if number else problem.strerror or str(problem) or "hung up"
        ).lower()
    return str(problem)


def split(address: str) -> tuple[str, int]:
    """host:port, [v6]:port or :port."""
    host, colon, port = address.rpartition(":")
    if (
        not colon
        or not port.isdecimal()
        or not 0 < int(port) < 65536
        or (":" in host and not host.startswith("["))
    ):
        raise InputError(
            f"{address!r} is no address; give host:port, such as "
            "bonn.example.org:7400 or [2001:db8::1]:7400"
        )
    host = host.strip("[]") or "127.0.0.1"
    try:
        host.encode("idna")
    except UnicodeError:
        raise InputError(
            f"{address!r} has no host that a name server would know; give host:port"
        ) from None
    return host, int(port)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody has now, below those that the system gives to outgoing
    connections.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 30_000), 20_000):
        if len(found) == count:
            return found
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
    raise InputError(f"this machine has no {count} free ports; take fewer users")


def _load(made: ssl.SSLContext, chain: bytes) -> None:
    """Python's ssl takes a key from a file only: one in memory, that nobody else can open."""
    descriptor = os.memfd_create("decor-key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, chain)
        made.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def cut(writer: asyncio.StreamWriter) -> None:
    """Ends a connection at once, if it has not ended by itself: Python 3.11.2 fails on one that
    has.
    """
    with suppress(AttributeError):
        writer.transport.abort()
