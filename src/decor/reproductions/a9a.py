"""Figure 1, middle: logistic regression on a9a, user level.

The value is the average model's loss above the optimum.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

import decor
from decor.array_types import Array

from . import figure_one, published
from .study import OURS, Row, Study
from .tuned_curve import Choice

# as in the paper
STEPS, BATCH, DECAY, HORIZON = 5000, 64, 1e-5, 5000
CLIPS = (0.01, 0.1)
PRODUCTS = (5e-5, 1e-4, 2e-4, 3.5e-4, 0.0005, 0.0007, 0.001, 0.0014, 0.002, 0.0028, 0.004, 0.0056)
"""Step size times clip, ours: at user level gradients are clipped, so only the product counts."""
RATES = (0.005, 0.01, 0.05)


def study(quick: bool = False) -> Study:
    return Study(
        name="a9a",
        title="Logistic regression on a9a, 16 users, user level",
        question="How far above the optimum is the loss of the average model, at the same epsilon?",
        cells=figure_one.cells(curve, quick),
        value_label="training loss above the optimum",
        published=published.A9A,
        prepare=lambda: task_of(0),
        notes=(
            f"{STEPS} steps with batches of {BATCH}, step size falling as 1 / (1 + t / "
            f"{HORIZON}), weight decay {DECAY:g}; disjoint shards, labels by a Dirichlet(10) "
            "distribution.",
            "The optimum is that of the same data and user weights, by Newton's method to 1e-10.",
            f"As in the paper: its accounting, one gossip round, clips {CLIPS}, step sizes "
            f"{RATES}, the best of {len(figure_one.RATIOS)} noise pairs.",
            "Ours: exact accounting, gossip rounds designed for the graph, the best of "
            f"{len(PRODUCTS)} step sizes. Central and local DP get the same.",
            "The published runs trained on overlapping shards with another optimum: compare only "
            "the shapes of their curves.",
            figure_one.CHOSEN,
        ),
    )


def curve(variant: str, kind: str, graph: str | None, quick: bool) -> list[Row]:
    ours = variant == OURS
    gossip = figure_one.gossip(variant, graph)
    one = figure_one.curve(
        variant,
        kind,
        graph,
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
    pairs = [(clip, rate) for clip in CLIPS for rate in RATES]
    if ours:
        # any clip gives the same models with the same product
        pairs = [(0.1, product / 0.1) for product in PRODUCTS]
    ratios = figure_one.ratios(one, STEPS, figure_one.RATIOS)
    grid = [Choice(clip, ratio, rate) for clip, rate in pairs for ratio in ratios]
    return one.best_rows(grid, **gossip)


@lru_cache(maxsize=4)
def task_of(seed: int) -> decor.Task:
    return decor.tasks.a9a(figure_one.USERS, seed=seed)


@lru_cache(maxsize=8)
def optimum(seed: int) -> float:
    """The least mean over users of the mean logistic loss over their examples."""
    shards = [(X.double().numpy(), y.double().numpy()) for X, y in task_of(seed).shards]
    X, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
    # users count the same, however many examples they have
    weights = [np.full(len(y), 1 / (len(shards) * len(y))) for _, y in shards]
    return least_loss(X, y, np.concatenate(weights))


def least_loss(X: Array, y: Array, share: Array) -> float:
    """The least logistic loss of a linear model with a bias, by Newton's method, to 1e-10.

    Args:
        X: Features, one row for each example.
        y: Labels, 0 or 1.
        share: Weights of the examples, with sum 1.
    """
    X = np.c_[X, np.ones(len(X))]

    def loss(b: Array) -> float:
        z = X @ b
        return float(share @ (np.logaddexp(0, z) - y * z))

    b = np.zeros(X.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(-X @ b))
        gradient = X.T @ (share * (p - y))
        # some features always occur together: the Hessian is singular, and the least-norm step used
        step = np.linalg.lstsq((X * (share * p * (1 - p))[:, None]).T @ X, gradient, rcond=1e-14)[0]
        size = 1.0
        # halved steps, because Newton's full step may overshoot
        while loss(b - size * step) > loss(b) and size > 1e-6:
            size /= 2
        b = b - size * step
        # the Newton decrement: twice what the step can still gain
        if gradient @ step < 1e-10:
            return loss(b)
    raise decor.DecorError("Newton's method did not reach the optimum in 100 steps")
