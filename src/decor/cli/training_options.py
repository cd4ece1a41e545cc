"""Options that `decor train` and `decor compare` share: the task, how it is trained, and on
what.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

import decor
from decor.errors import InputError
from decor.graph import mixing
from decor.graph.topology import Topology
from decor.learning.recipe import Recipe

from . import options as opt


def add_task(parser: argparse.ArgumentParser, default: str | None) -> None:
    group = parser.add_argument_group("what is learnt")
    names = "least-squares, breast-cancer, digits, a9a or mnist"
    said = f" (default: {default})" if default else ""
    group.add_argument(
        "--task", default=default, required=default is None, metavar="NAME", help=names + said
    )
    group.add_argument(
        "--shards",
        help="how records are dealt out: iid, dirichlet or by-label (default: the task's own)",
    )
    group.add_argument(
        "--alpha",
        type=opt.number,
        metavar="A",
        help="of --shards dirichlet: smaller is less alike (default: 10)",
    )
    group.add_argument(
        "--data-seed",
        type=opt.whole,
        default=0,
        metavar="S",
        help="of the split into users and test data (default: 0)",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """An option for every field of `Recipe`; the batch size is one of what is exposed."""
    group = parser.add_argument_group("how it is trained (nothing here costs privacy)")
    for each in fields(Recipe):
        if each.name == "accelerate":
            opt.add_accelerate(group)
        elif each.name == "schedule":
            opt.add_field(group, each, default="constant", read=str)  # by its name; see schedule_of
        elif each.name != "batch_size":
            opt.add_field(group, each)
    group.add_argument(
        "--threads",
        type=opt.whole,
        metavar="N",
        help="processor threads (default: as many as help)",
    )


def recipe_of(options: argparse.Namespace, topology: Topology, batch_size: int | None) -> Recipe:
    """The recipe that the options of `add_training` say."""
    given = {
        each.name: getattr(options, each.name)
        for each in fields(Recipe)
        if getattr(options, each.name) is not None
    }
    return Recipe(**given | {"schedule": schedule_of(options, topology), "batch_size": batch_size})


def task_of(options: argparse.Namespace, topology: Topology) -> Any:
    """The task for the users of this graph, by their names where they have any."""
    tasks = decor.tasks  # says what to install where torch is missing
    given = {"shards": options.shards, "alpha": options.alpha}
    users = topology.labels or topology.users
    return tasks.make(
        options.task,
        users=users,
        seed=options.data_seed,
        **{k: v for k, v in given.items() if v is not None},
    )


def exposure_of(options: argparse.Namespace, task: Any) -> tuple[decor.Exposure, int | None]:
    """What the task's data is exposed to, and the batch size where that is no part of it (user
    level).
    """
    if options.records is not None:
        raise InputError("--records is what the task's users hold; drop it")
    if options.unit == "example":
        if options.batch_size is None:
            raise InputError("--unit example needs --batch-size, such as --batch-size 16")
        options.records = task.records
        return opt.exposure_of(options), None
    batch, options.batch_size = options.batch_size, None
    return opt.exposure_of(options), batch


def schedule_of(options: argparse.Namespace, topology: Topology) -> Any:
    from decor.learning import schedule

    name, *numbers = (options.schedule or "constant").strip().lower().replace("_", "-").split(":")
    try:
        values = [float(text) for text in numbers]
        match name, len(values):
            case "constant", 0:
                return schedule.Constant()
            case "cosine", 0 | 1:
                return schedule.Cosine(*values)
            case "inverse-time", 1:
                return schedule.InverseTime(*values)
            case "pl", 2 | 3:
                return schedule.PolyakLojasiewicz(
                    values[0], values[1], mixing.consensus_rate(topology), *values[2:3]
                )
    except ValueError as problem:
        if isinstance(problem, InputError):
            raise
    raise InputError(
        f"unknown schedule {options.schedule!r}; choose constant, cosine, inverse-time:HORIZON "
        "(such as inverse-time:5000) "
        "or pl:MU:SMOOTHNESS (such as pl:0.1:2)"
    )
