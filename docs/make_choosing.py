"""The pictures of docs/choosing.md and docs/tutorial.md, from real answers and real runs: `make
docs`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

import decor
from decor import Adversary, Budget, Exposure, theory
from decor.graph.gossip import Gossip
from decor.results import axes
from decor.results.graph_layout import places

EXPOSURE, BUDGET = Exposure(clip=1.0, steps=1000), Budget(3.0, 1e-5)
EAVESDROPPER = Adversary.eavesdropper()
PALE, GREEN, SLATE = "#e8f0fa", "#129a6a", "#5b6472"
GRAPHS = {
    "path": decor.path(16),
    "star": decor.star(16),
    "ring": decor.ring(16),
    "torus": decor.torus(4, 4),
    "random regular, degree 6": decor.random_regular(16, degree=6, seed=0),
    "complete": decor.complete(16),
}
LINES = {
    "star": (axes.GREY, ":"),
    "ring": (axes.BLUE, "-"),
    "torus": (GREEN, "-"),
    "random regular, degree 6": ("#8a5cc2", "--"),
    "complete": (axes.INK, "-"),
}


@contextmanager
def quiet() -> Iterator[None]:
    """Stars and paths are fragile, which is what the pictures show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", decor.FragileGraphWarning)
        yield


def topologies(folder: Path) -> None:
    """Six graphs of 16 users: what each costs, and how many colluders it takes to leave somebody
    alone.
    """
    figure = Figure(figsize=(13, 3.9), layout="constrained")
    for axis, (name, topology) in zip(figure.subplots(1, len(GRAPHS)), GRAPHS.items(), strict=True):
        errors = {}
        for rounds in (1, 4):
            how = {"gossip_rounds": rounds, "accelerate": "designed"}
            with quiet():
                plan = decor.calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, **how)
            central = theory.average_error(decor.baselines.central(topology, EXPOSURE, BUDGET))
            errors[rounds] = theory.predicted_error(plan, Gossip(rounds, "designed")) / central
        at = places(topology)
        at = (at - at.mean(0)) / np.abs(at - at.mean(0)).max()
        axis.add_collection(
            LineCollection(list(at[topology.edges]), colors=axes.GREY, linewidths=0.9, zorder=1)
        )
        axis.scatter(*at.T, s=52, color=axes.BLUE, edgecolors="white", linewidths=1, zorder=2)
        axis.set(xlim=(-1.2, 1.2), ylim=(-1.9, 1.2), aspect="equal")
        axis.set_axis_off()
        axis.set_title(name.replace(", ", "\n"), color=axes.INK, fontsize=11, weight="bold")
        isolating = int(topology.degrees.min())
        alone = f"{isolating} leave{'s' if isolating == 1 else ''} one alone"
        lines = [f"{errors[1]:.2f} with one round", f"{errors[4]:.2f} with four", alone]
        for k, line in enumerate(lines):
            colour = axes.INK if k < 2 else (axes.ORANGE if isolating < 3 else GREEN)
            axis.text(0, -1.25 - 0.27 * k, line, ha="center", va="top", fontsize=9.5, color=colour)
    figure.suptitle(
        "Sixteen users: predicted error over central DP's, by rounds of gossip; and how many "
        "colluding users leave one alone",
        fontsize=11,
        color=axes.INK,
    )
    axes.save_figure(figure, folder / "choosing-topology.svg")


