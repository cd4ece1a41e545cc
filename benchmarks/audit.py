"""How long an audit takes, and how much of the claim it reaches. One JSON row each.

    python benchmarks/audit.py [NAME ...]

Every row is one call of `decor.audit` as it comes, in a process that has everything loaded: seconds
by the clock, and the least and the most that any adversary's best attack reaches of the claimed mu.
To reach: nine tenths in a minute on two cores. The row "function" is `decor.audit_function` of a
training loop in NumPy that takes about a millisecond a call, and is correct.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

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


STEPS, RECORDS = 30, 300
NOISE = decor.baselines.local(decor.path(2), decor.Exposure(1.0, STEPS), BUDGET).sigma_cdp


def noisy_sums(data, seed):  # type: ignore[no-untyped-def]
    """Logistic regression; the adversary sees the noisy sum of clipped gradients in each step."""
    X, y = data
    rng, weights, sent = np.random.default_rng(seed), np.zeros(X.shape[1]), []
    for _ in range(STEPS):
        gradients = (1 / (1 + np.exp(-X @ weights)) - y)[:, None] * X
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = (gradients * np.minimum(1, 1 / np.maximum(lengths, 1e-12))).sum(axis=0)
        sent.append(total + NOISE * rng.normal(size=weights.size))
        weights = weights - 0.001 * sent[-1]  # small, so that the first gradient stays long
    return sent


def function_row() -> dict[str, object]:
    # the first record alone has a third feature, and longer gradients than the clip
    X = np.vstack([[0, 0, 9], np.random.default_rng(0).normal(size=(RECORDS - 1, 3)) * [1, 1, 0]])
    y = np.arange(RECORDS) % 2
    pair = ((X, y), (X, np.where(np.arange(RECORDS) == 0, 1 - y, y)))
    start = time.perf_counter()
    for seed in range(500):
        noisy_sums(pair[0], seed)
    call = (time.perf_counter() - start) / 500
    found = decor.audit_function(
        noisy_sums, epsilon=BUDGET.epsilon, delta=BUDGET.delta, datasets=pair
    )
    return {
        "benchmark": "audit",
        "what": "function",
        "milliseconds_a_call": round(1e3 * call, 2),
        "seconds": round(found.seconds, 2),
        "reach_seconds": 60,
        "passed": found.passed,
        "calls": found.calls,
        "attack": found.attack.kind,
        "reached": round(found.reached, 4),
        "reach": 0.9,
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or (*ROWS, "function"):
        print(json.dumps(function_row() if name == "function" else row(name)), flush=True)
