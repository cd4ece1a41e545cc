"""Resumption: whether a run can go on here, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decor.errors import InputError
from decor.learning.gradients.clip import Blocks
from decor.learning.gradients.interface import Gradients
from decor.privacy.plan import NoisePlan
from decor.results.run import Run


@dataclass(frozen=True)
class Resumed:
    """A run that goes on after `start` steps.

    Blocks are [users, 1, 1, ...]; no velocity is one that starts anew.
    """

    start: int
    history: dict[str, list[float]]
    models: Blocks
    velocity: Blocks

    @classmethod
    def of(
        cls, run: Run, plan: NoisePlan, manifest: dict[str, Any], gradients: Gradients
    ) -> Resumed:
        """Refuses a run of anything but this plan and what the manifest describes."""
        if not isinstance(run, Run):
            raise InputError(
                f"resume must be a Run, not {run!r}; load one with decor.Run.load(path)"
            )
        if run.stopped is not None and run.stopped.cause == "diverged":
            raise InputError(f"the run to resume has {run.stopped}; start a new one")
        for name in ("task", "recipe", "seed", "learning_rate", "engine"):
            if run.manifest.get(name) != manifest[name]:
                raise InputError(
                    f"the run to resume had another {name} ({run.manifest.get(name)!r}, now "
                    f"{manifest[name]!r}); "
                    "resume with what it was started with, or start a new run"
                )
        if run.manifest.get("resume_tag") != manifest.get("resume_tag"):
            raise InputError(
                "the run to resume had other data, or its resume.key is gone; resume with the "
                "data it was started with, or start "
                "a new run"
            )
        if not run.models:
            raise InputError(
                "the run to resume has no models; keep them with sweep(..., keep_models=True)"
            )
        if run.plan.to_json() != plan.to_json():
            raise InputError(
                "the run to resume had another plan; resume with the plan it was "
                "started with, or start a new run"
            )
        models, velocity = (
            [block[:, None, None].clone() for block in gradients.blocks(state)] if state else []
            for state in (run.models, run.velocity)
        )
        return cls(
            run.steps_taken,
            {name: list(values) for name, values in run.history.items()},
            models,
            velocity,
        )
