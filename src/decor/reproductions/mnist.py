"""Figure 1, right: a network on MNIST, example level, with exact epsilons.

The value is the average model's accuracy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import decor

from . import figure_one, published
from .study import OURS, Cell, Row, Study
from .tuned_curve import Choice, Curve, default_ratio

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DECAY = 1e-5


class Setup(NamedTuple):
    """Settings to choose from; `local` are the step sizes of local DP, whose noise is four times
    larger.
    """

    steps: int
    batch_size: int
    clips: tuple[float, ...]
    rates: tuple[float, ...]
    local: tuple[float, ...]


PAPERS = Setup(1000, 64, (1.0, 1.5, 5.0), (0.5, 1.0, 2.0, 5.0), (0.5, 1.0, 2.0, 5.0))
OUR = {
    0.0: Setup(240, 512, (0.1,), (48.0, 96.0), (6.0, 12.0, 24.0, 48.0)),
    2.0: Setup(500, 256, (0.5,), (10.0, 20.0), (2.5, 5.0, 10.0)),
    4.0: Setup(1000, 128, (0.5,), (10.0, 20.0), (2.5, 5.0, 10.0)),
}
"""From which epsilon on. Chosen once for all methods, on central DP: few large batches need less
noise than many small ones, and where noise is small anyway more steps are better.
"""


def study(quick: bool = False) -> Study:
    cells = []
    for epsilon in (1.0,) if quick else EPSILONS:
        for cell in figure_one.cells(point, quick):
            arguments = cell.arguments | {"epsilon": epsilon}
            # the quick variant has our central DP and DECOR on a ring only
            in_quick = arguments["variant"] == OURS and arguments["graph"] in (None, "ring")
            if in_quick or not quick:
                cells.append(Cell(f"{cell.name}, epsilon {epsilon:g}", cell.work, arguments))
    return Study(
        name="mnist",
        title="A network on MNIST, 16 users, example level",
        question="How accurate is the average model, at an exact epsilon?",
        cells=tuple(cells),
        x_label="epsilon of one record (Poisson, add/remove, delta = 1e-5)",
        value_label="test accuracy",
        better="higher",
        percent=True,
        logarithmic=False,
        published=published.MNIST,
        prepare=lambda: task_of(0),
        notes=(
            "784-128-10 with ReLU, disjoint shards with labels by a Dirichlet(10) distribution, "
            "Poisson batches, the gradient of each example clipped.",
            f"As in the paper: {PAPERS.steps} steps of {PAPERS.batch_size} examples per user, one "
            f"gossip round, clips {PAPERS.clips}, step sizes {PAPERS.rates} falling as 1 / (1 + t "
            f"/ 5000), weight decay {DECAY:g}; step size, clip and noise pair are chosen one after "
            "the other. The epsilons are exact in both variants: the paper's accountant for "
            "examples does not compose over steps.",
            f"Ours: {'; '.join(map(_setup_text, OUR))}; step sizes fall to a third, and gossip is "
            "designed for the graph.",
            "Published points are drawn at what their noise costs: the epsilons printed with them, "
            f"{_join(published.MNIST_PRINTED)}, are {_join(published.MNIST_EPSILONS)} by the most "
            "favourable tight accounting (for the ring's noise, used for all their curves).",
            figure_one.CHOSEN,
        ),
    )


def point(variant: str, kind: str, graph: str | None, quick: bool, epsilon: float) -> list[Row]:
    ours = variant == OURS
    # the last setup that begins at this epsilon or below
    setup = OUR[max(least for least in OUR if least <= epsilon)] if ours else PAPERS
    steps = 60 if quick else setup.steps
    gossip = figure_one.gossip(variant, graph)
    one = figure_one.curve(
        variant,
        kind,
        graph,
        task_of,
        lambda task, clip: decor.Exposure(
            clip=clip,
            steps=steps,
            unit="example",
            batch_size=setup.batch_size,
            # shards differ in size, and each user is accounted with its own
            records=task.records,
        ),
        lambda task, run: run.metrics["accuracy"],
        (epsilon,),
        seeds=(0,) if quick else (0, 1, 2, 3),
        tuning_seeds=(0,),
        # accuracy, where all other studies have a distance or a loss
        higher_is_better=True,
        options={
            "evaluate_every": steps,
            "schedule": decor.schedule.InverseTime(setup.steps / 2 if ours else 5000),
            "weight_decay": 0.0 if ours else DECAY,
            **gossip,
        },
    )
    ratio = default_ratio(one.topology, steps, **gossip) if kind == "decor" else 0.0
    rates = setup.local if kind == "local" else setup.rates
    # the quick variant does not tune
    best = Choice(setup.clips[0], ratio, rates[-1])
    if not quick:
        best = one.tune({epsilon: [Choice(best.clip, ratio, rate) for rate in rates]})[epsilon]
        if not ours:
            best = _refine(one, epsilon, best)
    return one.rows({epsilon: best}, **gossip)


def _refine(one: Curve, epsilon: float, best: Choice) -> Choice:
    """Tries other clips, then other noise pairs: one after the other, because runs are long."""
    # with each clip the step size that moves models as far
    others = [
        Choice(c, best.ratio, min(PAPERS.rates, key=lambda r: abs(r * c - best.learning_rate)))
        for c in PAPERS.clips[1:]
    ]
    best = one.tune({epsilon: [best, *others]})[epsilon]
    if one.kind != "decor":
        return best
    ratios = [best.ratio * times for times in (1.0, 0.25, 4.0)]
    pairs = [Choice(best.clip, ratio, best.learning_rate) for ratio in ratios]
    return one.tune({epsilon: pairs})[epsilon]


def _setup_text(least: float) -> str:
    setup = OUR[least]
    return (
        f"{f'from epsilon {least:g} on ' if least else ''}{setup.steps} steps of "
        f"{setup.batch_size} examples, clip {setup.clips[0]:g}, the best of the step sizes "
        f"{_join(setup.rates)} (local DP: {_join(setup.local)})"
    )


def _join(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


@lru_cache(maxsize=1)
def task_of(seed: int) -> decor.Task:
    return decor.tasks.mnist(figure_one.USERS, seed=seed)
