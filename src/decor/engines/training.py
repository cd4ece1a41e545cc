"""train: one run, checked before it begins."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from decor.errors import DivergenceWarning, InputError
from decor.graph.gossip import Gossip
from decor.learning.schedule import Constant, Schedule
from decor.learning.task import Task
from decor.privacy.plan import NoisePlan
from decor.results.run import Run

from .engine import Callback, Engine, Recipe, Setting
from .suited import check
from .vectorised import Vectorised


def train(
    task: Task,
    plan: NoisePlan,
    *,
    learning_rate: float,
    engine: Engine | None = None,
    schedule: Schedule | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    gossip_rounds: int = 1,
    accelerate: bool | str = False,
    final_gossip_rounds: int = 0,
    local_steps: int = 1,
    batch_size: int | None = None,
    evaluate_every: int | Sequence[int] | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    resume: Run | None = None,
    allow_disconnected: bool = False,
) -> Run:
    """Trains everybody's model by Algorithm 1 with the plan's noise, for exactly the plan's steps.

    Where the users of the plan's graph have names, the task's shards must have the same, and are matched by them.

    `momentum`, `weight_decay`, `schedule`, `gossip_rounds` (with `accelerate`, better weights) and `final_gossip_rounds`
    (always Chebyshev's) act on messages that are private already: they change no guarantee. `local_steps` (user level) walks
    several steps alone and clips their sum, which costs as much as one gradient. `batch_size` (user level) is how many records
    a gradient averages; at example level the plan says it. `resume` continues a run that stopped early.
    Guarantee: the run's `guarantee` is the whole plan's, also where it stopped early, and says whether it is a simulation.
    """
    chosen = Vectorised() if engine is None else engine
    if not hasattr(chosen, "run"):
        raise InputError(f"engine must be an engine such as Vectorised(), not {engine!r}")
    callbacks = [callbacks] if callable(callbacks) else list(callbacks)
    recipe = Recipe(
        schedule or Constant(),
        momentum,
        weight_decay,
        Gossip(gossip_rounds, accelerate),
        Gossip(final_gossip_rounds, accelerate=True),
        local_steps,
        batch_size,
        evaluate_every,
    )
    task = check(task, plan, recipe, allow_disconnected)
    (run,) = chosen.run(task, [Setting(plan, learning_rate, getattr(chosen, "seed", 0))], recipe, callbacks, resume)
    if run.stopped is not None and run.stopped.startswith("diverged"):
        warnings.warn(run.stopped, DivergenceWarning, stacklevel=2)
    return run
