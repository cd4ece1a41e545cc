"""How fast peers draw their noise: millions of Gaussians a second on one core, and a step's
message, in CPU time.

    python benchmarks/noise.py             # all rows, one JSON object a line
    python benchmarks/noise.py message     # rows whose name contains "message"

Everything is called once before it is timed, so that compilation does not count; `best` and
`median` are of `TIMES` calls.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402

from decor.noise import integer_gaussians  # noqa: E402
from decor.noise.grid import Grid  # noqa: E402

TIMES = 30
MANY, PARAMETERS = 1_000_000, 80_000
KEYS = [bytes([k]) * 32 for k in range(3)]


def seconds(work) -> tuple[float, float]:
    """(best, median) CPU seconds of a call."""
    work()
    found = []
    for _ in range(TIMES):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found), statistics.median(found)


def row(what: str, gaussians: int, reach_ms: float | None, work) -> None:
    best, median = seconds(work)
    value = {
        "benchmark": "noise",
        "what": what,
        "cpu_ms": round(best * 1e3, 3),
        "cpu_ms_median": round(median * 1e3, 3),
    }
    value |= {"reach_ms": reach_ms, "gaussians": gaussians}
    value |= {
        "mgaussians": round(gaussians / best / 1e6, 1),
        "mgaussians_median": round(gaussians / median / 1e6, 1),
    }
    print(json.dumps(value), flush=True)


def edge_noise():
    row(
        f"noise of an edge, {MANY:,} values",
        MANY,
        None,
        lambda: integer_gaussians.edge_noise(KEYS[0], MANY),
    )


def own_noise():
    row(
        f"a user's own noise, {MANY:,} values",
        MANY,
        None,
        lambda: integer_gaussians.own_noise(KEYS[0], MANY),
    )


def message():
    ring = [(i, (i + 1) % 16) for i in range(16)]
    grid = Grid.of(0.05, [0.3] * 16, ring, users=16, shift=2.0, parameters=PARAMETERS, steps=1000)
    gradient = np.random.default_rng(0).standard_normal(PARAMETERS) / PARAMETERS**0.5
    ends = [(KEYS[1], grid.multiples[0]), (KEYS[2], -grid.multiples[15])]
    row(
        f"a step's message with two edges and their tags, {PARAMETERS:,} coordinates",
        3 * PARAMETERS,
        2.0,
        lambda: grid.add_noise(gradient, KEYS[0], ends),
    )


ROWS = {"shared": edge_noise, "own": own_noise, "message": message}


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, measure in ROWS.items():
        if wanted in name:
            measure()


if __name__ == "__main__":
    main()
