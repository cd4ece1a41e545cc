"""More users at one epsilon: how the gain over local DP grows.

The value is everybody's squared distance to the optimum.
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

USERS = (16, 64, 256, 1024)
EPSILON, DELTA = 10.0, 1e-5
STEPS, CLIP, DIMENSION, DEGREE = 500, 1.0, 10, 4
SPREAD = 0.5
"""The length of users' vectors: half a clip, so that near the optimum nobody's gradient is cut."""
LENGTHS = (3, 4, 6, 8, 12, 16, 20)
"""First step sizes, times steps: the way that a model could go if its gradient stayed 1 and the
step size did not fall.
"""
GOSSIP: dict[str, Any] = {"gossip_rounds": 8, "accelerate": "designed"}
FINAL = 8
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
        x_label=f"users (epsilon = {EPSILON:g}, delta = {DELTA:g})",
        value_label="squared distance to the optimum",
        panels=one_panel("everybody's model"),
        line=("method",),
        notes=(
            f"Everybody wants the mean of all users' vectors of {DIMENSION} numbers, drawn around "
            "0 with a length of about "
            f"{SPREAD:g}. The curvature is 1 for any number of users, so that nothing but noise "
            "changes with it.",
            f"{STEPS} full gradients, clip {CLIP:g}, the best of {len(LENGTHS)} step sizes that "
            "fall along a cosine, chosen on "
            "other noise than shown. The value is the mean over users of |x_i - x*|^2 at the end.",
            f"{GOSSIP['gossip_rounds']} rounds of gossip a step, designed for the graph, and "
            f"{FINAL} more after the last step, "
            "whatever the number of users. That is enough on the random graph, in which "
            f"everybody has {DEGREE} neighbours, and "
            "on rings too few from 64 users on.",
            "gain is local DP's value over the row's, local DP being on the random graph. "
            "predicted_gain is the same of the "
            "noise in the average model alone: exactly the number of users for central DP.",
            "With few users the gain is larger: local DP's noise throws models so far that all "
            "gradients are cut and hardly pull "
            "back.",
        ),
    )


def point(users: int, quick: bool) -> list[Row]:
    """All methods with as many users; local DP is the first, beside which the others' gains are."""
    task, rows = task_of(users), []
    local: tuple[float, float] | None = None
    for kind, graph in METHODS:
        topology = (
            decor.ring(users) if graph == "ring" else decor.random_regular(users, DEGREE, seed=0)
        )
        found, plan = measured(task, kind, topology, quick)
        method = f"{figure_one.NAMES[kind]} {graph}" if graph else figure_one.NAMES[kind]
        own = row(OURS, kind, method, graph, found.pop("distances"), users=users, epsilon=EPSILON)
        noise = decor.theory.average_error(plan)
        local = local or (own["value"], noise)
        gains = {"gain": local[0] / own["value"], "predicted_gain": local[1] / noise}
        rows.append(own | gains | facts(plan) | found | GOSSIP | {"final_gossip_rounds": FINAL})
    return rows


def measured(
    task: decor.Task, kind: str, topology: decor.Topology, quick: bool
) -> tuple[Row, decor.NoisePlan]:
    """Every seed's distance at the end, and that of the average model, with the step size that was
    best on other seeds.
    """
    plan = plan_of(kind, topology)
    options: dict[str, Any] = {
        "engine": decor.Vectorised(threads=1),
        "schedule": decor.schedule.Cosine(),
        "evaluate_every": STEPS,
        "final_gossip_rounds": FINAL,
        **GOSSIP,
    }
    tried = decor.sweep(
        task,
        [plan],
        learning_rates=[k / STEPS for k in LENGTHS],
        seeds=range(10**6, 10**6 + 4),
        **options,
    )
    rate = tried.best("distance").learning_rate
    runs = decor.sweep(
        task, [plan], learning_rates=rate, seeds=range(8 if quick else 16), **options
    ).runs
    # the mean over users of |x_i - x*|^2 is |mean - x*|^2 and the mean of |x_i - mean|^2
    average = [run.metrics["distance"] - run.metrics["consensus"] for run in runs]
    distances = [run.metrics["distance"] for run in runs]
    return {
        "distances": distances,
        "average_model": float(np.mean(average)),
        "learning_rate": rate,
    }, plan


def plan_of(kind: str, topology: decor.Topology) -> decor.NoisePlan:
    exposure, budget = decor.Exposure(clip=CLIP, steps=STEPS), decor.Budget(EPSILON, DELTA)
    if kind == "central":
        return decor.baselines.central(topology, exposure, budget)
    if kind == "local":
        return decor.baselines.local(topology, exposure, budget)
    return decor.calibrate(topology, exposure, decor.Adversary.eavesdropper(), budget, **GOSSIP)


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
    """User i holds |x - b_i|^2 / 2; b_i has the law N(0, SPREAD^2 I / d), so that its length does
    not depend on d.
    """
    drawn = np.random.default_rng(users).standard_normal((users, DIMENSION, 1))
    b = (SPREAD / math.sqrt(DIMENSION) * drawn).astype(np.float32)
    shards: list[Any] = [
        (np.eye(DIMENSION, dtype=np.float32)[None], b[i : i + 1]) for i in range(users)
    ]
    task = decor.Task(
        decor.models.linear(DIMENSION), decor.losses.squared, shards, name="mean of vectors"
    )
    best = b.astype(np.float64).mean(axis=0).ravel()
    return replace(task, optimum=task.shards[0][1].double().new_tensor(best))
