"""One curve of a figure: settings are chosen for each epsilon on other noise than is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import decor
from decor import progress
from decor.choices import EdgeNoise, Method

from .study import Row, row


@dataclass(frozen=True)
class Choice:
    """Settings to choose from; `ratio` is sigma_cor^2 / sigma_cdp^2, 0 for central and local DP."""

    clip: float
    ratio: float
    learning_rate: float


@dataclass(frozen=True)
class Curve:
    """A method on a graph. Each seed gives data, batches and noise.

    Attributes:
        task_of: Data seed -> task.
        exposure_of: (task, clip) -> exposure.
        measure: (task, run) -> the value that the figure shows.
        seeds: Of the values shown.
        tuning_seeds: Of the data on which settings are chosen, with other noise.
        options: Recipe fields of `decor.sweep`.
        tried: The cost of each choice, so that none is run twice.
    """

    variant: str
    kind: str
    method: str
    graph: str | None
    topology: decor.Topology
    task_of: Callable[[int], decor.Task]
    exposure_of: Callable[[decor.Task, float], decor.Exposure]
    measure: Callable[[decor.Task, decor.Run], float]
    epsilons: tuple[float, ...]
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    adversary: decor.Adversary = field(default_factory=decor.Adversary.eavesdropper)
    edges: EdgeNoise = "uniform"
    accounting: Method = "exact"
    delta: float = 1e-5
    higher_is_better: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    tried: dict[tuple[float, Choice], float] = field(default_factory=dict, repr=False)

    def plan(self, task: decor.Task, epsilon: float, choice: Choice) -> decor.NoisePlan:
        exposure, budget = self.exposure_of(task, choice.clip), decor.Budget(epsilon, self.delta)
        return plan_of(
            self.kind,
            self.topology,
            exposure,
            budget,
            self.accounting,
            self.adversary,
            ratio=choice.ratio,
            edges=self.edges,
        )

    def best_rows(self, choices: Sequence[Choice], **settings: Any) -> list[Row]:
        """The rows of the best choice for each epsilon."""
        return self.rows(self.tune(dict.fromkeys(self.epsilons, choices)), **settings)

    def tune(self, choices: dict[float, Sequence[Choice]]) -> dict[float, Choice]:
        """The best choice for each epsilon, by the mean over the tuning seeds."""
        wanted = [(epsilon, choice) for epsilon, listed in choices.items() for choice in listed]
        # studies tune in rounds, which repeat choices
        new = [key for key in wanted if key not in self.tried]
        for k, seed in enumerate(self.tuning_seeds if new else ()):
            with progress.share(k / len(self.tuning_seeds), (k + 1) / len(self.tuning_seeds)):
                # other noise than the values shown have, on the same data
                for key, run, task in self._runs(new, seed, seed + 1_000_000):
                    self.tried[key] = self.tried.get(key, 0.0) + self._cost(task, run)
        return {
            epsilon: min(listed, key=lambda choice: self.tried[epsilon, choice])
            for epsilon, listed in choices.items()
        }

    def rows(self, chosen: dict[float, Choice], **settings: Any) -> list[Row]:
        """A row for each epsilon, with the values of all seeds."""
        values: dict[float, list[float]] = {epsilon: [] for epsilon in chosen}
        plans: dict[float, decor.NoisePlan] = {}
        for k, seed in enumerate(self.seeds):
            with progress.share(k / len(self.seeds), (k + 1) / len(self.seeds)):
                for (epsilon, _), run, task in self._runs(list(chosen.items()), seed, seed):
                    if run.stopped is not None:
                        # a figure must not show a run that stopped early
                        raise decor.DecorError(
                            f"{self.method}, {self.variant}, at epsilon {epsilon:g}: {run.stopped}"
                        )
                    values[epsilon].append(self.measure(task, run))
                    plans[epsilon] = run.plan
        rows = []
        for e, choice in chosen.items():
            columns = {"epsilon": e} | _facts(plans[e], choice) | settings
            rows.append(row(self.variant, self.kind, self.method, self.graph, values[e], **columns))
        return rows

    def _cost(self, task: decor.Task, run: decor.Run) -> float:
        value = self.measure(task, run) if run.stopped is None else math.nan
        # a run that diverged is worse than any other
        return math.inf if math.isnan(value) else -value if self.higher_is_better else value

    def _runs(
        self, wanted: Sequence[tuple[float, Choice]], data_seed: int, seed: int
    ) -> list[tuple[tuple[float, Choice], decor.Run, decor.Task]]:
        """A run for each choice, in as few sweeps as possible."""
        task = self.task_of(data_seed)
        rates: dict[tuple[float, float, float], list[float]] = {}
        for epsilon, choice in wanted:
            rates.setdefault((epsilon, choice.clip, choice.ratio), []).append(choice.learning_rate)
        # a sweep runs all its plans with all its step sizes: plans with the same ones share one
        by_rates: dict[tuple[float, ...], list[tuple[float, Choice]]] = {}
        for (epsilon, clip, ratio), listed in rates.items():
            by_rates.setdefault(tuple(listed), []).append((epsilon, Choice(clip, ratio, math.nan)))
        results, done = [], 0
        for together, pairs in by_rates.items():
            plans = [self.plan(task, epsilon, choice) for epsilon, choice in pairs]
            began, done = done, done + len(plans) * len(together)
            with progress.share(began / len(wanted), done / len(wanted)):
                sweep = decor.sweep(
                    task,
                    plans,
                    learning_rates=together,
                    seeds=(seed,),
                    # cells run in processes of their own, one for each core
                    engine=decor.Vectorised(threads=1),
                    **({"gossip_rounds": 1} | self.options),
                )
            # sweeps return the plan objects that they were given
            by_plan = {id(plan): pair for plan, pair in zip(plans, pairs, strict=True)}
            for plan, rate, runs in sweep.candidates():
                epsilon, choice = by_plan[id(plan)]
                results.append(((epsilon, replace(choice, learning_rate=rate)), runs[0], task))
        return results


def plan_of(
    kind: str,
    topology: decor.Topology,
    exposure: decor.Exposure,
    budget: decor.Budget,
    accounting: Method = "exact",
    adversary: decor.Adversary | None = None,
    **options: Any,
) -> decor.NoisePlan:
    """The plan of central DP, of local DP, or of DECOR with these options of `calibrate`.

    One plain gossip round, as in the paper, unless they say otherwise.
    """
    if kind == "central":
        return decor.baselines.central(topology, exposure, budget, method=accounting)
    if kind == "local":
        return decor.baselines.local(topology, exposure, budget, method=accounting)
    adversary = adversary or decor.Adversary.eavesdropper()
    options = {"gossip_rounds": 1} | options
    return decor.calibrate(topology, exposure, adversary, budget, method=accounting, **options)


def default_ratio(
    topology: decor.Topology, steps: int, adversary: decor.Adversary | None = None, **gossip: Any
) -> float:
    """The noise ratio that `calibrate` chooses by itself."""
    # it depends on graph, steps, adversary and gossip alone, so any clip and budget will do
    exposure, budget = decor.Exposure(clip=1.0, steps=steps), decor.Budget(1.0, 1e-5)
    plan = plan_of("decor", topology, exposure, budget, adversary=adversary, **gossip)
    # without edge design all edges have the same noise
    assert isinstance(plan.sigma_cor, float)
    return (plan.sigma_cor / plan.uniform_sigma_cdp("this curve")) ** 2


def _facts(plan: decor.NoisePlan, choice: Choice) -> dict[str, Any]:
    exposure, cor = plan.exposure, plan.sigma_cor
    return {
        "learning_rate": choice.learning_rate,
        "clip": choice.clip,
        "sigma_cdp": plan.sigma_cdp,
        # designed edges have one value each: the largest is shown
        "sigma_cor": cor if isinstance(cor, float) else max(cor, default=0.0),
        "steps": exposure.steps,
        "batch_size": exposure.batch_size,
        "accounted_epsilon": plan.guarantee(plan.budget.delta if plan.budget else 1e-5).epsilon,
    }
