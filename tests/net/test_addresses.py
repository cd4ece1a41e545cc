"""Addresses of users: read, dialled and listened at, IPv4 and IPv6."""

import asyncio
import errno
import ipaddress
import socket
import threading
from pathlib import Path

import pytest

from decor.errors import InputError, TransientError
from decor.net import addresses
from decor.net.addresses import Address, parse_addresses


@pytest.mark.parametrize(
    "address", ["", "bonn", "bonn:", "bonn:0", "bonn:70000", "bonn:x", "2001:db8::1:80", "a:b:1"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InputError, match="is not an address"):
        addresses.split_address(address)


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
    assert addresses.split_address(address) == found


def test_a_user_may_have_several_addresses_and_direct_ones_come_first():
    text = "relay://r.example.org:7500 bonn:7400 [fe80::1%eth0]:7400"
    found = parse_addresses(text)
    assert found == (
        Address("bonn", 7400),
        Address("fe80::1%eth0", 7400),
        Address("r.example.org", 7500, is_relay=True),
    )
    assert " ".join(map(str, found)) == "bonn:7400 [fe80::1%eth0]:7400 relay://r.example.org:7500"
    assert parse_addresses("") == ()


@pytest.mark.parametrize("address", ["relay://bonn", "relay://:x", "http://bonn:80", "a:1 b"])
def test_a_wrong_address_among_others_is_refused(address):
    with pytest.raises(InputError, match="is not an address|no valid host"):
        parse_addresses(address)


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


async def greet(host, port):
    """Connects, and returns the first byte that comes."""
    made = await addresses.connect(host, port, 10.0)
    with made:
        return await asyncio.get_running_loop().sock_recv(made, 1)


async def answer(listener, byte):
    accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
    with accepted:
        accepted.sendall(byte)


@needs_ipv6
def test_an_address_without_a_host_is_every_interface_of_ipv4_and_ipv6():
    (port,) = addresses.free_ports(1)

    async def both():
        listeners = addresses.listen(f":{port}")
        assert {each.family for each in listeners} == {socket.AF_INET, socket.AF_INET6}
        for host in ("127.0.0.1", "::1"):
            ends = [asyncio.create_task(answer(each, b"x")) for each in listeners]
            assert await greet(host, port) == b"x"
            for each in ends:
                each.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        for each in listeners:
            each.close()

    asyncio.run(both())


@needs_ipv6
def test_all_addresses_of_a_name_are_tried(monkeypatch):
    """A name with an IPv6 address at which nobody listens, and an IPv4 one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        real = socket.getaddrinfo

        def both(host, *more, **options):
            if host != "bonn.example.org":
                return real(host, *more, **options)
            return [*real("::1", *more, **options), *real("127.0.0.1", *more, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", both)

        async def work():
            greeted, _ = await asyncio.gather(
                greet("bonn.example.org", port), answer(listener, b"y")
            )
            return greeted

        assert asyncio.run(work()) == b"y"


@needs_ipv6
def test_a_link_local_address_is_dialled_at_the_interface_that_it_names():
    """At the loopback interface nobody has it; without an interface the system would not even try."""
    with pytest.raises(OSError) as caught:
        asyncio.run(addresses.connect("fe80::1%lo", 7400, 10.0))
    assert caught.value.errno != errno.EINVAL, caught.value


def link_local():
    """A link-local address of this machine with its scope; None: it has none."""
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        digits, _, _, _, _, interface = line.split()
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        if address.is_link_local:
            return f"{address}%{interface}"
    return None


@pytest.mark.skipif(link_local() is None, reason="this machine has no link-local address")
def test_a_link_local_address_of_this_machine_is_reached():
    (port,) = addresses.free_ports(1)

    async def work():
        (listener,) = addresses.listen(f"[{link_local()}]:{port}")
        with listener:
            greeted, _ = await asyncio.gather(greet(link_local(), port), answer(listener, b"l"))
        return greeted

    assert asyncio.run(work()) == b"l"


def test_a_host_that_does_not_answer_leaves_time_for_the_others(monkeypatch):
    """The first address takes connections and never completes them: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first:
        port = full.getsockname()[1]
        first.connect(("127.0.0.1", port))  # fills the queue
        second = socket.socket()
        second.setblocking(False)
        second.connect_ex(("127.0.0.1", port))
        with second, socket.create_server(("127.0.0.2", port)) as listener:
            listener.setblocking(False)
            real = socket.getaddrinfo
            monkeypatch.setattr(
                socket,
                "getaddrinfo",
                lambda host, *m, **o: [*real("127.0.0.1", *m, **o), *real("127.0.0.2", *m, **o)],
            )

            async def work():
                made, _ = await asyncio.gather(
                    addresses.connect("bonn", port, 2.0), answer(listener, b"z")
                )
                with made:
                    return made.getpeername()[0]

            assert asyncio.run(work()) == "127.0.0.2"


def test_names_that_no_server_resolves_keep_neither_work_nor_addresses_waiting(monkeypatch):
    """A name server that never answers holds a thread for half a minute per name; nodes compute in
    threads of the loop.
    """
    real, over = socket.getaddrinfo, threading.Event()

    def hang(host, *more, **options):
        if host != "bonn.example.org":
            return real(host, *more, **options)
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "no name server")

    monkeypatch.setattr(socket, "getaddrinfo", hang)

    async def dial():
        with pytest.raises(TimeoutError):
            await addresses.connect("bonn.example.org", 7400, 0.2)

    async def work():
        # more than the loop has threads
        await asyncio.gather(*(dial() for _ in range(40)))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with asyncio.timeout(60):
                assert await asyncio.to_thread(lambda: 7) == 7
                (await addresses.connect(*listener.getsockname(), 20.0)).close()
        over.set()

    try:
        asyncio.run(work())
    finally:
        over.set()


def test_a_port_in_use_may_be_free_later_and_a_foreign_address_never():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TransientError, match="is another node running there"):
            addresses.listen(f"127.0.0.1:{port}")
    with pytest.raises(InputError, match=r"cannot listen at 192\.0\.2\.1:7400: .*--listen :7400"):
        addresses.listen("192.0.2.1:7400")


@needs_ipv6
def test_an_address_that_this_machine_lacks_is_left_out_if_another_of_the_name_is_here(monkeypatch):
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *m, **o: [*real("2001:db8::1", *m, **o), *real("127.0.0.1", *m, **o)],
    )
    (port,) = addresses.free_ports(1)
    (one,) = addresses.listen(f"bonn.example.org:{port}")
    with one:
        assert one.getsockname() == ("127.0.0.1", port)
