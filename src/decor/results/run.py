"""Run: what a training leaves behind, in memory and in a folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decor.errors import InputError
from decor.privacy.adversary import Adversary
from decor.privacy.budget import ACCOUNTED
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Run:
    """One training: what it promised and measured, and everybody's model.

    `history` has a list for every metric and for "step". `models` has every trained parameter by its name, stacked over users;
    `fixed` what the module holds beside them. `stopped` says why a run ended early (None: it took all its steps). `velocity` is
    momentum's state, to resume with. `private_metrics` is what a private run measured on private data, where that was asked for;
    `resume_key` the key under which an unfinished private run knows its data again. `elsewhere` marks a part of a process group's
    run whose models are at another process.
    """

    plan: NoisePlan
    history: dict[str, list[float]]
    models: dict[str, Tensor]
    steps_taken: int
    stopped: str | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    velocity: dict[str, Tensor] = field(default_factory=dict, repr=False)
    fixed: dict[str, Tensor] = field(default_factory=dict, repr=False)
    private_metrics: dict[str, list[float]] = field(default_factory=dict, repr=False)
    resume_key: bytes | None = field(default=None, repr=False)
    elsewhere: bool = field(default=False, repr=False)

    def __repr__(self) -> str:
        name = self.manifest.get("task", {}).get("name", "run")
        shown = ", ".join(f"{metric} {value:.4g}" for metric, value in self.metrics.items() if metric != "step")
        return f"Run({name!r}, {self.steps_taken:,} steps, {shown}{f', {self.stopped}' if self.stopped else ''})"

    @property
    def average_model(self) -> dict[str, Tensor]:
        """The mean of everybody's models, as a state dict that the module loads."""
        return {name: value.mean(0) for name, value in self.models.items()} | self.fixed

    @property
    def metrics(self) -> dict[str, float]:
        """The last of every metric."""
        return {name: values[-1] for name, values in self.history.items()}

    @property
    def simulated(self) -> bool:
        """Whether anyone who knows the seed can subtract the noise. Folders of before 0.2 are simulations, but for peers'."""
        return self._distance is None

    @property
    def guarantee(self) -> Guarantee:
        """What the whole plan promises against its adversary at the budget's delta, however early the run stopped.

        A transcript that stops early is a function of the one that goes on to the end, so that the promise holds for any rule
        that looks at messages, public data or faults. A rule that has looked at private figures leaves no guarantee.
        """
        return self.guarantee_at()

    def guarantee_at(self, delta: float | None = None, adversary: Adversary | None = None, steps: int | None = None) -> Guarantee:
        """As `guarantee`, at another delta (None: the budget's) or against another adversary (None: the plan's).

        With `steps`: what so many steps cost if that number was fixed in advance. It is no promise about a run that stopped
        there for a reason: neighbours can cause faults, and a rule that looks at messages can stop where they reveal most.
        """
        if steps is not None and not 0 <= steps <= self.plan.exposure.steps:
            raise InputError(f"steps must be from 0 to the plan's {self.plan.exposure.steps}, not {steps!r}")
        found = self.plan.guarantee_on_grid(self._distance or 0.0, self._promised(delta), adversary, steps)
        found = replace(found, simulated=self.simulated)
        if self.manifest.get("stop_saw_private_data"):
            users = self.plan.topology.users
            why = "the stop depended on private data"
            return replace(found, epsilon=math.inf, void=why, everybody=lambda: np.full(users, math.inf))
        if self.stopped is None or steps is not None:
            return found
        ended = f"stopped after {self.steps_taken:,} of {self.plan.exposure.steps:,} steps"
        reason = self.stopped.partition(";")[0].partition(":")[0]
        return replace(found, stopped=ended if reason.startswith("stopped after") else f"{ended} ({reason})")

    @property
    def _distance(self) -> float | None:
        """How far the law of all messages is from the plan's, of a private run; None of a simulation."""
        noise, engine, budget = self.manifest.get("noise"), self.manifest.get("engine"), self.plan.budget
        if isinstance(noise, dict) and noise.get("kind") == "grid" and isinstance(noise.get("distance"), float):
            return float(noise["distance"])
        if isinstance(engine, dict) and engine.get("name") == "peers" and budget is not None:
            # peers of before 0.2 refused to run unless this much was left for it
            return (1 / ACCOUNTED - 1) * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
        return None

    def _promised(self, delta: float | None) -> float | None:
        """The delta asked for, or the one promised: peers of before 0.2 kept the part that was left for Gaussian noise."""
        budget = self.plan.budget
        if delta is None and budget is not None and not self.simulated and "noise" not in self.manifest:
            return budget.delta / ACCOUNTED
        return delta

    def release(self, path: str | Path) -> None:
        """Writes what may be published of a private run to a new folder: models, plan, promise, public metrics, a model card.

        Guarantee: nothing in the folder depends on the data but by the models and by metrics on public data. A simulation is
        refused.
        """
        from .released import write

        write(self, Path(path))

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Writes the run folder; a later state of the same run replaces an earlier one, another run only with `overwrite`.

        The manifest is replaced last, in one move: whenever the process dies, the folder holds the earlier state or this one.
        Of a process group's run the process that has the models writes; the others' parts, which have none, write nothing.
        """
        from .folder import write

        if self.models or not self.elsewhere:
            write(self, Path(path), overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """A run as `save` left it."""
        from .folder import read

        return read(Path(path))
