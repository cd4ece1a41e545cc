"""How long a dry run of 16 members takes, from the start of the first process to the end of the
last. One JSON row for each graph and way.

    python benchmarks/probe.py

Every member is a process of its own, `decor federation probe`, as an operator starts it. All of
them run on this machine, so Python starts 16 times on its cores. `alone_s` is one such start;
`others_cpu_s` is the CPU that other processes took meanwhile, a relay among them.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from decor.federation.federation import Federation, Member, Model, Network, Privacy, Training
from decor.net.addresses import free_ports
from decor.net.identity import Identity

MEMBERS, TRIES = 16, 3
DECOR = [sys.executable, "-m", "decor"]


def federation(folder: Path, topology: str, relay: int | None) -> Path:
    """Writes the file and the keys of all members.

    Args:
        folder: Where.
        topology: The graph's name.
        relay: The port of the relay at which all members meet; None: they connect directly.
    """
    members = []
    for k, port in enumerate(free_ports(MEMBERS)):
        identity = Identity.new()
        identity.save(folder / f"{k}.key")
        address = f"127.0.0.1:{port}" if relay is None else f"relay://127.0.0.1:{relay}"
        members.append(Member(f"m{k}", address, identity.public))
    file = folder / "federation.toml"
    whole = Federation(
        name="benchmark",
        privacy=Privacy(epsilon=10.0, delta=1e-5, adversary="eavesdropper"),
        training=Training(steps=30, clip=1.0, learning_rate=0.1),
        model=Model(kind="logistic", features=4),
        network=Network(topology=topology),
        members=tuple(members),
    )
    file.write_text(whole.to_toml())
    return file


def others_cpu() -> float:
    """CPU seconds of all processes of this machine but the children that have ended."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = (user + nice + system) / os.sysconf("SC_CLK_TCK")
    return busy - own.ru_utime - own.ru_stime


def probe(folder: Path, file: Path) -> tuple[float, float]:
    """Seconds of one dry run, and CPU of others; every member must have seen the whole graph."""
    began, others = time.perf_counter(), others_cpu()
    processes = [
        subprocess.Popen(
            [*DECOR, "federation", "probe", str(file), "--json", "--seconds", "120"]
            + ["--identity", str(folder / f"{k}.key")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for k in range(MEMBERS)
    ]
    answers = [json.loads(process.communicate()[0]) for process in processes]
    taken = time.perf_counter() - began, others_cpu() - others
    for answer in answers:
        if not answer["agrees"] or len(answer["reports"]) != MEMBERS:
            raise RuntimeError(f"the probe failed: {answer['problems']}, {answer['missing']}")
    return taken


def start_relay(port: int, *files: Path, bandwidth: float = 100.0) -> subprocess.Popen[bytes]:
    words = ["relay", *map(str, files), "--listen", f"127.0.0.1:{port}"]
    words += ["--bandwidth", str(bandwidth)]
    process = subprocess.Popen([*DECOR, *words], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()  # it listens
    # a pipe that is full would stop it
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return process


def measure(topology: str, is_relayed: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_ports(1)[0]
        file = federation(folder, topology, port if is_relayed else None)
        relay = start_relay(port, file) if is_relayed else None
        try:
            taken = [probe(folder, file) for _ in range(TRIES)]
        finally:
            if relay is not None:
                relay.terminate()
                relay.wait()
    return {
        "members": MEMBERS,
        "graph": topology,
        "way": "relay" if is_relayed else "direct",
        "wall_s": [round(wall, 2) for wall, _ in taken],
        "others_cpu_s": [round(cpu, 2) for _, cpu in taken],
        "median_s": round(statistics.median(wall for wall, _ in taken), 2),
    }


def main() -> None:
    began = time.perf_counter()
    subprocess.run([*DECOR, "federation", "probe", "--help"], stdout=subprocess.DEVNULL, check=True)
    alone = round(time.perf_counter() - began, 2)
    for topology, is_relayed in (("ring", False), ("ring", True), ("complete", False)):
        row = measure(topology, is_relayed) | {"alone_s": alone, "cores": os.cpu_count()}
        print(json.dumps({"benchmark": "probe", **row}), flush=True)


if __name__ == "__main__":
    main()
