"""Figure 1, left: least squares on made data, user level.

The value is everybody's squared distance to the optimum.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

import decor

from . import figure_one, published
from .study import OURS, PAPER, Row, Study, by_graph
from .tuning import Choice, Curve, default_ratio

STEPS, CLIP, LAST = 3500, 1.0, 200
RATE = 1.668e-3
"""The paper's step size. Ours falls along a cosine, and is chosen around it."""
RATIOS = (1.0, *figure_one.RATIOS)
"""Everybody's own model counts here, and has more of the correlated noise than their average: less
of it may be best.
"""
TIMES = (0.01, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)


def study(quick: bool = False) -> Study:
    return Study(
        name="least-squares",
        title="Least squares, 16 users, user level",
        question="How close to the optimum does everybody come, at the same epsilon?",
        cells=figure_one.cells(curve, quick),
        x="epsilon",
        x_label="epsilon (delta = 1e-5)",
        value_label="squared distance to the optimum",
        panels=by_graph,
        published=published.LEAST_SQUARES,
        notes=(
            f"{STEPS} full gradients, clip {CLIP:g}. The value is the mean over the last {LAST} "
            "steps and over users of "
            "|x_i - x*|^2.",
            f"As in the paper: its accounting, one round of gossip a step, step size {RATE:g}, "
            "the best of "
            f"{len(RATIOS)} couples.",
            "Ours: exact accounting, rounds of gossip designed for the graph (ring 8, torus 4), a "
            "step size that falls along a "
            f"cosine from the best of {len(TIMES)} multiples of the paper's. Central and local DP "
            "get the same.",
            "Everybody starts at a distance of about 10: values near it say that nothing was "
            "learned.",
            figure_one.CHOSEN,
        ),
    )


def curve(variant: str, kind: str, graph: str | None, quick: bool) -> list[Row]:
    ours = variant == OURS
    gossip = figure_one.gossip(variant, graph)
    measured = range(STEPS - LAST + 1, STEPS + 1)
    schedule = decor.schedule.Cosine() if ours else decor.schedule.Constant()
    one = Curve(
        variant,
        kind,
        figure_one.name_of(kind, graph),
        graph,
        figure_one.where(graph),
        task_of,
        lambda task, clip: decor.Exposure(clip=clip, steps=STEPS),
        lambda task, run: float(np.mean(run.history["distance"][-LAST:])),
        (3.0, 10.0, 40.0) if quick else published.LEAST_SQUARES_EPSILONS,
        seeds=tuple(range(2 if quick else 5)),
        tuning_seeds=tuple(range(1 if quick else 5)),
        accounting="exact" if ours else "paper",
        options={"evaluate_every": measured, "schedule": schedule, **gossip},
    )
    ratios = (
        (0.0,)
        if kind != "decor"
        else (default_ratio(one.topology, STEPS, **gossip),)
        if ours
        else RATIOS
    )
    rates = [RATE * k for k in TIMES] if variant != PAPER else [RATE]
    grid = [Choice(CLIP, ratio, rate) for ratio in ratios for rate in rates]
    return one.shown(
        one.tuned(dict.fromkeys(one.epsilons, grid)), schedule=type(schedule).__name__, **gossip
    )


@lru_cache(maxsize=8)
def task_of(seed: int) -> decor.Task:
    return decor.tasks.least_squares(figure_one.USERS, seed=seed)
