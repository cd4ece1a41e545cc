"""One curve of a figure: settings chosen for every epsilon on some seeds, and shown on others."""

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
    """What is chosen from: `ratio` is sigma_cor^2 / sigma_cdp^2, zero for central and local DP."""

    clip: float
    ratio: float
    learning_rate: float


@dataclass(frozen=True)
class Curve:
    """A method on a graph.

    A figure's value is `measure(task, run)`; seeds are of data, batches and noise alike.
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
    """What choices cost, so that none is tried twice."""

    def plan(self, task: decor.Task, epsilon: float, choice: Choice) -> decor.NoisePlan:
        exposure, budget = self.exposure_of(task, choice.clip), decor.Budget(epsilon, self.delta)
        if self.kind == "central":
            return decor.baselines.central(self.topology, exposure, budget, method=self.accounting)
        if self.kind == "local":
            return decor.baselines.local(self.topology, exposure, budget, method=self.accounting)
        return decor.calibrate(
            self.topology,
            exposure,
            self.adversary,
            budget,
            ratio=choice.ratio,
            edges=self.edges,
            method=self.accounting,
        )

    def tuned(self, choices: dict[float, Sequence[Choice]]) -> dict[float, Choice]:
        """The best choice for every epsilon, by the mean over the tuning seeds; one that diverged
        is the worst.
        """
        wanted = [(epsilon, choice) for epsilon, some in choices.items() for choice in some]
        new = [key for key in wanted if key not in self.tried]
        for k, seed in enumerate(self.tuning_seeds if new else ()):
            with progress.share(k / len(self.tuning_seeds), (k + 1) / len(self.tuning_seeds)):
                for key, run, task in self._runs(new, seed, seed + 1_000_000):
                    self.tried[key] = self.tried.get(key, 0.0) + self._cost(task, run)
        return {
            epsilon: min(some, key=lambda c: self.tried[epsilon, c])
            for epsilon, some in choices.items()
        }

    def shown(self, chosen: dict[float, Choice], **settings: Any) -> list[Row]:
        """A row for every epsilon."""
        values: dict[float, list[float]] = {epsilon: [] for epsilon in chosen}
        plans: dict[float, decor.NoisePlan] = {}
        for k, seed in enumerate(self.seeds):
            with progress.share(k / len(self.seeds), (k + 1) / len(self.seeds)):
                for (epsilon, _), run, task in self._runs(list(chosen.items()), seed, seed):
                    if run.stopped is not None:
                        raise decor.DecorError(
                            f"{self.method}, {self.variant}, at epsilon {epsilon:g}: {run.stopped}"
                        )
                    values[epsilon].append(self.measure(task, run))
                    plans[epsilon] = run.plan
        return [
            row(
                self.variant,
                self.kind,
                self.method,
                self.graph,
                values[e],
                epsilon=e,
                **_facts(plans[e], chosen[e]),
                **settings,
            )
            for e in chosen
        ]

    def _cost(self, task: decor.Task, run: decor.Run) -> float:
        value = self.measure(task, run) if run.stopped is None else math.nan
        return math.inf if math.isnan(value) else -value if self.higher_is_better else value

    def _runs(
        self, wanted: Sequence[tuple[float, Choice]], data_seed: int, seed: int
    ) -> list[tuple[tuple[float, Choice], decor.Run, decor.Task]]:
        """A run for each, batched by step size: sweeps take all plans with all step sizes."""
        task = self.task_of(data_seed)
        by_rates: dict[tuple[float, ...], list[tuple[float, Choice]]] = {}
        rates: dict[tuple[float, float, float], list[float]] = {}
        for epsilon, choice in wanted:
            rates.setdefault((epsilon, choice.clip, choice.ratio), []).append(choice.learning_rate)
        for (epsilon, clip, ratio), some in rates.items():
            by_rates.setdefault(tuple(some), []).append((epsilon, Choice(clip, ratio, math.nan)))
        found, done = [], 0
        for together, couples in by_rates.items():
            plans = [self.plan(task, epsilon, choice) for epsilon, choice in couples]
            with progress.share(
                done / len(wanted), (done + len(plans) * len(together)) / len(wanted)
            ):
                engine = decor.Vectorised(threads=1)
                sweep = decor.sweep(
                    task,
                    plans,
                    learning_rates=together,
                    seeds=(seed,),
                    engine=engine,
                    **self.options,
                )
            done += len(plans) * len(together)
            of = {id(plan): couple for plan, couple in zip(plans, couples, strict=True)}
            for plan, rate, runs in sweep.candidates():
                epsilon, choice = of[id(plan)]
                found.append(((epsilon, replace(choice, learning_rate=rate)), runs[0], task))
        return found


def default_ratio(
    topology: decor.Topology, steps: int, adversary: decor.Adversary | None = None, **gossip: Any
) -> float:
    """The ratio of noises that `calibrate` takes by itself: it depends on graph, steps, adversary
    and gossip alone.
    """
    adversary = adversary or decor.Adversary.eavesdropper()
    plan = decor.calibrate(
        topology,
        decor.Exposure(clip=1.0, steps=steps),
        adversary,
        decor.Budget(1.0, 1e-5),
        **gossip,
    )
    assert isinstance(plan.sigma_cor, float)
    return (plan.sigma_cor / plan.sigma_cdp) ** 2


def _facts(plan: decor.NoisePlan, choice: Choice) -> dict[str, Any]:
    exposure, cor = plan.exposure, plan.sigma_cor
    return {
        "learning_rate": choice.learning_rate,
        "clip": choice.clip,
        "sigma_cdp": plan.sigma_cdp,
        "sigma_cor": cor if isinstance(cor, float) else max(cor, default=0.0),
        "steps": exposure.steps,
        "batch_size": exposure.batch_size,
        "accounted_epsilon": plan.guarantee(plan.budget.delta if plan.budget else 1e-5).epsilon,
    }
