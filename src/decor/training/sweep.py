"""sweep and tune: a grid of runs in as few tensors as possible, and the best of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decor import progress
from decor.errors import DivergenceWarning, InputError
from decor.learning.recipe import Recipe, recipe_with, with_gossip
from decor.learning.task import Task
from decor.privacy.gossip_choice import gossip_for
from decor.privacy.plan import NoisePlan
from decor.results.run import Run
from decor.text import html_table

from .channel import sharing_key
from .engine import Engine, Setting
from .validation import check
from .vectorised import Vectorised

LOWER_IS_BETTER = ("loss", "test_loss", "consensus", "distance")
"""Of accuracy and of a task's own metrics the largest is best."""
NOT_FREE = (
    "The best of these settings was chosen by looking at private data, which no epsilon here "
    "counts: tune on public data. Settings of one seed also share their noise, so that they "
    "compare fairly; two of them together reveal more than their epsilons say, so release one at "
    "most."
)


@dataclass(frozen=True, eq=False)
class Sweep:
    """The runs of a grid. A candidate is one plan with one learning rate, run with every seed.

    Attributes:
        settings: Plan, learning rate and seed of every run.
        runs: The runs, in the same order.
    """

    settings: tuple[Setting, ...]
    runs: tuple[Run, ...]

    def __repr__(self) -> str:
        return (
            f"Sweep({len(self.runs):,} runs: {_text(self.settings, 'plan')}, "
            f"{_text(self.settings, 'learning_rate')}, {_text(self.settings, 'seed')})"
        )

    def _repr_html_(self) -> str:
        """The mean of each metric at the end, as a notebook shows it."""
        names = [name for name in self.runs[0].history if name != "step"]
        rows = []
        for plan, rate, runs in self.candidates():
            means = [np.mean([run.metrics.get(name, math.nan) for run in runs]) for name in names]
            rows.append([repr(plan), f"{rate:g}", *(f"{mean:.4g}" for mean in means)])
        return html_table(["plan", "learning rate", *names], rows)

    def candidates(
        self, plans: Iterable[NoisePlan] | None = None
    ) -> list[tuple[NoisePlan, float, tuple[Run, ...]]]:
        """Every (plan, learning rate) with its runs.

        Args:
            plans: The plans to keep, as given to `sweep`; None keeps all.
        """
        # by identity: comparing plans would compare whole graphs
        wanted = None if plans is None else {id(plan) for plan in plans}
        grouped: dict[tuple[int, float], tuple[NoisePlan, float, list[Run]]] = {}
        for setting, run in zip(self.settings, self.runs, strict=True):
            plan, rate = setting.plan, setting.learning_rate
            if wanted is None or id(plan) in wanted:
                grouped.setdefault((id(plan), rate), (plan, rate, []))[2].append(run)
        return [(plan, rate, tuple(runs)) for plan, rate, runs in grouped.values()]

    def best(self, criterion: str = "loss", plans: Iterable[NoisePlan] | None = None) -> Tuned:
        """The candidate with the best mean of a metric at the end.

        Args:
            criterion: The metric; smallest is best for losses and distances, largest for others.
            plans: The plans to choose from, as given to `sweep`; None takes all.

        Returns:
            The candidate. One that diverged with any seed comes last.

        Raises:
            InputError: If no run has the metric, or none has one of the plans.
        """
        candidates = self.candidates(plans)
        if not candidates:
            raise InputError("none of these plans was in the sweep")
        values = [_mean(runs, criterion) for _, _, runs in candidates]
        sign = 1 if criterion in LOWER_IS_BETTER else -1
        # argmin would return the place of a NaN, so what diverged counts as infinitely bad
        k = int(np.argmin([math.inf if math.isnan(v) else sign * v for v in values]))
        plan, rate, runs = candidates[k]
        # all are equally bad: the first one is returned, with a warning
        if math.isnan(values[k]):
            warnings.warn(
                f"every setting diverged; {runs[0].stopped or 'lower the learning rate'}",
                DivergenceWarning,
                stacklevel=2,
            )
        rows = [
            {"plan": p, "learning_rate": r, criterion: value}
            for (p, r, _), value in zip(candidates, values, strict=True)
        ]
        return Tuned(plan, rate, runs, criterion, values[k], rows)


