"""How long an audit takes, and how much of the claim it reaches. One JSON row each.

    python benchmarks/audit.py [NAME ...]

Every row is one call of `decor.audit` as it comes, in a process that has everything loaded: seconds
by the clock, and the least and the most that any adversary's best attack reaches of the claimed mu.
To reach: nine tenths in a minute on two cores.
"""

from __future__ import annotations

import json
import os
import sys

import decor

CURIOUS, BUDGET = decor.Adversary.curious(), decor.Budget(3.0, 1e-5)
USER = decor.Exposure(clip=1.0, steps=1000)
EXAMPLE = decor.Exposure(clip=1.0, steps=1000, unit="example", batch_size=64, records=3750)
ROWS = {
    "vectorised": (decor.ring(8), USER, CURIOUS, decor.Vectorised()),
    "vectorised-16": (
        decor.random_regular(16, 4, seed=0),
        USER,
        decor.Adversary.colluding(2),
        decor.Vectorised(),
    ),
    "process-group": (decor.ring(8), USER, CURIOUS, decor.ProcessGroup()),
    "peers": (decor.ring(8), USER, CURIOUS, decor.Peers()),
    "private": (decor.ring(8), USER, CURIOUS, decor.Vectorised(seed=None)),
    "private-example": (decor.ring(8), EXAMPLE, CURIOUS, decor.Vectorised(seed=None)),
    "vectorised-example": (decor.ring(8), EXAMPLE, CURIOUS, decor.Vectorised()),
    "peers-example": (decor.ring(8), EXAMPLE, CURIOUS, decor.Peers()),
}


def row(name: str) -> dict[str, object]:
    topology, exposure, adversary, engine = ROWS[name]
    plan = decor.calibrate(topology, exposure, adversary, BUDGET)
    decor.audit(plan, engine=engine, canaries=3000, steps=2)
    found = decor.audit(plan, engine=engine)
    shares = [each.best.reached for each in found.rows]
    return {
        "benchmark": "audit",
        "what": name,
        "graph": topology.description,
        "seconds": found.seconds,
        "reach_seconds": 60,
        "passed": found.passed,
        "attacks": sum(each.attacks for each in found.rows),
        "canaries": found.canaries,
        "steps": found.steps,
        "least_reached": round(min(shares), 4),
        "most_reached": round(max(shares), 4),
        "reach": 0.9,
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or ROWS:
        print(json.dumps(row(name)), flush=True)
