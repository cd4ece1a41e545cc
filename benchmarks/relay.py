"""What a relay costs: its own CPU against a bare splice, its users' CPU against direct connections,
and what a crowd of strangers changes. One JSON row each.

    python benchmarks/relay.py [splice] [peers] [crowd]

`splice`: `decor relay` for 16 users on a ring, so 16 pairs of connections, which exchange messages
of 320 kB; and the same through a process that joins connections in the order in which they come,
and does nothing else. CPU of that process for the same bytes, in turn; and the relay's memory with
messages of 320 kB and of 32 MB.
`peers`: 16 users on a ring, 79,510 parameters: CPU of all users for one round, directly and behind
one relay, from two runs of different length.
`crowd`: the pairs of `splice`, in turn at two relays; one of them also has 1,000 idle and 200
hostile connections (`tests/net/crowd.py`). Wall time of a round, and connections lost.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from peers import LONG, ONE_ROUND, SHORT, USERS, children, plan, task
from probe import federation, start_relay

from decor.federation.federation import Federation
from decor.federation.peers_engine import Peers
from decor.federation.terms import Terms
from decor.net.addresses import Address, free_ports, listen
from decor.net.identity import Identity
from decor.net.reach import Reach
from decor.net.relay import Admission, Relay
from decor.net.relay_protocol import relay_id
from decor.training.engine import Setting

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "net"))

import crowd as strangers  # noqa: E402

PAIRS, BYTES, ROUNDS, TRIES = 16, 320_000, 150, 7
CROWDED_ROUNDS = 300
NO_LIMIT = 1e6
"""Megabytes a second of a user: these users send as fast as they can."""
Ends = list[tuple[socket.socket, socket.socket]]


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


def cpu_of(pid: int) -> float:
    """CPU seconds of all threads of a process, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


def peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class Process:
    """A process of the benchmark."""

    def __init__(self, work: object, port: int, *more: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=work, args=(port, *more), daemon=True)  # type: ignore[arg-type]
        self._process.start()
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._process.join()


async def exchange(ends: Ends, size: int, rounds: int) -> None:
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


async def connect_bare(port: int) -> Ends:
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


async def connect_relay(folder: Path, file: Path, port: int) -> Ends:
    """A pair for each edge of a federation whose users meet at a relay."""
    whole, relay, pairs = Federation.read(file), Address("127.0.0.1", port, is_relay=True), []
    users = [Identity.load(folder / f"{k}.key") for k in range(len(whole.members))]
    for i, j in whole.topology.edges.tolist():
        a, b = users[i], users[j]
        reach = Reach(whole.digest)
        ends = await asyncio.gather(
            reach.meet(relay, a.key, b.public, None, lambda: None),
            reach.meet(relay, b.key, a.public, None, lambda: None),
        )
        pairs.append((ends[0], ends[1]))
    assert len(pairs) == PAIRS
    return pairs


@contextmanager
def running_relay(port: int, *files: Path) -> Iterator[int]:
    """Its process id."""
    process = start_relay(port, *files, bandwidth=NO_LIMIT)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def splice() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), free_ports(2)
        file = federation(folder, "ring", ports[1])
        bare = Process(run_bare, ports[0])
        spent: dict[str, list[float]] = {"bare": [], "relay": []}

        async def measure(relay: int) -> list[float]:
            connections = {
                "bare": (bare.pid, await connect_bare(ports[0])),
                "relay": (relay, await connect_relay(folder, file, ports[1])),
            }
            begun = peak_mb(relay)
            # once before it counts: buffers are there then
            for k in range(TRIES + 1):
                for name, (pid, ends) in connections.items():
                    before = cpu_of(pid)
                    await exchange(ends, BYTES, ROUNDS)
                    if k:
                        spent[name].append(cpu_of(pid) - before)
            small = peak_mb(relay)
            await exchange(connections["relay"][1], 100 * BYTES, 1)
            return [begun, small, peak_mb(relay)]

        with running_relay(ports[1], file) as relay:
            memory = asyncio.run(measure(relay))
        bare.stop()
    ratios = sorted(r / b for r, b in zip(spent["relay"], spent["bare"], strict=True))
    return {
        "what": "CPU of a relay over a bare splice, 16 pairs, messages of 320 kB",
        **{f"{name}_s": [round(each, 3) for each in values] for name, values in spent.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(each, 3) for each in ratios],
        "reach": 1.5,
        "mb_without_traffic": round(memory[0], 1),
        "peak_mb_320_kB": round(memory[1], 1),
        "peak_mb_32_MB": round(memory[2], 1),
    }


