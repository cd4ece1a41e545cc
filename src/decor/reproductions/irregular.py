"""Irregular graphs, and noise designed edge by edge.

The value is everybody's squared distance to the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import decor
from decor.choices import EdgeNoise

from .study import OURS, Cell, Panel, Row, Study, lines
from .tuning import Choice, Curve

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
"""The kind of every method, and how its correlated noise is spread over edges."""


def study(quick: bool = False) -> Study:
    return Study(
        name="irregular",
        title="Least squares on irregular graphs, user level",
        question="What is it worth to design the noise edge by edge, at the same epsilon?",
        cells=tuple(
            Cell(f"{graph}: {method}", curve, {"graph": graph, "method": method, "quick": quick})
            for graph in (GRAPHS[::2] if quick else GRAPHS)
            for method in METHODS
        ),
        x="epsilon",
        x_label="epsilon (delta = 1e-5)",
        value_label="squared distance to the optimum",
        panels=panels,
        line=("graph", "method"),
        notes=(
            "Florentine families: marriages among 15 families of the Renaissance; the other "
            "graphs have 32 users, drawn once.",
            f"{STEPS} full gradients, clip {CLIP:g}, a step size that falls along a cosine. The "
            "value is the mean over users of "
            "|x_i - x*|^2 at the end.",
            "One plain round of gossip a step: noise by edge is designed for what one round "
            "leaves of it. With exact averages "
            "nothing is left of any edge's noise, and how it is spread over edges cannot matter.",
            "It pays more than predicted_error says, which knows no clip: users who disagree have "
            "larger gradients, of which the "
            "clip takes more, so that disagreement slows down the average too.",
            f"Every method has the best of the step sizes {RATES}; DECOR, uniform and by edge "
            "alike, the best of the ratios of "
            f"noises {RATIOS}, for every graph and epsilon. They are chosen on other noise than "
            "they are shown on.",
            "predicted_error is of the noise alone, per coordinate and squared step size. "
            "most_exposed is the user with the "
            "largest epsilon; epsilon_least is what the best hidden user has.",
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
        lambda seed: task_of(topology.users, seed),
        lambda task, clip: decor.Exposure(clip=clip, steps=STEPS),
        lambda task, run: run.metrics["distance"],
        (3.0, 10.0) if quick else EPSILONS,
        seeds=tuple(range(2 if quick else 10)),
        tuning_seeds=tuple(range(1 if quick else 4)),
        edges=edges,
        options={"evaluate_every": STEPS, "schedule": decor.schedule.Cosine()},
    )
    ratios = RATIOS if kind == "decor" else (0.0,)
    grid = [Choice(CLIP, ratio, rate) for ratio in ratios for rate in RATES]
    chosen = one.tuned(dict.fromkeys(one.epsilons, grid))
    task = task_of(topology.users, 0)
    rows = one.shown(chosen, users=topology.users, edges=edges if kind == "decor" else None)
    return [
        r | {"ratio": chosen[e].ratio} | exposed(one.plan(task, e, chosen[e]))
        for e, r in zip(chosen, rows, strict=True)
    ]


def exposed(plan: decor.NoisePlan) -> Row:
    """The error that the noise predicts, and who is how exposed by it."""
    # a server averages, and everybody's message is equally bare to it
    if plan.adversary.average_only:
        return {"predicted_error": decor.theory.average_error(plan)}
    guarantee = plan.guarantee()
    return {
        "predicted_error": decor.theory.predicted_error(plan),
        "most_exposed": plan.topology.name(guarantee.worst_user)
        if plan.adversary.colluders is not None
        else "everybody",
        "epsilon_least": float(guarantee.per_user.min()),
        "epsilon_most": float(guarantee.per_user.max()),
    }


def panels(rows: Sequence[Row]) -> list[Panel]:
    """A picture for every graph; central and local DP too differ from one to the other, as the
    numbers of users do.
    """
    return [
        Panel(g, lines([r for r in rows if r["graph"] == g]))
        for g in dict.fromkeys(r["graph"] for r in rows)
    ]


@lru_cache(maxsize=8)
def topology_of(graph: str) -> decor.Topology:
    import networkx as nx

    made: dict[str, Any] = {
        "Florentine families": lambda: decor.from_networkx(nx.florentine_families_graph()),
        "Barabasi-Albert, m = 2": lambda: decor.from_networkx(
            nx.barabasi_albert_graph(32, 2, seed=0)
        ),
        "Barabasi-Albert, m = 4": lambda: decor.from_networkx(
            nx.barabasi_albert_graph(32, 4, seed=0)
        ),
        "Erdos-Renyi, p = 0.15": lambda: decor.erdos_renyi(32, 0.15, seed=0),
    }
    topology: decor.Topology = made[graph]()
    return topology


@lru_cache(maxsize=16)
def task_of(users: int, seed: int) -> decor.Task:
    return decor.tasks.least_squares(users, seed=seed)
