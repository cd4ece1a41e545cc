"""`decor federation new`: writes a federation file, for real users or for a trial."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.errors import InputError
from decor.federation.file import FORMAT, Network, Privacy, Training
from decor.learning.file_model import Model

from . import options as opt
from . import values
from .federation_check import report
from .federation_files import write_federation
from .federation_trial import MODELS, TRIAL_DEFAULTS, Trial, file_sections
from .task_option import TaskOption
from .user_options import user_table

if TYPE_CHECKING:
    from decor.federation.federation import Federation

_EXAMPLE = """examples:
  decor federation new --output heart.toml --name heart --epsilon 3 --steps 200 \\
      --learning-rate 0.1 --features 30 --user bonn,bonn.example.org:7400,"decor-ed25519 ..." \\
      --user ulm,ulm.example.org:7400,"decor-ed25519 ..." --user ...
  # on one machine:
  decor federation new --task breast-cancer --users 8 --topology ring --epsilon 10 --output trial"""

_SECTIONS: dict[str, type] = {
    "privacy": Privacy,
    "training": Training,
    "model": Model,
    "network": Network,
}
_GRAPH = ("topology", "rows", "edges")
"""Fields of [network] that follow from the options of the graph."""
_COMPUTED = ("code_sha256", "start_sha256")
"""Fields that follow from others, and have no option."""
_DEFAULTS = {
    "delta": opt.DELTA,
    "adversary": opt.ADVERSARY,
    "steps": 100,
    "clip": 1.0,
    "learning_rate": 0.1,
    "gossip_rounds": "auto",
    "accelerate": None,
    "kind": "logistic",
}
"""Defaults of the options where the file has none."""
_READ: dict[str, Callable[[str], Any]] = {
    "delta": values.probability,
    "gossip_rounds": values.rounds,
    **dict.fromkeys(
        ("hidden", "image", "channels"),
        lambda text: [values.whole(size) for size in text.split(",")],
    ),
}


def add_to(kinds: Any) -> None:
    parser = opt.add_command(kinds, "new", run, "write a federation file", _EXAMPLE)
    output = "file to write; with --task, a folder"
    parser.add_argument("--output", required=True, metavar="PATH", help=output)
    overwrite = "replace the federation at PATH, if it has never run"
    parser.add_argument("--overwrite", action="store_true", help=overwrite)
    name = "name of the federation; required with --user (default with --task: the task's name)"
    parser.add_argument("--name", metavar="NAME", help=name)
    user = (
        "a user; give one --user for each. ADDRESS is HOST:PORT, or empty for a user who only "
        "connects to others; KEY is the line that decor keygen prints; RECORDS is the number of "
        "examples, with --unit example"
    )
    shape = "NAME,ADDRESS,KEY[,RECORDS]"
    parser.add_argument("--user", action="append", metavar=shape, help=user)
    trial = parser.add_argument_group("a trial on one machine, instead of --user")
    task = (
        f"what to learn: {', '.join(MODELS)}, a task.toml written by decor task new, or "
        "MODULE:FUNCTION; also writes every user's key and data, and has its own defaults for "
        "--ratio, training and model; a task.toml beside --user gives columns and model only"
    )
    trial.add_argument("--task", type=TaskOption, metavar="TASK", help=task)
    trial.add_argument(
        "--users", type=values.whole, metavar="N", help="number of users (default: 8)"
    )
    seed = "seed for splitting the data into users' shares and test data (default: 0)"
    trial.add_argument("--data-seed", type=values.whole, default=0, metavar="S", help=seed)
    for section, kind in _SECTIONS.items():
        group = parser.add_argument_group(section)
        if kind is Network:
            file = f"{opt.GRAPH_FILE}, with users' names or numbers"
            opt.add_named_graph(group, "ring; path for 2 users", file)
            edges = "connected pairs of users, by name, instead of --topology"
            group.add_argument("--edges", metavar="A:B,...", help=edges)
        for each in fields(kind):
            if each.name in _COMPUTED or (kind is Network and each.name in _GRAPH):
                continue
            flag = "--model" if each.name == "kind" else None
            default = _DEFAULTS.get(each.name, each.default)
            if each.name in TRIAL_DEFAULTS:
                default = f"{default:g}; {TRIAL_DEFAULTS[each.name]:g} with --task"
            opt.add_field(group, each, flag=flag, default=default, read=_READ.get(each.name))
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    both = options.task is not None and options.user is not None
    if (options.task is None and options.user is None) or (both and options.task.file is None):
        raise InputError(
            "give either --user NAME,ADDRESS,KEY for every user, or --task NAME for a trial on one "
            "machine; both only with a task.toml"
        )
    _split_schedule(options)
    if options.user is None:
        trial = Trial(options)
        federation = _federation(options, trial.users, trial.defaults)
        written = trial.write(federation)
    else:
        federation = _federation_of_users(options)
        written = {"file": options.output}
        write_federation(Path(options.output), federation.to_toml(), options.overwrite)
    report(federation, options.json, written, f"wrote {', '.join(written.values())}\n")


def _split_schedule(options: argparse.Namespace) -> None:
    """Takes inverse-time:5000, as other commands spell it, apart into fields of the file."""
    if options.schedule is None:
        return
    options.schedule, *numbers = options.schedule.strip().lower().split(":")
    field = {"inverse-time": "horizon", "cosine": "final"}.get(options.schedule)
    if numbers and (field is None or len(numbers) > 1):
        raise InputError(
            f"--schedule {':'.join([options.schedule, *numbers])} is unknown; choose constant, "
            "cosine, cosine:FINAL or inverse-time:HORIZON"
        )
    if numbers and field is not None:
        if getattr(options, field) is not None:
            raise InputError(f"--schedule gives {numbers[0]} already; drop --{field}")
        try:
            setattr(options, field, float(numbers[0]))
        except ValueError:
            raise InputError(
                f"--schedule {options.schedule} takes a number, such as {options.schedule}:"
                f"{'5000' if field == 'horizon' else '0.1'}, not {numbers[0]!r}"
            ) from None
    if options.schedule == "inverse-time" and options.horizon is None:
        raise InputError(
            "--schedule inverse-time needs the steps after which the step size is half, such as "
            "inverse-time:5000"
        )


def _federation_of_users(options: argparse.Namespace) -> Federation:
    from decor.privacy.gossip_choice import steady_ratio

    if options.users is not None:
        raise InputError("--users is for --task; with --user every user is named, so drop it")
    if options.name is None:
        raise InputError("give --name, such as --name heart")
    defaults: dict[str, dict[str, Any]] = {
        "training": {name: _DEFAULTS[name] for name in ("steps", "learning_rate")}
    }
    if options.task is not None:
        defaults |= file_sections(options.task.file)
    elif options.code is None:  # the model is either a built-in kind or the users' own code
        defaults["model"] = {"kind": _DEFAULTS["kind"]}
    federation = _federation(options, [user_table(text) for text in options.user], defaults)
    if federation.privacy.ratio is not None:
        return federation
    # machines crash: noise that a missing user leaves must not drown the model
    plan, steady = federation.plan, steady_ratio(len(options.user), federation.exposure.steps)
    assert isinstance(plan.sigma_cor, float)
    if plan.sigma_cor**2 <= steady * plan.uniform_sigma_cdp("a federation file") ** 2:
        return federation
    return replace(federation, privacy=replace(federation.privacy, ratio=steady))


def _with_auto_rounds(federation: Federation) -> Federation:
    """The federation with the fewest designed rounds that are nearly as good as averaging."""
    from decor.privacy.gossip_choice import choose_gossip, gossip_for

    if federation.privacy.ratio is None:
        setting = federation.topology, federation.exposure, federation.adversary, federation.budget
        gossip = choose_gossip(*setting).gossip
    else:
        gossip = gossip_for(federation.plan)
    how = "designed" if gossip.accelerate == "designed" else "no"
    if gossip.accelerate is True:  # too many users to design rounds for
        how = "chebyshev"
    training = replace(federation.training, gossip_rounds=gossip.rounds, accelerate=how)
    return replace(federation, training=training)


def _federation(
    options: argparse.Namespace, users: list[dict[str, Any]], defaults: dict[str, dict[str, Any]]
) -> Federation:
    """The federation that the options describe.

    Args:
        options: Of `decor federation new`. They win over the defaults.
        users: As the file lists them.
        defaults: By section; they win over the defaults of this module and of the file.
    """
    from decor.federation.federation import Federation
    from decor.learning.model_code import hash_source

    # a file must have these fields, and their defaults are the same for users and trials
    always: dict[str, dict[str, Any]] = {
        "privacy": {name: _DEFAULTS[name] for name in ("delta", "adversary")},
        "training": {"clip": _DEFAULTS["clip"]},
    }
    auto = options.gossip_rounds in (None, "auto")
    if auto:
        opt.refuse_weights_of_auto(options)
        # the file has numbers, which follow from the rest of it
        options.gossip_rounds = options.accelerate = None
    tables: dict[str, Any] = {"format": FORMAT, "name": options.name, "users": users}
    if "data" in defaults:
        tables["data"] = defaults["data"]
    for section, kind in _SECTIONS.items():
        given = opt.field_values(options, kind)
        if kind is Network:
            # the options of the graph have the names of fields, but not their values
            given = {name: given[name] for name in given if name not in _GRAPH}
            given |= _graph(options, [user["name"] for user in users])
        tables[section] = always.get(section, {}) | defaults.get(section, {}) | given
    federation = Federation.of(tables)
    if auto:
        federation = _with_auto_rounds(federation)
    code = federation.model.code
    if code is None:
        return federation
    # every party must run what is installed here, and a node refuses anything else
    model = replace(federation.model, code_sha256=hash_source(code))
    return replace(federation, model=model)


def _graph(options: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """The graph by name if that determines it on every machine, else by its edges."""
    if options.edges is not None:
        if options.topology is not None or options.graph is not None:
            raise InputError("--edges gives the whole graph; drop --topology and --graph")
        pairs = [pair.strip() for pair in options.edges.split(",") if pair.strip()]
        return {"edges": [pair.split(":") for pair in pairs]}
    # topology_of builds the graph for the users of the file
    options.users = len(names)
    if options.topology is None and options.graph is None and len(names) <= 2:
        options.topology = "path"  # the smallest ring has three users
    topology = opt.topology_of(options)
    family = topology.family
    # without a family the graph is random or given: another machine could draw another one
    if family is None:
        labels = topology.labels or tuple(names)
        return {"edges": [[labels[i], labels[j]] for i, j in topology.edges.tolist()]}
    rows = {"rows": family.sizes[0]} if family.name in ("torus", "grid") else {}
    return {"topology": family.name, **rows}
