"""Measurement: the metrics of all runs of a grid, over all users."""

from __future__ import annotations

import torch
from torch import Tensor

from decor.learning.gradients.clip import Blocks
from decor.learning.task import Task

from .descent import Descent

TEST_METRICS = ("test_loss", "accuracy")
"""Metrics on test data, which a task may declare public."""


def measure(descent: Descent, in_progress: bool, public: bool = False) -> dict[str, list[float]]:
    """Every metric of every run.

    Args:
        descent: The runs, with their models as they are now.
        in_progress: Whether this is after the first step and before the end.
        public: Leaves out every metric that reads private data.
    """
    share, gradients = descent.share, descent.gradients
    # losses and accuracy are those of the average model
    mean = [share.mean_over_users(block) for block in descent.models]
    metrics: dict[str, Tensor] = {}
    if not public:
        metrics = share.combine_metrics(gradients.evaluate([m.flatten(0, 1) for m in mean]))
    elif share.full_task.test_public:
        every = gradients.evaluate([m.flatten(0, 1) for m in mean], loss=False)
        metrics = {name: every[name] for name in TEST_METRICS if name in every}
    # distances are of the models that users would hold if the run ended here
    models = descent.models
    if in_progress and descent.recipe.final_gossip.rounds:
        models = descent.after_final_gossip()
    metrics["consensus"] = _mean_distance(descent, models, mean)
    if share.task.optimum is not None and not public:
        best = gradients.blocks(_optimum_by_name(share.task, share.task.optimum))
        point = [x.expand_as(m) for x, m in zip(best, mean, strict=True)]
        metrics["distance"] = _mean_distance(descent, models, point)
    return {name: values.double().tolist() for name, values in metrics.items()}


def _mean_distance(descent: Descent, models: Blocks, point: Blocks) -> Tensor:
    """The users' mean squared distance to a model, [seeds * settings]."""
    seeds, settings = models[0].shape[1:3]
    # float64: squares of many small differences
    total = torch.zeros(seeds * settings, dtype=torch.float64, device=descent.device)
    for users in descent.user_slices:
        for block, x in zip(models, point, strict=True):
            total += (block[users] - x).square_().flatten(3).sum((0, 3)).flatten()
    return descent.share.sum_over_ranks(total) / descent.share.full_task.users


def _optimum_by_name(task: Task, optimum: Tensor) -> dict[str, Tensor]:
    trained = {name: p for name, p in task.model.named_parameters() if p.requires_grad}
    parts = torch.split(optimum.reshape(-1), [p.numel() for p in trained.values()])
    return {
        name: part.view(p.shape) for (name, p), part in zip(trained.items(), parts, strict=True)
    }
