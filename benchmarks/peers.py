"""What the peer network costs: CPU a round against its parts, bytes on the wire, start-up, memory.
One JSON row each.

    python benchmarks/peers.py [round] [wire] [start] [program] [memory]

`round`: 16 users on a ring as processes on this machine, 79,510 parameters (784-100-10), float32.
CPU of all processes for one round, from two runs of different length (what both pay for starting
cancels), over the sum of its parts measured in the same run: a bare asyncio exchange of the same
bytes over mutual TLS between 16 processes, and noise and gradient alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch

import decor
from decor.federation import peers_engine, user_processes
from decor.federation.federation import Federation, Member, Model, Network, Privacy, Training
from decor.federation.local_gradient import LocalGradient
from decor.federation.node import Node
from decor.federation.peers_engine import Peers
from decor.learning.recipe import Recipe
from decor.net import accepting, addresses, transport
from decor.net.addresses import free_ports
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.results.run import Run
from decor.training.engine import Setting

USERS, SHORT, LONG = 16, 20, 120
ONE_ROUND = Recipe(gossip_rounds=1)
"""What all rows were measured with; the default depends on the plan."""
STARTS = 5


def task(hidden: int = 100, users: int = USERS) -> decor.Task:
    rng = np.random.default_rng(0)
    shards = [(rng.random((64, 784), np.float32), rng.integers(0, 10, 64)) for _ in range(users)]
    return decor.Task(decor.models.mlp(784, hidden, 10), decor.losses.cross_entropy, shards)


def plan(steps: int, users: int = USERS) -> decor.NoisePlan:
    exposure = decor.Exposure(clip=1.0, steps=steps)
    return decor.calibrate(
        decor.ring(users), exposure, decor.Adversary.eavesdropper(), decor.Budget(10.0, 1e-5)
    )


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peers(steps: int) -> float:
    """CPU seconds of all processes of a run."""
    before, given = children(), task()
    engine = Peers(timeout=60.0)
    engine.run(given, [Setting(plan(steps), 0.01, 0)], ONE_ROUND)
    return children() - before


def bare(rounds: int) -> float:
    """CPU seconds of 16 processes that send a model's bytes to both neighbours and read theirs,
    round after round.
    """
    size = 4 * task().parameters
    identities, ports = [Identity.new() for _ in range(USERS)], free_ports(USERS)
    return _spent(lambda i: asyncio.run(_exchange(i, identities, ports, size, rounds)))


def _spent(work: Callable[[int], object]) -> float:
    """CPU seconds of a process for every user."""
    before, pids = children(), []
    for i in range(USERS):
        pid = os.fork()
        if not pid:
            try:
                work(i)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return children() - before


async def _exchange(
    i: int, identities: list[Identity], ports: list[int], size: int, rounds: int
) -> None:
    left, right = (i - 1) % USERS, (i + 1) % USERS
    keys = [identities[left].public, identities[right].public]
    came = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(
        lambda reader, writer: came.set_result((reader, writer)),
        "127.0.0.1",
        ports[i],
        ssl=transport.tls_context(identities[i], keys, True),
        limit=accepting.READ_BYTES,
    )
    calls = transport.tls_context(identities[i], keys, False)
    while True:
        try:
            one = await transport.dial(f"127.0.0.1:{ports[right]}", calls)
            break
        except OSError:
            await asyncio.sleep(0.05)
    lines = [one, await came]
    model = bytes(size)
    for _ in range(rounds):
        for _, writer in lines:
            writer.write(model)
        for reader, writer in lines:
            await reader.readexactly(size)
            await writer.drain()
    server.close()


def alone(steps: int) -> float:
    """CPU seconds of 16 processes that draw noise and take gradients, and talk to nobody."""
    given, made = task(), plan(LONG)
    one = decor.Task(given.model, given.loss, [given.shards[0]])
    terms = Peers().terms(
        given, Setting(made, 0.01, 0), ONE_ROUND, [Identity.new() for _ in range(USERS)], 1e-5
    )
    terms.grid.add_noise(np.zeros(1), bytes(32), [])

    def work(i: int) -> None:
        torch.set_num_threads(1)
        local = LocalGradient(one, made.exposure, ONE_ROUND, "float32", os.urandom)
        start = local.start()
        for _ in range(steps):
            edges = [(os.urandom(32), m) for m in terms.multiples(i).values()]
            gradient, factor = local.gradient(start, 0.01)
            terms.grid.add_noise(gradient, os.urandom(32), edges, factor, over=True)

    return _spent(work)


WORKS = {"peers": peers, "bare_tls": bare, "noise_and_gradient": alone}


def round_() -> dict[str, object]:
    tries = [
        {name: (work(LONG) - work(SHORT)) / (LONG - SHORT) for name, work in WORKS.items()}
        for _ in range(3)
    ]
    ratios = sorted(
        each["peers"] / (each["bare_tls"] + each["noise_and_gradient"]) for each in tries
    )
    return {
        "what": "CPU of a round, 16 users on a ring, 79,510 parameters",
        **{f"{name}_ms": [round(1e3 * each[name], 2) for each in tries] for name in WORKS},
        "ratio": round(ratios[1], 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def wire() -> dict[str, object]:
    """Bytes through a TCP relay on the edges of one user of three, over both directions, to a
    model's bytes.
    """
    steps, given = 50, task(users=3)
    identities = [Identity.new() for _ in range(3)]
    terms = Peers(timeout=60.0).terms(
        given, Setting(plan(steps, 3), 0.01, 0), ONE_ROUND, identities, 1e-5
    )
    (hidden,) = free_ports(1)
    counted = [0]
    relay = threading.Thread(
        target=_relay,
        args=(addresses.split_address(terms.members[0].address)[1], hidden, counted),
        daemon=True,
    )
    relay.start()

    async def together(folder: str) -> None:
        nodes = []
        for i, identity in enumerate(identities):
            one = decor.Task(given.model, given.loss, [given.shards[i]])
            reach = terms.reach(i, [f"127.0.0.1:{hidden}"] if i == 0 else None)
            Ledger.create(f"{folder}/{i}", identity.public)
            ledger = Ledger(f"{folder}/{i}")
            nodes.append(
                Node(terms, i, identity, one, ledger, lambda event, **facts: None, reach=reach)
            )
        await asyncio.gather(*(node.train() for node in nodes))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(together(folder))
    models = 4 * steps * 4 * given.parameters  # two edges, two directions
    return {
        "what": "bytes on the wire over the bytes of the models",
        "rounds": steps,
        "ratio": round(counted[0] / models, 5),
    }


def _relay(port: int, to: int, counted: list[int]) -> None:
    def pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                counted[0] += len(data)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    server = socket.create_server(("127.0.0.1", port))
    while True:
        here, _ = server.accept()
        while True:
            try:
                there = socket.create_connection(("127.0.0.1", to))
                break
            except OSError:
                time.sleep(0.01)
        for pair in ((here, there), (there, here)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


FORKS = """
import os, sys
from pathlib import Path
import numpy as np, torch
from decor.federation.federation import Federation, build_tasks
from decor.federation.local_gradient import LocalGradient
from decor.federation.terms import Terms
from decor.federation.user_files import UserFiles
from decor.federation.user_processes import _train
from decor.learning import own_data
from decor.net.identity import Identity

