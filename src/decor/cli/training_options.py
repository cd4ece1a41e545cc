"""Options that `decor train` and `decor compare` share: the task and how it is trained."""

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
from . import values
from .task_option import HELP, TaskOption

STEPS = 100
"""The default of `--steps` where models are trained; a plan alone costs nothing, and has 1000."""
RECORDS = " (not accepted here: the task's data decides)"
"""Added to the help text of `--records` where models are trained."""


def add_task(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """The options of `task_of`; `--task` is required without a default."""
    group = parser.add_argument_group("task")
    names = HELP + (f" (default: {default})" if default else "")
    required = default is None
    group.add_argument(
        "--task",
        default=default and TaskOption(default),
        type=TaskOption,
        required=required,
        metavar="TASK",
        help=names,
    )
    shards = (
        "how to split the data among users: iid, dirichlet or by-label (default: depends on the "
        "task; not allowed if the task already says whose each record is)"
    )
    group.add_argument("--shards", metavar="NAME", help=shards)
    alpha = "with --shards dirichlet, the smaller A is, the more users' data differ (default: 10)"
    group.add_argument("--alpha", type=values.number, metavar="A", help=alpha)
    seed = "seed for splitting the data into users' shares and test data (default: 0)"
    group.add_argument("--data-seed", type=values.whole, default=0, metavar="S", help=seed)


def add_training(parser: argparse.ArgumentParser) -> None:
    """An option for every field of `Recipe`, except the batch size: `Exposure` has it too."""
    group = parser.add_argument_group("training (nothing here costs privacy)")
    for each in fields(Recipe):
        if each.name == "schedule":
            opt.add_field(group, each, default="constant", read=str)  # by name; see _schedule
        elif each.name != "batch_size":
            opt.add_field(group, each)
    threads = "number of CPU threads (default: the number that runs fastest)"
    group.add_argument("--threads", type=values.whole, metavar="N", help=threads)


def recipe_of(options: argparse.Namespace, topology: Topology, batch_size: int | None) -> Recipe:
    """The recipe that the options of `add_training` describe."""
    schedule = _schedule(options.schedule or "constant", topology)
    own = {"schedule": schedule, "batch_size": batch_size}
    return Recipe(**opt.field_values(options, Recipe) | own)


def task_of(options: argparse.Namespace, topology: Topology) -> Any:
    """The task for the users of this graph, by their names where they have names."""
    return options.task.make(
        # by name where users have names, so that shards and users cannot be mixed up
        topology.labels or topology.users,
        options.data_seed,
        options.shards,
        options.alpha,
    )


def exposure_of(options: argparse.Namespace, task: Any) -> tuple[decor.Exposure, int | None]:
    """The exposure, and the recipe's batch size.

    At example level the batch size decides epsilon and belongs to the exposure. At user level it
    costs no privacy and belongs to the recipe.
    """
    if options.records is not None:
        raise InputError("--records follows from the task's data; drop it")
    if options.steps is None:
        options.steps = STEPS
    if options.unit == "example":
        if options.batch_size is None and options.weighting is None:
            raise InputError("--unit example needs --batch-size, such as --batch-size 16")
        # with a rate alone nobody's number of examples is part of the plan
        if options.rate is None or options.weighting is not None:
            options.records = task.records
        return opt.exposure_of(options), None
    # an exposure at user level refuses a batch size
    batch_size, options.batch_size = options.batch_size, None
    return opt.exposure_of(options), batch_size


def _schedule(text: str, topology: Topology) -> Any:
    from decor.learning import schedule

    found = schedule.parse_name(text)
    if found is not None:
        return found
    name, *numbers = text.strip().lower().split(":")
    try:
        match name, [float(number) for number in numbers]:
            case "pl", [mu, smoothness, *more] if len(more) < 2:
                # a property of the graph, so that the caller need not know it
                rate = mixing.consensus_rate(topology)
                return schedule.PolyakLojasiewicz(mu, smoothness, rate, *more)
    except ValueError as problem:
        if isinstance(problem, InputError):  # the schedule itself explains what is wrong
            raise
    raise InputError(
        f"unknown schedule {text!r}; choose constant, cosine, cosine:FINAL (such as "
        "cosine:0.1), inverse-time:HORIZON (such as inverse-time:5000) or pl:MU:SMOOTHNESS (such "
        "as pl:0.1:2)"
    )
