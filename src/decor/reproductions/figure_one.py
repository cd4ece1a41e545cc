"""What the three experiments of Figure 1 share: 16 users, five methods, two variants of each."""

from __future__ import annotations

from typing import Any

import decor

from .study import OURS, PAPER, Cell
from .tuned_curve import Curve, default_ratio

USERS = 16
# the graphs of the paper
GRAPHS = {"ring": decor.ring(USERS), "torus": decor.torus(4, 4), "complete": decor.complete(USERS)}
# (kind, graph): central DP needs no graph, and local DP gossips on a ring
METHODS = (
    ("central", None),
    ("decor", "ring"),
    ("decor", "torus"),
    ("decor", "complete"),
    ("local", "ring"),
)
NAMES = {"central": "central DP", "decor": "DECOR", "local": "local DP"}

CHOSEN = (
    "For each method, graph and epsilon the settings are chosen by the value that is shown, on the "
    "same data and other noise. No epsilon here counts what that choice reveals about the data."
)
ROUNDS = {"ring": 8, "torus": 4, "complete": 1}
"""Gossip rounds per step that make the models of 16 users equal, designed for the graph
(decor.graph.gossip_polynomial).
"""
RATIOS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Noise ratios to choose from in the paper's variant: from near local DP to near central DP."""


def cells(work: Any, quick: bool) -> tuple[Cell, ...]:
    """A cell for each variant and method."""
    return tuple(
        Cell(
            f"{name_of(kind, graph)}, {variant}",
            work,
            {"variant": variant, "kind": kind, "graph": graph, "quick": quick},
        )
        for variant in (OURS, PAPER)
        for kind, graph in METHODS
    )


def curve(variant: str, kind: str, graph: str | None, *rest: Any, **options: Any) -> Curve:
    """The curve of a method; the other arguments are those of `Curve` from `task_of` on."""
    head = variant, kind, name_of(kind, graph), graph, where(graph)
    return Curve(*head, *rest, **options)


def ratios(curve: Curve, steps: int, papers: tuple[float, ...]) -> tuple[float, ...]:
    """Noise ratios to choose from: ours is the default, the paper's variant has `papers`."""
    if curve.kind != "decor":
        return (0.0,)
    if curve.variant == PAPER:
        return papers
    return (default_ratio(curve.topology, steps, **gossip(curve.variant, curve.graph)),)


def name_of(kind: str, graph: str | None) -> str:
    return f"{NAMES[kind]} {graph}" if graph else NAMES[kind]


def where(graph: str | None) -> decor.Topology:
    return GRAPHS[graph or "complete"]


def gossip(variant: str, graph: str | None) -> dict[str, Any]:
    """One plain round per step, as in the paper; or designed rounds that make all models equal."""
    if variant == PAPER:
        return {"gossip_rounds": 1}
    # central DP has no graph: one round on the complete graph averages exactly
    return {"gossip_rounds": ROUNDS[graph or "complete"], "accelerate": "designed"}
