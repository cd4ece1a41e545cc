"""What a step costs on one NVIDIA card, beside what the card itself can do. One JSON row each.

    python benchmarks/gpu.py [ring] [figure] [many] [rates]

`ring`: 1024 users on a ring, the MNIST network (784-128-10), batches of 64, example level.
`figure`: 112 runs of 16 users, all of the MNIST figure in one call. `many`: 100,000 users on a
random 4-regular graph, data of a9a's shape, user level. Data are random numbers of these shapes. A
step's time is the difference between a long and a short run: what both pay for starting cancels.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import torch

import decor


def shards(
    users: int, records: int, features: int, classes: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.random((users * records, features), np.float32))
    y = torch.from_numpy(rng.integers(0, classes, users * records))
    return list(zip(X.split(records), y.split(records), strict=True))


def network(users: int, records: int) -> decor.Task:
    return decor.Task(
        decor.models.mlp(784, 128, 10), decor.losses.cross_entropy, shards(users, records, 784, 10)
    )


def plan(
    topology: decor.Topology, steps: int, task: decor.Task | None = None, cor: float = 0.3
) -> decor.NoisePlan:
    example = (
        {}
        if task is None
        else {"unit": "example", "batch_size": 64, "records": task.records, "sampling": "fixed"}
    )
    return decor.NoisePlan(
        topology,
        decor.Exposure(clip=1.0, steps=steps, **example),
        decor.Adversary.eavesdropper(),
        0.05,
        cor,
    )


def per_step(run: Callable[[int], object], few: int, many: int) -> list[float]:
    """Milliseconds a step, five times, the fastest first."""
    run(few)
    found = []
    for _ in range(5):
        taken = []
        for steps in (few, many):
            torch.cuda.synchronize()
            began = time.perf_counter()
            run(steps)
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        found.append(round(1e3 * (taken[1] - taken[0]) / (many - few), 3))
    return sorted(found)


def ring(tf32: bool) -> dict[str, object]:
    task = network(1024, 100)
    engine = decor.Vectorised(device="cuda", tf32=tf32)
    torch.cuda.reset_peak_memory_stats()

    def run(steps: int) -> None:
        decor.train(
            task,
            plan(decor.ring(1024), steps, task),
            learning_rate=0.1,
            engine=engine,
            evaluate_every=10**6,
        )

    found = per_step(run, 20, 1020)
    models = 4 * 1024 * task.parameters
    return {
        "what": "1024 users on a ring, MNIST network, batch 64, example level",
        "tf32": tf32,
        "ms": found,
        "median_ms": found[len(found) // 2],
        "reach_ms": 1.2 if tf32 else 1.5,
        "models_mb": round(models / 1e6),
        "memory_in_models": round(torch.cuda.max_memory_allocated() / models, 2),
    }


def figure(tf32: bool) -> dict[str, object]:
    """28 settings and 4 seeds of 16 users: 1,792 models."""
    task = network(16, 500)
    engine = decor.Vectorised(device="cuda", tf32=tf32)

    def run(steps: int) -> None:
        plans = [plan(decor.ring(16), steps, task, 0.1 * (1 + k)) for k in range(7)]
        decor.sweep(
            task,
            plans,
            learning_rates=(0.01, 0.03, 0.1, 0.3),
            seeds=range(4),
            engine=engine,
            evaluate_every=10**6,
        )

    return {
        "what": "1,792 models of 16-user runs, one call",
        "tf32": tf32,
        "ms": per_step(run, 20, 420),
        "reach_ms": 5.0,
    }


def many() -> dict[str, object]:
    users = 100_000
    task = decor.Task(decor.models.logistic(123), decor.losses.logistic, shards(users, 16, 123, 2))
    topology = decor.random_regular(users, 4, seed=0)
    engine = decor.Vectorised(device="cuda")
    began = time.perf_counter()
    decor.train(task, plan(topology, 1000), learning_rate=0.1, engine=engine, evaluate_every=10**6)
    whole = time.perf_counter() - began

    def run(steps: int) -> None:
        decor.train(
            task, plan(topology, steps), learning_rate=0.1, engine=engine, evaluate_every=10**6
        )

    return {
        "what": "100,000 users, random 4-regular graph, a9a's shape, 16 records each, user level",
        "ms": per_step(run, 20, 1020),
        "whole_1000_steps_s": round(whole, 2),
        "reach_s": 15.0,
    }


def rates() -> dict[str, object]:
    """What the card does at best: a copy counted as read and written, products of large matrices,
    Gaussians of torch.
    """

    def ms(work: Callable[[], object]) -> float:
        for _ in range(3):
            work()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(10):
            work()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 10

    big, other = torch.randn(1 << 29, device="cuda"), torch.empty(1 << 29, device="cuda")
    A, B = torch.randn(8192, 8192, device="cuda"), torch.randn(8192, 8192, device="cuda")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    plain = ms(lambda: A @ B)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    quick = ms(lambda: A @ B)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    return {
        "what": "the card itself",
        "card": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "copy_tb_s": round(8 * big.numel() / ms(lambda: other.copy_(big)) / 1e9, 3),
        "fp32_tflop_s": round(2 * 8192**3 / plain / 1e9, 1),
        "tf32_tflop_s": round(2 * 8192**3 / quick / 1e9, 1),
        "torch_gaussians_g_s": round(other.numel() / ms(lambda: other.normal_()) / 1e6, 1),
    }


def versions() -> dict[str, str]:
    """Of what was measured."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    today = datetime.now(UTC).date().isoformat()
    return {"decor": decor.__version__, "torch": torch.__version__, "driver": driver, "date": today}


def main() -> None:
    rows = {
        "rates": [rates],
        "ring": [lambda: ring(False), lambda: ring(True)],
        "figure": [lambda: figure(False), lambda: figure(True)],
        "many": [many],
    }
    for name in sys.argv[1:] or rows:
        for row in rows[name]:
            print(json.dumps({"benchmark": "gpu", **row(), **versions()}), flush=True)


if __name__ == "__main__":
    main()
