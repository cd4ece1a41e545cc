"""`decor bench`: what this machine does with what users call, one JSON row each. benchmarks/ has the long ones, with targets."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import decor
from decor import progress
from decor.errors import InputError

_BENCH = """example:
  decor bench accountant training"""
_LEAST = 0.2
"""CPU seconds that a measurement takes at least."""


def add_commands(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    said = "CPU milliseconds of what you would call, one JSON row each"
    bench = commands.add_parser("bench", help=said, epilog=_BENCH, formatter_class=raw)
    bench.set_defaults(run=run_bench)
    bench.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join(PARTS)} (default: all)")


def run_bench(options: argparse.Namespace) -> None:
    unknown = [name for name in options.what if name not in PARTS]
    if unknown:
        raise InputError(f"there is no benchmark {unknown[0]!r}; choose from {', '.join(PARTS)}")
    for name in options.what or PARTS:
        for what, work in PARTS[name]().items():
            progress.report(f"measuring {what}")
            row = {"benchmark": name, "what": what, "cpu_ms": _milliseconds(work), "cores": os.cpu_count()}
            progress.report("")
            print(json.dumps(row | {"decor": decor.__version__}), flush=True)


def _milliseconds(work: Callable[[], object]) -> float:
    """CPU time of a call, the best of three rounds, after one that loads and compiles."""
    work()
    best, count = float("inf"), 1
    for _ in range(3):
        while True:
            began = time.process_time()
            for _ in range(count):
                work()
            taken = time.process_time() - began
            if taken >= _LEAST:
                break
            count *= 4
        best = min(best, 1e3 * taken / count)
    return float(f"{best:.4g}")


def _accountant() -> dict[str, Callable[[], object]]:
    exposure, curious = decor.Exposure(1.0, 1000), decor.Adversary.curious()

    def epsilon(topology: decor.Topology, adversary: decor.Adversary) -> Callable[[], object]:
        from decor.privacy.coalition import exposed

        def ask() -> object:
            exposed.cache_clear()  # what a new question costs, not what is remembered
            return decor.NoisePlan(topology, exposure, adversary, 10.0, 100.0).guarantee(1e-5).per_user

        return ask

    budget = decor.Budget(3.0, 1e-5)
    return {
        "epsilon of everybody, ring of 16": epsilon(decor.ring(16), decor.Adversary.eavesdropper()),
        "epsilon of everybody, one curious of 256, random 4-regular": epsilon(decor.random_regular(256, 4, seed=0), curious),
        "epsilon of everybody, two colluding of 64, torus": epsilon(decor.torus(8, 8), decor.Adversary.colluding(2)),
        "noise for a budget, 16 users": lambda: decor.calibrate(decor.ring(16), exposure, curious, budget),
    }


def _noise() -> dict[str, Callable[[], object]]:
    from decor.noise.stream import own, shared

    key, count = bytes(range(32)), 1_000_000
    return {
        "a million values of an edge's noise (peers)": lambda: shared(key, count),
        "a million values of a user's own noise (peers)": lambda: own(key, count),
    }


def _training() -> dict[str, Callable[[], object]]:
    import torch

    def steps(model: Any, loss: Any, features: int, classes: int, records: int) -> Callable[[], object]:
        shards = [(torch.rand(records, features), torch.randint(classes, (records,))) for _ in range(16)]
        task = decor.Task(model, loss, shards)
        exposure = decor.Exposure(1.0, 20, unit="example", batch_size=64, records=records)
        plan = decor.NoisePlan(decor.ring(16), exposure, decor.Adversary.eavesdropper(), 0.1, 1.0)
        engine = decor.Vectorised(threads=1)
        return lambda: decor.train(task, plan, learning_rate=0.1, engine=engine, evaluate_every=10**6)

    small = steps(decor.models.logistic(123), decor.losses.logistic, 123, 2, 500)
    large = steps(decor.models.mlp(784, 128, 10), decor.losses.cross_entropy, 784, 10, 500)
    return {
        "20 steps of 16 users, logistic regression of a9a's shape, batch 64": small,
        "20 steps of 16 users, network of MNIST's shape, batch 64": large,
    }


PARTS = {"accountant": _accountant, "noise": _noise, "training": _training}