def crowd() -> dict[str, object]:
    """Rounds at a quiet relay and at a crowded one in turn, while the crowd does what it can."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / each for each in ("quiet", "crowded", "crowd")]
        for folder in folders:
            folder.mkdir()
        ports = free_ports(2)
        files = [federation(folders[k], "ring", ports[k]) for k in range(2)]
        crowded = strangers.write_crowd(folders[2], ports[1])
        command = ["nice", "-n", "19", sys.executable, strangers.__file__]
        command += [str(folders[2]), str(ports[1]), "--hostile", "200"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        took: list[list[float]] = [[], []]

        async def measure() -> None:
            places = zip(folders, files, ports, strict=False)
            ends = [await connect_relay(*place) for place in places]
            for _ in range(CROWDED_ROUNDS):
                for k, connections in enumerate(ends):
                    began = time.perf_counter()
                    # raises if a connection has ended
                    await exchange(connections, BYTES, 1)
                    took[k].append(time.perf_counter() - began)

        with running_relay(ports[0], files[0]), running_relay(ports[1], files[1], crowded) as relay:
            with subprocess.Popen(command, **pipes, text=True) as others:  # type: ignore[call-overload]
                assert others.stdout.readline() == "ready\n"
                began, before = time.perf_counter(), cpu_of(relay)
                asyncio.run(measure())
                wall, cpu = time.perf_counter() - began, cpu_of(relay) - before
                counts = json.loads(others.communicate("")[0])
            memory = peak_mb(relay)
    middle = [1e3 * statistics.median(each) for each in took]
    late = [1e3 * statistics.quantiles(each, n=20)[-1] for each in took]
    return {
        "what": "a round of 16 pairs at a relay with 1,000 idle and 200 hostile connections",
        "quiet_ms": round(middle[0], 2),
        "crowded_ms": round(middle[1], 2),
        "ratio": round(middle[1] / middle[0], 3),
        "quiet_p95_ms": round(late[0], 2),
        "crowded_p95_ms": round(late[1], 2),
        "idle_lost": counts.pop("idle_lost", 0),
        "attempts_per_s": round(sum(counts.values()) / wall, 1),
        "relay_cores": round(cpu / wall, 3),
        "relay_peak_mb": round(memory, 1),
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
        place = relay_id(Address("127.0.0.1", self.port, is_relay=True))
        users = dict.fromkeys(keys, "user")
        admission = Admission("benchmark", users, both, frozenset({place}))
        RELAYS.append(Process(run_relay, self.port, {terms.digest: admission}))
        return replace(terms, members=members)


RELAYS: list[Process] = []


def federation_cpu(steps: int, relayed: bool) -> tuple[float, float]:
    """CPU seconds of all users, and of the relay."""
    engine = RelayedPeers(timeout=60.0, port=free_ports(1)[0]) if relayed else Peers(timeout=60.0)
    before = children()
    engine.run(task(), [Setting(plan(steps), 0.01, 0)], ONE_ROUND)
    users, of_relay = children() - before, 0.0
    if relayed:
        # it still runs, so that its CPU is not among the children's
        of_relay = cpu_of(RELAYS[-1].pid)
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
        "reach": 1.15,
    }


def main() -> None:
    works = {"splice": splice, "peers": peers, "crowd": crowd}
    for name in sys.argv[1:] or works:
        print(json.dumps({"benchmark": "relay", **works[name]()}), flush=True)


if __name__ == "__main__":
    main()
