"""Options that `decor train` and `decor compare` share: the task, how it is trained, and on what."""

from __future__ import annotations

import argparse
from typing import Any

import decor
from decor.errors import InputError
from decor.graph import mixing
from decor.graph.topology import Topology

from . import options as opt


def add_task(parser: argparse.ArgumentParser, default: str | None) -> None:
    group = parser.add_argument_group("what is learnt")
    names = "least-squares, breast-cancer, digits, a9a or mnist"
    said = f" (default: {default})" if default else ""
    group.add_argument("--task", default=default, required=default is None, metavar="NAME", help=names + said)
    group.add_argument("--shards", help="how records are dealt out: iid, dirichlet or by-label (default: the task's own)")
    group.add_argument("--alpha", type=opt.number, metavar="A", help="of --shards dirichlet: smaller is less alike (default: 10)")
    group.add_argument(
        "--data-seed", type=opt.whole, default=0, metavar="S", help="of the split into users and test data (default: 0)"
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is trained (nothing here costs privacy)")
    group.add_argument("--gossip-rounds", type=opt.whole, default=1, metavar="K", help="rounds of averaging a step (default: 1)")
    opt.add_accelerate(group)
    group.add_argument("--final-gossip-rounds", type=opt.whole, default=16, metavar="K", help="after the last step (default: 16)")
    group.add_argument("--momentum", type=opt.number, default=0.0, metavar="M", help="of noised gradients (default: 0)")
    group.add_argument("--weight-decay", type=opt.number, default=0.0, metavar="W", help="(default: 0)")
    schedules = "constant, cosine, inverse-time:HORIZON or pl:MU:SMOOTHNESS (default: constant)"
    group.add_argument("--schedule", default="constant", metavar="NAME", help=schedules)
    group.add_argument("--threads", type=opt.whole, metavar="N", help="processor threads (default: as many as help)")


def task_of(options: argparse.Namespace, topology: Topology) -> Any:
    """The task for the users of this graph, by their names where they have any."""
    tasks = decor.tasks  # says what to install where torch is missing
    given = {"shards": options.shards, "alpha": options.alpha}
    users = topology.labels or topology.users
    return tasks.make(options.task, users=users, seed=options.data_seed, **{k: v for k, v in given.items() if v is not None})


def exposure_of(options: argparse.Namespace, task: Any) -> tuple[decor.Exposure, int | None]:
    """What the task's data is exposed to, and the batch size where that is no part of it (user level)."""
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

    name, *numbers = options.schedule.strip().lower().replace("_", "-").split(":")
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
                return schedule.PolyakLojasiewicz(values[0], values[1], mixing.consensus_rate(topology), *values[2:3])
    except ValueError as problem:
        if isinstance(problem, InputError):
            raise
    raise InputError(
        f"unknown schedule {options.schedule!r}; choose constant, cosine, inverse-time:HORIZON (such as inverse-time:5000) "
        "or pl:MU:SMOOTHNESS (such as pl:0.1:2)"
    )
