"""What a relay costs: its own CPU against a bare splice, its users' CPU against direct connections.
One JSON row each.

    python benchmarks/relay.py [splice] [peers]

`splice`: 16 pairs of connections exchange messages of 320 kB through a relay, and through a process
that joins connections in the order in which they come, and does nothing else. CPU of that process
for the same bytes, in turn; and its memory with messages of 320 kB and of 32 MB.
`peers`: 16 users on a ring, 79,510 parameters: CPU of all users for one round, directly and behind
one relay, from two runs of different length.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from peers import LONG, SHORT, USERS, children, plan, task

from decor.federation.peers_engine import Peers
from decor.federation.terms import Terms
from decor.learning.recipe import Recipe
from decor.net.addresses import Address, free_ports, listen
from decor.net.identity import Identity
from decor.net.reach import Reach
from decor.net.relay import Admission, Relay
from decor.training.engine import Setting

PAIRS, BYTES, ROUNDS, TRIES = 16, 320_000, 60, 5
FEDERATION = bytes(32)


class Bare(asyncio.Protocol):
    """One of two connections that pass bytes to each other."""

    waiting: Bare | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.other = transport, Bare.waiting
        if self.other is None:
            Bare.waiting = self
            return
        Bare.waiting, self.other.other = None, self
        for side in (self, self.other):
            side.transport.write(b"+")  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)  # type: ignore[union-attr]

    def connection_lost(self, exc: Exception | None) -> None:
        if Bare.waiting is self:
            Bare.waiting = None
        if self.other is not None:
            self.other.transport.close()

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()  # type: ignore[union-attr]

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()  # type: ignore[union-attr]


def run_bare(port: int) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(serve())


def run_relay(port: int, admissions: dict[bytes, Admission]) -> None:
    async def serve() -> None:
        Relay(admissions, lambda event, **facts: None, 1e12).open(listen(f"127.0.0.1:{port}"))
        await asyncio.Event().wait()

    asyncio.run(serve())


class Process:
    """A process of the benchmark: its CPU seconds and its memory."""

    def __init__(self, work: object, port: int, *more: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=work, args=(port, *more), daemon=True)  # type: ignore[arg-type]
        self._process.start()
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.05)

    def cpu(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def stop(self) -> None:
        os.kill(self._process.pid or 0, signal.SIGKILL)
        self._process.join()


async def exchange(ends: list[tuple[socket.socket, socket.socket]], size: int, rounds: int) -> None:
    """Both ends of each pair send a message in every round, and receive the other's."""
    loop = asyncio.get_running_loop()
    message = os.urandom(size)

    async def receive(end: socket.socket) -> None:
        buffer, got = bytearray(1 << 18), 0
        while got < size:
            got += await loop.sock_recv_into(end, buffer)

    sockets = [end for pair in ends for end in pair]
    for _ in range(rounds):
        sends = [loop.sock_sendall(end, message) for end in sockets]
        await asyncio.gather(*sends, *map(receive, sockets))


async def connect_bare(port: int) -> list[tuple[socket.socket, socket.socket]]:
    loop, pairs = asyncio.get_running_loop(), []
    for _ in range(PAIRS):
        ends = socket.socket(), socket.socket()
        for end in ends:
            end.setblocking(False)
            await loop.sock_connect(end, ("127.0.0.1", port))
        for end in ends:
            assert await loop.sock_recv(end, 1) == b"+"
        pairs.append(ends)
    return pairs


async def connect_relay(
    port: int, users: list[Identity]
) -> list[tuple[socket.socket, socket.socket]]:
    relay, pairs = Address("127.0.0.1", port, is_relay=True), []
    for k in range(PAIRS):
        a, b = users[2 * k], users[2 * k + 1]
        reach = Reach(FEDERATION)
        ends = await asyncio.gather(
            reach.meet(relay, a.key, b.public, None, lambda: None),
            reach.meet(relay, b.key, a.public, None, lambda: None),
        )
        pairs.append((ends[0], ends[1]))
    return pairs


