"""Draws the pictures of the documentation from real answers: `make docs`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import make_choosing
import make_protocol
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

import decor
from decor import Adversary, Exposure, NoisePlan, theory
from decor.privacy.plan_answer import PlanAnswer
from decor.results import axes
from decor.results.graph_layout import places
from decor.results.plan_figures import plan_figure
from decor.results.report_data import Report
from decor.results.tables import spreads

FIGURES = Path(__file__).parent / "figures"
DELTA, EXPOSURE = 1e-5, Exposure(clip=1.0, steps=1000)


def tightness() -> None:
    """Exact epsilon against the paper's conversion and the paper's theorem, on the same noise."""
    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    graphs = [decor.ring(16), decor.torus(4, 4), decor.complete(16)]
    panels = figure.subplots(1, 3, sharey=True)
    sigma_cor = np.geomspace(5, 2000, 60)
    for axis, topology in zip(panels, graphs, strict=True):
        made = [
            NoisePlan(topology, EXPOSURE, Adversary.eavesdropper(), 30.0, float(c))
            for c in sigma_cor
        ]
        exact = [p.guarantee(DELTA).epsilon for p in made]
        paper = [p.guarantee(DELTA, method="paper").epsilon for p in made]
        theorem = [theory.epsilon_bound(p, DELTA) for p in made]
        axis.plot(
            sigma_cor,
            theorem,
            color=axes.GREY,
            linewidth=2,
            linestyle=":",
            label="theorem of the paper",
        )
        axis.plot(
            sigma_cor,
            paper,
            color=axes.ORANGE,
            linewidth=2,
            linestyle="--",
            label="accountant of the paper",
        )
        axis.plot(sigma_cor, exact, color=axes.BLUE, linewidth=2.4, label="exact (DECOR)")
        axes.set_logarithmic(axis)
        axes.style_axes(
            axis, repr(topology), "sigma_cor", "epsilon, delta 1e-5" if axis is panels[0] else ""
        )
    panels[0].legend(frameon=False)
    figure.suptitle(
        "The same noise, three accounts (sigma_cdp 30, 1,000 steps, clip 1, eavesdropper)",
        weight="bold",
        color=axes.INK,
    )
    axes.save_figure(figure, FIGURES / "tightness.svg")


def plan() -> None:
    """The picture of `decor plan`, for a ring and for an irregular graph."""
    import networkx as nx

    budget = decor.Budget(3.0, DELTA)
    florentine = decor.from_networkx(nx.florentine_families_graph())
    for name, topology in (("plan-ring", decor.ring(16)), ("plan-florentine", florentine)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", decor.FragileGraphWarning)
            made = decor.calibrate(topology, EXPOSURE, Adversary.eavesdropper(), budget)
        answer = PlanAnswer(made, made.guarantee(DELTA))
        rows = answer.adversary_rows(map(Adversary.parse, ("eavesdropper", "curious", "everyone")))
        plan_figure(answer, rows, FIGURES / f"{name}.svg")


def demo(seeds: int = 24) -> None:
    """The figure of `make demo`, and the README's from the same runs: what privacy costs 16
    hospitals.
    """
    import tempfile

    from decor.results import figures
    from decor.training.compare import Comparison, Design

    graphs = (("ring", decor.ring(16)), ("torus", decor.torus(4, 4)))
    design = Design(
        graphs,
        (1.0, 3.0, 10.0, 30.0),
        Exposure(clip=1.0, steps=100),
        seeds=tuple(range(seeds)),
        recipe=decor.Recipe(gossip_rounds=4, final_gossip_rounds=16),
    )
    with tempfile.TemporaryDirectory() as folder:
        data = Comparison(decor.tasks.breast_cancer(users=16), design, folder).run()
    figures.comparison_figure(data, "accuracy", FIGURES / "demo.svg")
    between(data)


def between(data: Report) -> None:
    """The picture of the README: DECOR, which trusts nobody with the data, between local DP and a
    trusted server.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for outcome, spread in zip(data.outcomes, spreads(data, data.metric("accuracy")), strict=True):
        if outcome.epsilon is not None and spread is not None:
            found.setdefault(outcome.method.split(" ring")[0], []).append(
                (outcome.epsilon, spread.mean, spread.error or 0.0)
            )
    curves = {name: np.array(points).T for name, points in found.items()}
    (x, central, _), (_, local, _), (_, ours, error), (_, torus, _) = (
        curves[name] for name in ("central DP", "local DP", "DECOR", "DECOR torus")
    )
    figure = Figure(figsize=(11.5, 4.9))
    _neighbours(figure.add_axes((0.0, 0.05, 0.31, 0.84)))
    axis = figure.add_axes((0.375, 0.13, 0.61, 0.70))
    axis.fill_between(x, local, central, color="#dfe9f7", linewidth=0)
    axis.plot(x, central, color=axes.INK, linewidth=2.2)
    axis.plot(x, local, color=axes.ORANGE, linewidth=2.2)
    axis.plot(x, torus, color="#129a6a", linewidth=2, marker="s", markersize=6)
    axis.errorbar(
        x,
        ours,
        yerr=error,
        color=axes.BLUE,
        linewidth=3,
        marker="o",
        markersize=8,
        capsize=3,
        elinewidth=1.2,
    )
    axis.set_xscale("log")
    axis.set(xlim=(0.93, 32.5), ylim=(60, 100))
    axis.set_xticks(x, [f"{epsilon:g}" for epsilon in x])
    axis.xaxis.set_minor_locator(NullLocator())
    axes.style_axes(
        axis,
        "",
        "epsilon: what anybody who records every message can learn (smaller is more private)",
        "",
    )
    style: dict[str, Any] = {"fontsize": 10.5, "linespacing": 1.35}
    axis.text(1.16, 94.6, "central DP: everybody trusts one server", color=axes.INK, **style)
    axis.annotate(
        "",
        (2.05, 88.3),
        (1.85, 94.0),
        arrowprops={"arrowstyle": "-", "color": axes.INK, "linewidth": 0.8},
    )
    axis.text(
        1.16,
        79.4,
        "DECOR: no server,\ndata stay at home",
        color=axes.BLUE,
        weight="bold",
        va="top",
        **style,
    )
    axis.text(
        3.55,
        75,
        "local DP: everybody hides alone,\nand the model pays for it",
        color=axes.ORANGE,
        va="top",
        **style,
    )
    axis.set_title(
        "Test accuracy of a cancer classifier, %  (circles: on a ring, squares: on a torus)",
        loc="left",
        color=axes.INK,
        fontsize=11,
    )
    figure.text(
        0.015,
        0.945,
        "16 hospitals train one model, share no data, and have no server",
        fontsize=14.5,
        weight="bold",
        color=axes.INK,
    )
    axes.save_figure(figure, FIGURES / "between.svg")


