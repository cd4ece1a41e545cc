"""Small tasks of every kind, and plans for them."""

import numpy as np
import torch
from torch import nn

import decor
from decor import Adversary, Budget, Exposure, NoisePlan, Task, losses, models

USERS, STEPS = 6, 5
SAME, DIFFERENT = (8,) * USERS, (7, 4, 9, 5, 6, 8)


def shards(sizes, features, kind, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for m in sizes:
        X = torch.from_numpy(rng.normal(size=(m, *features)).astype(np.float32))
        if kind == "labels":
            y = torch.from_numpy(rng.integers(0, 3, m))
        elif kind == "two":
            y = torch.from_numpy(rng.integers(0, 2, m))
        else:
            y = torch.from_numpy(rng.normal(size=(m, 1)).astype(np.float32))
        made.append((X, y))
    return made


def convolution():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))


def make(kind, sizes=DIFFERENT):
    match kind:
        case "logistic":
            return Task(models.logistic(4), losses.logistic, shards(sizes, (4,), "two"))
        case "multinomial":
            return Task(
                models.multinomial(4, 3), losses.cross_entropy, shards(sizes, (4,), "labels")
            )
        case "tanh" | "relu":
            return Task(
                models.mlp(4, 5, 4, 3, activation=kind),
                losses.cross_entropy,
                shards(sizes, (4,), "labels"),
            )
        case "squares":
            torch.manual_seed(0)
            return Task(nn.Linear(4, 1), losses.squared, shards(sizes, (4,), "numbers"))
        case "least-squares":
            return decor.tasks.least_squares(len(sizes), dimension=4)
        case "convolution":
            return Task(convolution(), losses.cross_entropy, shards(sizes, (1, 4, 4), "labels"))
    raise AssertionError(kind)


def planned(
    task,
    unit="user",
    clip=0.5,
    topology=None,
    sampling=None,
    batch=3,
    steps=STEPS,
    s=0.05,
    c=0.4,
    **more,
):
    topology = topology or decor.ring(task.users)
    example = (
        {"batch_size": batch, "records": task.records, "sampling": sampling}
        if unit == "example"
        else {}
    )
    return NoisePlan(
        topology,
        Exposure(clip, steps, unit=unit, **example),
        Adversary.eavesdropper(),
        s,
        c,
        **more,
    )


def private(task, steps=12, **more):
    return planned(task, steps=steps, budget=Budget(3.0, 1e-5), s=2.0, c=3.0, **more)