folder = Path(sys.argv[1])
federation = Federation.read(folder / "federation.toml")
names = [member.name for member in federation.members]
identities = [Identity.load(folder / "keys" / f"{name}.key") for name in names]
tasks = build_tasks(
    federation, [own_data.read(folder / "data" / f"{name}.npz") for name in names], None
)
terms, out = Terms.of(federation), folder / "run"
out.mkdir()
terms.grid.add_noise(np.zeros(1), bytes(32), [])
terms.guarantee_after(1)
LocalGradient(tasks[0], terms.plan.exposure, terms.recipe, terms.dtype, os.urandom)
pids = []
for k, name in enumerate(names):
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)
        files = UserFiles(k, name, out)
        os._exit(_train(terms, files, identities[k], tasks[k], False))
    pids.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
"""
"""The same federation from one process that loads everything and forks itself: the reference."""


def start() -> dict[str, object]:
    """Seconds from the command `decor up` for 16 users to the end of everybody's first step, beside
    one process that loads all and forks itself.
    """
    commands = {
        "decor_up": lambda folder: ["-m", "decor", "up", folder / "federation.toml", "--json"],
        "forks": lambda folder: ["-c", FORKS, folder],
    }
    tries = [
        {name: _start(command) for name, command in commands.items()} for _ in range(STARTS + 1)
    ][1:]  # the first fills caches
    row: dict[str, object] = {"what": "decor up, 16 users"}
    for k, what in enumerate(("first_step_s", "all_30_steps_s", "cpu_s")):
        for name in commands:
            row[f"{name}_{what}"] = round(_median([each[name][k] for each in tries]), 2)
        ratios = [each["decor_up"][k] / each["forks"][k] for each in tries]
        row[f"{what[:-2]}_ratio"] = round(_median(ratios), 3)
    return row


def _start(command: Callable[[Path], list[object]]) -> tuple[float, float, float]:
    """Seconds to the first step and to the end, and CPU seconds of all processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "keys").mkdir()
        (folder / "data").mkdir()
        given, members = task(), []
        for i, port in enumerate(free_ports(USERS)):
            identity = Identity.new()
            identity.save(folder / "keys" / f"u{i}.key")
            X, y = given.shards[i]
            np.savez(folder / "data" / f"u{i}.npz", X=X.numpy(), y=y.numpy())
            members.append(
                Member(name=f"u{i}", address=f"127.0.0.1:{port}", public=identity.public)
            )
        federation = Federation(
            name="start",
            privacy=Privacy(epsilon=10.0, delta=1e-5, adversary="eavesdropper"),
            training=Training(steps=30, clip=1.0, learning_rate=0.01),
            model=Model(kind="mlp", features=784, classes=10, hidden=(100,)),
            network=Network(topology="ring"),
            members=tuple(members),
        )
        (folder / "federation.toml").write_text(federation.to_toml())
        began, before = time.time(), children()
        subprocess.run([sys.executable, *command(folder)], check=True, capture_output=True)
        whole, spent = time.time() - began, children() - before
        at_work = [_when(folder / "run" / f"u{i}.log") for i in range(USERS)]
    return max(at_work) - began, whole, spent