def _neighbours(axis: Any) -> None:
    """A ring whose edges carry noise that one end adds and the other takes away."""
    at = places(decor.ring(16))
    axis.set(xlim=(-1.32, 1.32), ylim=(-1.32, 1.32), aspect="equal")
    axis.set_axis_off()
    for a, b in zip(at, np.roll(at, -1, 0), strict=True):
        axis.plot(*zip(a, b, strict=True), color=axes.GREY, linewidth=1.4, zorder=1)
        for end, other, sign, colour in ((a, b, "+", axes.BLUE), (b, a, "−", axes.ORANGE)):
            x, y = 1.14 * (0.72 * end + 0.28 * other)
            axis.text(
                x, y, sign, ha="center", va="center", fontsize=11, weight="bold", color=colour
            )
    axis.scatter(*at.T, s=150, color=axes.BLUE, edgecolors="white", linewidths=1.5, zorder=2)
    words = (
        "noise that one\nneighbour adds,\nthe other takes away:\nmessages hide,\nthe average stays"
    )
    axis.text(0, 0, words, ha="center", va="center", fontsize=10.5, color=axes.INK, linespacing=1.5)


def protocol() -> None:
    """The states of a session; the page's table is made beside it (make_protocol.py)."""
    (FIGURES / make_protocol.PICTURE).write_text(make_protocol.picture())


def scale() -> None:
    """What a step costs as users and parameters grow, from benchmarks/scale.jsonl."""
    rows = [
        json.loads(line)
        for line in (Path(__file__).parent.parent / "benchmarks" / "scale.jsonl")
        .read_text()
        .splitlines()
    ]
    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    styles = {
        "cpu": ("one process, one core", axes.GREY, "-"),
        "processes": ("two processes, two cores", axes.ORANGE, "--"),
        "cuda": ("one H200", axes.BLUE, "-"),
    }
    titles = {
        "users": "logistic regression, 124 parameters, 16 records a user",
        "parameters": "16 users, a network 100-h-10",
    }
    for axis, (what, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for kind, (label, colour, line) in styles.items():
            points = [
                (row[what], row["ms"]) for row in rows if (row["on"], row["what"]) == (kind, what)
            ]
            axis.plot(
                *zip(*points, strict=True),
                color=colour,
                linestyle=line,
                linewidth=2.2,
                marker="o",
                markersize=4,
                label=label,
            )
        axes.set_logarithmic(axis)
        axes.style_axes(
            axis, title, what if what == "users" else "parameters of a model", "milliseconds a step"
        )
    figure.axes[0].legend(frameon=False)
    figure.suptitle("What a step costs on a ring, user level", weight="bold", color=axes.INK)
    axes.save_figure(figure, FIGURES / "scale.svg")


def audit() -> None:
    """What `decor audit` proves of a right run."""
    from decor.auditing.figure import draw
    from decor.results.audit_summary import AuditSummary

    made = decor.calibrate(decor.ring(8), EXPOSURE, Adversary.curious(), decor.Budget(3.0, DELTA))
    measured = decor.audit(made, canaries=30_000).to_json()
    draw(AuditSummary.from_json(measured), FIGURES / "audit.svg")


def choosing() -> None:
    """The pictures of docs/choosing.md and of docs/tutorial.md."""
    for draw in (
        make_choosing.topologies,
        make_choosing.adversaries,
        make_choosing.steps_and_clip,
        make_choosing.engines,
    ):
        draw(FIGURES)
    make_choosing.messages(FIGURES)


PARTS = {"demo": (demo,), "answers": (tightness, plan, choosing, audit, protocol, scale)}
"""Two processes share the work: the demo trains for as long as all the others together."""


def main() -> None:
    """Draws everything, or the part named; the same pictures have the same bytes, on one
    machine.
    """
    FIGURES.mkdir(exist_ok=True)
    for part in sys.argv[1:]:
        for draw in PARTS[part]:
            draw()
    if not sys.argv[1:]:
        one_thread = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        started = [
            subprocess.Popen([sys.executable, __file__, part], env=one_thread) for part in PARTS
        ]
        ended = [process.wait() for process in started]
        if any(ended):
            raise SystemExit("a picture could not be drawn")
        make_protocol.PAGE.write_text(make_protocol.page(make_protocol.PAGE.read_text()))
        print(
            f"drew {len(list(FIGURES.iterdir()))} pictures in "
            f"{FIGURES.relative_to(FIGURES.parent.parent)}"
        )


if __name__ == "__main__":
    main()
