"""Run: what a training leaves behind, in memory and in a folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decor.privacy.adversary import Adversary
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan

if TYPE_CHECKING:
    from torch import Tensor


def spent(plan: NoisePlan, steps: int, delta: float | None = None, adversary: Adversary | None = None) -> Guarantee:
    """What `steps` steps of the plan cost: none cost nothing."""
    taken = replace(plan, exposure=replace(plan.exposure, steps=max(steps, 1))).guarantee(delta, adversary)
    if steps:
        return taken
    return replace(taken, epsilon=0.0, steps=0, exact=True, everybody=lambda: np.zeros(plan.topology.users))


@dataclass(frozen=True, eq=False)
class Run:
    """One training: what it promised and measured, and everybody's model.

    `history` has a list for every metric and for "step". `models` has every trained parameter by its name, stacked over users;
    `fixed` what the module holds beside them. `stopped` says why a run ended early (None: it took all its steps). `velocity` is
    momentum's state, to resume with. `elsewhere` marks a part of a process group's run whose models are at another process.
    """

    plan: NoisePlan
    history: dict[str, list[float]]
    models: dict[str, Tensor]
    steps_taken: int
    stopped: str | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    velocity: dict[str, Tensor] = field(default_factory=dict, repr=False)
    fixed: dict[str, Tensor] = field(default_factory=dict, repr=False)
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
    def guarantee(self) -> Guarantee:
        """What the steps really taken cost, against the plan's adversary, at the budget's delta."""
        return spent(self.plan, self.steps_taken)

    def guarantee_at(self, delta: float, adversary: Adversary | None = None) -> Guarantee:
        """As `guarantee`, at another delta or against another adversary."""
        return spent(self.plan, self.steps_taken, delta, adversary)

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
