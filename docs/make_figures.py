"""Draws the pictures of the documentation from real answers: `make docs`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import decor
from decor import Adversary, Exposure, NoisePlan, theory
from decor.results import plots

FIGURES = Path(__file__).parent / "figures"
DELTA, EXPOSURE = 1e-5, Exposure(clip=1.0, steps=1000)


def tightness() -> None:
    """Exact epsilon against the paper's conversion and the paper's theorem, on the same noise."""
    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    graphs = [decor.ring(16), decor.torus(4, 4), decor.complete(16)]
    axes = figure.subplots(1, 3, sharey=True)
    sigma_cor = np.geomspace(5, 2000, 60)
    for axis, topology in zip(axes, graphs, strict=True):
        made = [NoisePlan(topology, EXPOSURE, Adversary.eavesdropper(), 30.0, float(c)) for c in sigma_cor]
        exact = [p.guarantee(DELTA).epsilon for p in made]
        paper = [p.guarantee(DELTA, method="paper").epsilon for p in made]
        theorem = [theory.epsilon_bound(p, DELTA) for p in made]
        axis.plot(sigma_cor, theorem, color=plots.GREY, linewidth=2, linestyle=":", label="theorem of the paper")
        axis.plot(sigma_cor, paper, color=plots.ORANGE, linewidth=2, linestyle="--", label="accountant of the paper")
        axis.plot(sigma_cor, exact, color=plots.BLUE, linewidth=2.4, label="exact (DECOR)")
        plots.logarithmic(axis)
        plots.dress(axis, repr(topology), "sigma_cor", "epsilon, delta 1e-5" if axis is axes[0] else "")
    axes[0].legend(frameon=False)
    figure.suptitle(
        "The same noise, three accounts (sigma_cdp 30, 1,000 steps, clip 1, eavesdropper)", weight="bold", color=plots.INK
    )
    figure.savefig(FIGURES / "tightness.svg", metadata={"Date": None})


def plan() -> None:
    """The picture of `decor plan`, for a ring and for an irregular graph."""
    import networkx as nx

    budget = decor.Budget(3.0, DELTA)
    florentine = decor.from_networkx(nx.florentine_families_graph())
    for name, topology in (("plan-ring", decor.ring(16)), ("plan-florentine", florentine)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", decor.FragileGraphWarning)
            made = decor.calibrate(topology, EXPOSURE, Adversary.eavesdropper(), budget)
        against = [(str(a), made.guarantee(DELTA, a)) for a in map(Adversary.parse, ("eavesdropper", "curious", "everyone"))]
        plots.plan_figure(made, made.guarantee(DELTA), against, FIGURES / f"{name}.svg")


def demo(seeds: int = 24) -> None:
    """The figure of `make demo`: what privacy costs 16 hospitals."""
    import tempfile

    from decor.engines.comparison import Comparison, Design
    from decor.results import figures

    graphs = (("ring", decor.ring(16)), ("torus", decor.torus(4, 4)))
    design = Design(
        graphs,
        (1.0, 3.0, 10.0, 30.0),
        Exposure(clip=1.0, steps=100),
        seeds=tuple(range(seeds)),
        gossip_rounds=4,
        final_gossip_rounds=16,
    )
    with tempfile.TemporaryDirectory() as folder:
        data = Comparison(decor.tasks.breast_cancer(users=16), design, folder).run()
    figures.comparison_figure(data, "accuracy", FIGURES / "demo.svg")


def protocol() -> None:
    """The states of a session; the page's table is made beside it (make_protocol.py)."""
    import make_protocol

    (FIGURES / make_protocol.PICTURE).write_text(make_protocol.picture())


def scale() -> None:
    """What a step costs as users and parameters grow, from benchmarks/scale.jsonl."""
    rows = [json.loads(line) for line in (Path(__file__).parent.parent / "benchmarks" / "scale.jsonl").read_text().splitlines()]
    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    styles = {
        "cpu": ("one process, one core", plots.GREY, "-"),
        "processes": ("two processes, two cores", plots.ORANGE, "--"),
        "cuda": ("one H200", plots.BLUE, "-"),
    }
    titles = {"users": "logistic regression, 124 parameters, 16 records a user", "parameters": "16 users, a network 100-h-10"}
    for axis, (what, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for kind, (label, colour, line) in styles.items():
            points = [(row[what], row["ms"]) for row in rows if (row["on"], row["what"]) == (kind, what)]
            axis.plot(
                *zip(*points, strict=True), color=colour, linestyle=line, linewidth=2.2, marker="o", markersize=4, label=label
            )
        plots.logarithmic(axis)
        plots.dress(axis, title, what if what == "users" else "parameters of a model", "milliseconds a step")
    figure.axes[0].legend(frameon=False)
    figure.suptitle("What a step costs on a ring, user level", weight="bold", color=plots.INK)
    figure.savefig(FIGURES / "scale.svg", metadata={"Date": None})


if __name__ == "__main__":
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "decor"  # the same picture, the same bytes
    FIGURES.mkdir(exist_ok=True)
    tightness()
    plan()
    demo()
    protocol()
    scale()
    import make_protocol

    make_protocol.PAGE.write_text(make_protocol.page(make_protocol.PAGE.read_text()))
    print("\n".join(str(p.relative_to(FIGURES.parent.parent)) for p in sorted(FIGURES.iterdir())))
