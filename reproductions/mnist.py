"""One point of the MNIST figure by hand (one seed, a minute), on the public names of decor alone,
beside what the study found.

DECOR_DATA=... python reproductions/mnist.py [epsilon]
"""

from __future__ import annotations

import sys

from committed import chosen

import decor

# on a ring of 16 users: everybody's average, in every step
GOSSIP = {"gossip_rounds": 8, "accelerate": "designed"}

epsilon = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
task = decor.tasks.mnist(users=16, seed=0)
row = chosen("mnist", "DECOR ring", epsilon)
exposure = decor.Exposure(
    clip=row["clip"],
    steps=240,
    unit="example",
    batch_size=512,
    records=task.records,
    sampling="poisson",
    relation="add-remove",
)
plan = decor.calibrate(
    decor.ring(16), exposure, decor.Adversary.eavesdropper(), decor.Budget(epsilon, 1e-5), **GOSSIP
)
run = decor.train(
    task,
    plan,
    learning_rate=row["learning_rate"],
    schedule=decor.schedule.InverseTime(120),
    evaluate_every=50,
    **GOSSIP,
)
print(run.guarantee)
print(
    f"test accuracy {run.metrics['accuracy']:.4f}; the study, over four seeds, {row['value']:.4f}"
)
