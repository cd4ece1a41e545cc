"""What a step costs as users and parameters grow: CPU, two processes, or a card.

One JSON row a point.

    python benchmarks/scale.py cpu|processes|cuda [users] [parameters] [largest]

`users`: 16 to 100,000 on a ring, logistic regression of a9a's shape (124 parameters), 16 records
each, user level. `parameters`: 100 to 10^7, 16 users on a ring, a network 100-h-10, batches of 16,
user level; `largest`: the same with 10^8, which wants 30 GB of memory. Milliseconds a step: the
difference between a long and a short run over their steps, the best of three; of the largest, whose
starting and ending would drown it, within one run: five steps and a measurement less one and one.
`bytes` are those of all models.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import decor
from decor.distributed.world import World

USERS = (16, 64, 256, 1024, 4096, 16_384, 100_000)
HIDDEN = (1, 9, 90, 900, 9_000, 90_000)
LARGEST = 900_000
LONGEST = 10.0
"""Seconds that one run of a point may take."""


def engine(kind: str) -> object:
    if kind == "processes":
        return decor.ProcessGroup()
    return decor.Vectorised(device="cuda") if kind == "cuda" else decor.Vectorised(threads=1)


def shards(
    users: int, records: int, features: int, classes: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.random((users * records, features), np.float32))
    return list(
        zip(
            X.split(records),
            torch.from_numpy(rng.integers(0, classes, users * records)).split(records),
            strict=True,
        )
    )


def step_ms(kind: str, task: decor.Task, topology: decor.Topology, batch: int | None) -> float:
    """Steps are added until the difference can be seen."""

    def seconds(steps: int) -> float:
        plan = decor.NoisePlan(
            topology,
            decor.Exposure(clip=1.0, steps=steps),
            decor.Adversary.eavesdropper(),
            0.05,
            0.3,
        )
        began = time.perf_counter()
        decor.train(
            task,
            plan,
            learning_rate=0.1,
            engine=engine(kind),
            evaluate_every=10**6,
            batch_size=batch,
        )
        return time.perf_counter() - began

    seconds(2)
    short, many = min(seconds(2) for _ in range(2)), 12
    while True:
        long = seconds(many)
        agreed = torch.tensor(long)
        if torch.distributed.is_initialized():
            torch.distributed.broadcast(agreed, 0)
        if float(agreed) > short + 0.5 or float(agreed) > LONGEST or many >= 20_000:
            break
        many *= 4
    best = min(long, *(seconds(many) for _ in range(2))) if long < LONGEST else long
    return 1e3 * (best - short) / (many - 2)


def one_run_ms(kind: str, task: decor.Task, topology: decor.Topology, batch: int | None) -> float:
    plan = decor.NoisePlan(
        topology, decor.Exposure(clip=1.0, steps=8), decor.Adversary.eavesdropper(), 0.05, 0.3
    )
    at: dict[int, float] = {}

    def noted(moment: object) -> None:
        at[moment.step] = time.perf_counter()  # type: ignore[attr-defined]

    when = (2, 3, 8)
    decor.train(
        task,
        plan,
        learning_rate=0.1,
        engine=engine(kind),
        evaluate_every=when,
        batch_size=batch,
        callbacks=[noted],
    )
    return 1e3 * ((at[8] - at[3]) - (at[3] - at[2])) / 4 if at else 0.0


def row(
    kind: str,
    what: str,
    task: decor.Task,
    batch: int | None,
    measured: Callable[..., float] = step_ms,
) -> None:
    topology = decor.ring(task.users)
    ms = measured(kind, task, topology, batch)
    if World.current().is_first:
        facts = {
            "users": task.users,
            "parameters": task.parameters,
            "bytes": 4 * task.users * task.parameters,
        }
        machine = (
            f"{os.cpu_count()} cores, "
            f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') >> 30} GiB"
        )
        found = {
            "benchmark": "scale",
            "on": kind,
            "what": what,
            **facts,
            "ms": round(ms, 4),
            "machine": machine,
        }
        print(json.dumps(found), flush=True)


def users(kind: str) -> None:
    for count in USERS:
        given = decor.Task(
            decor.models.logistic(123), decor.losses.logistic, shards(count, 16, 123, 2)
        )
        row(kind, "users", given, None)


def parameters(kind: str) -> None:
    for hidden in HIDDEN:
        given = decor.Task(
            decor.models.mlp(100, hidden, 10), decor.losses.cross_entropy, shards(16, 16, 100, 10)
        )
        row(kind, "parameters", given, 16)


def largest(kind: str) -> None:
    given = decor.Task(
        decor.models.mlp(100, LARGEST, 10), decor.losses.cross_entropy, shards(16, 16, 100, 10)
    )
    row(kind, "parameters", given, 16, one_run_ms)


def main() -> None:
    kind, *curves = sys.argv[1:]
    if kind == "processes" and "WORLD_SIZE" not in os.environ:
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            *sys.argv,
        ]
        raise SystemExit(
            subprocess.run(torchrun, env={"OMP_NUM_THREADS": "1"} | os.environ).returncode
        )
    for curve in curves or ("users", "parameters"):
        {"users": users, "parameters": parameters, "largest": largest}[curve](kind)


if __name__ == "__main__":
    main()
