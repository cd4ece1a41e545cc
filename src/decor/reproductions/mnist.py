"""Figure 1, right: a network on MNIST, example level, at epsilons that are true.

The value is the average model's accuracy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import decor

from . import figure_one, published
from .study import OURS, Cell, Row, Study, by_graph
from .tuning import Choice, Curve, default_ratio

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DECAY = 1e-5
PAPERS: dict[str, Any] = {
    "steps": 1000,
    "batch_size": 64,
    "clips": (1.0, 1.5, 5.0),
    "rates": (0.5, 1.0, 2.0, 5.0),
}
OUR: dict[float, dict[str, Any]] = {
    0.0: {
        "steps": 240,
        "batch_size": 512,
        "clips": (0.1,),
        "rates": (48.0, 96.0),
        "local": (6.0, 12.0, 24.0, 48.0),
    },
    2.0: {
        "steps": 500,
        "batch_size": 256,
        "clips": (0.5,),
        "rates": (10.0, 20.0),
        "local": (2.5, 5.0, 10.0),
    },
    4.0: {
        "steps": 1000,
        "batch_size": 128,
        "clips": (0.5,),
        "rates": (10.0, 20.0),
        "local": (2.5, 5.0, 10.0),
    },
}
"""From which epsilon on, and chosen once for all methods on central DP: few large batches need less
noise than many small ones, and where noise is small anyway more steps go further. `local` are the
rates of local DP, whose noise is four times larger.
"""


def study(quick: bool = False) -> Study:
    return Study(
        name="mnist",
        title="A network on MNIST, 16 users, example level",
        question="How accurate is the average model, at an epsilon that is true?",
        cells=tuple(
            Cell(
                f"{cell.name}, epsilon {epsilon:g}",
                cell.work,
                cell.arguments | {"epsilon": epsilon},
            )
            for epsilon in ((1.0,) if quick else EPSILONS)
            for cell in figure_one.cells(point, quick)
            if not quick
            or (cell.arguments["variant"] == OURS and cell.arguments["graph"] in (None, "ring"))
        ),
        x="epsilon",
        x_label="epsilon of one record (Poisson, add/remove, delta = 1e-5)",
        value_label="test accuracy",
        panels=by_graph,
        better="higher",
        percent=True,
        logarithmic=False,
        published=published.MNIST,
        prepare=lambda: task_of(0),
        notes=(
            "784-128-10 with ReLU, disjoint shards by a Dirichlet(10) law of labels, Poisson "
            "batches, every record's gradient "
            "clipped.",
            f"As in the paper: {PAPERS['steps']} steps of {PAPERS['batch_size']} records a user, "
            "one round of gossip, clips "
            f"{PAPERS['clips']}, step sizes {PAPERS['rates']} falling as 1 / (1 + t / 5000), "
            f"weight decay {DECAY:g}; step size, "
            "clip and couple chosen one after the other. The epsilons are exact in both variants: "
            "the paper's accountant for "
            "examples does not compose over steps.",
            f"Ours: {'; '.join(map(_said, OUR))}; step sizes fall to a third, and gossip is "
            "designed for the graph.",
            "Published points are drawn at what their noise costs: the epsilons printed with them, "
            f"{_listed(published.MNIST_PRINTED)}, are {_listed(published.MNIST_EPSILONS)} by the "
            "most charitable tight count "
            "(for the ring's noise, drawn for all their curves).",
            figure_one.CHOSEN,
        ),
    )


def point(variant: str, kind: str, graph: str | None, quick: bool, epsilon: float) -> list[Row]:
    ours = variant == OURS
    setup = OUR[max(least for least in OUR if least <= epsilon)] if ours else PAPERS
    steps = 60 if quick else setup["steps"]
    gossip = figure_one.gossip(variant, graph)
    schedule = decor.schedule.InverseTime(setup["steps"] / 2 if ours else 5000)
    one = Curve(
        variant,
        kind,
        figure_one.name_of(kind, graph),
        graph,
        figure_one.where(graph),
        task_of,
        lambda task, clip: decor.Exposure(
            clip=clip,
            steps=steps,
            unit="example",
            batch_size=setup["batch_size"],
            records=task.records,
        ),
        lambda task, run: run.metrics["accuracy"],
        (epsilon,),
        seeds=(0,) if quick else (0, 1, 2, 3),
        tuning_seeds=(0,),
        higher_is_better=True,
        options={
            "evaluate_every": steps,
            "schedule": schedule,
            "weight_decay": 0.0 if ours else DECAY,
            **gossip,
        },
    )
    ratio = default_ratio(one.topology, steps, **gossip) if kind == "decor" else 0.0
    rates = setup["local" if ours and kind == "local" else "rates"]
    best = Choice(setup["clips"][0], ratio, rates[-1])
    if not quick:
        best = one.tuned({epsilon: [Choice(best.clip, ratio, rate) for rate in rates]})[epsilon]
        if not ours:
            best = _refined(one, epsilon, best)
    return one.shown({epsilon: best}, **gossip)


def _refined(one: Curve, epsilon: float, best: Choice) -> Choice:
    """Other clips, each with the step size that moves as far, then other couples: one after the
    other, as runs are long.
    """
    rates = PAPERS["rates"]
    others = [
        Choice(c, best.ratio, min(rates, key=lambda r: abs(r * c - best.learning_rate)))
        for c in PAPERS["clips"][1:]
    ]
    best = one.tuned({epsilon: [best, *others]})[epsilon]
    if one.kind != "decor":
        return best
    couples = [
        Choice(best.clip, best.ratio * times, best.learning_rate) for times in (1.0, 0.25, 4.0)
    ]
    return one.tuned({epsilon: couples})[epsilon]


def _said(least: float) -> str:
    setup, local = OUR[least], _listed(OUR[least]["local"])
    return (
        f"{f'from epsilon {least:g} on ' if least else ''}{setup['steps']} steps of "
        f"{setup['batch_size']} records, clip "
        f"{setup['clips'][0]:g}, the best of the step sizes {_listed(setup['rates'])} (local DP: "
        f"{local})"
    )


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


@lru_cache(maxsize=1)
def task_of(seed: int) -> decor.Task:
    return decor.tasks.mnist(figure_one.USERS, seed=seed)
