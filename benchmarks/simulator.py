"""How fast the simulator is: CPU milliseconds a step on one thread, each row in a process of its
own.

    python benchmarks/simulator.py             # all rows, one JSON object a line python
    benchmarks/simulator.py mnist       # rows whose name contains "mnist" python
    benchmarks/simulator.py --table benchmarks/simulator.jsonl      # the table of
    docs/benchmarks.md

Every row calls `decor.train` or `decor.sweep` twice, with few and with many steps; a step's cost is
the difference, so that data, compilation and the measurements at both ends do not count. Beside it
stands the machine's own floor: the row's multiplications, bytes and Gaussians at the rates that
plain products, plain copies and the generator reach in the same process.

Rows "a9a" and "mnist" need the data in DECOR_DATA.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# the code published with the paper (commit 68ad698) on a machine of this kind, measured once: CPU
# ms a step
PAPER = {"mnist": 470.0, "a9a": 10.0, "least squares": 0.17}


def plan(topology, epsilon=10.0, clip=1.0, steps=1000, **example):
    import decor

    exposure = decor.Exposure(clip=clip, steps=steps, **example)
    return decor.calibrate(
        topology, exposure, decor.Adversary.eavesdropper(), decor.Budget(epsilon, 1e-5), ratio=30.0
    )


def with_steps(one, steps):
    from dataclasses import replace

    return replace(one, exposure=replace(one.exposure, steps=steps), budget=None)


def per_step(run, few: int, many: int, repeats: int = 5) -> tuple[float, float]:
    """(CPU, wall) seconds a step: the difference between the best long and the best short run."""
    run(few)
    best = {few: [float("inf")] * 2, many: [float("inf")] * 2}
    for _ in range(repeats):
        for steps in (few, many):
            cpu, wall = time.process_time(), time.perf_counter()
            run(steps)
            taken = (time.process_time() - cpu, time.perf_counter() - wall)
            best[steps] = [min(pair) for pair in zip(best[steps], taken, strict=True)]
    cpu, wall = ((b - a) / (many - few) for a, b in zip(best[few], best[many], strict=True))
    return cpu, wall


def rates() -> dict[str, float]:
    """What this machine does at best: multiply-adds, bytes and Gaussians a second, on one
    thread.
    """
    import numpy as np
    import torch

    from decor.noise.gaussians import fill

    def best(work, times: int) -> float:
        found = []
        for _ in range(times):
            start = time.process_time()
            work()
            found.append(time.process_time() - start)
        return min(found[1:])

    A, B, C = torch.randn(512, 512), torch.randn(512, 512), torch.empty(512, 512)
    X, Y, Z = torch.randn(4_000_000), torch.empty(4_000_000), np.empty(1_000_000, np.float32)
    return {
        "gflops": 2 * 512**3 / best(lambda: torch.mm(A, B, out=C), 20) / 1e9,
        "gbytes": 2 * 4 * 4_000_000 / best(lambda: Y.copy_(X), 20) / 1e9,
        "mgaussians": 1e6 / best(lambda: fill(Z, np.uint64(1), 0, 0, 0), 20) / 1e6,
    }


def floor(flops: float, numbers: float, gaussians: float) -> tuple[float, dict]:
    """Milliseconds that a step cannot be faster than: its products, every model read and written
    once, its Gaussians.
    """
    found = rates()
    ms = (
        flops / found["gflops"] / 1e6
        + 8 * numbers / found["gbytes"] / 1e6
        + gaussians / found["mgaussians"] / 1e3
    )
    return ms, {key: round(value, 1) for key, value in found.items()}


def row(
    what: str,
    ms: float,
    reach: float | None,
    flops: float,
    numbers: float,
    gaussians: float,
    **more,
) -> None:
    least, found = floor(flops, numbers, gaussians)
    value = {
        "benchmark": "simulator",
        "what": what,
        "cpu_ms": round(ms, 4),
        "reach_ms": reach,
        "floor_ms": round(least, 4),
    }
    print(json.dumps(value | {"times_floor": round(ms / least, 2)} | more | found), flush=True)


def mnist(level: str, path: str = "auto", threads: int = 1):
    import decor

    task = decor.tasks.mnist(users=16, seed=0, shards="iid")
    example = (
        {"unit": "example", "batch_size": 64, "records": task.records} if level == "example" else {}
    )
    base = decor.NoisePlan(
        decor.ring(16),
        decor.Exposure(clip=1.0, steps=10, **example),
        decor.Adversary.eavesdropper(),
        0.05,
        0.3,
    )
    options = {} if level == "example" else {"batch_size": 64}
    engine = decor.Vectorised(path=path, threads=threads)

    def run(steps):
        decor.train(
            task,
            with_steps(base, steps),
            learning_rate=0.1,
            engine=engine,
            evaluate_every=10**6,
            **options,
        )

    return run


MNIST_FLOPS = 2 * 16 * 64 * (2 * 784 * 128 + 3 * 128 * 10) + 2 * 2 * 16 * 16 * 101_770
MNIST_NUMBERS = 16 * 101_770


def mnist_example():
    cpu, _ = per_step(mnist("example"), 10, 110)
    row(
        "mnist 784-128-10, batch 64, example level",
        cpu * 1e3,
        12.0,
        MNIST_FLOPS,
        MNIST_NUMBERS,
        MNIST_NUMBERS,
        paper_ms=PAPER["mnist"],
    )


def mnist_generic():
    """Built-in and generic path taken in turn, so that the machine's mood meets both."""
    fast, general = [], []
    built, generic = mnist("user"), mnist("user", "generic")
    for _ in range(3):
        fast.append(per_step(built, 5, 55, 2)[0])
        general.append(per_step(generic, 5, 55, 2)[0])
    print(
        json.dumps(
            {
                "benchmark": "simulator",
                "what": "mnist network, user level: generic nn.Module path against built-in",
                "cpu_ms": round(min(general) * 1e3, 3),
                "built_in_ms": round(min(fast) * 1e3, 3),
                "ratio": round(min(general) / min(fast), 3),
                "reach_ratio": 1.5,
            }
        ),
        flush=True,
    )