def adversaries(folder: Path) -> None:
    """What protection against more colluders takes, and what is left of a plan that did not think
    of them.
    """
    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    need, left = figure.subplots(1, 2)
    many = range(7)
    for name, (colour, line) in LINES.items():
        topology = GRAPHS[name]
        central = decor.baselines.central(topology, EXPOSURE, BUDGET).sigma_cdp
        with quiet():
            how = {"gossip_rounds": 8, "accelerate": "designed"}
            made = [
                decor.calibrate(topology, EXPOSURE, Adversary.colluding(q), BUDGET, **how)
                for q in many
            ]
            careless = decor.calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET)
            epsilons = [careless.guarantee(adversary=Adversary.colluding(q)).epsilon for q in many]
        style: dict[str, Any] = {
            "color": colour,
            "linestyle": line,
            "linewidth": 2.2,
            "marker": "o",
            "markersize": 5,
            "label": name,
        }
        need.plot(many, [plan.sigma_cdp / central for plan in made], **style)
        left.plot(many, epsilons, **style)
    for level, name in ((1.0, "central DP"), (4.0, "local DP")):
        need.axhline(level, color=axes.GREY, linewidth=1, linestyle="--")
        need.annotate(
            name,
            (6, level),
            ha="right",
            va="bottom",
            xytext=(0, 2),
            textcoords="offset points",
            color=axes.GREY,
        )
    need.set_ylim(0.85, 4.4)
    left.set_yscale("log")
    left.set_yticks([3, 4, 5, 7, 10, 14])
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.yaxis.set_minor_locator(NullLocator())
    axes.style_axes(
        need, "Planned for: everybody's own noise, central DP's is 1", "colluding users", ""
    )
    axes.style_axes(
        left,
        "Not planned for: epsilon of a plan for an eavesdropper, epsilon 3",
        "colluding users",
        "",
    )
    need.legend(frameon=False, loc="center right")
    figure.suptitle("Sixteen users, 1,000 steps, epsilon 3", weight="bold", color=axes.INK)
    axes.save_figure(figure, folder / "choosing-adversary.svg")


def steps_and_clip(folder: Path) -> None:
    """Test accuracy at epsilon 3 by steps and clip, each with the best of five learning rates, six
    seeds.
    """
    clips, steps = (0.03, 0.1, 0.3, 1.0, 3.0), (10, 30, 100, 300)
    task = decor.tasks.breast_cancer(users=16, seed=0)
    how = {"gossip_rounds": 4, "accelerate": "designed"}
    accuracy = np.empty((len(steps), len(clips)))
    for i, T in enumerate(steps):
        for j, clip in enumerate(clips):
            plan = decor.calibrate(
                decor.torus(4, 4), Exposure(clip=clip, steps=T), EAVESDROPPER, BUDGET, **how
            )
            rates = [rate / clip for rate in (0.01, 0.03, 0.1, 0.3, 1.0)]
            swept = decor.sweep(
                task, [plan], learning_rates=rates, seeds=range(6), evaluate_every=T, **how
            )
            best = swept.best("loss", [plan])
            accuracy[i, j] = 100 * np.mean([run.metrics["accuracy"] for run in best.runs])
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axis = figure.subplots()
    axis.imshow(accuracy, cmap="YlGnBu", vmin=78, vmax=100, aspect="auto")
    for i, j in np.ndindex(accuracy.shape):
        axis.text(
            j,
            i,
            f"{accuracy[i, j]:.1f}",
            ha="center",
            va="center",
            color="white" if accuracy[i, j] > 90 else axes.INK,
        )
    axis.set_xticks(range(len(clips)), [f"{clip:g}" for clip in clips])
    axis.set_yticks(range(len(steps)), [str(T) for T in steps])
    axes.style_axes(axis, "Test accuracy at epsilon 3, 16 hospitals on a torus, %", "clip", "steps")
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    axes.save_figure(figure, folder / "choosing-steps.svg")


ARROW = {"arrowstyle": "-|>", "color": axes.INK, "shrinkA": 0, "shrinkB": 0}
QUESTIONS = (
    (
        "Does one place hold all the data?",
        "no",
        "Peers",
        "every user its own machine, keys and data:\ndecor node, or decor up to try it",
    ),
    (
        "Is there an NVIDIA card, and a model or a\nnumber of users that is large?",
        "yes",
        'Vectorised(device="cuda")',
        "1,024 users with a network in 2 ms a step",
    ),
    (
        "More memory or cores than one process takes?",
        "yes",
        "ProcessGroup()",
        "torchrun: processes, machines, Slurm",
    ),
)
"""A question, the answer that leads aside, and where it leads."""