@dataclass(frozen=True, eq=False)
class Tuned:
    """The best candidate of a sweep.

    Attributes:
        plan: Its plan.
        learning_rate: Its learning rate.
        runs: Its runs, one per seed.
        criterion: The metric that decided.
        value: The metric's mean over seeds; NaN if every candidate diverged.
        tried: Plan, learning rate and metric of every candidate.
        warning: Why choosing by private data is not free.
    """

    plan: NoisePlan
    learning_rate: float
    runs: tuple[Run, ...]
    criterion: str
    value: float
    tried: list[dict[str, Any]]
    warning: str = NOT_FREE

    def __repr__(self) -> str:
        return (
            f"Tuned({self.criterion} {self.value:.4g} at learning rate {self.learning_rate:g}, the "
            f"best of {len(self.tried):,}, {self.plan!r})"
        )

    def _repr_html_(self) -> str:
        """Every candidate, the best first, as a notebook shows it."""
        lower = self.criterion in LOWER_IS_BETTER
        known = [row for row in self.tried if math.isfinite(row[self.criterion])]
        known.sort(key=lambda row: row[self.criterion], reverse=not lower)
        rows = [
            [repr(row["plan"]), f"{row['learning_rate']:g}", f"{row[self.criterion]:.4g}"]
            for row in known
        ]
        return html_table(["plan", "learning rate", self.criterion], rows)


def sweep(
    task: Task,
    plans: Sequence[NoisePlan],
    recipe: Recipe | None = None,
    *,
    learning_rates: Sequence[float] | float,
    seeds: Sequence[int] = (0,),
    engine: Engine | None = None,
    keep_models: bool = False,
    allow_disconnected: bool = False,
    **recipe_fields: Any,
) -> Sweep:
    """Runs every plan with every learning rate and every seed.

    Runs that can share a tensor do. Settings with the same seed then share batches and Gaussians,
    each scaled by its own plan: each run has exactly the distribution, and to rounding the values,
    that it has alone.

    Args:
        task: Model, loss and each user's data.
        plans: One plan or several; they may differ in noise, clip, adversary, graph and steps.
        recipe: How to train, the same for all; None takes the default `Recipe()`.
        learning_rates: One learning rate or several.
        seeds: Seeds of the simulations. Private runs are refused: choosing among them would leak.
        engine: What runs it; None takes `Vectorised()`.
        keep_models: Whether runs carry their models, which take memory.
        allow_disconnected: Trains on graphs in several parts, whose models never agree.
        recipe_fields: Fields of the recipe, such as `momentum=0.9`.
    """
    plans = [plans] if isinstance(plans, NoisePlan) else list(plans)
    rates = [learning_rates] if isinstance(learning_rates, int | float) else list(learning_rates)
    if isinstance(seeds, int | np.integer):
        raise InputError(f"seeds must be a list of them, such as range({seeds}), not {seeds!r}")
    seeds = list(seeds)
    if not plans or not rates or not seeds:
        raise InputError("a sweep needs at least one plan, one learning rate and one seed")
    # a setting that is run twice would count twice in the mean over seeds
    for values in (seeds, rates, [id(plan) for plan in plans]):
        if len(set(values)) < len(values):
            raise InputError("a plan, learning rate or seed is given twice; name each once")
    recipe = recipe_with(recipe, recipe_fields)
    # shards are put into one order of users, which has to be that of every graph
    if len({plan.topology.labels for plan in plans}) > 1:
        raise InputError(
            "the plans of a sweep name their users differently, or in another order; give all "
            "graphs the same labels"
        )
    recipes = [_resolve(recipe, plan) for plan in plans]
    (task, *_) = [
        check(task, plan, own, allow_disconnected) for plan, own in zip(plans, recipes, strict=True)
    ]
    chosen = engine or Vectorised()
    if chosen.seed is None:
        raise InputError(
            "a sweep compares runs, and choosing among private runs by their results reveals more "
            "than the epsilon of one; sweep simulations on public data (an engine with a seed), "
            "then train the chosen setting with seed=None"
        )
    settings: list[Setting] = []
    runs: list[Run] = []
    # a list: the total has to be known for the progress report
    groups = [
        (group, own)
        # not a set, whose order may change from one call to the next
        for own in dict.fromkeys(recipes)
        for group in _groups(
            task,
            [plan for plan, each in zip(plans, recipes, strict=True) if each == own],
            rates,
            seeds,
            chosen.parameters_at_once,
        )
    ]
    total = sum(len(group) for group, _ in groups)
    for group, own in groups:
        chosen.capabilities.check(chosen, group, own, (), None)
        with progress.share(len(settings) / total, (len(settings) + len(group)) / total):
            trained = chosen.run(task, group, own, (), None)
        settings += group
        # models of hundreds of runs do not fit into memory
        runs += trained if keep_models else [replace(r, models={}, velocity={}) for r in trained]
    return Sweep(tuple(settings), tuple(runs))


