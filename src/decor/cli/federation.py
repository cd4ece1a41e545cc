"""`decor keygen` and `decor federation`: a user's key, and the file that all users of a federation
share.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decor
from decor.errors import InputError
from decor.federation.file import Model, Network, Privacy, Training
from decor.graph import named
from decor.results.files import clear, replace_text

from . import options as opt
from . import overwrite as replaced
from .federation_check import report
from .terminal import write_json

if TYPE_CHECKING:
    from decor.federation.federation import Federation

_KEYGEN = """example:
  decor keygen bonn    # writes bonn.key, which stays there, and prints the line for the others"""
_NEW = """examples:
  decor federation new --output heart.toml --name heart --epsilon 3 --steps 200 \\
      --learning-rate 0.1 --features 30 --user bonn,bonn.example.org:7400,"decor-ed25519 ..." \\
      --user ulm,ulm.example.org:7400,"decor-ed25519 ..." --user ...
  # on one machine:
  decor federation new --task breast-cancer --users 8 --topology ring --epsilon 10 --output trial"""
_CHECK = """example:
  decor federation check heart.toml"""

TOWNS = (
    "bonn",
    "ulm",
    "kiel",
    "jena",
    "trier",
    "essen",
    "mainz",
    "gera",
    "halle",
    "worms",
    "celle",
    "emden",
)
"""What users of a trial are called; then bonn-2 and so on."""

_TRIALS: dict[str, dict[str, Any]] = {
    "breast-cancer": {"kind": "logistic", "features": 30},
    "digits": {"kind": "multinomial", "features": 64, "classes": 10},
    "a9a": {"kind": "logistic", "features": 123},
    "mnist": {"kind": "mlp", "features": 784, "classes": 10, "hidden": [128]},
}
_TRIAL_STEPS = 50
_TRIAL_TRAINING = {
    "clip": 0.1,
    "learning_rate": 0.5,
    "gossip_rounds": 4,
    "accelerate": "designed",
    "final_gossip_rounds": 8,
}
"""Chosen in the simulator: breast-cancer with 8 users on a ring reaches 96 % at epsilon 10."""


_OPTIONS = {
    "privacy": [each.name for each in fields(Privacy)],
    "training": [each.name for each in fields(Training)],
    "model": [each.name for each in fields(Model)],
    "network": ["timeout", "quorum", "patience"],
}
"""Fields of the file that are options, by section; the graph has options of its own."""
_DEFAULTS = {
    "delta": opt.DELTA,
    "adversary": opt.ADVERSARY,
    "steps": 100,
    "clip": 1.0,
    "learning_rate": 0.1,
    "kind": "logistic",
}
"""What the options take where the file has no default."""
_READ: dict[str, Callable[[str], Any]] = {
    "delta": opt.probability,
    "hidden": lambda text: [opt.whole(size) for size in text.split(",")],
}