def a9a_one():
    import decor

    task = decor.tasks.a9a(users=16, seed=0)
    base = plan(decor.ring(16), clip=0.1)

    def run(steps):
        engine = decor.Vectorised(threads=1)
        decor.train(
            task,
            with_steps(base, steps),
            learning_rate=0.01,
            engine=engine,
            batch_size=64,
            evaluate_every=10**6,
        )

    cpu, _ = per_step(run, 100, 4100)
    d = 124
    row(
        "a9a logistic, batch 64, one run",
        cpu * 1e3,
        0.2,
        4 * 16 * 64 * d + 4 * 256 * d,
        16 * 64 * d / 4 + 16 * d,
        16 * d,
        paper_ms=PAPER["a9a"],
    )


def a9a_many():
    import decor

    task = decor.tasks.a9a(users=16, seed=0)
    epsilons = (3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0)
    bases = [plan(decor.ring(16), epsilon, clip=0.1) for epsilon in epsilons]
    rates = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

    def run(steps):
        plans = [with_steps(base, steps) for base in bases]
        engine = decor.Vectorised(threads=1)
        decor.sweep(
            task, plans, learning_rates=rates, engine=engine, batch_size=64, evaluate_every=10**6
        )

    cpu, _ = per_step(run, 50, 1050)
    count, d = 63, 124
    work = count * (4 * 16 * 64 * d + 4 * 256 * d)
    row(
        "a9a logistic, batch 64, 63 settings batched",
        cpu * 1e3,
        63 * 10 / 500,
        work,
        count * 16 * d,
        16 * d,
        paper_ms=63 * PAPER["a9a"],
        times_faster_per_run=round(63 * 10.0 / (cpu * 1e3)),
    )


def least_squares_many():
    import decor

    task = decor.tasks.least_squares(users=16, seed=0)
    epsilons = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0)
    bases = [plan(decor.ring(16), epsilon) for epsilon in epsilons]
    rates = (0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.004)

    def run(steps):
        plans = [with_steps(base, steps) for base in bases]
        engine = decor.Vectorised(threads=1)
        decor.sweep(
            task, plans, learning_rates=rates, seeds=range(5), engine=engine, evaluate_every=10**6
        )

    cpu, _ = per_step(run, 100, 2100)
    count, d = 350, 10
    work = count * (2 * 16 * d * d + 4 * 256 * d)
    row(
        "least squares, 350 settings batched",
        cpu * 1e3,
        350 * 0.17 / 200,
        work,
        count * 16 * d,
        5 * 16 * d,
        paper_ms=350 * PAPER["least squares"],
        times_faster_per_run=round(350 * 0.17 / (cpu * 1e3)),
    )


def crowd(users: int):
    """A ring of users who hold 64 records shaped like a9a's: 14 of 123 indicators, and a label."""
    import torch

    import decor

    generator = torch.Generator().manual_seed(0)
    X = torch.zeros(users * 64, 123)
    X.scatter_(1, torch.randint(0, 123, (users * 64, 14), generator=generator), 1.0)
    y = torch.randint(0, 2, (users * 64,), generator=generator).float()
    task = decor.Task(
        decor.models.logistic(123),
        decor.losses.logistic,
        list(zip(X.split(64), y.split(64), strict=True)),
    )
    del X
    base = plan(decor.ring(users))

    def run(steps, callbacks=()):
        engine = decor.Vectorised(threads=1)
        options = {"engine": engine, "evaluate_every": 10**6, "callbacks": callbacks}
        decor.train(task, with_steps(base, steps), learning_rate=0.1, **options)

    return run


def _status(field: str) -> float:
    with open("/proc/self/status", encoding="utf-8") as file:
        return float(next(line for line in file if line.startswith(field)).split()[1]) / 1024