def tune(
    task: Task,
    plans: Sequence[NoisePlan],
    *,
    learning_rates: Sequence[float] | float,
    criterion: str = "loss",
    **options: Any,
) -> Tuned:
    """The best candidate of a sweep. Choosing by private data is not free: see `Tuned.warning`.

    Args:
        task: Model, loss and each user's data.
        plans: The plans to choose from.
        learning_rates: The learning rates to choose from.
        criterion: The metric that decides, by its mean over seeds at the end ("loss", "test_loss",
            "accuracy", "consensus", ...).
        options: Further options of `sweep`.
    """
    return sweep(task, plans, learning_rates=learning_rates, **options).best(criterion)


def _resolve(recipe: Recipe, plan: NoisePlan) -> Recipe:
    """The recipe with a number of rounds: "auto" depends on the plan."""
    if recipe.gossip_rounds != "auto":
        return recipe
    return with_gossip(recipe, gossip_for(plan))


def _groups(
    task: Task, plans: list[NoisePlan], rates: list[float], seeds: list[int], most: int
) -> Iterator[list[Setting]]:
    """Grids that share a tensor of at most `most` parameters: seeds outside, settings inside."""
    families: dict[Any, list[NoisePlan]] = {}
    for plan in plans:
        e = plan.exposure
        # runs in one tensor take the same steps and the same batches
        key = (
            sharing_key(plan, task.parameters),
            e.steps,
            e.unit,
            e.batch_size,
            e.sampling,
            e.rate,
        )
        families.setdefault(key, []).append(plan)
    fit = max(1, most // (task.users * task.parameters))
    # all seeds of a setting together if they fit: settings of a seed share its Gaussians
    some_settings, some_seeds = max(1, fit // len(seeds)), min(len(seeds), fit)
    for family in families.values():
        inside = [(plan, rate) for plan in family for rate in rates]
        for k in range(0, len(inside), some_settings):
            for s in range(0, len(seeds), some_seeds):
                yield [
                    Setting(plan, rate, seed)
                    for seed in seeds[s : s + some_seeds]
                    for plan, rate in inside[k : k + some_settings]
                ]


def _text(settings: Sequence[Setting], name: str) -> str:
    """How many different values of a field there are, or the single one."""
    # plans by identity: comparing them would compare whole graphs
    values = {id(s.plan) if name == "plan" else getattr(s, name) for s in settings}
    what = name.replace("_", " ")
    if len(values) == 1 and name != "plan":
        return f"{what} {next(iter(values)):g}"
    return f"{len(values):,} {what}{'s' if len(values) != 1 else ''}"


def _mean(runs: Sequence[Run], criterion: str) -> float:
    """The metric's mean over seeds; NaN if a run stopped early."""
    missing = [run for run in runs if criterion not in run.history]
    if missing:
        known = ", ".join(name for name in missing[0].history if name != "step")
        raise InputError(f"there is no metric {criterion!r}; choose one of {known}")
    # the metrics of a run that stopped are those of fewer steps, and must not compete
    values = [run.metrics[criterion] if run.stopped is None else math.nan for run in runs]
    return float(np.mean(values))
