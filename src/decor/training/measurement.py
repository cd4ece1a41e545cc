"""Measurement: the metrics of all runs of a grid, over everybody."""

from __future__ import annotations

import torch
from torch import Tensor

from decor.learning.gradients.clip import Blocks
from decor.learning.task import Task

from .descent import Descent

PUBLIC = ("test_loss", "accuracy")
"""Metrics on test data, which a task may declare public."""


def measured(descent: Descent, under_way: bool, public: bool = False) -> dict[str, list[float]]:
    """Every metric of every run; `under_way` is between the first step and the last.

    `public` leaves out private data.
    """
    share, gradients = descent.share, descent.gradients
    mean = [share.mean(block) for block in descent.models]
    found: dict[str, Tensor] = {}
    if not public:
        found = share.metrics(gradients.evaluate([m.flatten(0, 1) for m in mean]))
    elif share.whole.test_public:
        every = gradients.evaluate([m.flatten(0, 1) for m in mean], loss=False)
        found = {name: every[name] for name in PUBLIC if name in every}
    models = (
        descent.if_finished()
        if under_way and descent.recipe.final_gossip.rounds
        else descent.models
    )
    found["consensus"] = _distance(descent, models, mean)
    if share.task.optimum is not None and not public:
        best = gradients.blocks(_named_optimum(share.task, share.task.optimum))
        found["distance"] = _distance(
            descent, models, [x.expand_as(m) for x, m in zip(best, mean, strict=True)]
        )
    return {name: values.double().tolist() for name, values in found.items()}


def _distance(descent: Descent, models: Blocks, point: Blocks) -> Tensor:
    """Everybody's mean squared distance to a model, [seeds * settings]."""
    seeds, settings = models[0].shape[1:3]
    total = torch.zeros(seeds * settings, dtype=torch.float64, device=descent.device)
    for users in descent.parts:
        for block, x in zip(models, point, strict=True):
            total += (block[users] - x).square_().flatten(3).sum((0, 3)).flatten()
    return descent.share.total(total) / descent.share.whole.users


def _named_optimum(task: Task, optimum: Tensor) -> dict[str, Tensor]:
    trained = {name: p for name, p in task.model.named_parameters() if p.requires_grad}
    parts = torch.split(optimum.reshape(-1), [p.numel() for p in trained.values()])
    return {
        name: part.view(p.shape) for (name, p), part in zip(trained.items(), parts, strict=True)
    }
