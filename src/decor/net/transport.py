"""Sockets: TLS 1.3 between neighbours that know each other's keys, and with no one else.

Both sides show a certificate. Each side trusts exactly the certificates that it has made itself
from its neighbours' public keys (`identity.certificate`). Any other certificate (a stranger's, an
expired or a self-made one) fails in the handshake, before a byte of our protocol is read.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from decor.errors import InputError, RemoteProtocolError, TransientError

from .accepting import READ_BYTES, Streams, open_streams
from .identity import Identity, certificate

HANDSHAKE_SECONDS = 10.0
WRITE_BYTES = 1 << 20
"""Written at a time."""
_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


def tls_context(identity: Identity, neighbours: Iterable[bytes], server: bool) -> ssl.SSLContext:
    """Shows this user's certificate, and trusts the neighbours with these public keys."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # addresses move; keys do not
    # both sides: a client without a certificate is refused
    context.verify_mode = ssl.CERT_REQUIRED
    # trust a neighbour's own certificate, not its issuer
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusted = [ssl.DER_cert_to_PEM_cert(certificate(public)) for public in neighbours]
    if not trusted:
        raise InputError("this user has no neighbour to connect to")
    context.load_verify_locations(cadata="".join(trusted))
    own = ssl.DER_cert_to_PEM_cert(certificate(identity.public)).encode()
    key = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _load(context, own + key)
    return context


def identify(writer: asyncio.StreamWriter, neighbours: dict[bytes, int]) -> int:
    """The number of the neighbour at the other end, by its certificate.

    Args:
        writer: A connection after its TLS handshake.
        neighbours: Public key -> number.
    """
    tls: Any = writer.get_extra_info("ssl_object")
    # the certificate itself, not its names: only its bytes are trusted
    shown = tls.getpeercert(binary_form=True) if tls is not None else None
    for public, number in neighbours.items():
        if shown is not None and shown == certificate(public):
            return number
    raise RemoteProtocolError("connected with a certificate that is no neighbour's")


async def dial(address: str, tls: ssl.SSLContext) -> Streams:
    """Connects to `host:port`; the other side has then shown a trusted certificate."""
    host, port = split_address(address)
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        return await asyncio.open_connection(
            host, port, ssl=tls, server_hostname="", limit=READ_BYTES
        )


def listen(address: str) -> socket.socket:
    """A socket that accepts connections at `host:port`."""
    host, port = split_address(address)
    wanted = None if address.startswith(":") else host  # None: all interfaces
    try:
        family, _, _, _, place = socket.getaddrinfo(
            wanted, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(place[:2], family=family, backlog=128, reuse_port=False)
    except OSError as problem:
        in_use = problem.errno == errno.EADDRINUSE
        hint = "is another node running there?" if in_use else f"try --listen 0.0.0.0:{port}"
        # a port that is still closing, or a name server that is not up yet, may do in a moment
        may_pass = in_use or isinstance(problem, socket.gaierror)
        kind = TransientError if may_pass else InputError
        raise kind(f"cannot listen at {address}: {reason(problem)}; {hint}") from None
    listener.setblocking(False)
    return listener


async def accept_tls(accepted: socket.socket, tls: ssl.SSLContext) -> Streams:
    """The TLS handshake of an incoming connection; raises without a trusted certificate."""
    return await open_streams(accepted, ssl=tls, ssl_handshake_timeout=HANDSHAKE_SECONDS)


def reason(problem: BaseException) -> str:
    """Why a connection failed, in a few words."""
    if _is_wrong_clock(problem):
        # of certificates that are trusted by their bytes, so their dates are those of `identity`
        today = time.strftime("%Y-%m-%d", time.gmtime())
        return (
            f"this machine's clock says {today}, and certificates are valid from 2020 to 2120; "
            "set the clock"
        )
    if isinstance(problem, ssl.SSLCertVerificationError):
        return "its certificate is not the one of the key in the federation's file"
    if isinstance(problem, ssl.SSLError):
        what = (getattr(problem, "reason", None) or "hung up").lower().replace("_", " ")
        return f"no TLS handshake ({what})"
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    if isinstance(problem, OSError):
        # getaddrinfo's errors have negative numbers, which strerror does not know
        if isinstance(problem.errno, int) and problem.errno > 0:
            return os.strerror(problem.errno).lower()
        return (problem.strerror or str(problem) or "hung up").lower()
    return str(problem)


def refusal(problem: BaseException) -> tuple[str, str]:
    """The event of the log, and why, for an incoming connection that was not identified.

    A stranger is one that has shown what no neighbour shows. A neighbour may be slow, or cut off.
    """
    why = reason(problem)
    if _is_wrong_clock(problem):
        return "wrong clock", why
    if isinstance(problem, TimeoutError | ConnectionAbortedError):  # asyncio raises the latter
        return "connection closed", "it did not identify itself in time"
    if isinstance(problem, ConnectionError | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "connection closed", f"it ended before it had identified itself ({why})"
    return "stranger refused", why


def _is_wrong_clock(problem: BaseException) -> bool:
    codes = _NOT_YET_VALID, _EXPIRED
    # Python raises some without a code
    return getattr(problem, "verify_code", None) in codes


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


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Loads a certificate and its key without a file on disk."""
    # Python's ssl reads keys from files only: this one is in memory, and no other process sees it
    descriptor = os.memfd_create("decor-key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        # nothing of the key is left in the file's memory
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def abort(writer: asyncio.StreamWriter) -> None:
    """Ends a connection at once, if it has not ended yet."""
    with suppress(AttributeError):  # Python 3.11.2 fails on a connection that has ended
        writer.transport.abort()
