"""Figure 1, left: least squares on made data, user level.

The value is the mean over users of the squared distance to the optimum.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

import decor

from . import figure_one, published
from .study import OURS, Row, Study
from .tuned_curve import Choice

# as in the paper; the value is a mean over the last steps
STEPS, CLIP, LAST = 3500, 1.0, 200
RATE = 1.668e-3
"""The paper's step size. Ours falls along a cosine, and is chosen around it."""
RATIOS = (1.0, *figure_one.RATIOS)
"""Each user's own model counts here. It has more of the correlated noise than the average model, so
less correlated noise may be best.
"""
TIMES = (0.01, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)


def study(quick: bool = False) -> Study:
    return Study(
        name="least-squares",
        title="Least squares, 16 users, user level",
        question="How close to the optimum do users come, at the same epsilon?",
        cells=figure_one.cells(curve, quick),
        published=published.LEAST_SQUARES,
        notes=(
            f"{STEPS} full gradients, clip {CLIP:g}. The value is the mean over the last {LAST} "
            "steps and over users of |x_i - x*|^2.",
            f"As in the paper: its accounting, one gossip round per step, step size {RATE:g}, the "
            f"best of {len(RATIOS)} noise pairs.",
            "Ours: exact accounting, gossip rounds designed for the graph (ring 8, torus 4), a "
            f"step size that falls along a cosine from the best of {len(TIMES)} multiples of the "
            "paper's. Central and local DP get the same.",
            "All users start at a distance of about 10: values near 10 mean that nothing was "
            "learned.",
            figure_one.CHOSEN,
        ),
    )


def curve(variant: str, kind: str, graph: str | None, quick: bool) -> list[Row]:
    ours = variant == OURS
    gossip = figure_one.gossip(variant, graph)
    schedule = decor.schedule.Cosine() if ours else decor.schedule.Constant()
    one = figure_one.curve(
        variant,
        kind,
        graph,
        task_of,
        lambda task, clip: decor.Exposure(clip=clip, steps=STEPS),
        # the mean over the last steps has less noise than the last value
        lambda task, run: float(np.mean(run.history["distance"][-LAST:])),
        (3.0, 10.0, 40.0) if quick else published.LEAST_SQUARES_EPSILONS,
        seeds=tuple(range(2 if quick else 5)),
        tuning_seeds=tuple(range(1 if quick else 5)),
        accounting="exact" if ours else "paper",
        options={
            "evaluate_every": range(STEPS - LAST + 1, STEPS + 1),
            "schedule": schedule,
            **gossip,
        },
    )
    # the paper has one step size for all methods and epsilons
    rates = [RATE * k for k in TIMES] if ours else [RATE]
    grid = [
        Choice(CLIP, ratio, rate)
        for ratio in figure_one.ratios(one, STEPS, RATIOS)
        for rate in rates
    ]
    return one.best_rows(grid, schedule=type(schedule).__name__, **gossip)


@lru_cache(maxsize=8)
def task_of(seed: int) -> decor.Task:
    return decor.tasks.least_squares(figure_one.USERS, seed=seed)
