"""Run: what a training leaves behind, in memory and in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decor.errors import InputError
from decor.privacy.adversary import Adversary
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan

if TYPE_CHECKING:
    from torch import Tensor

_FORMAT = "decor-run-1"
_MANIFEST, _PLAN, _METRICS = "manifest.json", "plan.json", "metrics.jsonl"


def spent(plan: NoisePlan, steps: int, delta: float | None = None, adversary: Adversary | None = None) -> Guarantee:
    """What `steps` steps of the plan cost: none cost nothing."""
    taken = replace(plan, exposure=replace(plan.exposure, steps=max(steps, 1))).guarantee(delta, adversary)
    if steps:
        return taken
    return replace(taken, epsilon=0.0, steps=0, exact=True, everybody=lambda: np.zeros(plan.topology.users))


@dataclass(frozen=True, eq=False)
class Run:
    """One training: what it promised and measured, and everybody's model.

    `history` has a list for every metric and for "step". `models` has every parameter by its name, stacked over users.
    `stopped` says why a run ended early (None: it took all its steps). `velocity` is momentum's state, to resume with.
    """

    plan: NoisePlan
    history: dict[str, list[float]]
    models: dict[str, Tensor]
    steps_taken: int
    stopped: str | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    velocity: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def average_model(self) -> dict[str, Tensor]:
        """The mean of everybody's models, as a state dict."""
        return {name: value.mean(0) for name, value in self.models.items()}

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

    def save(self, path: str | Path) -> None:
        """Writes the run folder. The manifest is replaced last, in one move: whenever it stops, the folder is a whole run."""
        from safetensors.torch import save_file

        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            models = f"models-{self.steps_taken}.safetensors"
            tensors = {f"models/{k}": v.contiguous() for k, v in self.models.items()}
            tensors |= {f"velocity/{k}": v.contiguous() for k, v in self.velocity.items()}
            save_file(tensors, folder / (models + ".new"))
            os.replace(folder / (models + ".new"), folder / models)
            _replace(folder / _PLAN, self.plan.to_json() + "\n")
            _replace(folder / _METRICS, "".join(json.dumps(row, allow_nan=False) + "\n" for row in self._rows()))
            manifest = {
                "format": _FORMAT,
                "steps_taken": self.steps_taken,
                "stopped": self.stopped,
                "models": models,
                **self.manifest,
            }
            _replace(folder / _MANIFEST, json.dumps(manifest, indent=1, allow_nan=False) + "\n")
            for old in folder.glob("models-*.safetensors"):
                if old.name != models:
                    old.unlink()
        except OSError as problem:
            raise InputError(f"the run cannot be written to {str(path)!r}: {problem.strerror or problem}") from None

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """A run as `save` left it."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(path)
        try:
            manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
            if not isinstance(manifest, dict) or manifest.pop("format", None) != _FORMAT:
                raise InputError(f'{str(path)!r} is not a run folder: its manifest is not of format "{_FORMAT}"')
            steps, stopped, file = manifest.pop("steps_taken"), manifest.pop("stopped"), manifest.pop("models")
            rows = [json.loads(line) for line in (folder / _METRICS).read_text(encoding="utf-8").splitlines()]
            rows = [row for row in rows if row["step"] <= steps]
            tensors = load_file(folder / Path(file).name)
        except FileNotFoundError as problem:
            raise InputError(f"{str(path)!r} is not a whole run folder: {problem.filename} is missing") from None
        except (OSError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError, SafetensorError) as problem:
            raise InputError(f"the run folder {str(path)!r} cannot be read: {problem}") from None
        parts: Mapping[str, dict[str, Any]] = {
            kind: {k.removeprefix(f"{kind}/"): v for k, v in tensors.items() if k.startswith(f"{kind}/")}
            for kind in ("models", "velocity")
        }
        return cls(NoisePlan.load(folder / _PLAN), _columns(rows), parts["models"], steps, stopped, manifest, parts["velocity"])

    def _rows(self) -> list[dict[str, Any]]:
        """One row a measurement; what is not finite is null."""
        count = len(self.history.get("step", []))
        return [{name: _finite(values[k]) for name, values in self.history.items()} for k in range(count)]


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    names = list(rows[0]) if rows else []
    return {name: [float("nan") if row[name] is None else row[name] for row in rows] for name in names}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
