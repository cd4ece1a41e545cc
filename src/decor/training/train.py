"""train: one run, checked before it begins."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from decor.errors import DivergenceWarning, InputError
from decor.learning.recipe import Recipe, recipe_with, with_gossip
from decor.learning.task import Task
from decor.privacy.gossip_choice import gossip_for
from decor.privacy.plan import NoisePlan
from decor.results.run import Run

from .engine import Callback, Engine, Setting
from .validation import check
from .vectorised import Vectorised


def train(
    task: Task,
    plan: NoisePlan,
    recipe: Recipe | None = None,
    *,
    learning_rate: float,
    engine: Engine | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    resume: Run | None = None,
    allow_disconnected: bool = False,
    **recipe_fields: Any,
) -> Run:
    """Trains each user's model by Algorithm 1 with the plan's noise, for exactly the plan's steps.

    Args:
        task: Model, loss and each user's data. Users that have names in the plan's graph are
            matched by name.
        plan: The noise, the graph, the clip and the number of steps.
        recipe: How to train; None takes the default `Recipe()`.
        learning_rate: The step size, before the recipe's schedule.
        engine: What runs it; None takes `Vectorised()`, the simulator.
        callbacks: Called after each measurement; one that returns True, or a sentence, stops the
            run.
        resume: A run that stopped early, to be continued.
        allow_disconnected: Trains on a graph in several parts, whose models never agree.
        recipe_fields: Fields of the recipe, such as `momentum=0.9`: short for a recipe with these
            values.

    Returns:
        The run: models, metrics, and its guarantee.

    Raises:
        InputError: If task, plan and recipe do not suit each other; nothing has been computed then.

    Guarantee: the run's `guarantee` is the whole plan's, also where it stopped early, and says
    whether it is a simulation.
    """
    chosen = Vectorised() if engine is None else engine
    # a name or a class instead of an engine would fail later, and less clearly
    if not hasattr(chosen, "run"):
        raise InputError(f"engine must be an engine such as Vectorised(), not {engine!r}")
    callbacks = [callbacks] if callable(callbacks) else list(callbacks)
    recipe = recipe_with(recipe, recipe_fields)
    if recipe.gossip_rounds == "auto":
        recipe = with_gossip(recipe, gossip_for(plan))
    task = check(task, plan, recipe, allow_disconnected)
    settings = [Setting(plan, learning_rate, chosen.seed)]
    chosen.capabilities.check(chosen, settings, recipe, callbacks, resume)
    (run,) = chosen.run(task, settings, recipe, callbacks, resume)
    # returned and not raised: its curve shows what went wrong, and it was paid for
    if run.stopped is not None and run.stopped.cause == "diverged":
        warnings.warn(run.stopped, DivergenceWarning, stacklevel=2)
    return run
