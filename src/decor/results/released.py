"""What may be published of a private run: an allow-list of files and keys, and a model card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.privacy.guarantee import figure

from . import folder
from .run import Run

CARD = "MODEL_CARD.md"
MANIFEST = ("simulated", "task", "learning_rate", "seed", "recipe", "engine", "noise", "versions", "run", "federation")
"""Keys of a manifest that depend on nothing private."""
TASK = ("name", "users", "parameters")
ENGINE = ("name", "dtype", "path", "user", "number", "timeout", "quorum")
METRICS = ("step", "consensus", "test_loss", "accuracy")
"""Metrics of the models alone, or on test data that the task has declared public: others are not kept by private runs."""


def write(run: Run, to: Path) -> None:
    """Writes the folder; refuses a simulation, a run without a guarantee, and a folder that has something in it."""
    if run.simulated:
        raise InputError(
            "this run is a simulation: anyone who knows its seed can subtract the noise, so it is not to be published. Train "
            "with Vectorised(seed=None) (decor train --seed secret), or with real peers"
        )
    if run.guarantee.void is not None:
        raise InputError(f"{run.guarantee} It is not to be published; train again without private metrics, or without a callback")
    if not run.models:
        raise InputError("this run has no models to publish; it is another process's part of a run, or was kept without them")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{str(to)!r} has something in it already; name a new folder")
    kept = public(run)
    folder.write(kept, to, overwrite=False)
    folder.replace_text(to / CARD, card(kept))


def public(run: Run) -> Run:
    """The run without anything that the allow-list does not name."""
    held = run.manifest
    manifest: dict[str, Any] = {name: held[name] for name in MANIFEST if name in held}
    for name, keys in (("task", TASK), ("engine", ENGINE)):
        if isinstance(held.get(name), dict):
            manifest[name] = {key: held[name][key] for key in keys if key in held[name]}
    # before 0.2 peers kept metrics on any test data, declared public or not
    kept = METRICS if "noise" in held else METRICS[:2]
    history = {name: values for name, values in run.history.items() if name in kept}
    return replace(run, manifest=manifest, history=history, velocity={}, private_metrics={}, resume_key=None)


def card(run: Run) -> str:
    """The model card: what the model is, what is promised about its data, and what is not."""
    plan, task = run.plan, run.manifest.get("task", {})
    exposure, guarantee = plan.exposure, run.guarantee
    unit = "the whole data of one user" if exposure.unit == "user" else "one record of one user"
    metrics = [f"- {name.replace('_', ' ')}: {value:.4g}" for name, value in run.metrics.items() if name in METRICS[2:]]
    stopped = f" The run stopped early: {guarantee.stopped}. The promise is the whole plan's." if guarantee.stopped else ""
    versions = ", ".join(f"{name} {version}" for name, version in run.manifest.get("versions", {}).items())
    return f"""# Model card: {task.get("name", "model")}

## Model

{task.get("parameters", 0):,} parameters, trained by {plan.topology.description} over
{run.steps_taken:,} steps of decentralised gradient descent with correlated noise (DECOR). `{folder.model_file(run)}` holds every
user's model by the names of its parameters; load them with `decor.Run.load(FOLDER)`, and their mean with `.average_model`.

## Privacy

{guarantee}{stopped}

- protected: {unit}
- epsilon {figure(guarantee.epsilon)}, delta {figure(guarantee.delta)} (the failure probability, noise tables included)
- adversary: {guarantee.adversary.sentence}
- noise: sigma_cdp {figure(plan.sigma_cdp)} of each user, sigma_cor {_correlated(plan.sigma_cor)} on each edge
- gradients clipped to {exposure.clip:g}

This folder holds the models, the plan and public metrics. Nothing else in it depends on the training data.

## Measured on public test data

{chr(10).join(metrics) or "Nothing: the task has no test data that is declared public."}

## Limits

The promise is about what the models and messages reveal of the training data, for users who follow the protocol. It says nothing
about other releases from the same data (their budgets add up), about how the model performs on other people than those it was
trained on, or about its fitness for a purpose. Intended use, the origin of the data and the owner are for the publisher to state.

## Repeat

Made with {versions or "decor"}. `decor account --plan plan.json` computes the promise again.
"""


def _correlated(sigma: float | tuple[float, ...]) -> str:
    return figure(sigma) if isinstance(sigma, float) else f"{figure(min(sigma))} to {figure(max(sigma))}"
