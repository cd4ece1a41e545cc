"""One point of the least-squares figure by hand, on the public names of decor alone, beside what
the study found.

python reproductions/least_squares.py [epsilon [seeds]]
"""

from __future__ import annotations

import sys

import numpy as np
from committed import chosen

import decor

STEPS = 3500
# on a ring of 16 users: everybody's average, in every step
GOSSIP = {"gossip_rounds": 8, "accelerate": "designed"}

epsilon = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 5  # all that the study has
budget = decor.Budget(epsilon, delta=1e-5)
exposure = decor.Exposure(clip=1.0, steps=STEPS)
ring = decor.ring(16)
plans = {
    "central DP": decor.baselines.central(ring, exposure, budget),
    "DECOR ring": decor.calibrate(ring, exposure, decor.Adversary.eavesdropper(), budget, **GOSSIP),
    "local DP ring": decor.baselines.local(ring, exposure, budget),
}

for method, plan in plans.items():
    row = chosen("least-squares", method, epsilon)
    found = []
    for seed in range(seeds):
        run = decor.train(
            decor.tasks.least_squares(users=16, seed=seed),
            plan,
            learning_rate=row["learning_rate"],
            schedule=decor.schedule.Cosine(),
            engine=decor.Vectorised(seed=seed),
            evaluate_every=range(STEPS - 199, STEPS + 1),
            **GOSSIP,
        )
        found.append(np.mean(run.history["distance"][-200:]))
    study = np.mean(row["values"][:seeds])
    print(
        f"{method:14} epsilon {plan.guarantee(1e-5).epsilon:.4g}: {np.mean(found):.4g}, the "
        f"study {study:.4g}"
    )
