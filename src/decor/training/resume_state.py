"""ResumeState: checks that a run can be resumed here, and holds what it continues from."""

from __future__ import annotations

from dataclasses import dataclass

from decor.errors import InputError
from decor.learning.gradients.clip import Blocks
from decor.learning.gradients.interface import Gradients
from decor.privacy.plan import NoisePlan
from decor.results.run import Run

from .manifest import RunManifest


@dataclass(frozen=True)
class ResumeState:
    """A run that continues after `start` steps.

    Blocks are [users, 1, 1, ...]; an empty velocity starts at zero.
    """

    start: int
    history: dict[str, list[float]]
    models: Blocks
    velocity: Blocks

    @classmethod
    def of(
        cls, run: Run, plan: NoisePlan, manifest: RunManifest, gradients: Gradients
    ) -> ResumeState:
        """The state of `run`; refuses a run of another plan or with another manifest."""
        if not isinstance(run, Run):
            raise InputError(
                f"resume must be a Run, not {run!r}; load one with decor.Run.load(path)"
            )
        # its parameters are not finite or far too large, and more steps cannot repair them
        if run.stopped is not None and run.stopped.cause == "diverged":
            raise InputError(f"the run to resume has {run.stopped}; start a new one")
        before, now = RunManifest.from_json(run.manifest), RunManifest.from_json(manifest.to_json())
        # each of these decides the steps to come: changed, the run would not be the one it
        # continues
        for name in ("task", "recipe", "seed", "learning_rate", "engine"):
            old, new = getattr(before, name), getattr(now, name)
            if old != new:
                raise InputError(
                    f"the run to resume had another {name} ({old!r}, now {new!r}); resume with "
                    "what it was started with, or start a new run"
                )
        # a private run stores no fingerprint; the tag, made with resume.key, stands for it
        if before.resume_tag != now.resume_tag:
            raise InputError(
                "the run to resume had other data, or its resume.key is gone; resume with the "
                "data it was started with, or start a new run"
            )
        if not run.models:
            raise InputError(
                "the run to resume has no models; keep them with sweep(..., keep_models=True)"
            )
        # as text: floats are written in full, so equal texts are equal plans
        if run.plan.to_json() != plan.to_json():
            raise InputError(
                "the run to resume had another plan; resume with the plan it was started with, or "
                "start a new run"
            )
        # clones: training works in place, and the caller's run must stay as it is
        models, velocity = (
            [block[:, None, None].clone() for block in gradients.blocks(state)] if state else []
            for state in (run.models, run.velocity)
        )
        history = {name: list(values) for name, values in run.history.items()}
        return cls(run.steps_taken, history, models, velocity)
