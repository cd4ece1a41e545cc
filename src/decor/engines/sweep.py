"""sweep and tune: a grid of runs as few tensors, and the best of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decor import progress
from decor.errors import DivergenceWarning, InputError
from decor.graph.gossip import Gossip
from decor.learning.schedule import Constant, Schedule
from decor.learning.task import Task
from decor.privacy.plan import NoisePlan
from decor.results.run import Run

from .channel import alike
from .engine import Engine, Recipe, Setting
from .training import check
from .vectorised import Vectorised

_ROOM = 100_000_000
"""Numbers of all models that are trained together at most: 400 megabytes, and as much again to work with."""

HIGHER_IS_BETTER = ("accuracy",)
NOT_FREE = (
    "The best of these settings was chosen by looking at private data, which no epsilon here counts: tune on public data. "
    "Settings of one seed also share their noise, so that they compare fairly; two of them together reveal more than their "
    "epsilons say, so release one at most."
)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Runs of a grid. A candidate is one plan with one step size; it has a run for every seed."""

    settings: tuple[Setting, ...]
    runs: tuple[Run, ...]

    def candidates(self, plans: Iterable[NoisePlan] | None = None) -> list[tuple[NoisePlan, float, tuple[Run, ...]]]:
        """Every (plan, learning rate) with its runs, of these plans only if some are named."""
        wanted = None if plans is None else {id(plan) for plan in plans}
        found: dict[tuple[int, float], tuple[NoisePlan, float, list[Run]]] = {}
        for setting, run in zip(self.settings, self.runs, strict=True):
            if wanted is None or id(setting.plan) in wanted:
                key = (id(setting.plan), setting.learning_rate)
                found.setdefault(key, (setting.plan, setting.learning_rate, []))[2].append(run)
        return [(plan, rate, tuple(runs)) for plan, rate, runs in found.values()]

    def best(self, criterion: str = "loss", plans: Iterable[NoisePlan] | None = None) -> Tuned:
        """The candidate with the best mean of a metric at the end; one that diverged with any seed is the worst."""
        candidates = self.candidates(plans)
        if not candidates:
            raise InputError("none of these plans was in the sweep")
        values = [_mean(runs, criterion) for _, _, runs in candidates]
        sign = -1 if criterion in HIGHER_IS_BETTER else 1
        k = int(np.argmin([math.inf if math.isnan(v) else sign * v for v in values]))
        plan, rate, runs = candidates[k]
        if math.isnan(values[k]):
            warnings.warn(
                f"every setting diverged; {runs[0].stopped or 'lower the learning rate'}", DivergenceWarning, stacklevel=2
            )
        rows = [{"plan": p, "learning_rate": r, criterion: value} for (p, r, _), value in zip(candidates, values, strict=True)]
        return Tuned(plan, rate, runs, criterion, values[k], rows)


@dataclass(frozen=True, eq=False)
class Tuned:
    """The best candidate, its runs (one a seed), what decided, and everything that was tried."""

    plan: NoisePlan
    learning_rate: float
    runs: tuple[Run, ...]
    criterion: str
    value: float
    tried: list[dict[str, Any]]
    warning: str = NOT_FREE


