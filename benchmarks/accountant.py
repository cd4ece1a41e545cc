"""How long the accountant takes: CPU seconds on one thread, each row in a process of its own, with
its peak memory.

    python benchmarks/accountant.py            # all rows, one JSON object a line python
    benchmarks/accountant.py ring       # rows whose name contains "ring" python
    benchmarks/accountant.py --table benchmarks/accountant.jsonl      # the table of
    docs/benchmarks.md

Every row calls what users call. A row's first call (numba compiles once a machine) and imports are
not counted, but measured beside it as `first_seconds`. `reach` is the target that the project set
itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

DELTA = 1e-5


def plan(topology, colluders=0, ratio=100.0, sigma=60.0):
    import decor

    return decor.NoisePlan(
        topology, decor.Exposure(1.0, 1000), decor.Adversary(colluders), sigma, sigma * ratio**0.5
    )


def everybody(topology, colluders=0, ratio=100.0):
    """The epsilon of every user, as a fresh question: caches are for people who ask twice."""
    from decor.privacy.leverage.coalition import worst_leverages

    def ask():
        worst_leverages.cache_clear()
        guarantee = plan(topology, colluders, ratio).guarantee(DELTA)
        assert guarantee.exact and guarantee.per_user.shape == (topology.users,)
        return {"epsilon": guarantee.epsilon, "exact": guarantee.exact}

    return ask


def sixteen_users(topology):
    counter = iter(range(1, 10**9))

    def ask():
        for _ in range(1000):  # another ratio every time, so that no answer is remembered
            plan(topology, ratio=100.0 + 1e-3 * next(counter)).guarantee(DELTA).epsilon  # noqa: B018

    return ask


def couples():
    import numpy as np

    import decor

    ratios = np.geomspace(1e-2, 1e6, 10_000)
    budget = decor.Budget(3.0, DELTA)
    return lambda: (
        decor.couples(decor.ring(16), decor.Exposure(1.0, 1000), decor.Adversary(0), budget, ratios)
        and None
    )


def torus_as_edges(side):
    import decor

    return decor.from_edges(side * side, decor.torus(side, side).edges)


def make(name: str) -> Callable[[], dict | None]:
    import decor

    return {
        "epsilon, ring of 16, eavesdropper (x1000)": lambda: sixteen_users(decor.ring(16)),
        "epsilon, random 4-regular 16, eavesdropper (x1000)": lambda: sixteen_users(
            decor.random_regular(16, 4)
        ),
        "10,000 couples, 16 users": couples,
        "curious, ring of 1024": lambda: everybody(decor.ring(1024), 1),
        "curious, random 4-regular 1024": lambda: everybody(decor.random_regular(1024, 4), 1),
        "ring 1e6 (closed form)": lambda: everybody(decor.ring(1_000_000)),
        "ring 1e6 (from edges)": lambda: everybody(
            decor.from_edges(1_000_000, decor.ring(1_000_000).edges)
        ),
        "torus 1e5 (from edges)": lambda: everybody(torus_as_edges(316)),
        "random 4-regular 1e4": lambda: everybody(decor.random_regular(10_000, 4)),
        "Erdos-Renyi degree 10, 1e4": lambda: everybody(decor.erdos_renyi(10_000, 10 / 9_999)),
        "hypercube 256, 7 colluding": lambda: everybody(decor.hypercube(8), 7),
        "random 8-regular 256, 6 colluding, ratio 1": lambda: everybody(
            decor.random_regular(256, 8), 6, 1.0
        ),
        "random 8-regular 256, 6 colluding, ratio 10": lambda: everybody(
            decor.random_regular(256, 8), 6, 10.0
        ),
        "random 8-regular 256, 6 colluding, ratio 100": lambda: everybody(
            decor.random_regular(256, 8), 6, 100.0
        ),
        "random 8-regular 256, 6 colluding, ratio 1e4": lambda: everybody(
            decor.random_regular(256, 8), 6, 1e4
        ),
    }[name]()


REACH = {
    "epsilon, ring of 16, eavesdropper (x1000)": 0.2,
    "epsilon, random 4-regular 16, eavesdropper (x1000)": 0.2,
    "10,000 couples, 16 users": 0.01,
    "curious, ring of 1024": 0.5,
    "curious, random 4-regular 1024": None,
    "ring 1e6 (closed form)": 1.0,
    "ring 1e6 (from edges)": None,
    "torus 1e5 (from edges)": 3.0,
    "random 4-regular 1e4": 3.0,
    "Erdos-Renyi degree 10, 1e4": 8.0,
    "hypercube 256, 7 colluding": 1.0,
    "random 8-regular 256, 6 colluding, ratio 1": 60.0,
    "random 8-regular 256, 6 colluding, ratio 10": 60.0,
    "random 8-regular 256, 6 colluding, ratio 100": 60.0,
    "random 8-regular 256, 6 colluding, ratio 1e4": 60.0,
}


def one(name: str) -> None:
    """One row, in this process."""
    import resource

    ask = make(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, answer = [], None
    for _ in range(1 + (1 if "256, 6" in name else 3)):
        start = time.process_time()
        answer = ask()
        seconds.append(time.process_time() - start)
    row = {
        "benchmark": "accountant",
        "what": name,
        "cpu_seconds": round(min(seconds[1:]), 6),
        "reach": REACH[name],
    }
    row["first_seconds"] = round(seconds[0], 3)
    row["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    row["of_which_imports_and_graph_mb"] = round(before / 1024)
    print(json.dumps(row | (answer or {})), flush=True)


def shell() -> None:
    """`decor plan` from the shell, against starting Python with the libraries that it stands on;
    CPU seconds, best of 7.
    """
    import resource

    def best(command: list[str]) -> float:
        times = []
        for _ in range(7):
            a = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            b = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime)
        return min(times)

    bare = best([sys.executable, "-c", "import numpy, scipy, networkx"])
    ours = best([sys.executable, "-m", "decor", "plan", "--epsilon", "3"])
    row = {
        "benchmark": "accountant",
        "what": "decor plan, 16 users, from the shell",
        "cpu_seconds": round(ours, 3),
    }
    row |= {
        "python_with_libraries_seconds": round(bare, 3),
        "ratio": round(ours / bare, 2),
        "reach_ratio": 2.0,
    }
    print(json.dumps(row), flush=True)


def table(rows: list[dict]) -> str:
    """The rows as they stand in docs/benchmarks.md."""
    lines = [
        "| what | CPU seconds | reach | first call | peak memory, MB |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if "ratio" in row:
            lines.append(
                f"| {row['what']} | {row['cpu_seconds']} ({row['ratio']}x Python with "
                "its libraries) | 2x | | |"
            )
            continue
        reach = "" if row["reach"] is None else row["reach"]
        lines.append(
            f"| {row['what']} | {row['cpu_seconds']:.4g} | {reach} | {row['first_seconds']:.3g} | "
            f"{row['peak_memory_mb']} |"
        )
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["--table"]:
        with open(sys.argv[2], encoding="utf-8") as file:
            print(table([json.loads(line) for line in file]))
        return
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
        return
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name in REACH:
        if wanted in name:
            subprocess.run([sys.executable, __file__, "--one", name], check=True)
    if wanted in "decor plan from the shell":
        shell()


if __name__ == "__main__":
    main()
