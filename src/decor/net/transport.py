"""Sockets: TLS 1.3 between neighbours that know each other's keys, and with no one else.

Both sides show a certificate. Each side trusts exactly the certificates that it has made itself
from its neighbours' public keys (`identity.certificate`). Any other certificate (a stranger's, an
expired or a self-made one) fails in the handshake, before a byte of our protocol is read.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from decor.errors import InputError, RemoteProtocolError

from .accepting import READ_BYTES, Streams, open_streams
from .addresses import Address, split_address
from .http_proxy import HttpProxy, connect_by
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
    try:
        # the certificate itself, not its names: only its bytes are trusted
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
    except ValueError:
        # asyncio begins a connection, and the other side's next bytes break it off
        raise RemoteProtocolError("hung up during its TLS handshake") from None
    for public, number in neighbours.items():
        if shown is not None and shown == certificate(public):
            return number
    raise RemoteProtocolError("connected with a certificate that is no neighbour's")


async def dial(address: str, tls: ssl.SSLContext, proxy: HttpProxy | None = None) -> Streams:
    """Connects to `host:port`; the other side has then shown a trusted certificate.

    Args:
        address: Where to connect to.
        tls: Made by `tls_context`.
        proxy: Through which; None: none.
    """
    made = await connect_by(proxy, Address(*split_address(address)), HANDSHAKE_SECONDS)
    return await connect_tls(made, tls)


async def connect_tls(made: socket.socket, tls: ssl.SSLContext) -> Streams:
    """The TLS handshake of an outgoing connection; raises without a trusted certificate."""
    try:
        return await asyncio.open_connection(
            sock=made,
            ssl=tls,
            server_hostname="",
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            limit=READ_BYTES,
        )
    except BaseException:
        made.close()
        raise


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
