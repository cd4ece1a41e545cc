"""MNIST and Fashion-MNIST at true epsilons of single examples, on features that no data made.

The value is the average model's accuracy. Settings of a data set are chosen on the other one.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

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
CHOICE_SEEDS = (0, 1, 2)
CLIPS = {
    0.5: (0.015, 0.03, 0.06),
    1.0: (0.015, 0.03, 0.06),
    3.0: (0.03, 0.06, 0.12),
    8.0: (0.03, 0.06, 0.12),
}
"""One of these for each epsilon. They are far below the lengths of gradients, so the clip decides
how far a step goes, and noise with it; the learning rate is the same for all, so that all epsilons
share their batches.
"""
LOCAL_CLIPS = {
    0.5: (0.004, 0.0075, 0.015),
    1.0: (0.004, 0.0075, 0.015),
    3.0: (0.0075, 0.015, 0.03),
    8.0: (0.015, 0.03, 0.06),
}
"""The same for local DP, whose noise is four times larger."""


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
            "The clip for each epsilon is chosen on the other data set, by its test accuracy in "
            f"{len(CHOICE_SEEDS)} runs of central DP, or of local DP for its own clips. DECOR has "
            "the clips of central DP. The column tried has all that were tried, and their "
            "accuracies there.",
            "Values are of four seeds of batches and noise.",
            "Fashion-MNIST is split anew: 1,000 images of each class, drawn at random, are the "
            "test data. Published results have the published split, and are of central DP.",
        ),
    )


def rows_of(dataset: str, kinds: list[str], quick: bool) -> list[Row]:
    """The rows of some methods on one data set, which share their clips."""
    epsilons = (1.0,) if quick else EPSILONS
    tried: dict[float, dict[float, float]] = {1.0: {CLIPS[1.0][1]: math.nan}}
    if not quick:
        with progress.share(0.0, 0.4):
            tried = try_clips(OTHER[dataset], is_local="local" in kinds)
    rows = []
    for k, kind in enumerate(kinds):
        graph = None if kind == "central" else "ring"
        gossip = figure_one.gossip(OURS, graph)
        one = _curve(dataset, kind, graph, epsilons, quick)
        steps = one.options["evaluate_every"]
        ratio = default_ratio(one.topology, steps, **gossip) if kind == "decor" else 0.0
        choices = {e: Choice(best(tried[e]), ratio, RATE) for e in epsilons}
        with progress.share(0.4 + 0.6 * k / len(kinds), 0.4 + 0.6 * (k + 1) / len(kinds)):
            found = one.rows(choices, momentum=MOMENTUM, **gossip)
        for row in found:
            clips = tried[row["epsilon"]].items()
            text = "; ".join(f"{clip:g} {accuracy:.5f}" for clip, accuracy in clips)
            rows.append({"dataset": NAMES[dataset]} | row | {"tried": text})
    return rows


@cache
def try_clips(dataset: str, is_local: bool) -> dict[float, dict[float, float]]:
    """epsilon -> clip -> accuracy on a data set, over the seeds of the choice."""
    kind, graph, clips = ("local", "ring", LOCAL_CLIPS) if is_local else ("central", None, CLIPS)
    one = _curve(dataset, kind, graph, EPSILONS)
    one.tune({e: [Choice(clip, 0.0, RATE) for clip in clips[e]] for e in EPSILONS})
    tried: dict[float, dict[float, float]] = {e: {} for e in EPSILONS}
    for (epsilon, choice), cost in one.tried.items():
        tried[epsilon][choice.clip] = -cost / len(CHOICE_SEEDS)
    return tried


def best(accuracies: dict[float, float]) -> float:
    """The clip with the largest accuracy."""
    return max(accuracies, key=lambda clip: accuracies[clip])


def _curve(
    dataset: str,
    kind: str,
    graph: str | None,
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
        tuning_seeds=CHOICE_SEEDS,
        higher_is_better=True,
        options={
            "evaluate_every": steps,
            "momentum": MOMENTUM,
            **figure_one.gossip(OURS, graph),
        },
    )


# one at a time: with its features a data set takes three gigabytes
@lru_cache(maxsize=1)
def task_of(dataset: str) -> decor.Task:
    return decor.tasks.make(f"{dataset}-scattering", figure_one.USERS, shards="iid")
