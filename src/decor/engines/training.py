"""train: one run, checked before it begins."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from decor.errors import DivergenceWarning, InputError
from decor.graph.gossip import Gossip
from decor.graph.names import in_order, not_a_list
from decor.graph.topology import Topology
from decor.learning.schedule import Constant, Schedule
from decor.learning.task import Task
from decor.privacy.plan import NoisePlan
from decor.results.run import Run

from .engine import Callback, Engine, Recipe, Setting
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


def check(task: Task, plan: NoisePlan, recipe: Recipe, allow_disconnected: bool = False) -> Task:
    """The task with its shards in the order of the plan's users; refuses what the plan does not account for or cannot work."""
    if not isinstance(task, Task):
        raise InputError(f"task must be a Task, not {task!r}")
    if not isinstance(plan, NoisePlan):
        raise InputError(f"plan must be a NoisePlan, not {plan!r}")
    exposure, users = plan.exposure, plan.topology.users
    task = _matched(task, plan.topology)
    if task.users != users:
        raise InputError(
            f"the plan is for {users} users, but the task has data for {task.users}; make both for the same users, "
            f"such as ring({task.users})"
        )
    if not plan.topology.is_connected and not allow_disconnected and not plan.adversary.average_only:
        raise InputError(
            f"{plan.topology!r} has {plan.topology.component_count} parts that never hear of each other, so their models cannot "
            "agree; add an edge between them, or say allow_disconnected=True"
        )
    if plan.adversary.average_only and recipe.gossip.rounds == 0:
        raise InputError("central DP's server averages in every step, and protects nothing else; drop gossip_rounds=0")
    if exposure.steps >= 2**32:
        raise InputError(f"{exposure.steps:,} steps are more than noise is counted for; take fewer than 2^32")
    if exposure.unit == "user":
        return task
    if recipe.batch_size is not None:
        raise InputError(f"at example level the plan says the batch size ({exposure.batch_size}); drop batch_size")
    if recipe.local_steps > 1:
        raise InputError("local_steps need user level: along several steps one record moves more than the clip; drop local_steps")
    for i, (said, held) in enumerate(zip(exposure.records_of(plan.topology), task.counts, strict=True)):
        if said != held:
            raise InputError(
                f"the plan counts {said} records for user {plan.topology.name(i)}, who holds {held}: the epsilon would not be "
                "true; plan with Exposure(..., records=task.records)"
            )
    return task


def _matched(task: Task, topology: Topology) -> Task:
    """The task with its shards in the graph's order, matched by name where users have names; engines go by that order."""
    if task.names is None:
        if topology.labels is not None:
            raise InputError(not_a_list(topology, "shards", "(X, y)"))
        return task
    return replace(task, shards=in_order(dict(zip(task.names, task.shards, strict=True)), topology, "shards"))
