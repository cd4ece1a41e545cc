"""Irregular graphs, and noise designed edge by edge.

The value is the mean over users of the squared distance to the optimum.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import decor
from decor.choices import EdgeNoise

from .study import OURS, Cell, Row, Study, panels_by
from .tuned_curve import Choice, Curve

STEPS, CLIP = 1000, 1.0
EPSILONS = (3.0, 5.0, 10.0, 20.0, 40.0)
RATES = (1e-4, 0.0005, 0.0015, 0.003, 0.006, 0.012, 0.025)
RATIOS = (10.0, 20.0, 40.0, 80.0, 160.0)
GRAPHS = (
    "Florentine families",
    "Barabasi-Albert, m = 2",
    "Barabasi-Albert, m = 4",
    "Erdos-Renyi, p = 0.15",
)
METHODS: dict[str, tuple[str, EdgeNoise]] = {
    "central DP": ("central", "uniform"),
    "DECOR, uniform": ("decor", "uniform"),
    "DECOR, by edge": ("decor", "optimal"),
    "local DP": ("local", "uniform"),
}
"""The kind of each method, and how its correlated noise is spread over edges."""

# central and local DP are in each panel too: their values depend on the number of users
panels = panels_by("graph")


def study(quick: bool = False) -> Study:
    return Study(
        name="irregular",
        title="Least squares on irregular graphs, user level",
        question="What is it worth to design the noise edge by edge, at the same epsilon?",
        cells=tuple(
            Cell(f"{graph}: {method}", curve, {"graph": graph, "method": method, "quick": quick})
            # the quick variant has one graph whose users have names, and one without
            for graph in (GRAPHS[::2] if quick else GRAPHS)
            for method in METHODS
        ),
        panels=panels,
        line=("graph", "method"),
        notes=(
            "Florentine families: marriages among 15 families of the Renaissance; the other "
            "graphs have 32 users, drawn once.",
            f"{STEPS} full gradients, clip {CLIP:g}, a step size that falls along a cosine. The "
            "value is the mean over users of |x_i - x*|^2 at the end.",
            "One plain gossip round per step: noise by edge is designed for what one round leaves "
            "of it. With exact averages nothing is left of any edge's noise, and its spread over "
            "edges cannot matter.",
            "It gains more than predicted_error says, which does not know the clip: users who "
            "disagree have larger gradients, the clip takes more of them, and so disagreement "
            "slows down the average too.",
            f"Each method has the best of the step sizes {RATES}; DECOR, uniform and by edge, the "
            f"best of the noise ratios {RATIOS}, for each graph and epsilon. They are chosen with "
            "other noise than the values shown.",
            "predicted_error is of the noise alone, per coordinate and squared step size. "
            "most_exposed is the user with the largest epsilon; epsilon_least is that of the user "
            "with the smallest.",
        ),
    )


def curve(graph: str, method: str, quick: bool) -> list[Row]:
    kind, edges = METHODS[method]
    topology = topology_of(graph)
    one = Curve(
        OURS,
        kind,
        method,
        graph,
        topology,
        lambda seed: task_of(graph, seed),
        lambda task, clip: decor.Exposure(clip=clip, steps=STEPS),
        lambda task, run: run.metrics["distance"],
        (3.0, 10.0) if quick else EPSILONS,
        seeds=tuple(range(2 if quick else 10)),
        tuning_seeds=tuple(range(1 if quick else 4)),
        edges=edges,
        options={"evaluate_every": STEPS, "schedule": decor.schedule.Cosine()},
    )
    # central and local DP have no correlated noise
    ratios = RATIOS if kind == "decor" else (0.0,)
    grid = [Choice(CLIP, ratio, rate) for ratio in ratios for rate in RATES]
    chosen = one.tune(dict.fromkeys(one.epsilons, grid))
    # exposures do not depend on the data: any seed will do
    task = task_of(graph, 0)
    rows = one.rows(chosen, users=topology.users, edges=edges if kind == "decor" else None)
    return [
        r | {"ratio": chosen[e].ratio} | exposure_columns(one.plan(task, e, chosen[e]))
        for e, r in zip(chosen, rows, strict=True)
    ]


def exposure_columns(plan: decor.NoisePlan) -> Row:
    """The error that the noise predicts, and how exposed users are."""
    # the server of central DP averages, and sees all messages without noise
    if plan.adversary.average_only:
        return {"predicted_error": decor.theory.average_error(plan)}
    guarantee = plan.guarantee()
    alike = plan.adversary.colluders is None  # everyone colludes, as against local DP
    return {
        "predicted_error": decor.theory.predicted_error(plan),
        "most_exposed": "everybody" if alike else plan.topology.name(guarantee.worst_user),
        "epsilon_least": float(guarantee.per_user.min()),
        "epsilon_most": float(guarantee.per_user.max()),
    }


@lru_cache(maxsize=8)
def topology_of(graph: str) -> decor.Topology:
    # slow to load, and needed here alone
    import networkx as nx

    if graph == "Florentine families":
        return decor.from_networkx(nx.florentine_families_graph())
    if graph == "Erdos-Renyi, p = 0.15":
        return decor.erdos_renyi(32, 0.15, seed=0)
    return decor.from_networkx(nx.barabasi_albert_graph(32, int(graph[-1]), seed=0))


@lru_cache(maxsize=16)
def task_of(graph: str, seed: int) -> decor.Task:
    topology = topology_of(graph)
    task = decor.tasks.least_squares(topology.users, seed=seed)
    if topology.labels is None:
        return task
    # users with names are matched by name: training refuses a list for them
    shards: Any = dict(zip(topology.labels, task.shards, strict=True))
    return replace(task, shards=shards)
