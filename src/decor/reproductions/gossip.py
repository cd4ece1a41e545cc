"""Rounds of gossip against communication: is it worth sending more? The value is everybody's
squared distance to the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

import decor

from .study import OURS, Cell, Panel, Row, Study, lines, row
from .tuning import default_ratio

EPSILON, DELTA, CLIP, DIMENSION = 10.0, 1e-5, 1.0, 10
ROUNDS = (1, 2, 3, 4, 6, 8)
GRAPHS = {
    "ring of 16": decor.ring(16),
    "torus of 16": decor.torus(4, 4),
    "ring of 64": decor.ring(64),
}
WEIGHTS: dict[str, bool | str] = {"plain": False, "Chebyshev": True, "designed": "designed"}
COMPARED = ("same steps", "same messages", "same messages, few")
STEPS, FEW = 720, 120
"""Steps of one round: as many messages go to every neighbour in all.

Few of them leave few steps to those with many rounds.
"""
LENGTHS = (5.8, 8.7, 11.6, 17.4)
"""First step sizes, times steps, from the paper's in its least squares: what stays the same when
there are fewer steps.
"""
RATIOS = (0.25, 1.0, 4.0)
"""Multiples of calibrate's ratio of noises for the gossip."""
MEASURED = 0.057
"""The part of the steps, at the end, over which the distance is averaged: the paper's last 200 of
3500.
"""

Tried = tuple[decor.NoisePlan, float, list[float]]
"""A plan with a step size, and the values of its runs."""


def study(quick: bool = False) -> Study:
    return Study(
        name="gossip",
        title="Rounds of gossip, least squares, user level",
        question="Is it worth sending more rounds, at the same number of steps and at the same "
        "communication?",
        cells=tuple(
            Cell(
                f"{graph}, {compared}: {weights}",
                curve,
                {"graph": graph, "compared": compared, "weights": weights, "quick": quick},
            )
            for graph in (list(GRAPHS)[:1] if quick else GRAPHS)
            for compared in COMPARED
            for weights in ("central", *WEIGHTS)
        ),
        x="rounds",
        x_label="models sent to each neighbour in a step (rounds of gossip)",
        x_logarithmic=False,
        value_label="squared distance to the optimum",
        panels=panels,
        line=("graph", "compared", "method"),
        notes=(
            f"epsilon {EPSILON:g}, delta {DELTA:g}, full gradients, clip {CLIP:g}, a step size "
            "that falls along a cosine. The "
            f"value is the mean over the last {MEASURED:.1%} of the steps and over users of |x_i "
            "- x*|^2.",
            f"Same steps: {STEPS}. Same messages: {STEPS} in all to every neighbour, or only "
            f"{FEW}: the more rounds in a step, "
            "the fewer steps, and the less noise in each.",
            f"Every point has the best of {len(LENGTHS)} step sizes and of {len(RATIOS)} ratios "
            "of noises: what calibrate takes "
            "for its gossip, a quarter of that and four times that. They are chosen on other "
            "noise than shown.",
            "messages is what one user sends in all, in models; bytes is that in float32, without "
            "what the wire adds. Central DP "
            "sends one message a step, to a server. It is the level that gossip can reach, shown "
            "with as many steps.",
        ),
    )


def curve(graph: str, compared: str, weights: str, quick: bool) -> list[Row]:
    shown = ROUNDS[::5] if quick else ROUNDS
    if weights == "central" and compared == "same steps":  # a server knows no rounds
        level = point(graph, compared, weights, shown[0], quick)
        return [level | {"rounds": rounds} for rounds in shown]
    return [point(graph, compared, weights, rounds, quick) for rounds in shown]