def users(count: int):
    run = crowd(count)
    steps = max(60, 16_384 // count)
    cpu, _ = per_step(run, 2, 2 + steps, 3)

    def begin(moment):  # from here to the end, memory beside data and set-up
        if moment.step == 0:
            # what set-up has freed would otherwise hide what training takes
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
                file.write("5")
            memory.append(_status("VmRSS"))

    memory: list[float] = []
    run(4, (begin,))
    work = count * 124
    row(
        f"users on a ring, a9a's shape, {count:,} users",
        cpu * 1e3,
        None,
        4 * count * 64 * 124,
        work + count * 64 * 124 / 4,
        work,
        microseconds_per_user=round(cpu * 1e6 / count, 3),
        models_mb=round(4 * work / 2**20, 2),
        training_memory_mb=round(_status("VmHWM") - memory[0], 2),
    )


def threads():
    """Wall time with one thread, with what the engine chooses, and with two, where two cores are
    there.
    """
    import decor

    task = decor.tasks.a9a(users=16, seed=0)
    base = plan(decor.ring(16), clip=0.1)

    def small(count):
        def run(steps):
            engine = decor.Vectorised(threads=count)
            decor.train(
                task,
                with_steps(base, steps),
                learning_rate=0.01,
                engine=engine,
                batch_size=64,
                evaluate_every=10**6,
            )

        return run

    for what, make, few, many in (
        ("mnist, example level", lambda c: mnist("example", threads=c), 5, 55),
        ("a9a, one run", small, 50, 2050),
    ):
        runs = {str(count): make(count) for count in (1, None, 2)}
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(2):
            for name, run in runs.items():
                best[name] = min(best[name], per_step(run, few, many, 3)[1])
        value = {
            "benchmark": "simulator",
            "what": f"threads: {what}",
            "wall_ms_one": round(best["1"] * 1e3, 3),
        }
        value |= {
            "wall_ms_automatic": round(best["None"] * 1e3, 3),
            "wall_ms_two": round(best["2"] * 1e3, 3),
        }
        print(
            json.dumps(value | {"automatic_over_one": round(best["None"] / best["1"], 3)}),
            flush=True,
        )


def demo():
    """What `make demo` runs after the installation."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "decor",
            "compare",
            "--gossip-rounds",
            "4",
            "--final-gossip-rounds",
            "16",
            "--seeds",
            "24",
        ]
        start = time.perf_counter()
        subprocess.run(
            [*command, "--output", folder + "/demo"], check=True, stdout=subprocess.DEVNULL
        )
        seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "benchmark": "simulator",
                "what": "make demo after installation, wall seconds",
                "seconds": round(seconds, 1),
                "reach_seconds": 60,
            }
        ),
        flush=True,
    )


ROWS = {
    "mnist example": mnist_example,
    "mnist generic": mnist_generic,
    "a9a one": a9a_one,
    "a9a many": a9a_many,
    "least squares": least_squares_many,
    "users 16": lambda: users(16),
    "users 256": lambda: users(256),
    "users 4096": lambda: users(4096),
    "users 16384": lambda: users(16_384),
    "threads": threads,
    "demo": demo,
}


def table(rows: list[dict]) -> str:
    """The rows as they stand in docs/benchmarks.md."""
    lines = [
        "| what | CPU ms a step | reach | floor | times the floor | the paper's code |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "floor_ms" in row and "microseconds_per_user" not in row:
            reach = "" if row["reach_ms"] is None else f"{row['reach_ms']:g}"
            faster = f"{row['paper_ms']:g} ({row['paper_ms'] / row['cpu_ms']:.0f}x)"
            lines.append(
                f"| {row['what']} | {row['cpu_ms']:g} | {reach} | {row['floor_ms']:g} | "
                f"{row['times_floor']} | {faster} |"
            )
    lines += [
        "",
        "| users on a ring, 64 records like a9a's each | CPU µs a step and user | models, MB | "
        "memory of training, MB |",
        "|---|---|---|---|",
    ]
    for row in rows:
        if "microseconds_per_user" in row:
            count = row["what"].split(", ")[-1]
            lines.append(
                f"| {count} | {row['microseconds_per_user']} | {row['models_mb']} | "
                f"{row['training_memory_mb']} |"
            )
    lines += ["", "| also | measured | reach |", "|---|---|---|"]
    for row in rows:
        if "ratio" in row:
            said = f"{row['ratio']} ({row['cpu_ms']:g} ms against {row['built_in_ms']:g})"
            lines.append(f"| {row['what']} | {said} | {row['reach_ratio']} |")
        elif "automatic_over_one" in row:
            said = (
                f"one {row['wall_ms_one']:g} ms, two {row['wall_ms_two']:g} ms, automatic "
                f"{row['wall_ms_automatic']:g} ms"
            )
            lines.append(f"| {row['what']}, wall time | {said} | never slower than one |")
        elif "seconds" in row:
            lines.append(f"| {row['what']} | {row['seconds']} | {row['reach_seconds']} |")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["--table"]:
        with open(sys.argv[2], encoding="utf-8") as file:
            print(table([json.loads(line) for line in file]))
        return
    if sys.argv[1:2] == ["--one"]:
        ROWS[sys.argv[2]]()
        return
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name in ROWS:
        if wanted in name:
            more = {} if name != "threads" else {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
            subprocess.run(
                [sys.executable, __file__, "--one", name], check=True, env=os.environ | more
            )


if __name__ == "__main__":
    main()
