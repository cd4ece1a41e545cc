"""What a private run costs beside a simulation: CPU milliseconds a step on one thread, both in one
process, one after the other.

    python benchmarks/private.py                # all rows, one JSON object a line
    python benchmarks/private.py "mnist, user"  # rows whose name contains this
    python benchmarks/private.py --table benchmarks/private.jsonl  # the table of docs/benchmarks.md

Every row calls `decor.train` with few and with many steps, with a seed and with `seed=None` in
turn; a step's cost is the difference of the best long and the best short run. Rows of a9a and mnist
need DECOR_DATA. The audit of a private run is measured by `benchmarks/audit.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import decor

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

ROWS = {
    # task, unit, graph, examples of each user in a step (None: all), at most so many times a
    # simulation
    "mnist, user level, ring of 16": ("mnist", "user", "ring", 64, 2.5),
    "mnist, example level, ring of 16": ("mnist", "example", "ring", 64, 2.5),
    "mnist, user level, complete graph of 16": ("mnist", "user", "complete", 64, 8.0),
    "mnist, user level, full batches, ring of 16": ("mnist", "user", "ring", None, 2.5),
    "a9a, user level, ring of 16": ("a9a", "user", "ring", 64, 3.0),
    "a9a, example level, ring of 16": ("a9a", "example", "ring", 64, 3.0),
    "a9a, user level, full batches, ring of 16": ("a9a", "user", "ring", None, 3.0),
    "cnn on mnist, user level, ring of 16": ("cnn", "user", "ring", 64, 2.5),
    "cnn on mnist, user level, full batches of 200, ring of 16": ("cnn", "user", "ring", None, 2.5),
}
STEPS = {"mnist": (10, 50), "a9a": (200, 2200), "cnn": (2, 10)}
FULL_STEPS = {"mnist": (1, 4), "a9a": (20, 220), "cnn": (2, 8)}
REPEATS = 7


def load(task: str) -> decor.Task:
    """The data of 16 users, and the model."""
    import decor

    if task != "cnn":
        return getattr(decor.tasks, task)(users=16, seed=0, shards="iid")
    shards = [(X[:200], y[:200]) for X, y in decor.tasks.mnist(users=16, seed=0).shards]
    return decor.Task(
        decor.models.cnn((1, 28, 28), (16, 32), 10), decor.losses.cross_entropy, shards
    )


def compare(
    what: str, task: str, unit: str, graph: str, batch_size: int | None, reach: float
) -> None:
    from dataclasses import replace

    import decor

    data, example = load(task), {}
    if unit == "example":
        example = {"unit": "example", "batch_size": batch_size, "records": data.records}
    topology = decor.ring(16) if graph == "ring" else decor.complete(16)
    plan = decor.NoisePlan(
        topology,
        decor.Exposure(clip=1.0, steps=10, **example),
        decor.Adversary.curious(),
        0.05,
        0.3,
    )
    options = {} if example else {"batch_size": batch_size}
    few, many = (STEPS if batch_size else FULL_STEPS)[task]
    best = {(seed, steps): float("inf") for seed in (0, None) for steps in (few, many)}

    def run(seed: int | None, steps: int) -> float:
        planned, engine = (
            replace(plan, exposure=replace(plan.exposure, steps=steps)),
            decor.Vectorised(seed=seed, threads=1),
        )
        began = time.process_time()
        decor.train(
            data, planned, learning_rate=0.1, engine=engine, evaluate_every=10**6, **options
        )
        return time.process_time() - began

    run(0, few), run(None, few)  # compiles
    for _ in range(REPEATS):
        for key in best:
            best[key] = min(best[key], run(*key))
    simulated, private = (
        (best[seed, many] - best[seed, few]) / (many - few) * 1e3 for seed in (0, None)
    )
    row = {
        "benchmark": "private",
        "what": what,
        "simulation_ms": round(simulated, 4),
        "private_ms": round(private, 4),
    }
    print(json.dumps(row | {"times": round(private / simulated, 2), "reach": reach}), flush=True)


def table(path: str) -> None:
    print(
        "| run | simulation, ms a step | private, ms a step | times | at most "
        "|\n|---|---|---|---|---|"
    )
    for line in open(path, encoding="utf-8"):
        row = json.loads(line)
        if "times" in row:
            figures = [
                f"{row[name]:.3g}" for name in ("simulation_ms", "private_ms", "times", "reach")
            ]
            print(f"| {row['what']} | {' | '.join(figures)} |")


def main(words: list[str]) -> None:
    if words[:1] == ["--table"]:
        table(words[1])
        return
    for name, row in ROWS.items():
        if not words or words[0] in name:
            compare(name, *row)


if __name__ == "__main__":
    main(sys.argv[1:])