def engines(folder: Path) -> None:
    """Which engine: three questions."""
    figure = Figure(figsize=(11, 4.6))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, 110), ylim=(0, 46))
    axis.set_axis_off()

    def box(
        x: float, y: float, w: float, words: str, below: str, colour: str, filled: bool
    ) -> None:
        face = PALE if filled else "white"
        axis.add_patch(
            FancyBboxPatch(
                (x, y), w, 7, boxstyle="round,pad=0.3,rounding_size=1", fc=face, ec=colour, lw=1.6
            )
        )
        style = {"ha": "center", "va": "center", "color": axes.INK}
        axis.text(
            x + w / 2,
            y + (5.4 if below else 3.5),
            words,
            fontsize=10.5,
            weight="bold" if filled else "normal",
            **style,
        )
        axis.text(x + w / 2, y + 2.1, below, fontsize=8.8, **{**style, "color": SLATE})

    heights = (36, 25, 14, 3)
    for (question, answer, engine, about), y in zip(QUESTIONS, heights, strict=False):
        box(3, y, 44, question, "", axes.INK, filled=False)
        box(62, y, 45, engine, about, axes.BLUE, filled=True)
        axis.annotate("", (61.6, y + 3.5), (47.4, y + 3.5), arrowprops=ARROW)
        axis.text(54.5, y + 4.4, answer, ha="center", fontsize=10, color=axes.INK)
    box(
        3,
        heights[3],
        44,
        "Vectorised()",
        "all users in one process: nearly always",
        axes.BLUE,
        filled=True,
    )
    for above, below in pairwise(heights):
        axis.annotate("", (25, below + 7.4), (25, above - 0.4), arrowprops=ARROW)
    for (_, answer, *_), y in zip(QUESTIONS, heights, strict=False):
        axis.text(
            26, y - 2, "yes" if answer == "no" else "no", va="center", fontsize=10, color=axes.INK
        )
    axis.text(
        62,
        6.5,
        "The same plan, the same guarantee,\nthe same numbers to rounding: tests hold them to it.",
        va="center",
        fontsize=9.5,
        color=SLATE,
    )
    axes.save_figure(figure, folder / "choosing-engine.svg")


def messages(folder: Path) -> None:
    """One number of the model in every message of a real run, its average, and the same run without
    privacy.
    """
    task = decor.tasks.breast_cancer(users=8, seed=0)
    exposure, budget = Exposure(clip=0.1, steps=50), Budget(10.0, 1e-5)
    graph = decor.random_regular(8, degree=4, seed=0)
    how = {"gossip_rounds": 4, "accelerate": "designed"}
    plan = decor.calibrate(graph, exposure, Adversary.colluding(2), budget, ratio=100.0, **how)
    seen = []
    engine = decor.Vectorised(
        seed=3, on_messages=lambda step, sent: seen.append(sent[:, 0, 0, WEIGHT].clone().numpy())
    )
    decor.train(task, plan, learning_rate=0.5, engine=engine, **how)
    without = []
    open_ = decor.NoisePlan(graph, exposure, Adversary.everyone(), 0.0, 0.0)
    listener = decor.Vectorised(
        seed=3, on_messages=lambda step, sent: without.append(sent[:, 0, 0, WEIGHT].mean().item())
    )
    decor.train(task, open_, learning_rate=0.5, engine=listener, **how)
    sent = np.array(seen)
    steps = np.arange(1, len(sent) + 1)
    figure = Figure(figsize=(12.5, 4.4), layout="constrained")
    wire, model = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for user in range(8):
        label = "what the eight hospitals send" if user == 0 else None
        wire.plot(
            steps,
            sent[:, user],
            color=axes.GREY,
            alpha=0.6,
            linewidth=0.9,
            marker=".",
            markersize=3,
            label=label,
        )
    for axis in (wire, model):
        axis.plot(
            steps,
            without,
            color=axes.ORANGE,
            linewidth=2,
            linestyle="--",
            label="the average, had nobody added noise",
        )
        axis.plot(
            steps,
            sent.mean(1),
            color=axes.BLUE,
            linewidth=2.6,
            label="the average of what they send",
        )
    low, high = model.get_ylim()
    wire.add_patch(
        Rectangle((0, low), 51, high - low, fill=False, edgecolor=axes.BLUE, linewidth=1)
    )
    axes.style_axes(wire, "One weight of the model, in every message", "step", "")
    axes.style_axes(
        model,
        f"The frame, {np.diff(wire.get_ylim())[0] / (high - low):.0f} times larger",
        "step",
        "",
    )
    handles, names = wire.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    axes.save_figure(figure, folder / "messages.svg")


WEIGHT = 7
"""Which of the model's 31 numbers is drawn."""
