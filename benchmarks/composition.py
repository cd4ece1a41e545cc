"""How long it takes to compose 100 runs of a ledger: CPU seconds on one thread.

    python benchmarks/composition.py            # all rows, one JSON object a line

Every row is a fresh question: caches are cleared before each call, and the best of three counts.
`reach` is the target that the project set itself.
"""

from __future__ import annotations

import json
import os
import time

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import decor  # noqa: E402
from decor.privacy import composition  # noqa: E402
from decor.privacy.composition import PastRun, Question, compose  # noqa: E402
from decor.privacy.leverage.coalition import worst_leverages  # noqa: E402

DELTA, RUNS = 1e-5, 100
USER, ADDED = Question("user"), Question("example", "add-remove")


def runs(
    unit: str, different: bool, sampling: str | None = None, noise: float = 1.0
) -> list[PastRun]:
    """A hundred runs on a 4-regular graph, with `noise` times what epsilon 1 takes, or more."""
    exposure = decor.Exposure(1.0, 100)
    if unit == "example":
        exposure = decor.Exposure(1.0, 100, "example", 64, 3750, sampling)
    plan = decor.calibrate(
        decor.random_regular(16, 4), exposure, decor.Adversary.curious(), decor.Budget(1.0, DELTA)
    )
    factors = [noise * (1 + 0.01 * i * different) for i in range(RUNS)]
    return [PastRun(plan.scaled(factor), 3, distance=1e-25) for factor in factors]


def cases() -> dict[str, tuple[list[PastRun], Question, float]]:
    """What is measured: the runs, the question, and the target in seconds."""
    poisson, fixed = (runs("example", False, kind) for kind in ("poisson", "fixed"))
    different = runs("example", True, "poisson")
    user = runs("user", False)
    half = RUNS // 2
    return {
        "user level, one plan": (user, USER, 0.1),
        "user level, 100 plans": (runs("user", True), USER, 0.1),
        # so much more noise that a user is protected as well
        "user level, 100 Poisson plans": (runs("example", True, "poisson", 2000.0), USER, 0.1),
        "example level, one Poisson plan": (poisson, ADDED, 2.0),
        "example level, Poisson and fixed size": (poisson[:half] + fixed[:half], ADDED, 2.0),
        "example level, Poisson and user level": (poisson[:half] + user[:half], ADDED, 2.0),
        "example level, 100 Poisson plans": (different, ADDED, 2.0),
    }


def main() -> None:
    for name, (past, question, reach) in cases().items():
        seconds = []
        for _ in range(3):
            worst_leverages.cache_clear()
            composition._epsilon_of_phases.cache_clear()
            start = time.process_time()
            epsilon = compose(past, question, DELTA)
            seconds.append(time.process_time() - start)
        row = {"benchmark": "composition", "what": name, "runs": RUNS}
        row |= {"cpu_seconds": round(min(seconds), 5), "reach": reach, "epsilon": epsilon}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