def splice() -> dict[str, object]:
    users = [Identity.new() for _ in range(2 * PAIRS)]
    keys = [each.public for each in users]
    edges = [(keys[k ^ 1], keys[k]) for k in range(2 * PAIRS)]
    admission = Admission("benchmark", dict.fromkeys(keys, "user"), frozenset(edges))
    ports = free_ports(2)
    bare = Process(run_bare, ports[0])
    relay = Process(run_relay, ports[1], {FEDERATION: admission})
    spent: dict[str, list[float]] = {"bare": [], "relay": []}

    async def measure() -> list[float]:
        connections = {
            "bare": (bare, await connect_bare(ports[0])),
            "relay": (relay, await connect_relay(ports[1], users)),
        }
        for _ in range(TRIES):
            for name, (process, ends) in connections.items():
                before = process.cpu()
                await exchange(ends, BYTES, ROUNDS)
                spent[name].append(process.cpu() - before)
        small = relay.peak_mb()
        await exchange(connections["relay"][1], 100 * BYTES, 1)
        return [small, relay.peak_mb()]

    memory = asyncio.run(measure())
    bare.stop()
    relay.stop()
    ratios = [r / b for r, b in zip(spent["relay"], spent["bare"], strict=True)]
    return {
        "what": "CPU of a relay over a bare splice, 16 pairs, messages of 320 kB",
        **{f"{name}_s": [round(each, 2) for each in values] for name, values in spent.items()},
        "ratio": round(statistics.median(ratios), 3),
        "peak_mb_320_kB": round(memory[0], 1),
        "peak_mb_32_MB": round(memory[1], 1),
    }


@dataclass(frozen=True)
class RelayedPeers(Peers):
    """Users that meet at a relay; it runs once the users' keys are known."""

    port: int = 0

    def terms(self, *arguments: object) -> Terms:
        terms = super().terms(*arguments)  # type: ignore[arg-type]
        address = f"relay://127.0.0.1:{self.port}"
        members = tuple(replace(member, address=address) for member in terms.members)
        keys = [member.public for member in members]
        edges = [(keys[i], keys[j]) for i, j in terms.plan.topology.edges.tolist()]
        both = frozenset([*edges, *((b, a) for a, b in edges)])
        admission = Admission("benchmark", dict.fromkeys(keys, "user"), both)
        RELAYS.append(Process(run_relay, self.port, {terms.digest: admission}))
        return replace(terms, members=members)


RELAYS: list[Process] = []


def federation_cpu(steps: int, relayed: bool) -> tuple[float, float]:
    """CPU seconds of all users, and of the relay."""
    engine = RelayedPeers(timeout=60.0, port=free_ports(1)[0]) if relayed else Peers(timeout=60.0)
    before = children()
    engine.run(task(), [Setting(plan(steps), 0.01, 0)], Recipe())
    users, of_relay = children() - before, 0.0
    if relayed:
        # it still runs, so that its CPU is not among the children's
        of_relay = RELAYS[-1].cpu()
        RELAYS[-1].stop()
    return users, of_relay


def peers() -> dict[str, object]:
    rounds = LONG - SHORT
    tries = []
    for _ in range(3):
        row = {}
        for relayed in (False, True):
            long, short = federation_cpu(LONG, relayed), federation_cpu(SHORT, relayed)
            name = "relayed" if relayed else "direct"
            row[name] = (long[0] - short[0]) / rounds
            if relayed:
                row["relay"] = (long[1] - short[1]) / rounds
        tries.append(row)
    return {
        "what": f"CPU of a round of {USERS} users on a ring behind one relay, 79,510 parameters",
        **{f"{name}_ms": [round(1e3 * each[name], 2) for each in tries] for name in tries[0]},
        "ratio": round(statistics.median(each["relayed"] / each["direct"] for each in tries), 3),
    }


def main() -> None:
    works = {"splice": splice, "peers": peers}
    for name in sys.argv[1:] or works:
        print(json.dumps({"benchmark": "relay", **works[name]()}), flush=True)


if __name__ == "__main__":
    main()
