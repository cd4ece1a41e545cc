"""Figures of plans and graphs: noise pairs, epsilon against each adversary, the coloured graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from decor.array_types import Floats
from decor.graph.topology import Topology
from decor.privacy import baselines
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.privacy.plan_answer import AdversaryRow, PlanAnswer
from decor.text import amount

from .axes import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    draw_graph,
    draw_histogram,
    save_figure,
    set_logarithmic,
    style_axes,
)
from .graph_layout import places
from .report_data import MAX_DRAWN_USERS


def plan_figure(answer: PlanAnswer, rows: Sequence[AdversaryRow], path: str | Path) -> None:
    """Writes a figure of a plan: its noise pairs, epsilon against each adversary, and the graph.

    Args:
        answer: The plan. Its noise pairs are drawn if it has a budget and the graph is small.
        rows: The adversaries to draw, from `answer.adversary_rows`.
        path: The file; its suffix chooses the format.
    """
    plan, guarantee = answer.plan, answer.guarantee
    small = plan.topology.users <= MAX_DRAWN_USERS
    # the adversary "everyone" knows all edge noise: there are no pairs to choose from
    has_pairs = plan.budget is not None and plan.adversary.colluders is not None and small
    figure = Figure(figsize=(15 if has_pairs else 10.5, 4.8), layout="constrained")
    axes = figure.subplots(1, 3 if has_pairs else 2)
    if has_pairs:
        _draw_noise_pairs(axes[0], plan)
    _draw_adversaries(axes[-2], rows, guarantee)
    title = f"Each user, against {guarantee.adversary}"
    _draw_topology(figure, axes[-1], plan.topology, guarantee.per_user, "epsilon", title)
    heading = f"{plan.topology.description}, {amount(plan.exposure.steps, 'step')}"
    figure.suptitle(heading, color=INK, weight="bold")
    save_figure(figure, path)


def graph_figure(topology: Topology, exposures: Floats, ratio: float, path: str | Path) -> None:
    """Writes the graph, coloured by each user's exposure to an eavesdropper (1 is local DP)."""
    figure = Figure(figsize=(7, 6), layout="constrained")
    title = f"Each user, against eavesdropper, ratio {ratio:g}"
    label = "exposure (1 = local DP)"
    _draw_topology(figure, figure.subplots(), topology, exposures, label, title)
    save_figure(figure, path)


def _draw_noise_pairs(axis: Any, plan: NoisePlan) -> None:
    assert plan.budget is not None
    # a large graph needs seconds for each point
    curve = plan.couples(np.geomspace(1e-2, 1e5, 60 if plan.topology.users <= 64 else 15))
    shared = (plan.topology, plan.exposure, plan.budget)
    central = baselines.central(*shared, any_delta=True).least_sigma_cdp
    local = baselines.local(*shared, any_delta=True).least_sigma_cdp
    axis.plot(curve.sigma_cor, curve.sigma_cdp, color=BLUE, linewidth=2.2)
    for level, name, side in ((local, "local DP", "bottom"), (central, "central DP", "top")):
        axis.axhline(level, color=GREY, linewidth=1, linestyle="--")
        right: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": side}
        axis.annotate(name, (1, level), color=GREY, fontsize=9, **right)
    # edges and users may differ: their root mean squares are shown
    chosen = float(np.sqrt(np.mean(np.square(plan.sigma_cor))))
    own = float(np.sqrt(np.mean(plan.sigma_cdp_per_user**2)))
    if chosen > 0:
        axis.plot([chosen], [own], "o", color=ORANGE, markersize=9, zorder=5)
        above: dict[str, Any] = {"xytext": (8, 8), "textcoords": "offset points"}
        point = (chosen, own)
        axis.annotate("this plan", point, color=ORANGE, weight="bold", **above)
    # every sigma_cdp of use lies between those of central and local DP
    axis.set_ylim(central * 0.85, local * 1.25)
    set_logarithmic(axis)
    x, y = "noise on every edge, sigma_cor", "noise of every user, sigma_cdp"
    style_axes(axis, "Noise pairs that spend the same budget", x, y)


def _draw_adversaries(axis: Any, rows: Sequence[AdversaryRow], chosen: Guarantee) -> None:
    values = np.array([row.epsilon for row in rows])
    heights = np.arange(len(rows))[::-1]
    colours = [ORANGE if row.adversary == chosen.adversary else BLUE for row in rows]
    # an infinite epsilon has no bar, only its text
    lengths = np.where(np.isfinite(values), values, 0.0)
    axis.barh(heights, lengths, color=colours, height=0.62)
    axis.set_yticks(heights, [str(row.adversary) for row in rows])
    beside: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    for place, row, length in zip(heights, rows, lengths, strict=True):
        axis.annotate(row.epsilon_text("≤"), (length, place), color=INK, **beside)
    # space for the numbers beside the longest bar
    axis.margins(x=0.18)
    label = f"epsilon of the most exposed user, delta {chosen.delta:g}"
    style_axes(axis, "Who learns what", label, "")


def _draw_topology(
    figure: Figure, axis: Any, topology: Topology, values: Floats, label: str, title: str
) -> None:
    if topology.users > MAX_DRAWN_USERS:
        draw_histogram(axis, values)
        style_axes(axis, title, label, "users")
        return
    names = [topology.name(user) for user in range(topology.users)]
    draw_graph(figure, axis, places(topology), topology.edges, values, names, label)
    axis.set_title(title, color=INK, fontsize=11)
