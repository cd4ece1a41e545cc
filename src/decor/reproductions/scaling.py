"""More users at one epsilon: how the gain over local DP grows.

The value is the mean over users of the squared distance to the optimum.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

import decor

from . import figure_one
from .study import OURS, Cell, Row, Study, one_panel, row
from .tuned_curve import plan_of

USERS = (16, 64, 256, 1024)
EPSILON, DELTA = 10.0, 1e-5
STEPS, CLIP, DIMENSION, DEGREE = 500, 1.0, 10, 4
SPREAD = 0.5
"""The length of users' vectors: half a clip, so that no gradient is clipped near the optimum."""
LENGTHS = (3, 4, 6, 8, 12, 16, 20)
"""First step size times steps: how far a model could move with gradients of 1 and a constant step
size.
"""
GOSSIP: dict[str, Any] = {"gossip_rounds": 8, "accelerate": "designed"}
FINAL = 8
# local DP comes first: gains are relative to it
METHODS = (("local", None), ("central", None), ("decor", "random regular"), ("decor", "ring"))


def study(quick: bool = False) -> Study:
    return Study(
        name="scaling",
        title="A mean of vectors, 16 to 1024 users, user level",
        question="How does the gain over local DP grow with the number of users?",
        cells=tuple(
            Cell(f"{n} users", point, {"users": n, "quick": quick})
            for n in (USERS[:2] if quick else USERS)
        ),
        x="users",
        # one epsilon for all points, so it is part of the label
        x_label=f"users (epsilon = {EPSILON:g}, delta = {DELTA:g})",
        panels=one_panel("everybody's model"),
        line=("method",),
        notes=(
            f"The task is the mean of all users' vectors of {DIMENSION} values, drawn around 0 "
            f"with a length of about {SPREAD:g}. The curvature is 1 for any number of users, so "
            "only the noise changes with it.",
            f"{STEPS} full gradients, clip {CLIP:g}, the best of {len(LENGTHS)} step sizes that "
            "fall along a cosine, chosen with other noise than the values shown. The value is the "
            "mean over users of |x_i - x*|^2 at the end.",
            f"{GOSSIP['gossip_rounds']} gossip rounds per step, designed for the graph, and "
            f"{FINAL} more after the last step, for any number of users. That is enough on the "
            f"random graph, where each user has {DEGREE} neighbours, and too few on rings from 64 "
            "users on.",
            "gain is local DP's value over the row's, with local DP on the random graph. "
            "predicted_gain is the same for the noise in the average model alone: exactly the "
            "number of users for central DP.",
            "With few users the gain is larger: the noise of local DP moves models so far that all "
            "gradients are clipped and hardly pull back.",
        ),
    )


def point(users: int, quick: bool) -> list[Row]:
    """All methods with this many users; local DP comes first, as the reference of the gains."""
    task, rows = task_of(users), []
    local: tuple[float, float] | None = None
    for kind, graph in METHODS:
        topology = (
            decor.ring(users) if graph == "ring" else decor.random_regular(users, DEGREE, seed=0)
        )
        columns, plan = measure(task, kind, topology, quick)
        method, distances = figure_one.name_of(kind, graph), columns.pop("distances")
        own = row(OURS, kind, method, graph, distances, users=users, epsilon=EPSILON)
        noise = decor.theory.average_error(plan)
        # the first method, local DP, is the reference of all
        local = local or (own["value"], noise)
        gains = {"gain": local[0] / own["value"], "predicted_gain": local[1] / noise}
        rows.append(own | gains | facts(plan) | columns | GOSSIP | {"final_gossip_rounds": FINAL})
    return rows


def measure(
    task: decor.Task, kind: str, topology: decor.Topology, quick: bool
) -> tuple[Row, decor.NoisePlan]:
    """The distances of all seeds, with the step size that was best on other seeds."""
    exposure, budget = decor.Exposure(clip=CLIP, steps=STEPS), decor.Budget(EPSILON, DELTA)
    plan = plan_of(kind, topology, exposure, budget, **GOSSIP)
    options: dict[str, Any] = {
        "engine": decor.Vectorised(threads=1),
        "schedule": decor.schedule.Cosine(),
        "evaluate_every": STEPS,
        "final_gossip_rounds": FINAL,
        **GOSSIP,
    }
    # seeds far from those of the values shown
    rates, seeds = [k / STEPS for k in LENGTHS], range(10**6, 10**6 + 4)
    tried = decor.sweep(task, [plan], learning_rates=rates, seeds=seeds, **options)
    rate = tried.best("distance").learning_rate
    runs = decor.sweep(
        task, [plan], learning_rates=rate, seeds=range(8 if quick else 16), **options
    ).runs
    # the mean over users of |x_i - x*|^2 is |mean - x*|^2 plus the mean of |x_i - mean|^2
    average = [run.metrics["distance"] - run.metrics["consensus"] for run in runs]
    distances = [run.metrics["distance"] for run in runs]
    mean = float(np.mean(average))
    return {"distances": distances, "average_model": mean, "learning_rate": rate}, plan


def facts(plan: decor.NoisePlan) -> Row:
    return {
        "clip": plan.exposure.clip,
        "steps": plan.exposure.steps,
        "sigma_cdp": plan.sigma_cdp,
        "sigma_cor": plan.sigma_cor,
        "accounted_epsilon": plan.guarantee().epsilon,
    }


@lru_cache(maxsize=4)
def task_of(users: int) -> decor.Task:
    """User i holds |x - b_i|^2 / 2, where b_i is drawn from N(0, SPREAD^2 I / d)."""
    # divided by d, so that the length of b_i does not depend on it
    normal = np.random.default_rng(users).standard_normal((users, DIMENSION, 1))
    b = (SPREAD / math.sqrt(DIMENSION) * normal).astype(np.float32)
    X = np.eye(DIMENSION, dtype=np.float32)[None]
    shards: list[Any] = [(X, b[i : i + 1]) for i in range(users)]
    task = decor.Task(
        decor.models.linear(DIMENSION), decor.losses.squared, shards, name="mean of vectors"
    )
    best = b.astype(np.float64).mean(axis=0).ravel()
    # the optimum is known: the mean of all vectors
    return replace(task, optimum=task.shards[0][1].double().new_tensor(best))
