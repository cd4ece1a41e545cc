"""Validation: refuses, before anything is computed, what a plan does not account for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from decor.errors import InputError
from decor.graph.topology import Topology
from decor.graph.user_values import in_order, list_refusal
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.privacy.plan import NoisePlan


def check(task: Task, plan: NoisePlan, recipe: Recipe, allow_disconnected: bool = False) -> Task:
    """The task with its shards in the order of the plan's users.

    Raises:
        InputError: If the plan does not account for the task and recipe, or they cannot work.
    """
    # swapped arguments would fail deep in the gradient code
    if not isinstance(task, Task):
        raise InputError(f"task must be a Task, not {task!r}")
    _check_type(plan)
    task = _match_shards(task, plan.topology)
    check_plan(plan, recipe, task.users, allow_disconnected)
    topology, exposure = plan.topology, plan.exposure
    if exposure.unit == "user":
        return task
    if recipe.batch_size is not None:
        raise InputError(
            f"at example level the plan sets the batch size ({exposure.batch_size}); "
            "drop batch_size"
        )
    # the clip bounds the sum over local steps per user, not the part of one example
    if recipe.local_steps > 1:
        raise InputError(
            "local_steps need user level: along several steps one example moves more than the "
            "clip; drop local_steps"
        )
    if exposure.rate is not None:
        # the same shift and rate for every user: no number of examples matters
        return task
    # the sampling rate, and with it epsilon, depends on each user's number of examples
    planned = exposure.records_of(topology)
    for i, (count, held) in enumerate(zip(planned, task.counts, strict=True)):
        if count != held:
            raise InputError(
                f"the plan assumes {count} records for user {topology.name(i)}, who has {held}, so "
                "its epsilon would be wrong; plan with Exposure(..., records=task.records)"
            )
    return task


def check_plan(
    plan: NoisePlan, recipe: Recipe, users: int | None = None, allow_disconnected: bool = False
) -> None:
    """Refuses a plan and a recipe that do not account for each other, or cannot work.

    Args:
        plan: The plan.
        recipe: How to train.
        users: For how many users there is data; None: as many as the plan has.
        allow_disconnected: Takes a graph in several parts.
    """
    _check_type(plan)
    topology, exposure, central = plan.topology, plan.exposure, plan.adversary.average_only
    if users is not None and users != topology.users:
        raise InputError(
            f"the plan is for {topology.users} users, but the task has data for {users}; make "
            f"both for the same users, such as ring({users})"
        )
    if not (topology.is_connected or allow_disconnected or central):
        raise InputError(
            f"{topology!r} has {topology.component_count} parts that never hear of each other, so "
            "their models cannot agree; add an edge between them, or say allow_disconnected=True"
        )
    # central DP's noise protects the average only: without it each user's model would be exposed
    if central and recipe.gossip.rounds == 0:
        raise InputError(
            "central DP's server averages in every step, and protects nothing else; "
            "drop gossip_rounds=0"
        )
    if exposure.steps >= 2**32:  # the step is a 32-bit word of the generator's counter
        raise InputError(
            f"{exposure.steps:,} steps exceed the noise's 32-bit counter; use fewer than 2^32"
        )


def _check_type(plan: NoisePlan) -> None:
    if not isinstance(plan, NoisePlan):
        raise InputError(f"plan must be a NoisePlan, not {plan!r}")


def _match_shards(task: Task, topology: Topology) -> Task:
    """The task with its shards in the graph's order, by name where users have names."""
    if task.names is None:
        if topology.labels is not None:
            raise InputError(list_refusal(topology, "shards", "(X, y)"))
        return task
    shards = in_order(dict(zip(task.names, task.shards, strict=True)), topology, "shards")
    names = [topology.name(user) for user in range(topology.users)]
    # with their names: engines check the task again
    named: Any = dict(zip(names, shards, strict=True))
    return replace(task, shards=named)