def sweep(
    task: Task,
    plans: Sequence[NoisePlan],
    *,
    learning_rates: Sequence[float] | float,
    seeds: Sequence[int] = (0,),
    engine: Engine | None = None,
    schedule: Schedule | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    gossip_rounds: int = 1,
    accelerate: bool | str = False,
    final_gossip_rounds: int = 0,
    local_steps: int = 1,
    batch_size: int | None = None,
    evaluate_every: int | Sequence[int] | None = None,
    keep_models: bool = False,
    allow_disconnected: bool = False,
) -> Sweep:
    """Every plan x learning rate x seed in one call. Plans may differ in noise, clip, adversary, graph and steps.

    Runs that can share a tensor do. Settings of one seed then share records and Gaussians, each scaled by its own plan: every
    run has exactly the law, and to rounding the numbers, that it has alone. Runs carry no models unless `keep_models`.
    """
    plans = [plans] if isinstance(plans, NoisePlan) else list(plans)
    rates = [learning_rates] if isinstance(learning_rates, int | float) else list(learning_rates)
    if isinstance(seeds, int | np.integer):
        raise InputError(f"seeds must be a list of them, such as range({seeds}), not {seeds!r}")
    seeds = list(seeds)
    if not plans or not rates or not seeds:
        raise InputError("a sweep needs at least one plan, one learning rate and one seed")
    if len(set(seeds)) < len(seeds) or len(set(rates)) < len(rates) or len({id(plan) for plan in plans}) < len(plans):
        raise InputError("a plan, learning rate or seed is given twice; name each once")
    recipe = Recipe(
        schedule or Constant(),
        momentum,
        weight_decay,
        Gossip(gossip_rounds, accelerate),
        Gossip(final_gossip_rounds, accelerate=True),
        local_steps,
        batch_size,
        evaluate_every,
    )
    if len({plan.topology.labels for plan in plans}) > 1:
        raise InputError(
            "the plans of a sweep name their users differently, or in another order; give all graphs the same labels"
        )
    (task, *_) = [check(task, plan, recipe, allow_disconnected) for plan in plans]
    chosen = engine or Vectorised()
    if getattr(chosen, "seed", 0) is None:
        raise InputError(
            "a sweep compares runs, and choosing among private runs by their results reveals more than the epsilon of one; sweep "
            "simulations on public data (an engine with a seed), then train the chosen setting with seed=None"
        )
    done: list[tuple[Setting, Run]] = []
    groups = list(_groups(task, plans, rates, seeds, getattr(chosen, "room", None) or _ROOM))
    total = sum(len(group) for group in groups)
    for group in groups:
        with progress.share(len(done) / total, (len(done) + len(group)) / total):
            runs = chosen.run(task, group, recipe, (), None)
        done += zip(group, runs if keep_models else (replace(run, models={}, velocity={}) for run in runs), strict=True)
    return Sweep(tuple(setting for setting, _ in done), tuple(run for _, run in done))


def tune(
    task: Task, plans: Sequence[NoisePlan], *, learning_rates: Sequence[float] | float, criterion: str = "loss", **options: Any
) -> Tuned:
    """The best of a sweep by the mean over seeds of a metric at the end ("loss", "test_loss", "accuracy", "consensus", ...).

    Takes the options of `sweep`. Choosing by private data is not free, and no plan counts it: see `Tuned.warning`.
    """
    return sweep(task, plans, learning_rates=learning_rates, **options).best(criterion)


def _groups(task: Task, plans: list[NoisePlan], rates: list[float], seeds: list[int], room: int) -> Iterable[list[Setting]]:
    """Grids that share a tensor: seeds outside, plans and rates inside; no larger than fits."""
    families: dict[Any, list[NoisePlan]] = {}
    for plan in plans:
        e = plan.exposure
        families.setdefault((alike(plan, task.parameters), e.steps, e.unit, e.batch_size, e.sampling), []).append(plan)
    fit = max(1, room // (task.users * task.parameters))
    for family in families.values():
        inside = [(plan, rate) for plan in family for rate in rates]
        together = max(1, fit // len(seeds))
        apart = min(len(seeds), fit)
        for k in range(0, len(inside), together):
            for s in range(0, len(seeds), apart):
                yield [Setting(plan, rate, seed) for seed in seeds[s : s + apart] for plan, rate in inside[k : k + together]]


def _mean(runs: Sequence[Run], criterion: str) -> float:
    missing = [run for run in runs if criterion not in run.history]
    if missing:
        known = ", ".join(name for name in missing[0].history if name != "step")
        raise InputError(f"there is no metric {criterion!r}; choose one of {known}")
    values = [run.metrics[criterion] if run.stopped is None else math.nan for run in runs]
    return float(np.mean(values))
