"""What may be published of a private run: lists of allowed keys, and a model card."""

from __future__ import annotations

from typing import Any

import numpy as np

from decor.learning.definition import Definition
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.privacy.plan_answer import who_pays
from decor.text import rounded_up, rounded_up_range

CARD = "MODEL_CARD.md"
MANIFEST = (
    *("simulated", "task", "learning_rate", "seed", "recipe", "engine", "noise", "versions"),
    *("run", "federation", "definition", "base_rate", "frozen"),
)
"""Keys of a manifest that do not depend on private data."""
TASK = ("name", "users", "parameters", "metrics")
ENGINE = ("name", "dtype", "path", "user", "number", "timeout", "quorum")
METRICS = ("step", "consensus", "test_loss", "accuracy")
"""Metrics of the models alone, or on test data that the task has declared public.

Private runs keep no others in their history.
"""


def public_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """The allowed keys of a manifest, and nothing else."""
    # an allow-list: a key that a later version adds stays private until it is listed here
    public: dict[str, Any] = {name: manifest[name] for name in MANIFEST if name in manifest}
    # these two hold nested values, some of them private
    for name, keys in (("task", TASK), ("engine", ENGINE)):
        if isinstance(manifest.get(name), dict):
            public[name] = {key: manifest[name][key] for key in keys if key in manifest[name]}
    return public


def own_metrics(manifest: dict[str, Any]) -> tuple[str, ...]:
    """The task's own metrics; a private run names them only where its test data are public."""
    task = manifest.get("task")
    names = task.get("metrics", ()) if isinstance(task, dict) else ()
    # names of what runs measure by themselves would let through what is private
    return tuple(name for name in names if name not in ("loss", "distance"))


def public_metrics(
    manifest: dict[str, Any], history: dict[str, list[float]]
) -> dict[str, list[float]]:
    """The metrics that may be published."""
    # peers before 0.2 kept metrics on any test data, declared public or not
    allowed = (*METRICS, *own_metrics(manifest)) if "noise" in manifest else METRICS[:2]
    return {name: values for name, values in history.items() if name in allowed}


def model_card(
    plan: NoisePlan,
    guarantee: Guarantee,
    manifest: dict[str, Any],
    last: dict[str, float],
    steps_taken: int,
    models: str,
    definition: Definition | None = None,
) -> str:
    """The model card: what the model is, its guarantee, and the limits of the guarantee.

    Args:
        plan: The noise plan of the run.
        guarantee: The guarantee of the run.
        manifest: The public manifest.
        last: The last value of every public metric.
        steps_taken: The number of steps that were taken.
        models: The name of the models file.
        definition: What the model learns; None where the run does not say it.
    """
    task, exposure = manifest.get("task", {}), plan.exposure
    unit = "all data of one user" if exposure.unit == "user" else "one example of one user"
    metrics = [
        f"- {name.replace('_', ' ')}: {value:.4g}"
        for name, value in last.items()
        if name in METRICS[2:] or name in own_metrics(manifest)
    ]
    stopped = ""
    if guarantee.stopped:
        stopped = f" The run stopped early: {guarantee.stopped}. The guarantee is the whole plan's."
    versions = [f"{name} {version}" for name, version in manifest.get("versions", {}).items()]
    epsilon, delta = rounded_up(guarantee.epsilon), rounded_up(guarantee.delta)
    # all rounded up: epsilon and delta are not understated, and a copied sigma is enough noise
    edges = np.atleast_1d(plan.sigma_cor)
    own = plan.sigma_cdp_per_user
    sigma_cdp, sigma_cor = (rounded_up_range(min(each), max(each)) for each in (own, edges))
    pays = "" if who_pays(plan) is None else f"\n- {who_pays(plan)}"
    frozen = manifest.get("frozen")
    body = ""
    if isinstance(frozen, dict):
        body = (
            f" They belong to a module with {frozen.get('parameters', 0):,} further\n"
            "parameters that were not trained and are not in this folder; their SHA-256 is\n"
            f"{frozen.get('sha256')}."
        )
    return f"""# Model card: {task.get("name", "model")}

## Model

{task.get("parameters", 0):,} parameters, trained by {plan.topology.description} over
{steps_taken:,} steps of decentralised gradient descent with correlated noise (DECOR). `{models}`
holds every user's model by the names of its parameters; load them with `decor.Run.load(FOLDER)`,
and their mean with `.average_model`.{body}

{_definition_lines(definition, manifest)}
## Privacy

{guarantee}{stopped}

- protected: {unit}
- epsilon {epsilon}, delta {delta} (the failure probability, noise tables included)
- adversary: {guarantee.adversary.sentence}
- noise: sigma_cdp {sigma_cdp} of each user, sigma_cor {sigma_cor} on each edge{pays}
- gradients clipped to {exposure.clip:g}

This folder holds the models, the plan and public metrics. Nothing else in it depends on the
training data.

## Measured on public test data

{chr(10).join(metrics) or "Nothing: the task has no test data that is declared public."}

## Limits

The guarantee covers what the models and messages reveal about the training data, for users who
follow the protocol. It does not cover other releases from the same data (their budgets add up), how
the model performs on people it was not trained on, or its fitness for a purpose. The publisher must
state the intended use, the origin of the data and the owner.

## Repeat

Made with {", ".join(versions) or "decor"}. `decor account --plan plan.json` computes the
guarantee again.
"""


def _definition_lines(definition: Definition | None, manifest: dict[str, Any]) -> str:
    """What goes into the model, what comes out, and which federation it is of: public facts."""
    lines = []
    if definition is None:
        lines.append("- kind: a module of the caller's own, which this folder does not describe")
    else:
        lines.append(f"- kind: {_one_line(definition.model.description)}")
        if definition.preparation is not None:
            label = definition.preparation.label
            of = "" if definition.classes else f": {label.description}"
            lines.append(f"- label: `{_one_line(label.name)}`{of}")
        if definition.classes is not None:
            lines.append(f"- classes: {_one_line(', '.join(definition.classes))}")
    if isinstance(federation := manifest.get("federation"), str):
        lines.append(f"- federation: digest {_one_line(federation)}")
    if definition is not None and definition.preparation is not None:
        columns = definition.preparation.columns
        lines += ["", "Columns of its input, in this order:", ""]
        for column in columns:
            lines.append(f"- `{_one_line(column.name)}`: {_one_line(column.description)}")
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    """A name from a file, which must not end its line or its quotes."""
    return " ".join(text.replace("`", "'").split())
