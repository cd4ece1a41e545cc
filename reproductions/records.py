"""One point of the records by hand (one seed; two minutes on an idle core), on the public names of
decor alone, beside what the study found.

DECOR_DATA=... python reproductions/records.py [mnist | fashion-mnist [epsilon]]
"""

from __future__ import annotations

import sys

from committed import rows

import decor

# on a ring of 16 users: everybody's average, in every step
GOSSIP = {"gossip_rounds": 8, "accelerate": "designed"}

dataset = sys.argv[1] if len(sys.argv) > 1 else "mnist"
epsilon = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
load = decor.tasks.mnist if dataset == "mnist" else decor.tasks.fashion_mnist
task = load(users=16, shards="iid", features="scattering")
names = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
(row,) = (
    r
    for r in rows("records")
    if (r["dataset"], r["method"], r["epsilon"]) == (names[dataset], "DECOR ring", epsilon)
)
exposure = decor.Exposure(
    clip=row["clip"],
    steps=int(row["steps"]),
    unit="example",
    batch_size=int(row["batch_size"]),
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
    momentum=row["momentum"],
    evaluate_every=50,
    engine=decor.Vectorised(seed=0),
    **GOSSIP,
)
print(run.guarantee)
print(
    f"test accuracy {run.metrics['accuracy']:.4f}; the study, with this seed, "
    f"{row['values'][0]:.4f}, and over four seeds {row['value']:.4f}"
)
