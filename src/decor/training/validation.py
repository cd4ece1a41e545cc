"""Whether a task, a plan and a recipe suit each other: what a plan does not account for is refused
before it is computed.
"""

from __future__ import annotations

from dataclasses import replace

from decor.errors import InputError
from decor.graph.names import in_order, not_a_list
from decor.graph.topology import Topology
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.privacy.plan import NoisePlan


def check(task: Task, plan: NoisePlan, recipe: Recipe, allow_disconnected: bool = False) -> Task:
    """The task with its shards in the order of the plan's users; refuses what the plan does not
    account for or cannot work.
    """
    if not isinstance(task, Task):
        raise InputError(f"task must be a Task, not {task!r}")
    if not isinstance(plan, NoisePlan):
        raise InputError(f"plan must be a NoisePlan, not {plan!r}")
    exposure, users = plan.exposure, plan.topology.users
    task = _matched(task, plan.topology)
    if task.users != users:
        raise InputError(
            f"the plan is for {users} users, but the task has data for {task.users}; make both "
            "for the same users, "
            f"such as ring({task.users})"
        )
    if (
        not plan.topology.is_connected
        and not allow_disconnected
        and not plan.adversary.average_only
    ):
        raise InputError(
            f"{plan.topology!r} has {plan.topology.component_count} parts that never hear of each "
            "other, so their models cannot "
            "agree; add an edge between them, or say allow_disconnected=True"
        )
    if plan.adversary.average_only and recipe.gossip.rounds == 0:
        raise InputError(
            "central DP's server averages in every step, and protects nothing else; "
            "drop gossip_rounds=0"
        )
    if exposure.steps >= 2**32:
        raise InputError(
            f"{exposure.steps:,} steps are more than noise is counted for; take fewer than 2^32"
        )
    if exposure.unit == "user":
        return task
    if recipe.batch_size is not None:
        raise InputError(
            f"at example level the plan says the batch size ({exposure.batch_size}); "
            "drop batch_size"
        )
    if recipe.local_steps > 1:
        raise InputError(
            "local_steps need user level: along several steps one record moves more "
            "than the clip; drop local_steps"
        )
    for i, (said, held) in enumerate(
        zip(exposure.records_of(plan.topology), task.counts, strict=True)
    ):
        if said != held:
            raise InputError(
                f"the plan counts {said} records for user {plan.topology.name(i)}, who holds "
                f"{held}: the epsilon would not be "
                "true; plan with Exposure(..., records=task.records)"
            )
    return task


def _matched(task: Task, topology: Topology) -> Task:
    """The task with its shards in the graph's order, matched by name where users have names;
    engines go by that order.
    """
    if task.names is None:
        if topology.labels is not None:
            raise InputError(not_a_list(topology, "shards", "(X, y)"))
        return task
    return replace(
        task, shards=in_order(dict(zip(task.names, task.shards, strict=True)), topology, "shards")
    )
