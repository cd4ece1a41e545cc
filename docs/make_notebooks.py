"""Writes docs/notebooks/own_loop.ipynb: its cells are here, and its outputs are those of a run.

    python docs/make_notebooks.py

A notebook is JSON, so that neither Jupyter nor its kernels are needed to make one.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

NOTEBOOKS = Path(__file__).parent / "notebooks"

OWN_LOOP = [
    """# Your own training loop, private

Sixteen hospitals train a classifier on a torus. We keep our own training code: several local
epochs, with a proximal term that keeps each hospital near the shared model. DECOR clips what comes
out of it, adds noise that cancels between neighbours, and averages. See
[the page](../own-loop.md) for what is guaranteed, and why.""",
    """>>>
import matplotlib.pyplot as plt
import numpy as np
import torch

import decor

STEPS = 12
task = decor.tasks.breast_cancer(users=16, seed=0)  # only for its data
graph = decor.torus(4, 4)
plan = decor.calibrate(
    graph,
    decor.Exposure(clip=1.0, steps=STEPS),  # all data of a hospital are protected
    decor.Adversary.curious(),
    decor.Budget(epsilon=10.0, delta=1e-5),
)
print(f"noise of a user {plan.sigma_cdp:.2f}, of an edge {plan.sigma_cor:.2f}")
""",
    """## Two ways to train

Both are ordinary torch code. They see a model and a hospital's data, but no keys and no noise.""",
    """>>>
def one_gradient(model, X, y):
    decor.losses.logistic(model(X), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad
    return model


def proximal(model, X, y, epochs=10, rate=0.3, pull=0.1):
    start = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.Adam(model.parameters(), lr=rate / epochs)
    for _ in range(epochs):
        optimiser.zero_grad()
        distance = sum(((p - s) ** 2).sum() for p, s in zip(model.parameters(), start, strict=True))
        (decor.losses.logistic(model(X), y) + pull * distance).backward()
        optimiser.step()
    return model
""",
    """## One loop for both

The step size shrinks by a function of the step, and users average with weights of our own: lazier
than Metropolis.""",
    """>>>
W = 0.2 * np.eye(16) + 0.8 * graph.mixing.toarray()
lazy = decor.NoisePlan(
    graph.with_mixing(W), plan.exposure, plan.adversary, plan.sigma_cdp, plan.sigma_cor, plan.budget
)


def accuracy(model):
    X, y = task.test
    return float(((model(X).squeeze(-1) > 0) == (y > 0)).float().mean())


def run(train_my_way):
    federation = decor.simulate(
        lazy, decor.models.logistic(30), seed=0, gossip_rounds=3, schedule=lambda step: 0.9**step
    )
    curve = []
    for round in federation:
        for user in round.users:
            X, y = task.shards[user.number]
            user.share(train_my_way(user.model, X, y))
        curve.append(accuracy(federation.average))
    curve.append(accuracy(federation.average))
    return federation, curve


results = {"one gradient": run(one_gradient), "ten proximal epochs": run(proximal)}
for name, (federation, curve) in results.items():
    print(f"{name}: test accuracy {curve[-1]:.2f}, epsilon {federation.guarantee.epsilon:.4g}")
""",
    """>>>
figure, axes = plt.subplots(figsize=(5, 3))
for name, (_, curve) in results.items():
    axes.plot(range(STEPS + 1), curve, label=name)
axes.set(xlabel="step", ylabel="test accuracy of the average", ylim=(0, 1))
axes.legend()
figure.tight_layout()
""",
    """The same code runs at a hospital, with `decor.join` in the place of `decor.simulate`:
`for round in member: round.share(train_my_way(round.model, X, y))`. To publish the models of a
simulation, run it with `seed=None`.""",
]


def lines(text: str) -> list[str]:
    return text.strip("\n").splitlines(keepends=True)


def execute(code: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a cell; gives what it printed and the figures that it showed."""
    printed, outputs = io.StringIO(), []
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "cell", "exec"), names)
    if printed.getvalue():
        text = lines(printed.getvalue())
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=80, bbox_inches="tight")
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    plt.close("all")
    return outputs


def notebook(cells: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__notebook__"}
    made, count = [], 0
    for number, cell in enumerate(cells):
        base = {"id": f"cell-{number}", "metadata": {}}
        if not cell.startswith(">>>"):
            made.append(base | {"cell_type": "markdown", "source": lines(cell)})
            continue
        code, count = cell.removeprefix(">>>"), count + 1
        own = {"cell_type": "code", "execution_count": count, "source": lines(code)}
        made.append(base | own | {"outputs": execute(code, names)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    NOTEBOOKS.mkdir(exist_ok=True)
    text = json.dumps(notebook(OWN_LOOP), indent=1, ensure_ascii=False) + "\n"
    (NOTEBOOKS / "own_loop.ipynb").write_text(text, encoding="utf-8")
