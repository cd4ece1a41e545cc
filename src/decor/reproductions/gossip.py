"""Gossip rounds against communication: is it worth sending more?

The value is the mean over users of the squared distance to the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

import decor

from . import tuned_curve
from .study import OURS, Cell, Row, Study, panels_by, row

EPSILON, DELTA, CLIP, DIMENSION = 10.0, 1e-5, 1.0, 10
# divisors of STEPS and of FEW, so that all points send the same number of messages
ROUNDS = (1, 2, 3, 4, 6, 8)
GRAPHS = {
    "ring of 16": decor.ring(16),
    "torus of 16": decor.torus(4, 4),
    "ring of 64": decor.ring(64),
}
WEIGHTS: dict[str, bool | str] = {"plain": False, "Chebyshev": True, "designed": "designed"}
COMPARED = ("same steps", "same messages", "same messages, few")
STEPS, FEW = 720, 120
"""Steps with one round each, so also messages to each neighbour in all. With few messages, many
rounds leave few steps.
"""
LENGTHS = (5.8, 8.7, 11.6, 17.4)
"""First step size times steps, from the paper's least squares: this stays the same when there are
fewer steps.
"""
RATIOS = (0.25, 1.0, 4.0)
"""Multiples of the noise ratio that `calibrate` chooses for the gossip."""
MEASURED = 0.057
"""The share of the steps, at the end, over which the distance is averaged: the paper's last 200 of
3500.
"""

Trial = tuple[decor.NoisePlan, float, list[float]]
"""A plan, a step size, and the values of the runs."""

panels = panels_by("graph", "compared")


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
        panels=panels,
        line=("graph", "compared", "method"),
        notes=(
            f"epsilon {EPSILON:g}, delta {DELTA:g}, full gradients, clip {CLIP:g}, a step size "
            f"that falls along a cosine. The value is the mean over the last {MEASURED:.1%} of "
            "the steps and over users of |x_i - x*|^2.",
            f"Same steps: {STEPS}. Same messages: {STEPS} in all to each neighbour, or only "
            f"{FEW}: the more rounds in a step, the fewer steps, and the less noise in each.",
            f"Each point has the best of {len(LENGTHS)} step sizes and of {len(RATIOS)} noise "
            "ratios: what calibrate chooses for the gossip, a quarter of it, and four times it. "
            "They are chosen with other noise than the values shown.",
            "messages is what one user sends in all, in models; bytes is the same in float32, "
            "without the protocol's overhead. Central DP sends one message per step, to a server. "
            "It is the level that gossip can reach, shown with the same number of steps.",
        ),
    )


def curve(graph: str, compared: str, weights: str, quick: bool) -> list[Row]:
    shown = ROUNDS[::5] if quick else ROUNDS
    if weights == "central" and compared == "same steps":  # rounds make no difference to a server
        level = point(graph, compared, weights, shown[0], quick)
        return [level | {"rounds": rounds} for rounds in shown]
    return [point(graph, compared, weights, rounds, quick) for rounds in shown]


def point(graph: str, compared: str, weights: str, rounds: int, quick: bool = False) -> Row:
    topology, steps = GRAPHS[graph], steps_of(compared, rounds, quick)
    central = weights == "central"
    gossip: dict[str, Any] = {"gossip_rounds": rounds, "accelerate": WEIGHTS.get(weights, False)}
    usual = 0.0 if central else tuned_curve.default_ratio(topology, steps, **gossip)
    plans = [plan_of(topology, steps, usual * k) for k in ((0.0,) if central else RATIOS)]
    datasets, rates = 1 if quick else 3, [k / steps for k in LENGTHS]
    # noise seeds far from those of the values shown
    tuning_noise = range(10**6, 10**6 + (4 if quick else 2))
    trials = run_trials(plans, rates, datasets, tuning_noise, gossip)
    plan, rate, _ = min(trials, key=lambda trial: math.fsum(trial[2]))
    ((_, _, values),) = run_trials([plan], [rate], datasets, range(8), gossip)
    if not all(map(math.isfinite, values)):
        raise decor.DecorError(
            f"{graph}, {compared}: {weights}, {rounds} rounds: a run diverged "
            f"with step size {rate:g}"
        )
    # a server needs one message per step
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
        # four bytes for each float32
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


def run_trials(
    plans: Sequence[decor.NoisePlan],
    rates: Sequence[float],
    datasets: int,
    noises: range,
    gossip: dict[str, Any],
) -> list[Trial]:
    """Runs each plan with each step size, on each dataset with each noise seed."""
    steps = plans[0].exposure.steps
    # at least the last step, also in the quick variant
    last = max(1, round(MEASURED * steps))
    trials: dict[tuple[int, float], Trial] = {}
    for data in range(datasets):
        sweep = decor.sweep(
            task_of(plans[0].topology.users, data),
            plans,
            learning_rates=rates,
            # no two datasets have the same noise
            seeds=[len(noises) * data + seed for seed in noises],
            engine=decor.Vectorised(threads=1),
            schedule=decor.schedule.Cosine(),
            evaluate_every=range(steps - last + 1, steps + 1),
            **gossip,
        )
        for plan, rate, runs in sweep.candidates():
            # infinite where a run diverged
            values = [
                math.inf if run.stopped else float(np.mean(run.history["distance"][-last:]))
                for run in runs
            ]
            trials.setdefault((id(plan), rate), (plan, rate, []))[2].extend(values)
    return list(trials.values())


def plan_of(topology: decor.Topology, steps: int, ratio: float) -> decor.NoisePlan:
    """The plan with this noise ratio; with ratio 0 that of central DP."""
    exposure, budget = decor.Exposure(clip=CLIP, steps=steps), decor.Budget(EPSILON, DELTA)
    kind = "central" if ratio == 0 else "decor"
    return tuned_curve.plan_of(kind, topology, exposure, budget, ratio=ratio)


def steps_of(compared: str, rounds: int, quick: bool = False) -> int:
    ample = STEPS // 5 if quick else STEPS
    return {
        "same steps": ample,
        "same messages": ample // rounds,
        "same messages, few": FEW // rounds,
    }[compared]


def messages(topology: decor.Topology, steps: int, rounds: int) -> int:
    """Models that one user of a regular graph sends in all."""
    return steps * rounds * int(topology.degrees.max())


@lru_cache(maxsize=16)
def task_of(users: int, seed: int) -> decor.Task:
    return decor.tasks.least_squares(users, DIMENSION, seed=seed)
