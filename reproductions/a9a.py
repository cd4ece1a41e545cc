"""One point of the a9a figure by hand, on the public names of decor alone, beside what the study
found.

DECOR_DATA=... python reproductions/a9a.py [epsilon [seeds]]
"""

from __future__ import annotations

import sys

import numpy as np
from committed import chosen

import decor

STEPS = 5000
# on a ring of 16 users: everybody's average, in every step
GOSSIP = {"gossip_rounds": 8, "accelerate": "designed"}

epsilon = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 4  # all that the study has
budget = decor.Budget(epsilon, delta=1e-5)
ring = decor.ring(16)
tasks = [decor.tasks.a9a(users=16, seed=seed) for seed in range(seeds)]
losses: dict[str, list[float]] = {}

for method in ("central DP", "DECOR ring", "local DP ring"):
    row = chosen("a9a", method, epsilon)
    exposure = decor.Exposure(clip=row["clip"], steps=STEPS)
    if method == "DECOR ring":
        plan = decor.calibrate(ring, exposure, decor.Adversary.eavesdropper(), budget, **GOSSIP)
    else:
        plan = (decor.baselines.central if method == "central DP" else decor.baselines.local)(
            ring, exposure, budget
        )
    for seed, task in enumerate(tasks):
        run = decor.train(
            task,
            plan,
            learning_rate=row["learning_rate"],
            schedule=decor.schedule.InverseTime(5000),
            weight_decay=1e-5,
            batch_size=64,
            engine=decor.Vectorised(seed=seed),
            evaluate_every=STEPS,
            **GOSSIP,
        )
        losses.setdefault(method, []).append(run.metrics["loss"])
    # the optimum is the same for all methods, so that differences need not know it
    above = np.mean(losses[method]) - np.mean(losses["central DP"])
    study = np.mean(row["values"][:seeds]) - np.mean(
        chosen("a9a", "central DP", epsilon)["values"][:seeds]
    )
    print(
        f"{method:14} epsilon {plan.guarantee(1e-5).epsilon:.4g}: {above:.5f} above central DP, "
        f"in the study {study:.5f}"
    )
