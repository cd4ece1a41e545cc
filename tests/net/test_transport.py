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
from decor.net import accepting, addresses, transport
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


WHEN = {"expired": (2000, 2001), "not yet valid": (2119, 2120)}


def load_certificate(context, identity, when):
    """Makes a context show a certificate with the right key and other dates; gives it as PEM."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "b")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(identity.key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(when[0], 1, 1))
        .not_valid_after(datetime.datetime(when[1], 1, 1))
        .sign(identity.key, None)
    ).public_bytes(Encoding.PEM)
    key = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    transport._load(context, made + key)
    return made.decode()


@pytest.mark.parametrize("when", WHEN.values(), ids=WHEN)
def test_a_neighbours_own_certificate_is_refused_even_with_the_right_key(when):
    """Only the bytes that follow from the key are trusted, whatever the key."""
    a, b = Identity.new(), Identity.new()
    server, client = contexts(a, b)
    load_certificate(client, b, when)
    seen, read = None, b""
    try:
        seen, read = asyncio.run(met(server, client, {b.public: 7}))
    except (ssl.SSLError, ConnectionError):
        pass
    assert seen is None and read == b""


@pytest.mark.parametrize("when", WHEN.values(), ids=WHEN)
@pytest.mark.parametrize("wrong", ["server", "client"])
def test_a_trusted_certificate_that_is_not_valid_now_means_that_the_clock_is_wrong(when, wrong):
    """Here the certificate has other dates; test_strangers.py has another clock."""
    a, b = Identity.new(), Identity.new()
    server, client = contexts(a, b)
    # the one with the wrong clock trusts what the other shows, and finds it out of date
    judge, shows = (server, client) if wrong == "server" else (client, server)
    judge.load_verify_locations(cadata=load_certificate(shows, b if wrong == "server" else a, when))

    async def both():
        (listener,) = addresses.listen(f"127.0.0.1:{addresses.free_ports(1)[0]}")
        with listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            dialled = asyncio.create_task(transport.dial(address, client))
            await accepting._wait_until_readable(listener)
            accepted = transport.accept_tls(listener.accept()[0], server)
            ends = await asyncio.gather(accepted, dialled, return_exceptions=True)
            # the client of TLS 1.3 is content before the server has looked at its certificate
            if wrong == "server":
                ends[1][1].transport.abort()
        return ends

    ends = asyncio.run(both())
    said, heard = ends if wrong == "server" else reversed(ends)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    assert transport.reason(said).startswith(f"this machine's clock says {today}")
    assert transport.refusal(said)[0] == "wrong clock"
    if wrong == "client":  # asyncio hangs up without TLS's alert
        assert transport.refusal(heard)[0] == "connection closed"


def test_only_what_no_neighbour_does_makes_a_stranger():
    closed, stranger = "connection closed", "stranger refused"
    for problem, event in (
        (TimeoutError(), closed),
        (ConnectionAbortedError("SSL handshake is taking longer than 10 seconds"), closed),
        (ConnectionResetError(104, "reset"), closed),
        (ssl.SSLEOFError(8, "EOF"), closed),
        (ssl.SSLError(1, "http request"), stranger),
        (ssl.SSLCertVerificationError(1, "self-signed"), stranger),
        (RemoteProtocolError("connected with a certificate that is no neighbour's"), stranger),
    ):
        assert transport.refusal(problem)[0] == event, problem
    assert transport.refusal(TimeoutError())[1] == "it did not identify itself in time"


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


def test_a_connection_that_is_broken_off_after_its_handshake_is_no_error_of_this_user():
    """A relay can do that: the last bytes of the handshake come together with others."""
    a, b = Identity.new(), Identity.new()
    server, client = contexts(a, b)

    async def play(tls, made):
        loop, (read, written) = asyncio.get_running_loop(), (ssl.MemoryBIO(), ssl.MemoryBIO())
        session = tls.wrap_bio(read, written)
        while True:
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(made, written.read())
                read.write(await loop.sock_recv(made, 1 << 16))
            else:
                no_record = b"\x17\x03\x03\x00\x20" + bytes(32)
                return await loop.sock_sendall(made, written.read() + no_record)

    async def accept():
        here, there = socket.socketpair()
        with there:
            for end in (here, there):
                end.setblocking(False)
            playing = asyncio.create_task(play(client, there))
            _, writer = await transport.accept_tls(here, server)
            await playing
            with pytest.raises(RemoteProtocolError, match="hung up during its TLS handshake"):
                transport.identify(writer, {b.public: 1})
            transport.abort(writer)

    asyncio.run(accept())