def program() -> dict[str, object]:
    """Seconds from `Peers().run` in a process that has everything loaded to the end of everybody's
    first step.
    """
    given, made, tries = task(), plan(5), []
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as folder:
            began = time.time()
            Peers(timeout=60.0, folder=folder).run(given, [Setting(made, 0.01, 0)], ONE_ROUND)
            at_work = [_when(Path(folder) / f"user-{i}.log") for i in range(USERS)]
        tries.append(max(at_work) - began)
    return {"what": "Peers() in a program, 16 users", "first_step_s": round(_median(tries), 2)}


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _when(log: Path) -> float:
    (line,) = (line for line in log.read_text().splitlines() if 'event="at work"' in line)
    return datetime.fromisoformat(line.split()[0]).timestamp()


def memory() -> dict[str, object]:
    """The most that a peer of three takes beyond what it had when it was forked, in models of 15.9
    MB.
    """
    given = task(hidden=5000, users=3)
    usual, found = peers_engine.split_by_user, Path(tempfile.mkstemp()[1])
    # called where users are started
    peers_engine.split_by_user = partial(_watch_memory, found)
    try:
        Peers(timeout=60.0).run(given, [Setting(plan(10, 3), 0.01, 0)], ONE_ROUND)
    finally:
        peers_engine.split_by_user = usual
    most = max(map(int, found.read_text().split()))
    found.unlink()
    model = 4 * given.parameters
    return {
        "what": "memory of a peer",
        "model_mb": round(model / 1e6, 1),
        "models": round(most / model, 2),
    }


def _watch_memory(found: Path, given: decor.Task) -> list[decor.Task]:
    """The users' tasks; from now on each user appends the most that it took to a file."""
    usual = user_processes.run_node

    async def watched(node: Node, *rest: object) -> Run:
        # loads what libraries still have to
        node.terms.grid.add_noise(node.local.gradient(node.model, 0.01)[0], bytes(32), [])
        Path("/proc/self/clear_refs").write_text("5")  # the most so far is now
        before = _memory("VmRSS")
        try:
            return await usual(node, *rest)
        finally:
            with found.open("a") as file:
                # its first model was there
                file.write(f"{_memory('VmHWM') - before + 4 * node.local.parameters}\n")

    user_processes.run_node = watched
    return peers_engine.split_by_user(given)


def _memory(name: str) -> int:
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
    )
    return 1024 * int(line.split()[1])


def main() -> None:
    rows = {"round": round_, "wire": wire, "start": start, "program": program, "memory": memory}
    for name in sys.argv[1:] or rows:
        print(json.dumps({"benchmark": "peers", **rows[name]()}), flush=True)


if __name__ == "__main__":
    main()
