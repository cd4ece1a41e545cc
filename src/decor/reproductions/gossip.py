"""Rounds of gossip against communication: is it worth sending more? The value is everybody's squared distance to the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

import decor

from .study import OURS, Cell, Panel, Row, Study, lines
from .tuning import Choice, Curve, default_ratio

EPSILON, CLIP, DIMENSION = 10.0, 1.0, 10
ROUNDS = (1, 2, 3, 4, 6, 8)
GRAPHS = {"ring of 16": decor.ring(16), "torus of 16": decor.torus(4, 4), "ring of 64": decor.ring(64)}
WEIGHTS: dict[str, bool | str] = {"plain": False, "Chebyshev": True, "designed": "designed"}
COMPARED = ("same steps", "same messages", "same messages, few")
STEPS, FEW = 3500, 120
"""Steps of one round: as many messages go to every neighbour in all. Few of them leave few steps to those with many rounds."""
LENGTH = 5.8
"""First step size times steps in the paper's least squares, whose multiples are tried: it is what fewer steps keep."""
TIMES = (0.5, 1.0, 1.5, 2.0, 3.0)
RATIOS = (0.25, 1.0, 4.0)
"""Multiples of calibrate's ratio of noises for the gossip."""
MEASURED = 0.057
"""The part of the steps, at the end, over which the distance is averaged: the paper's last 200 of 3500."""


def study(quick: bool = False) -> Study:
    return Study(
        name="gossip",
        title="Rounds of gossip, least squares, user level",
        question="Is it worth sending more rounds, at the same number of steps and at the same communication?",
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
        notes=(
            f"epsilon {EPSILON:g}, delta 1e-5, full gradients, clip {CLIP:g}, a step size that falls along a cosine. The value "
            f"is the mean over the last {MEASURED:.1%} of the steps and over users of |x_i - x*|^2.",
            f"Same steps: {STEPS}. Same messages: {STEPS} in all to every neighbour, or only {FEW}: the more rounds in a step, "
            "the fewer steps, and the less noise in each.",
            f"Every point has the best of {len(TIMES)} step sizes and of {len(RATIOS)} ratios of noises: what calibrate takes "
            "for its gossip, a quarter of that and four times that. They are chosen on other noise than shown.",
            "messages is what one user sends in all, in models; bytes is that in float32, without what the wire adds. Central DP "
            "sends one message a step, to a server. It is the level that gossip can reach, shown with as many steps.",
        ),
    )


def curve(graph: str, compared: str, weights: str, quick: bool) -> list[Row]:
    return [r for rounds in (ROUNDS[::5] if quick else ROUNDS) for r in point(graph, compared, weights, rounds, quick)]


def point(graph: str, compared: str, weights: str, rounds: int, quick: bool = False) -> list[Row]:
    topology, steps = GRAPHS[graph], steps_of(compared, rounds, quick)
    gossip: dict[str, Any] = {"gossip_rounds": rounds, "accelerate": WEIGHTS.get(weights, False)}
    last = max(1, round(MEASURED * steps))
    central = weights == "central"
    one = Curve(
        OURS,
        "central" if central else "decor",
        "central DP" if central else f"{weights} rounds",
        graph,
        topology,
        lambda seed: task_of(topology.users, seed),
        lambda task, clip: decor.Exposure(clip=clip, steps=steps),
        lambda task, run: float(np.mean(run.history["distance"][-last:])),
        (EPSILON,),
        seeds=tuple(range(2 if quick else 5)),
        tuning_seeds=tuple(range(1 if quick else 2)),
        options={"evaluate_every": range(steps - last + 1, steps + 1), "schedule": decor.schedule.Cosine(), **gossip},
    )
    usual = 0.0 if central else default_ratio(topology, steps, **gossip)
    ratios = (0.0,) if central else tuple(usual * k for k in RATIOS)
    grid = [Choice(CLIP, ratio, LENGTH * k / steps) for ratio in ratios for k in TIMES]
    best = one.tuned({EPSILON: grid})[EPSILON]
    sent = steps if central else messages(topology, steps, rounds)
    own = {"compared": compared, "weights": weights, "rounds": rounds, "messages": sent, "bytes": 4 * DIMENSION * sent}
    return one.shown({EPSILON: best}, ratio=best.ratio, default_ratio=usual, **own)


def steps_of(compared: str, rounds: int, quick: bool = False) -> int:
    ample = STEPS // 4 if quick else STEPS
    return {"same steps": ample, "same messages": ample // rounds, "same messages, few": FEW // rounds}[compared]


def messages(topology: decor.Topology, steps: int, rounds: int) -> int:
    """Models that one user of a regular graph sends in all: one to every neighbour in every round."""
    return steps * rounds * int(topology.degrees.max())


def panels(rows: Sequence[Row]) -> list[Panel]:
    """A picture for every graph and way to compare."""
    pairs = dict.fromkeys((r["graph"], r["compared"]) for r in rows)
    return [Panel(f"{g}, {c}", lines([r for r in rows if (r["graph"], r["compared"]) == (g, c)])) for g, c in pairs]


@lru_cache(maxsize=16)
def task_of(users: int, seed: int) -> decor.Task:
    return decor.tasks.least_squares(users, DIMENSION, seed=seed)
