"""Figure 1, middle: logistic regression on a9a, user level.

The value is the average model's loss above the optimum.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

import decor
from decor.arrays import Array

from . import figure_one, published
from .study import OURS, Row, Study, by_graph
from .tuning import Choice, Curve, default_ratio

STEPS, BATCH, DECAY, HORIZON = 5000, 64, 1e-5, 5000
CLIPS = (0.01, 0.1)
PRODUCTS = (5e-5, 1e-4, 2e-4, 3.5e-4, 0.0005, 0.0007, 0.001, 0.0014, 0.002, 0.0028, 0.004, 0.0056)
"""Step size times clip, ours: at user level every gradient is clipped, so that the two only matter
together.
"""
RATES = (0.005, 0.01, 0.05)


def study(quick: bool = False) -> Study:
    return Study(
        name="a9a",
        title="Logistic regression on a9a, 16 users, user level",
        question="How far above the optimum is the loss of the average model, at the same epsilon?",
        cells=figure_one.cells(curve, quick),
        x="epsilon",
        x_label="epsilon (delta = 1e-5)",
        value_label="training loss above the optimum",
        panels=by_graph,
        published=published.A9A,
        prepare=lambda: task_of(0),
        notes=(
            f"{STEPS} steps with batches of {BATCH}, step size falling as 1 / (1 + t / "
            f"{HORIZON}), weight decay {DECAY:g}; "
            "disjoint shards by a Dirichlet(10) law of labels.",
            "The optimum is that of the very data and weights of users trained on, by Newton's "
            "method to 1e-10.",
            f"As in the paper: its accounting, one round of gossip, clips {CLIPS}, step sizes "
            f"{RATES}, the best of "
            f"{len(figure_one.RATIOS)} couples.",
            "Ours: exact accounting, rounds of gossip designed for the graph, the best of "
            f"{len(PRODUCTS)} step sizes. "
            "Central and local DP get the same.",
            "The published runs trained on overlapping shards with another optimum: read their "
            "curves as shapes.",
            figure_one.CHOSEN,
        ),
    )


def curve(variant: str, kind: str, graph: str | None, quick: bool) -> list[Row]:
    ours = variant == OURS
    gossip = figure_one.gossip(variant, graph)
    one = Curve(
        variant,
        kind,
        figure_one.name_of(kind, graph),
        graph,
        figure_one.where(graph),
        task_of,
        lambda task, clip: decor.Exposure(clip=clip, steps=STEPS),
        lambda task, run: run.metrics["loss"] - optimum(int(task.facts["seed"])),
        (10.0,) if quick else published.A9A_EPSILONS,
        seeds=(0,) if quick else (0, 1, 2, 3),
        tuning_seeds=(0,) if quick else (0, 1),
        accounting="exact" if ours else "paper",
        options={
            "evaluate_every": STEPS,
            "schedule": decor.schedule.InverseTime(HORIZON),
            "weight_decay": DECAY,
            "batch_size": BATCH,
            **gossip,
        },
    )
    ratios = (
        (0.0,)
        if kind != "decor"
        else (default_ratio(one.topology, STEPS, **gossip),)
        if ours
        else figure_one.RATIOS
    )
    pairs = (
        [(0.1, product / 0.1) for product in PRODUCTS]
        if ours
        else [(clip, rate) for clip in CLIPS for rate in RATES]
    )
    grid = [Choice(clip, ratio, rate) for clip, rate in pairs for ratio in ratios]
    return one.shown(one.tuned(dict.fromkeys(one.epsilons, grid)), **gossip)


@lru_cache(maxsize=4)
def task_of(seed: int) -> decor.Task:
    return decor.tasks.a9a(figure_one.USERS, seed=seed)


@lru_cache(maxsize=8)
def optimum(seed: int) -> float:
    """The least mean over users of the mean logistic loss over their records."""
    shards = [(X.double().numpy(), y.double().numpy()) for X, y in task_of(seed).shards]
    X, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
    return least_loss(
        X, y, np.concatenate([np.full(len(y), 1 / (len(shards) * len(y))) for _, y in shards])
    )


def least_loss(X: Array, y: Array, share: Array) -> float:
    """The least logistic loss of a linear model with a bias, records weighing their share, by
    Newton's method.

    Some features always come together, so the least-norm step is taken; what it can still gain is
    below 1e-10 at the end.
    """
    X = np.c_[X, np.ones(len(X))]

    def loss(b: Array) -> float:
        z = X @ b
        return float(share @ (np.logaddexp(0, z) - y * z))

    b = np.zeros(X.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(-X @ b))
        gradient = X.T @ (share * (p - y))
        step = np.linalg.lstsq((X * (share * p * (1 - p))[:, None]).T @ X, gradient, rcond=1e-14)[0]
        size = 1.0
        while loss(b - size * step) > loss(b) and size > 1e-6:
            size /= 2
        b = b - size * step
        if gradient @ step < 1e-10:
            return loss(b)
    raise decor.DecorError("Newton's method did not reach the optimum in 100 steps")