def add_commands(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    keygen = commands.add_parser(
        "keygen", help="a user's key for a federation", epilog=_KEYGEN, formatter_class=raw
    )
    keygen.set_defaults(run=run_keygen)
    keygen.add_argument("name", metavar="NAME", help="of the user; the key is written to NAME.key")
    keygen.add_argument(
        "--output", default=".", metavar="DIR", help="folder for the key (default: here)"
    )
    opt.add_json(keygen)

    said = "the file that all users of a federation share"
    federation = commands.add_parser("federation", help=said, description=said)
    kinds = federation.add_subparsers(title="commands", metavar="COMMAND", required=True)
    new = kinds.add_parser("new", help="write one", epilog=_NEW, formatter_class=raw)
    new.set_defaults(run=run_new)
    _add_new(new)
    check = kinds.add_parser(
        "check",
        help="what it promises, and what would be better",
        epilog=_CHECK,
        formatter_class=raw,
    )
    check.set_defaults(run=run_check)
    check.add_argument("file", metavar="FILE", help="the federation's file")
    opt.add_json(check)


def _add_new(new: argparse.ArgumentParser) -> None:
    new.add_argument(
        "--output", required=True, metavar="PATH", help="the file to write; with --task a folder"
    )
    new.add_argument(
        "--overwrite", action="store_true", help="replace the federation there, if it has never run"
    )
    new.add_argument("--name", help="of the federation (default: the task's)")
    new.add_argument(
        "--user",
        action="append",
        metavar="NAME,ADDRESS,KEY[,RECORDS]",
        help="a user; ADDRESS may be empty",
    )
    trial = new.add_argument_group("to try it out on one machine, instead of --user")
    trial.add_argument(
        "--task", metavar="NAME", help=f"{', '.join(_TRIALS)}: keys, data and defaults of its own"
    )
    trial.add_argument("--users", type=opt.whole, metavar="N", help="how many (default: 8)")
    trial.add_argument(
        "--data-seed",
        type=opt.whole,
        default=0,
        metavar="S",
        help="of the split into users (default: 0)",
    )
    for section in (Privacy, Training, Model):
        _add_fields(new.add_argument_group(section.__name__.lower()), section)
    network = new.add_argument_group("network")
    network.add_argument(
        "--topology", metavar="NAME", help=f"{', '.join(named.NAMES)} (default: ring)"
    )
    network.add_argument(
        "--degree", type=opt.whole, metavar="K", help="neighbours in random-regular (default: 4)"
    )
    network.add_argument(
        "--probability",
        type=opt.number,
        metavar="P",
        help="of an edge in erdos-renyi (default: 2 log(N)/N)",
    )
    network.add_argument(
        "--graph-seed", type=opt.whole, metavar="S", help="of a random graph (default: 0)"
    )
    network.add_argument(
        "--graph",
        metavar="FILE",
        help="edge list, .gml or .graphml, of the users' names or numbers",
    )
    network.add_argument("--edges", metavar="A:B,...", help="pairs of users, instead of --topology")
    _add_fields(network, Network)
    opt.add_json(new)


def _add_fields(group: argparse._ArgumentGroup, section: type) -> None:
    """An option for each field of a section of the file."""
    for each in fields(section):
        if each.name in _OPTIONS[section.__name__.lower()]:
            flag = "--model" if each.name == "kind" else None
            opt.add_field(
                group,
                each,
                flag=flag,
                default=_DEFAULTS.get(each.name, each.default),
                read=_READ.get(each.name),
            )


def run_keygen(options: argparse.Namespace) -> None:
    from decor.federation.file import NAME, net_module

    if NAME.taken(options.name) is None:
        raise InputError(f"NAME must be {NAME.words}, not {options.name!r}")
    identity = net_module("identity").Identity.new()
    file = _folder(Path(options.output)) / f"{options.name}.key"
    identity.save(file)
    if options.json:
        write_json({"name": options.name, "file": str(file), "public": identity.line})
    else:
        print(identity.line)


def run_new(options: argparse.Namespace) -> None:
    if (options.task is None) == (options.user is None):
        raise InputError(
            "give either --user NAME,ADDRESS,KEY for every user, or --task NAME for "
            "a trial on one machine"
        )
    if options.task is not None:
        _new_trial(options)
        return
    if options.users is not None:
        raise InputError("--users is for --task; with --user every user is named, so drop it")
    if options.name is None:
        raise InputError("give --name, such as --name heart")
    users = [_user(text) for text in options.user]
    usual: dict[str, dict[str, Any]] = {
        "training": {name: _DEFAULTS[name] for name in ("steps", "learning_rate")}
    }
    if options.code is None:
        usual["model"] = {"kind": _DEFAULTS["kind"]}
    federation = _federation(options, users, usual)
    _write_new(Path(options.output), federation.to_toml(), options.overwrite)
    report(federation, options.json, {"file": options.output}, f"wrote {options.output}\n")


def run_check(options: argparse.Namespace) -> None:
    from decor.federation.federation import Federation

    report(Federation.read(options.file), options.json, {"file": options.file})


def _user(text: str) -> dict[str, Any]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (3, 4):
        raise InputError(
            f"--user {text!r} must be NAME,ADDRESS,KEY (and ,RECORDS at example "
            "level), with two commas or three"
        )
    user: dict[str, Any] = dict(zip(("name", "address", "key"), parts, strict=False))
    if len(parts) == 4:
        if not parts[3].isdecimal():
            raise InputError(
                f"--user {text!r}: the number of records must be a whole number, not {parts[3]!r}"
            )
        user["records"] = int(parts[3])
    return user


def _federation(
    options: argparse.Namespace, users: list[dict[str, Any]], usual: dict[str, dict[str, Any]]
) -> Federation:
    """The file that the options ask for; what they leave out is as usual here, then as the file's
    own defaults.
    """
    from decor.federation.federation import Federation
    from decor.federation.file import FORMAT

    always: dict[str, dict[str, Any]] = {
        "privacy": {name: _DEFAULTS[name] for name in ("delta", "adversary")},
        "training": {"clip": _DEFAULTS["clip"]},
        "network": _network(options, [user["name"] for user in users]),
    }
    tables: dict[str, Any] = {"format": FORMAT, "name": options.name, "users": users}
    for section, names in _OPTIONS.items():
        given = {
            name: getattr(options, name) for name in names if getattr(options, name) is not None
        }
        whole = always.get(section, {}) | usual.get(section, {}) | given
        tables[section] = {name: value for name, value in whole.items() if value is not None}
    return Federation.of(tables)


def _network(options: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """The graph by its name where that says all, by its edges where it was drawn or given."""
    if options.edges is not None:
        if options.topology is not None or options.graph is not None:
            raise InputError("--edges says the whole graph; drop --topology and --graph")
        return {
            "edges": [pair.strip().split(":") for pair in options.edges.split(",") if pair.strip()]
        }
    options.users = len(names)
    if options.topology is None and options.graph is None and len(names) <= 2:
        options.topology = "path"  # the smallest ring has three users
    topology = opt.topology_of(options)
    family = topology.family
    if family is not None:
        return {
            "topology": family.name,
            "rows": family.sizes[0] if family.name in ("torus", "grid") else None,
        }
    labels = topology.labels or tuple(names)
    return {"edges": [[labels[i], labels[j]] for i, j in topology.edges.tolist()]}


def _new_trial(options: argparse.Namespace) -> None:
    """A federation with everybody's key and data in one folder."""
    import numpy as np

    from decor.federation.file import net_module
    from decor.federation.hints import steady_ratio

    name = options.task.replace("_", "-")
    if name not in _TRIALS:
        raise InputError(
            f"there is no trial of task {options.task!r}; there are {', '.join(_TRIALS)}"
        )
    folder, identity = Path(options.output), net_module("identity").Identity
    # what is refused is refused before anything is made
    replaced.of_trial(folder, options.overwrite)
    count = 8 if options.users is None else options.users
    task = decor.tasks.make(name, users=count, seed=options.data_seed)
    towns = [
        TOWNS[k % len(TOWNS)] + (f"-{k // len(TOWNS) + 1}" if k >= len(TOWNS) else "")
        for k in range(count)
    ]
    keys = {town: identity.new() for town in towns}
    example = options.unit == "example"
    users = [
        {"name": town, "address": f"127.0.0.1:{port}", "key": keys[town].line}
        | ({"records": records} if example else {})
        for town, port, records in zip(
            towns, net_module("transport").free_ports(count), task.counts, strict=True
        )
    ]
    options.name = options.name or name
    options.steps = _TRIAL_STEPS if options.steps is None else options.steps
    privacy = {"ratio": steady_ratio(count, options.steps)}
    federation = _federation(
        options, users, {"privacy": privacy, "training": _TRIAL_TRAINING, "model": _TRIALS[name]}
    )
    clear(folder, replaced.of_trial(folder, options.overwrite))
    for part in ("keys", "data"):
        _folder(folder / part)
    for town, (X, y) in zip(towns, task.shards, strict=True):
        keys[town].save(folder / "keys" / f"{town}.key")
        np.savez(folder / "data" / f"{town}.npz", X=X.numpy(), y=y.numpy())
    assert task.test is not None
    np.savez(folder / "test.npz", X=task.test[0].numpy(), y=task.test[1].numpy())
    _write_new(folder / "federation.toml", federation.to_toml(), False)
    wrote = {
        "file": str(folder / "federation.toml"),
        "keys": str(folder / "keys"),
        "data": str(folder / "data"),
    }
    wrote |= {"test": str(folder / "test.npz")}
    report(federation, options.json, wrote, f"wrote {', '.join(wrote.values())}\n")


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"the folder {str(path)!r} cannot be made: {problem.strerror}") from None
    return path


def _write_new(path: Path, text: str, overwrite: bool) -> None:
    if overwrite and path.exists():
        replaced.check_file(path)
    try:
        if overwrite:
            replace_text(path, text)
        else:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError:
        raise InputError(
            f"{str(path)!r} exists; replace a federation that has never run by --overwrite, or "
            "name another file by --output"
        ) from None
    except OSError as problem:
        raise InputError(f"{str(path)!r} cannot be written: {problem.strerror}") from None
