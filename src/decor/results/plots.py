"""Pictures, drawn without a screen: the couples curve, epsilon against every adversary, the graph
coloured by exposure.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from decor.arrays import Floats
from decor.errors import InputError
from decor.graph.topology import Topology
from decor.privacy import baselines
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.text import rounded_up

from .graph_layout import places

INK, BLUE, ORANGE, GREY = "#1f2430", "#2f6db5", "#d9822b", "#9aa3b2"
COLOURS = "viridis_r"
DRAWN_USERS = 1500
"""Above this many users a graph is shown as the distribution of exposures instead."""


def plan_figure(
    plan: NoisePlan,
    guarantee: Guarantee,
    against: Sequence[tuple[str, Guarantee]],
    path: str | Path,
) -> None:
    """Everything about a plan: its couples (if it has a budget), epsilon against each adversary,
    and the graph.
    """
    curve = (
        plan.budget is not None
        and plan.adversary.colluders is not None
        and plan.topology.users <= DRAWN_USERS
    )
    figure = Figure(figsize=(15 if curve else 10.5, 4.8), layout="constrained")
    axes = figure.subplots(1, 3 if curve else 2)
    if curve:
        _couples(axes[0], plan)
    _against(axes[-2], against, guarantee)
    _graph(figure, axes[-1], plan.topology, guarantee.per_user, "epsilon", str(guarantee.adversary))
    figure.suptitle(
        f"{plan.topology.description}, {plan.exposure.steps:,} steps", color=INK, weight="bold"
    )
    save(figure, path)


def graph_figure(topology: Topology, exposures: Floats, ratio: float, path: str | Path) -> None:
    """The graph, coloured by how exposed everybody is to an eavesdropper (1 is local DP)."""
    figure = Figure(figsize=(7, 6), layout="constrained")
    axis = figure.subplots()
    _graph(
        figure,
        axis,
        topology,
        exposures,
        "exposure (1 = local DP)",
        f"eavesdropper, ratio {ratio:g}",
    )
    save(figure, path)


def _couples(axis: Any, plan: NoisePlan) -> None:
    assert plan.budget is not None
    curve = plan.couples(np.geomspace(1e-2, 1e5, 60 if plan.topology.users <= 64 else 15))
    central = baselines.central(plan.topology, plan.exposure, plan.budget, any_delta=True).sigma_cdp
    local = baselines.local(plan.topology, plan.exposure, plan.budget, any_delta=True).sigma_cdp
    axis.plot(curve.sigma_cor, curve.sigma_cdp, color=BLUE, linewidth=2.2)
    for level, name, side in ((local, "local DP", "bottom"), (central, "central DP", "top")):
        axis.axhline(level, color=GREY, linewidth=1, linestyle="--")
        axis.annotate(
            name,
            (1, level),
            xycoords=("axes fraction", "data"),
            ha="right",
            va=side,
            color=GREY,
            fontsize=9,
        )
    chosen = float(np.sqrt(np.mean(np.square(plan.sigma_cor))))
    if chosen > 0:
        axis.plot([chosen], [plan.sigma_cdp], "o", color=ORANGE, markersize=9, zorder=5)
        axis.annotate(
            "this plan",
            (chosen, plan.sigma_cdp),
            xytext=(8, 8),
            textcoords="offset points",
            color=ORANGE,
            weight="bold",
        )
    axis.set_ylim(central * 0.85, local * 1.25)
    logarithmic(axis)
    dress(
        axis,
        "Couples that spend the same budget",
        "noise on every edge, sigma_cor",
        "noise of every user, sigma_cdp",
    )


def logarithmic(axis: Any) -> None:
    """Both axes logarithmic, with numbers that people read."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    for way in (axis.xaxis, axis.yaxis):
        way.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _against(axis: Any, against: Sequence[tuple[str, Guarantee]], chosen: Guarantee) -> None:
    values = np.array([g.epsilon for _, g in against])
    finite = np.where(np.isfinite(values), values, np.nan)
    place = np.arange(len(against))[::-1]
    colours = [ORANGE if g.adversary == chosen.adversary else BLUE for _, g in against]
    axis.barh(place, np.nan_to_num(finite), color=colours, height=0.62)
    axis.set_yticks(place, [name for name, _ in against])
    for y, (_, g), value in zip(place, against, values, strict=True):
        text = rounded_up(value) if g.exact else f"≤ {rounded_up(value)}"
        axis.annotate(
            text,
            (0 if not np.isfinite(value) else value, y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=INK,
        )
    axis.margins(x=0.18)
    dress(axis, "Who learns what", f"epsilon of the most exposed user, delta {chosen.delta:g}", "")


def _graph(
    figure: Figure, axis: Any, topology: Topology, values: Floats, label: str, title: str
) -> None:
    if topology.users > DRAWN_USERS:
        axis.hist(values[np.isfinite(values)], bins=60, color=BLUE)
        dress(axis, f"Everybody, against {title}", label, "users")
        return
    at = places(topology)
    axis.add_collection(
        LineCollection(
            list(at[topology.edges]),
            colors=GREY,
            linewidths=max(0.3, min(1.2, 60 / topology.users)),
            zorder=1,
        )
    )
    low, high = float(np.min(values)), float(np.max(values))
    size = float(np.clip(6000 / topology.users, 14, 420))
    if not np.isfinite(high):
        axis.scatter(*at.T, s=size, color=ORANGE, zorder=2)
        axis.annotate(
            "infinite for everybody",
            (0.5, 0.5),
            xycoords="axes fraction",
            ha="center",
            weight="bold",
            color=INK,
        )
    else:
        alike = high - low <= 1e-9 * high
        norm = (
            Normalize(0, 2 * high)
            if alike
            else (LogNorm(low, high) if high > 20 * low > 0 else Normalize(low, high))
        )
        dots = axis.scatter(
            *at.T,
            c=values,
            s=size,
            cmap=COLOURS,
            norm=norm,
            edgecolors="white",
            linewidths=1,
            zorder=2,
        )
        if alike:
            axis.annotate(
                f"everybody: {rounded_up(high)}",
                (0.5, 0.5),
                xycoords="axes fraction",
                ha="center",
                va="center",
                color=INK,
                fontsize=12,
            )
        else:
            figure.colorbar(dots, ax=axis, label=label, shrink=0.8)
    if topology.users <= 64:
        _name_users(axis, topology, at, values)
    axis.set_aspect("equal")
    axis.autoscale_view()
    axis.margins(0.08)
    axis.set_axis_off()
    axis.set_title(f"Everybody, against {title}", color=INK, fontsize=11)


def _name_users(axis: Any, topology: Topology, at: Floats, values: Floats) -> None:
    """Short names inside the dots, black on the light end of the colours and white on the dark end;
    long names below them.
    """
    low, high = float(np.min(values)), float(np.max(values))
    for user, place in enumerate(at):
        name = topology.name(user)
        dark = not high - low > 1e-9 * high or (values[user] - low) / (high - low) > 0.45
        style: dict[str, Any] = {"va": "center", "color": "white" if dark else "black"}
        if len(name) > 3:
            style = {"va": "top", "color": INK, "xytext": (0, -11), "textcoords": "offset points"}
        axis.annotate(name, place, ha="center", fontsize=7, **style)


def dress(axis: Any, title: str, x: str, y: str) -> None:
    """Title, labels and a quiet grid."""
    axis.set_title(title, color=INK, fontsize=11)
    axis.set_xlabel(x, color=INK)
    axis.set_ylabel(y, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, which="major", color="#e6e9ef", linewidth=0.8)
    axis.set_axisbelow(True)


def save(figure: Figure, path: str | Path) -> None:
    """Writes a picture; the same answer draws the same file, because neither a date nor a random
    name is inside.
    """
    try:
        with rc_context({"svg.hashsalt": "decor"}), warnings.catch_warnings():
            # a letter that the font has not is drawn as a box, which is no reason to fail
            warnings.filterwarnings("ignore", "Glyph .* missing")
            figure.savefig(
                path,
                dpi=150,
                metadata={"Date": None} if str(path).lower().endswith(".svg") else None,
            )
    except (OSError, ValueError) as problem:
        raise InputError(f"the picture {str(path)!r} cannot be written: {problem}") from None
