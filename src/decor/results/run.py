"""Run: what a training leaves behind, in memory and in a folder.

A run folder holds manifest.json, plan.json, metrics.jsonl and every user's model as safetensors. An
unfinished private run also has resume.key, and one that was asked for private metrics
private.jsonl. Only their owner can read these two, and neither is ever part of a release.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decor import checks
from decor.errors import InputError, require
from decor.privacy.adversary import Adversary
from decor.privacy.budget import ACCOUNTED
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan

from . import publication
from .files import metrics_lines, read_json, read_key, read_metrics, replace_text, write_owned
from .stop_reason import StopReason

if TYPE_CHECKING:
    from torch import Tensor

_FORMAT = "decor-run-1"
_MANIFEST, _PLAN, _METRICS = "manifest.json", "plan.json", "metrics.jsonl"
_PRIVATE, _KEY = "private.jsonl", "resume.key"
_KINDS = ("models", "velocity", "fixed")
_IDENTITY = ("task", "recipe", "seed", "learning_rate", "engine", "run")
"""What two states of one run have in common, beside the plan."""


@dataclass(frozen=True, eq=False)
class Run:
    """One training: what it promised and measured, and everybody's model.

    `history` has a list for every metric and for "step". `models` has every trained parameter by
    its name, stacked over users; `fixed` what the module holds beside them. `stopped` says why a
    run ended early (None: it took all its steps). `velocity` is momentum's state, to resume with.
    `private_metrics` is what a private run measured on private data, where that was asked for;
    `resume_key` the key under which an unfinished private run knows its data again. `elsewhere`
    marks a part of a process group's run whose models are at another process.
    """

    plan: NoisePlan
    history: dict[str, list[float]]
    models: dict[str, Tensor]
    steps_taken: int
    stopped: StopReason | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    velocity: dict[str, Tensor] = field(default_factory=dict, repr=False)
    fixed: dict[str, Tensor] = field(default_factory=dict, repr=False)
    private_metrics: dict[str, list[float]] = field(default_factory=dict, repr=False)
    resume_key: bytes | None = field(default=None, repr=False)
    elsewhere: bool = field(default=False, repr=False)

    def __repr__(self) -> str:
        name = self.manifest.get("task", {}).get("name", "run")
        shown = ", ".join(
            f"{metric} {value:.4g}" for metric, value in self.metrics.items() if metric != "step"
        )
        return (
            f"Run({name!r}, {self.steps_taken:,} steps, "
            f"{shown}{f', {self.stopped}' if self.stopped else ''})"
        )

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
        """Whether anyone who knows the seed can subtract the noise.

        Folders of before 0.2 are simulations, but for peers'.
        """
        return self._distance is None

    @property
    def guarantee(self) -> Guarantee:
        """What the whole plan promises against its adversary at the budget's delta, however early
        the run stopped.

        A transcript that stops early is a function of the one that goes on to the end, so that the
        promise holds for any rule that looks at messages, public data or faults. A rule that has
        looked at private figures leaves no guarantee.
        """
        return self.guarantee_at()

    def guarantee_at(
        self,
        delta: float | None = None,
        adversary: Adversary | None = None,
        steps: int | None = None,
    ) -> Guarantee:
        """As `guarantee`, at another delta (None: the budget's) or against another adversary (None:
        the plan's).

        With `steps`: what so many steps cost if that number was fixed in advance. It is no promise
        about a run that stopped there for a reason: neighbours can cause faults, and a rule that
        looks at messages can stop where they reveal most.
        """
        if steps is not None and not 0 <= steps <= self.plan.exposure.steps:
            raise InputError(
                f"steps must be from 0 to the plan's {self.plan.exposure.steps}, not {steps!r}"
            )
        found = self.plan.guarantee_on_grid(
            self._distance or 0.0, self._promised(delta), adversary, steps
        )
        found = replace(found, simulated=self.simulated)
        if self.manifest.get("stop_saw_private_data"):
            users = self.plan.topology.users
            why = "the stop depended on private data"
            return replace(
                found, epsilon=math.inf, void=why, everybody=lambda: np.full(users, math.inf)
            )
        if self.stopped is None or steps is not None:
            return found
        ended = f"stopped after {self.steps_taken:,} of {self.plan.exposure.steps:,} steps"
        if self.stopped.cause != "unfinished":
            # the sentence without its way out
            ended += f" ({self.stopped.partition(';')[0].partition(':')[0]})"
        return replace(found, stopped=ended)

    @property
    def _distance(self) -> float | None:
        """How far the law of all messages is from the plan's, of a private run; None of a
        simulation.
        """
        noise, engine, budget = (
            self.manifest.get("noise"),
            self.manifest.get("engine"),
            self.plan.budget,
        )
        if (
            isinstance(noise, dict)
            and noise.get("kind") == "grid"
            and isinstance(noise.get("distance"), float)
        ):
            return float(noise["distance"])
        if isinstance(engine, dict) and engine.get("name") == "peers" and budget is not None:
            # peers of before 0.2 refused to run unless this much was left for it
            return (1 / ACCOUNTED - 1) * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
        return None

    def _promised(self, delta: float | None) -> float | None:
        """The delta asked for, or the one promised: peers of before 0.2 kept the part that was left
        for Gaussian noise.
        """
        budget = self.plan.budget
        if (
            delta is None
            and budget is not None
            and not self.simulated
            and "noise" not in self.manifest
        ):
            return budget.delta / ACCOUNTED
        return delta

    def release(self, path: str | Path) -> None:
        """Writes what may be published of a private run to a new folder: models, plan, promise,
        public metrics, a model card.

        Guarantee: nothing in the folder depends on the data but by the models and by metrics on
        public data. A simulation is refused.
        """
        to, promise = Path(path), self.guarantee
        if self.simulated:
            raise InputError(
                "this run is a simulation: anyone who knows its seed can subtract the noise, so "
                "it is not to be published. Train "
                "with Vectorised(seed=None) (decor train --seed secret), or with real peers"
            )
        if promise.void is not None:
            raise InputError(
                f"{promise} It is not to be published; train again without private "
                "metrics, or without a callback"
            )
        if not self.models:
            raise InputError(
                "this run has no models to publish; it is another process's part of "
                "a run, or was kept without them"
            )
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise InputError(f"{str(to)!r} has something in it already; name a new folder")
        manifest, history = (
            publication.public_manifest(self.manifest),
            publication.public_metrics(self.manifest, self.history),
        )
        public = replace(
            self,
            manifest=manifest,
            history=history,
            velocity={},
            private_metrics={},
            resume_key=None,
        )
        public._write(to, overwrite=False)
        card = publication.model_card(
            public.plan,
            public.guarantee,
            manifest,
            public.metrics,
            public.steps_taken,
            public._models_file,
        )
        replace_text(to / publication.CARD, card)

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Writes the run folder; a later state of the same run replaces an earlier one, another run
        only with `overwrite`.

        The manifest is replaced last, in one move: whenever the process dies, the folder holds the
        earlier state or this one. Of a process group's run the process that has the models writes;
        the others' parts, which have none, write nothing.
        """
        if self.models or not self.elsewhere:
            self._write(Path(path), overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """A run as `save` left it."""
        require("safetensors", "train", "run folders")
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(path)
        manifest = read_json(folder / _MANIFEST)
        if not isinstance(manifest, dict) or manifest.pop("format", None) != _FORMAT:
            raise InputError(
                f'{str(folder)!r} is not a run folder: its {_MANIFEST} is not of format "{_FORMAT}"'
            )
        plan = NoisePlan.load(folder / _PLAN)
        steps, stopped, file = (
            manifest.pop(name, None) for name in ("steps_taken", "stopped", "models")
        )
        cause = manifest.pop("stop_cause", None)
        if not checks.is_count(steps, 0, plan.exposure.steps):
            raise InputError(
                f"{str(folder / _MANIFEST)!r} says steps_taken {steps!r}, but the plan has "
                f"{plan.exposure.steps} steps"
            )
        if not isinstance(stopped, str | None) or not isinstance(file, str):
            raise InputError(
                f"{str(folder / _MANIFEST)!r} does not name the file of models, or "
                "why the run stopped"
            )
        models = folder / Path(file).name
        try:
            tensors = load_file(models)
        except (OSError, SafetensorError) as problem:
            raise InputError(f"{str(models)!r} cannot be read: {problem}") from None
        parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in _KINDS}
        for name, tensor in tensors.items():
            kind, _, parameter = name.partition("/")
            if kind in parts:
                parts[kind][parameter] = tensor
        history = read_metrics(folder / _METRICS, steps)
        private = read_metrics(folder / _PRIVATE, steps) if (folder / _PRIVATE).exists() else {}
        key, reason = (
            read_key(folder / _KEY),
            None if stopped is None else StopReason.load(stopped, cause),
        )
        return cls(
            plan,
            history,
            parts["models"],
            steps,
            reason,
            manifest,
            parts["velocity"],
            parts["fixed"],
            private,
            key,
        )

    @property
    def _models_file(self) -> str:
        return f"models-{self.steps_taken}.safetensors"

    def _write(self, folder: Path, overwrite: bool) -> None:
        require("safetensors", "train", "run folders")
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        models = self._models_file
        rows, private = metrics_lines(self.history), metrics_lines(self.private_metrics)
        own = {
            "format": _FORMAT,
            "steps_taken": self.steps_taken,
            "stopped": self.stopped,
            "models": models,
        }
        if self.stopped is not None:
            own["stop_cause"] = self.stopped.cause
        manifest = json.dumps({**self.manifest, **own}, indent=1, allow_nan=False) + "\n"
        tensors = {
            f"{kind}/{name}": v.contiguous()
            for kind in _KINDS
            for name, v in getattr(self, kind).items()
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._make_room(folder, overwrite)
            save_file(tensors, folder / (models + ".new"))
            os.replace(folder / (models + ".new"), folder / models)
            replace_text(folder / _PLAN, self.plan.to_json() + "\n")
            replace_text(folder / _METRICS, rows)
            owned = {
                _PRIVATE: private,
                _KEY: "" if self.resume_key is None else self.resume_key.hex() + "\n",
            }
            for name, text in owned.items():
                if text:
                    write_owned(folder / name, text)
            replace_text(folder / _MANIFEST, manifest)
            old_models = [old for old in folder.glob("models-*.safetensors") if old.name != models]
            for old in (*old_models, *(folder / name for name, text in owned.items() if not text)):
                if old.exists():
                    old.unlink()
        except (OSError, SafetensorError) as problem:
            raise InputError(f"the run cannot be written to {str(folder)!r}: {problem}") from None

    def _make_room(self, folder: Path, overwrite: bool) -> None:
        """Leaves an earlier state of the same run where it is; refuses anything else unless told to
        overwrite it.
        """
        if not (folder / _MANIFEST).is_file():
            return
        old = None
        try:
            old = read_json(folder / _MANIFEST)
            same = isinstance(old, dict) and all(
                old.get(name) == self.manifest.get(name) for name in _IDENTITY
            )
            same = (
                same and (folder / _PLAN).read_text(encoding="utf-8") == self.plan.to_json() + "\n"
            )
            same = (
                same
                and isinstance(old["steps_taken"], int)
                and old["steps_taken"] <= self.steps_taken
            )
        except (InputError, OSError, KeyError, UnicodeDecodeError):
            same = False
        if same:
            return
        if not isinstance(old, dict) or old.get("format") != _FORMAT:
            raise InputError(
                f"{str(folder)!r} holds something else than a run; name another folder"
            )
        if not overwrite:
            raise InputError(
                f"{str(folder)!r} holds another run; name another folder, or say overwrite=True"
            )
        (folder / _MANIFEST).unlink()