def point(graph: str, compared: str, weights: str, rounds: int, quick: bool = False) -> Row:
    topology, steps, central = (
        GRAPHS[graph],
        steps_of(compared, rounds, quick),
        weights == "central",
    )
    gossip: dict[str, Any] = {"gossip_rounds": rounds, "accelerate": WEIGHTS.get(weights, False)}
    usual = 0.0 if central else default_ratio(topology, steps, **gossip)
    plans = [plan_of(topology, steps, usual * k) for k in ((0.0,) if central else RATIOS)]
    datasets = 1 if quick else 3
    tried = tries(
        plans,
        [k / steps for k in LENGTHS],
        datasets,
        range(10**6, 10**6 + (4 if quick else 2)),
        gossip,
    )
    plan, rate, _ = min(tried, key=lambda one: math.fsum(one[2]))
    ((_, _, values),) = tries([plan], [rate], datasets, range(8), gossip)
    if not all(map(math.isfinite, values)):
        raise decor.DecorError(
            f"{graph}, {compared}: {weights}, {rounds} rounds: a run diverged "
            f"with step size {rate:g}"
        )
    sent = steps if central else messages(topology, steps, rounds)
    return row(
        OURS,
        "central" if central else "decor",
        "central DP" if central else f"{weights} rounds",
        graph,
        values,
        compared=compared,
        rounds=rounds,
        steps=steps,
        messages=sent,
        bytes=4 * DIMENSION * sent,
        epsilon=EPSILON,
        accounted_epsilon=plan.guarantee().epsilon,
        learning_rate=rate,
        clip=CLIP,
        sigma_cdp=plan.sigma_cdp,
        sigma_cor=plan.sigma_cor,
        default_ratio=usual,
        weights=weights,
    )


def tries(
    plans: Sequence[decor.NoisePlan],
    rates: Sequence[float],
    datasets: int,
    noises: range,
    gossip: dict[str, Any],
) -> list[Tried]:
    """Every plan with every step size, on every dataset with every noise; infinite where a run
    diverged.
    """
    steps = plans[0].exposure.steps
    last = max(1, round(MEASURED * steps))
    found: dict[tuple[int, float], Tried] = {}
    for data in range(datasets):
        sweep = decor.sweep(
            task_of(plans[0].topology.users, data),
            plans,
            learning_rates=rates,
            seeds=[len(noises) * data + seed for seed in noises],
            engine=decor.Vectorised(threads=1),
            schedule=decor.schedule.Cosine(),
            evaluate_every=range(steps - last + 1, steps + 1),
            **gossip,
        )
        for plan, rate, runs in sweep.candidates():
            values = [
                math.inf if run.stopped else float(np.mean(run.history["distance"][-last:]))
                for run in runs
            ]
            found.setdefault((id(plan), rate), (plan, rate, []))[2].extend(values)
    return list(found.values())


def plan_of(topology: decor.Topology, steps: int, ratio: float) -> decor.NoisePlan:
    """Of ratio zero, central DP's."""
    exposure, budget = decor.Exposure(clip=CLIP, steps=steps), decor.Budget(EPSILON, DELTA)
    if ratio == 0:
        return decor.baselines.central(topology, exposure, budget)
    return decor.calibrate(topology, exposure, decor.Adversary.eavesdropper(), budget, ratio=ratio)


def steps_of(compared: str, rounds: int, quick: bool = False) -> int:
    ample = STEPS // 5 if quick else STEPS
    return {
        "same steps": ample,
        "same messages": ample // rounds,
        "same messages, few": FEW // rounds,
    }[compared]


def messages(topology: decor.Topology, steps: int, rounds: int) -> int:
    """Models that one user of a regular graph sends in all: one to every neighbour in every
    round.
    """
    return steps * rounds * int(topology.degrees.max())


def panels(rows: Sequence[Row]) -> list[Panel]:
    """A picture for every graph and way to compare."""
    pairs = dict.fromkeys((r["graph"], r["compared"]) for r in rows)
    return [
        Panel(f"{g}, {c}", lines([r for r in rows if (r["graph"], r["compared"]) == (g, c)]))
        for g, c in pairs
    ]


@lru_cache(maxsize=16)
def task_of(users: int, seed: int) -> decor.Task:
    return decor.tasks.least_squares(users, DIMENSION, seed=seed)
