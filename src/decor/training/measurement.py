"""Measurement: the metrics of all runs of a grid, over all users."""

from __future__ import annotations

import torch
from torch import Tensor

from decor.learning.gradients.clip import Blocks
from decor.learning.gradients.interface import Gradients
from decor.learning.task import Task

from .descent import Descent

TEST_METRICS = ("test_loss", "accuracy")
"""Metrics on test data, which a task may declare public; so are a task's own metrics."""


def public_test_metrics(task: Task) -> tuple[str, ...]:
    """The metrics on test data that a private run keeps: none, unless the task says that these data
    are public.
    """
    return (*TEST_METRICS, *task.metrics) if task.test_public else ()


def measure_own(task: Task, gradients: Gradients, mean: Blocks) -> dict[str, Tensor]:
    """A task's own metrics of models on the test data.

    Args:
        task: The task of all users.
        gradients: Knows the parameters by name.
        mean: The models, [count, ...].
    """
    if task.test is None or not task.metrics:
        return {}
    state = gradients.state(mean)
    rows = []
    for k in range(len(mean[0])):
        trained = {name: part[k] for name, part in state.items()}
        trained |= {name: trained[own] for name, own in gradients.tied.items()}
        output = task.output({**gradients.fixed, **trained}, task.test[0].to(mean[0].device))
        # a task's own function is Python, and most metrics libraries work on the CPU alone
        rows.append(task.own_metrics(output.cpu()))
    return {name: torch.tensor([row[name] for row in rows]).double() for name in task.metrics}


def measure(descent: Descent, in_progress: bool, public: bool = False) -> dict[str, list[float]]:
    """Every metric of every run.

    Args:
        descent: The runs, with their models as they are now.
        in_progress: Whether this is after the first step and before the end.
        public: Leaves out every metric that reads private data.
    """
    share, gradients = descent.share, descent.gradients
    # losses and accuracy are those of the average model
    mean = [share.mean_over_users(block) for block in descent.results]
    metrics: dict[str, Tensor] = {}
    flat = [m.flatten(0, 1) for m in mean]
    if not public:
        metrics = share.combine_metrics(gradients.evaluate(flat))
    # loss=False: the training loss would read private data
    elif share.full_task.test_public:
        every = gradients.evaluate(flat, loss=False)
        metrics = {name: every[name] for name in TEST_METRICS if name in every}
    if not public or share.full_task.test_public:
        metrics |= measure_own(share.full_task, gradients, flat)
    # distances are of the models that users would hold if the run ended here
    models = descent.results
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
