"""All cases of test_process_group.py; torchrun runs this on every rank, and rank 0 saves the runs.

torchrun --nproc-per-node 2 group_cases.py FOLDER [DEVICE]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import decor

STEPS = 6


def shards(users, features, classes):
    rng = np.random.default_rng(0)
    made = []
    for k in range(users):
        X = torch.from_numpy(rng.normal(size=(20 + k % 3, features)))
        made.append((X, torch.from_numpy(rng.integers(0, classes, len(X)))))
    return made


def task(kind, users):
    torch.manual_seed(0)
    if kind == "quadratic":
        return decor.tasks.least_squares(users=users, seed=0)
    if kind == "logistic":
        return decor.Task(decor.models.logistic(9), decor.losses.logistic, shards(users, 9, 2))
    test = shards(1, 13, 3)[0]
    if kind == "mlp":
        return decor.Task(
            decor.models.mlp(13, 40, 3), decor.losses.cross_entropy, shards(users, 13, 3), test=test
        )
    layers = nn.Sequential(nn.Linear(13, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    return decor.Task(layers, decor.losses.cross_entropy, shards(users, 13, 3), test=test)


def plan(topology, task=None, sampling="poisson", s=0.02, c=0.1):
    example = (
        {}
        if task is None
        else {"unit": "example", "batch_size": 7, "records": task.records, "sampling": sampling}
    )
    return decor.NoisePlan(
        topology,
        decor.Exposure(clip=0.5, steps=STEPS, **example),
        decor.Adversary.eavesdropper(),
        s,
        c,
    )


def cases():
    """name -> (task, plan, options of train)."""
    ring, torus, uneven = decor.ring(7), decor.torus(3, 4), decor.erdos_renyi(23, 0.2, seed=4)
    by_edge = tuple(0.05 * (1 + k % 3) for k in range(uneven.edge_count))
    mlp = task("mlp", 7)
    central = decor.baselines.central(ring, decor.Exposure(0.5, STEPS), decor.Budget(5.0, 1e-5))
    accelerated = {
        "gossip_rounds": 3,
        "accelerate": True,
        "final_gossip_rounds": 2,
        "momentum": 0.5,
    }
    return {
        "user level": (mlp, plan(ring), {}),
        "poisson": (mlp, plan(ring, mlp), {}),
        "fixed": (mlp, plan(ring, mlp, "fixed"), {"weight_decay": 0.1}),
        "several rounds, momentum": (task("logistic", 12), plan(torus), accelerated),
        "designed rounds": (
            task("logistic", 12),
            plan(torus),
            {"gossip_rounds": 3, "accelerate": "designed", "averaging": 0.5},
        ),
        "noise by edge": (task("logistic", 23), plan(uneven, c=by_edge), {"gossip_rounds": 2}),
        "own noise per user": (
            task("logistic", 23),
            plan(uneven, s=tuple(0.02 * (1 + k % 4) for k in range(23)), c=by_edge),
            {},
        ),
        "complete": (task("logistic", 8), plan(decor.complete(8)), {}),
        "large complete": (task("logistic", 70), plan(decor.complete(70)), {}),
        "star": (task("quadratic", 9), plan(decor.star(9)), {}),
        "module, batches": (task("module", 7), plan(ring), {"batch_size": 5, "local_steps": 2}),
        "module": (task("module", 7), plan(ring), {"local_steps": 2}),
        "central": (task("logistic", 7), central, {}),
        "no gossip": (task("logistic", 7), plan(ring), {"gossip_rounds": 0}),
    }


def train(engine, given, made, options):
    return decor.train(
        given, made, learning_rate=0.2, engine=engine, allow_disconnected=True, **options
    )


def main(folder, device="cpu"):
    engine = decor.ProcessGroup(dtype="float64", seed=3, device=device)
    for name, (given, made, options) in cases().items():
        run = train(engine, given, made, options)
        # on rank 0; the other ranks have no models, and save nothing
        run.save(folder / name.replace(" ", "-"))
    # a callback asks for runs and stops one; then it is resumed
    given, made, options = cases()["several rounds, momentum"]
    seen = []
    stopped = train(
        engine,
        given,
        made,
        options | {"evaluate_every": 2, "callbacks": lambda m: seen.append(m.run()) or m.step == 4},
    )
    first = bool(seen)
    if first:
        assert [run.steps_taken for run in seen] == [0, 2, 4] and all(
            len(v) == 12 for v in seen[1].models.values()
        )
    assert stopped.steps_taken == 4
    resumed = train(
        engine, given, made, options | {"evaluate_every": 2, "resume": stopped if first else None}
    )
    grid = decor.sweep(
        given,
        [made, plan(made.topology, c=0.3)],
        learning_rates=(0.1, 0.2),
        seeds=(3, 5),
        engine=engine,
        keep_models=True,
    )
    if first:
        resumed.save(folder / "resumed")
        for k, run in enumerate(grid.runs):
            run.save(folder / f"grid-{k}")
    secret = train(decor.ProcessGroup(seed=None), given, made, {})
    if first:
        secret.save(folder / "secret")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
