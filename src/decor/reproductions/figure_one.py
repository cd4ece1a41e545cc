"""What the three experiments of Figure 1 share: sixteen users, five methods, and the two variants
of each.
"""

from __future__ import annotations

from typing import Any

import decor

from .study import OURS, PAPER, Cell

USERS = 16
GRAPHS = {"ring": decor.ring(USERS), "torus": decor.torus(4, 4), "complete": decor.complete(USERS)}
METHODS = (
    ("central", None),
    ("decor", "ring"),
    ("decor", "torus"),
    ("decor", "complete"),
    ("local", "ring"),
)
NAMES = {"central": "central DP", "decor": "DECOR", "local": "local DP"}

CHOSEN = (
    "For every method, graph and epsilon the settings are chosen by the very value shown, on the "
    "same data and other noise: "
    "what that tells about the data is in no epsilon here."
)
ROUNDS = {"ring": 8, "torus": 4, "complete": 1}
"""Rounds of gossip in a step that make sixteen users' models equal, designed for the graph
(decor.graph.design).
"""
RATIOS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Ratios of the noises to choose from in the paper's variant: from near local DP to near central
DP.
"""


def cells(work: Any, quick: bool) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            f"{name_of(kind, graph)}, {variant}",
            work,
            {"variant": variant, "kind": kind, "graph": graph, "quick": quick},
        )
        for variant in (OURS, PAPER)
        for kind, graph in METHODS
    )


def name_of(kind: str, graph: str | None) -> str:
    return f"{NAMES[kind]} {graph}" if graph else NAMES[kind]


def where(graph: str | None) -> decor.Topology:
    return GRAPHS[graph or "complete"]


def gossip(variant: str, graph: str | None) -> dict[str, Any]:
    """Of a step: the paper's one plain round, or as many designed ones as make all models equal."""
    return (
        {"gossip_rounds": 1}
        if variant == PAPER
        else {"gossip_rounds": ROUNDS[graph or "complete"], "accelerate": "designed"}
    )
