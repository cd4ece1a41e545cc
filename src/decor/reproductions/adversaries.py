"""The cost of protection against curious users and coalitions, on least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import decor

from . import figure_one
from .least_squares import CLIP, LAST, RATE, STEPS, task_of
from .study import OURS, Cell, Panel, Row, Study, by_graph
from .tuned_curve import Choice, Curve, default_ratio

DELTA = 1e-5
DESIGNED: dict[str, Any] = {"gossip_rounds": 4, "accelerate": "designed"}
PLAIN: dict[str, Any] = {"gossip_rounds": 1}
GRAPHS = {
    "torus": (decor.torus(4, 4), DESIGNED),
    "torus, one plain round": (decor.torus(4, 4), PLAIN),
    "random regular, degree 6": (
        decor.random_regular(figure_one.USERS, degree=6, seed=0),
        DESIGNED,
    ),
}
"""The graphs of DECOR, and how models are mixed in each step."""
AGAINST = ("eavesdropper", "curious", "colluding:2", "colluding:3")
EPSILONS = (3.0, 5.0, 10.0, 20.0, 40.0)
TIMES = (0.06, 0.25, 1.0, 1.5, 2.0, 3.0)
"""Step sizes to choose from, as multiples of the paper's."""
RATIO_TIMES = (0.3, 1.0, 3.0)
"""Noise ratios to choose from, as multiples of what `calibrate` chooses against the adversary."""


def study(quick: bool = False) -> Study:
    cells = [
        ("central DP", "central", None, None),
        *((f"DECOR {g}, {against}", "decor", g, against) for g in GRAPHS for against in AGAINST),
        ("local DP", "local", "torus", None),
    ]
    return Study(
        name="adversaries",
        title="Least squares, 16 users, against stronger adversaries",
        question="What does protection against curious users and coalitions cost, at the same "
        "epsilon?",
        cells=tuple(
            Cell(name, curve, {"kind": kind, "graph": graph, "against": against, "quick": quick})
            for name, kind, graph, against in cells
        ),
        panels=panels,
        notes=(
            f"{STEPS} full gradients, clip {CLIP:g}, exact accounting, as in the study "
            f"least-squares: the best of {len(TIMES)} step sizes falling along a cosine, and of "
            f"{len(RATIO_TIMES)} noise ratios. They are chosen with other noise than the values "
            "shown. All methods have the same noise there, so their differences are more certain "
            "than their values.",
            "Four gossip rounds per step, designed for the graph, or the paper's one plain round. "
            "Central and local DP average exactly in all panels.",
            "Epsilon holds against the adversary in the method's name; that of central DP against "
            "an adversary who sees only the average, that of local DP against everyone.",
            "The columns epsilon_... are the exact epsilons of the same noise against the other "
            "adversaries: what a plan guarantees against stronger ones than it was made for.",
            "Four colluders could isolate a user of the torus, which leaves local DP; on the "
            "graph with degree 6 it takes six.",
        ),
    )


def curve(kind: str, graph: str | None, against: str | None, quick: bool) -> list[Row]:
    # central DP has no graph, and averages exactly
    topology, gossip = GRAPHS[graph] if graph else (figure_one.where(None), PLAIN)
    adversary = decor.Adversary.parse(against or "eavesdropper")
    one = Curve(
        OURS,
        kind,
        f"DECOR {graph}, {against}" if kind == "decor" else figure_one.NAMES[kind],
        graph,
        topology,
        task_of,
        lambda task, clip: decor.Exposure(clip=clip, steps=STEPS),
        lambda task, run: float(np.mean(run.history["distance"][-LAST:])),
        (3.0, 40.0) if quick else EPSILONS,
        seeds=tuple(range(2 if quick else 8)),
        tuning_seeds=tuple(range(1 if quick else 8)),
        adversary=adversary,
        delta=DELTA,
        options={
            "evaluate_every": range(STEPS - LAST + 1, STEPS + 1),
            "schedule": decor.schedule.Cosine(),
            **gossip,
        },
    )
    ratios = [0.0]
    if kind == "decor":
        usual = default_ratio(topology, STEPS, adversary, **gossip)
        # around the default ratio against this adversary
        ratios = [usual * k for k in ((1.0,) if quick else RATIO_TIMES)]
    times = TIMES[::2] if quick else TIMES
    grid = [Choice(CLIP, ratio, RATE * k) for ratio in ratios for k in times]
    # the same noise, accounted against all adversaries
    rows = one.best_rows(grid, against=against, **gossip)
    return [r | epsilons(topology, r["sigma_cdp"], r["sigma_cor"]) for r in rows]


def panels(rows: Sequence[Row]) -> list[Panel]:
    """A panel for each graph; labels leave its name out, so that panels share one legend."""
    return [
        replace(
            panel,
            series=tuple(
                replace(s, label=s.label.replace(f" {panel.title}", "")) for s in panel.series
            ),
        )
        for panel in by_graph(rows)
    ]


def epsilons(topology: decor.Topology, sigma_cdp: float, sigma_cor: float) -> dict[str, float]:
    """The exact epsilon of this noise against each adversary, whichever it was made for."""
    exposure = decor.Exposure(clip=CLIP, steps=STEPS)
    plan = decor.NoisePlan(topology, exposure, decor.Adversary.eavesdropper(), sigma_cdp, sigma_cor)
    # also against everyone, which no plan here is made for
    adversaries = [decor.Adversary.parse(name) for name in (*AGAINST, "everyone")]
    return {
        f"epsilon_{str(a).replace(':', '_')}": plan.guarantee(DELTA, adversary=a).epsilon
        for a in adversaries
    }
