"""Real TLS on loopback: neighbours connect, and no one else."""

import asyncio
import datetime
import os
import socket
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from decor.errors import InputError, RemoteProtocolError
from decor.net import transport
from decor.net.identity import Identity
from decor.net.neighbour import Connection


async def met(server_tls, client_tls, neighbours):
    """The neighbour that the server sees, and what the client reads; or the error of either."""
    seen = asyncio.get_running_loop().create_future()

    async def answer(reader, writer):
        try:
            seen.set_result(transport.identify(writer, neighbours))
            writer.write(b"welcome")
            await writer.drain()
        except RemoteProtocolError as problem:
            seen.set_exception(problem)
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_tls)
    port = server.sockets[0].getsockname()[1]
    try:
        reader, writer = await transport.dial(f"127.0.0.1:{port}", client_tls)
        read = await reader.read(100)
        writer.close()
        return (await seen if seen.done() else None), read
    finally:
        server.close()


def contexts(server, client):
    return (
        transport.tls_context(server, [client.public], True),
        transport.tls_context(client, [server.public], False),
    )


def test_neighbours_meet_over_tls_13_and_know_each_other():
    a, b = Identity.new(), Identity.new()
    assert asyncio.run(met(*contexts(a, b), {b.public: 7})) == (7, b"welcome")


def test_a_stranger_does_not_get_in_and_an_impostor_is_not_believed():
    a, b, eve = Identity.new(), Identity.new(), Identity.new()
    server, _ = contexts(a, b)
    _, stranger = contexts(a, eve)
    with pytest.raises((ssl.SSLError, ConnectionError)) as _:
        seen, read = asyncio.run(met(server, stranger, {b.public: 7}))
        assert seen is None and read == b""
        # the handshake of TLS 1.3 ends before the client hears of the refusal
        raise ConnectionError
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(met(contexts(eve, b)[0], contexts(a, b)[1], {b.public: 7}))


@pytest.mark.parametrize("when", [(2000, 2001), (2119, 2120)], ids=["expired", "not yet valid"])
def test_a_neighbours_own_certificate_is_refused_even_with_the_right_key(when):
    """Only the bytes that follow from the key are trusted, whatever the key."""
    a, b = Identity.new(), Identity.new()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "b")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(b.key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(when[0], 1, 1))
        .not_valid_after(datetime.datetime(when[1], 1, 1))
        .sign(b.key, None)
    )
    server, client = contexts(a, b)
    pem = made.public_bytes(Encoding.PEM) + b.key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    transport._load(client, pem)
    seen, read = None, b""
    try:
        seen, read = asyncio.run(met(server, client, {b.public: 7}))
    except (ssl.SSLError, ConnectionError):
        pass
    assert seen is None and read == b""


def test_nothing_older_than_tls_13_is_spoken():
    a, b = Identity.new(), Identity.new()
    server, client = contexts(a, b)
    assert server.minimum_version == client.minimum_version == ssl.TLSVersion.TLSv1_3
    client.minimum_version = ssl.TLSVersion.TLSv1_2
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        asyncio.run(met(server, client, {b.public: 7}))


def test_the_key_leaves_no_file_behind():
    before = set(os.listdir("/proc/self/fd"))
    contexts(Identity.new(), Identity.new())
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_connection_without_tls_is_no_neighbour():
    class Plain:
        def get_extra_info(self, _):
            return None

    with pytest.raises(RemoteProtocolError, match="no neighbour's"):
        transport.identify(Plain(), {Identity.new().public: 1})


def test_nobody_there_is_told_soon():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(OSError):
            asyncio.run(
                transport.dial(f"127.0.0.1:{port}", contexts(Identity.new(), Identity.new())[1])
            )


@pytest.mark.parametrize(
    "address", ["", "bonn", "bonn:", "bonn:0", "bonn:70000", "bonn:x", "2001:db8::1:80", "a:b:1"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InputError, match="is not an address"):
        transport.split_address(address)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("bonn:7400", ("bonn", 7400)),
        ("[::1]:80", ("::1", 80)),
        (":81", ("127.0.0.1", 81)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
    ],
)
def test_addresses_are_read(address, found):
    assert transport.split_address(address) == found


def test_a_user_without_neighbours_is_refused():
    with pytest.raises(InputError, match="no neighbour"):
        transport.tls_context(Identity.new(), [], True)


def test_a_connection_that_has_ended_can_be_cut_now_and_after_its_last_word():
    """On Python 3.11.2 asyncio's own abort fails then, in the midst of hanging up."""

    class Ended:
        def abort(self):
            raise AttributeError("'NoneType' object has no attribute '_abort'")

    class Writer:
        transport = Ended()

    class Over:
        def close(self, why):
            pass

        def parts(self):
            return []

    async def closed():
        failed = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: failed.append(context)
        )
        Connection(Over(), Writer()).close("done", patience=0.0)
        await asyncio.sleep(0.05)
        return failed

    transport.abort(Writer())
    assert asyncio.run(closed()) == []
