"""MNIST and Fashion-MNIST at true epsilons of single examples, on features that no data made.

The value is the average model's accuracy. Settings of a data set are chosen on the other one.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import NamedTuple

import decor
from decor import progress

from . import figure_one, published
from .study import OURS, Cell, Row, Study, panels_by
from .tuned_curve import Choice, Curve, default_ratio

EPSILONS = (0.5, 1.0, 3.0, 8.0)
OTHER = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
STEPS, BATCH, RATE, MOMENTUM = 200, 512, 512.0, 0.9
SEEDS = (0, 1, 2, 3)
CLIPS = (0.015, 0.03, 0.06, 0.12)
"""One of these for each epsilon. They are far below the lengths of gradients, so the clip decides
how far a step goes, and noise with it; the learning rate is the same for all, so that all epsilons
share their batches.
"""
LOCAL_CLIPS = (0.004, 0.0075, 0.015, 0.03)
"""The same for local DP, whose noise is four times larger."""
AVERAGINGS = (0.0, 0.1)
"""One of these for all epsilons of a data set."""


class Settings(NamedTuple):
    """What is best on one data set, and the accuracy of all that was tried there."""

    averaging: float
    clips: dict[float, float]
    tried: dict[float, str]


def study(quick: bool = False) -> Study:
    return Study(
        name="records",
        title="MNIST and Fashion-MNIST, a linear model on scattering features, 16 users",
        question="How accurate is the average model, at an exact epsilon of one example?",
        cells=tuple(
            Cell(
                f"{dataset}, {name}", rows_of, {"dataset": dataset, "kinds": kinds, "quick": quick}
            )
            # the quick variant chooses nothing, and so needs one data set
            for dataset in (list(OTHER)[:1] if quick else OTHER)
            for name, kinds in (("central and ring", ["central", "decor"]), ("local", ["local"]))
        ),
        x_label="epsilon of one example (Poisson, add/remove, delta = 1e-5)",
        value_label="test accuracy",
        panels=panels_by("dataset"),
        line=("dataset", "method", "variant"),
        better="higher",
        percent=True,
        logarithmic=False,
        published=published.RECORDS,
        prepare=lambda: [decor.tasks.make(name, figure_one.USERS) for name in OTHER],
        notes=(
            "One linear layer on decor.features.scattering: fixed wavelets, each image by itself, "
            "so that features cost no privacy. 16 users with 3,750 images each, split at random; "
            f"{STEPS} steps of {BATCH} images per user by Poisson sampling, the gradient of each "
            f"example clipped, learning rate {RATE:g}, momentum {MOMENTUM:g}, eight designed "
            "rounds of gossip.",
            f"Chosen on the other data set, by its test accuracy in one run: the clip for each "
            f"epsilon ({_join(CLIPS)}; local DP: {_join(LOCAL_CLIPS)}), and whether the models of "
            "the last tenth of all steps are averaged. The runs are of central DP, and of local DP "
            "for its clips; DECOR has the settings of central DP. The column tried has all.",
            "Values are of four seeds of batches and noise.",
            "Fashion-MNIST is split anew: 1,000 images of each class, drawn at random, are the "
            "test data. Published results have the published split, and are of central DP.",
        ),
    )


def rows_of(dataset: str, kinds: list[str], quick: bool) -> list[Row]:
    """The rows of some methods on one data set, which share their settings."""
    epsilons = (1.0,) if quick else EPSILONS
    if quick:
        settings = Settings(0.0, {1.0: CLIPS[1]}, {1.0: ""})
    else:
        with progress.share(0.0, 0.4):
            settings = choose(OTHER[dataset], is_local="local" in kinds)
    rows = []
    for k, kind in enumerate(kinds):
        graph = None if kind == "central" else "ring"
        gossip = figure_one.gossip(OURS, graph)
        one = _curve(dataset, kind, graph, settings.averaging, epsilons, quick)
        steps = one.options["evaluate_every"]
        ratio = default_ratio(one.topology, steps, **gossip) if kind == "decor" else 0.0
        choices = {e: Choice(settings.clips[e], ratio, RATE) for e in epsilons}
        with progress.share(0.4 + 0.6 * k / len(kinds), 0.4 + 0.6 * (k + 1) / len(kinds)):
            found = one.rows(choices, momentum=MOMENTUM, averaging=settings.averaging, **gossip)
        rows += [
            {"dataset": NAMES[dataset]} | r | {"tried": settings.tried[r["epsilon"]]} for r in found
        ]
    return rows


@cache
def choose(dataset: str, is_local: bool) -> Settings:
    """The best settings on a data set, by one run of each."""
    kind, graph, clips = ("local", "ring", LOCAL_CLIPS) if is_local else ("central", None, CLIPS)
    choices = [Choice(clip, 0.0, RATE) for clip in clips]
    tried: dict[float, dict[tuple[float, float], float]] = {}
    for k, averaging in enumerate(AVERAGINGS):
        with progress.share(k / len(AVERAGINGS), (k + 1) / len(AVERAGINGS)):
            one = _curve(dataset, kind, graph, averaging, EPSILONS)
            one.tune(dict.fromkeys(EPSILONS, choices))
        for (epsilon, choice), cost in one.tried.items():
            tried.setdefault(epsilon, {})[averaging, choice.clip] = -cost
    return best(tried)


def best(tried: dict[float, dict[tuple[float, float], float]]) -> Settings:
    """The averaging that is best over all epsilons, with the best clip of each.

    Args:
        tried: epsilon -> (averaging, clip) -> accuracy.
    """

    def clip_of(epsilon: float, averaging: float) -> float:
        clips = {clip: value for (a, clip), value in tried[epsilon].items() if a == averaging}
        return max(clips, key=lambda clip: clips[clip])

    def total(averaging: float) -> float:
        return math.fsum(tried[e][averaging, clip_of(e, averaging)] for e in tried)

    averaging = max((a for a, _ in next(iter(tried.values()))), key=total)
    return Settings(
        averaging,
        {epsilon: clip_of(epsilon, averaging) for epsilon in tried},
        {
            epsilon: "; ".join(f"{a:g} {clip:g} {value:.4f}" for (a, clip), value in runs.items())
            for epsilon, runs in tried.items()
        },
    )


def _curve(
    dataset: str,
    kind: str,
    graph: str | None,
    averaging: float,
    epsilons: tuple[float, ...],
    quick: bool = False,
) -> Curve:
    steps = 60 if quick else STEPS
    return figure_one.curve(
        OURS,
        kind,
        graph,
        # one split: seeds are of batches and noise
        lambda seed: task_of(dataset),
        lambda task, clip: decor.Exposure(
            clip=clip, steps=steps, unit="example", batch_size=BATCH, records=task.records
        ),
        lambda task, run: run.metrics["accuracy"],
        epsilons,
        seeds=(0,) if quick else SEEDS,
        tuning_seeds=(0,),
        higher_is_better=True,
        options={
            "evaluate_every": steps,
            "momentum": MOMENTUM,
            "averaging": averaging,
            **figure_one.gossip(OURS, graph),
        },
    )


def _join(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


# one at a time: with its features a data set takes three gigabytes
@lru_cache(maxsize=1)
def task_of(dataset: str) -> decor.Task:
    return decor.tasks.make(f"{dataset}-scattering", figure_one.USERS, shards="iid")
