"""What may be published of a private run: an allow-list of files and keys, and a model card."""

from __future__ import annotations

from typing import Any

from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.text import rounded_up

CARD = "MODEL_CARD.md"
MANIFEST = (
    "simulated",
    "task",
    "learning_rate",
    "seed",
    "recipe",
    "engine",
    "noise",
    "versions",
    "run",
    "federation",
)
"""Keys of a manifest that depend on nothing private."""
TASK = ("name", "users", "parameters")
ENGINE = ("name", "dtype", "path", "user", "number", "timeout", "quorum")
METRICS = ("step", "consensus", "test_loss", "accuracy")
"""Metrics of the models alone, or on test data that the task has declared public: others are not
kept by private runs.
"""


def public_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest without anything that the allow-list does not name."""
    public: dict[str, Any] = {name: manifest[name] for name in MANIFEST if name in manifest}
    for name, keys in (("task", TASK), ("engine", ENGINE)):
        if isinstance(manifest.get(name), dict):
            public[name] = {key: manifest[name][key] for key in keys if key in manifest[name]}
    return public


def public_metrics(
    manifest: dict[str, Any], history: dict[str, list[float]]
) -> dict[str, list[float]]:
    """The metrics that may be published."""
    # before 0.2 peers kept metrics on any test data, declared public or not
    kept = METRICS if "noise" in manifest else METRICS[:2]
    return {name: values for name, values in history.items() if name in kept}


def model_card(
    plan: NoisePlan,
    guarantee: Guarantee,
    manifest: dict[str, Any],
    last: dict[str, float],
    steps_taken: int,
    models: str,
) -> str:
    """The model card: what the model is, what is promised about its data, and what is not.

    Args:
        plan: The noise plan of the run.
        guarantee: What the run promises.
        manifest: The public manifest.
        last: The last value of every public metric.
        steps_taken: How many steps were taken.
        models: The name of the file of models.
    """
    task, exposure = manifest.get("task", {}), plan.exposure
    unit = "the whole data of one user" if exposure.unit == "user" else "one record of one user"
    metrics = [
        f"- {name.replace('_', ' ')}: {value:.4g}"
        for name, value in last.items()
        if name in METRICS[2:]
    ]
    stopped = (
        f" The run stopped early: {guarantee.stopped}. The promise is the whole plan's."
        if guarantee.stopped
        else ""
    )
    versions = ", ".join(
        f"{name} {version}" for name, version in manifest.get("versions", {}).items()
    )
    epsilon, delta = rounded_up(guarantee.epsilon), rounded_up(guarantee.delta)
    sigma_cdp = rounded_up(plan.sigma_cdp)
    return f"""# Model card: {task.get("name", "model")}

## Model

{task.get("parameters", 0):,} parameters, trained by {plan.topology.description} over
{steps_taken:,} steps of decentralised gradient descent with correlated noise (DECOR). `{models}`
holds every user's model by the names of its parameters; load them with `decor.Run.load(FOLDER)`,
and their mean with `.average_model`.

## Privacy

{guarantee}{stopped}

- protected: {unit}
- epsilon {epsilon}, delta {delta} (the failure probability, noise tables included)
- adversary: {guarantee.adversary.sentence}
- noise: sigma_cdp {sigma_cdp} of each user, sigma_cor {_correlated(plan.sigma_cor)} on each edge
- gradients clipped to {exposure.clip:g}

This folder holds the models, the plan and public metrics. Nothing else in it depends on the
training data.

## Measured on public test data

{chr(10).join(metrics) or "Nothing: the task has no test data that is declared public."}

## Limits

The promise is about what the models and messages reveal of the training data, for users who follow
the protocol. It says nothing about other releases from the same data (their budgets add up), about
how the model performs on other people than those it was trained on, or about its fitness for a
purpose. Intended use, the origin of the data and the owner are for the publisher to state.

## Repeat

Made with {versions or "decor"}. `decor account --plan plan.json` computes the promise again.
"""


def _correlated(sigma: float | tuple[float, ...]) -> str:
    return (
        rounded_up(sigma)
        if isinstance(sigma, float)
        else f"{rounded_up(min(sigma))} to {rounded_up(max(sigma))}"
    )
