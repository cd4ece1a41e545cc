"""`decor node`, `up` and `ledger`: one user at work, a federation on one machine, and what their
data has paid.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decor
from decor import progress
from decor.errors import InputError, require
from decor.text import rounded_up, table

from . import options as opt
from .terminal import INTERRUPTED, write_json

if TYPE_CHECKING:
    from decor.federation.federation import Federation

_NODE = """example:
  decor node heart.toml --identity bonn.key --data patients.csv --label diagnosis \\
      --test public.csv --output bonn"""
_UP = """examples:
  decor federation new --task breast-cancer --users 8 --epsilon 10 --output trial
  decor up trial/federation.toml
  # kills ulm after its 20th message, and starts it again:
  decor up trial/federation.toml --output again --crash ulm@20"""
_LEDGER = """example:
  decor ledger bonn.ledger"""


def add_commands(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    node = commands.add_parser(
        "node", help="take part in a federation", epilog=_NODE, formatter_class=raw
    )
    node.set_defaults(run=run_node)
    node.add_argument("file", metavar="FILE", help="the federation's file")
    node.add_argument(
        "--identity", required=True, metavar="KEY", help="the user's key, as decor keygen wrote it"
    )
    said = (
        "the user's records: .csv, .npz with X and y, or module:function. They never leave "
        "this process"
    )
    node.add_argument("--data", required=True, metavar="FILE", help=said)
    node.add_argument(
        "--label",
        metavar="COLUMN",
        help="of a .csv: name or number of the label's column (default: the last)",
    )
    node.add_argument("--test", metavar="FILE", help="public records to measure the final model on")
    node.add_argument(
        "--ledger",
        metavar="FILE",
        help="what has been sent and paid (default: beside the key, NAME.ledger)",
    )
    node.add_argument(
        "--output", metavar="DIR", help="folder for the model and the run (default: run-NAME)"
    )
    node.add_argument(
        "--listen", metavar="HOST:PORT", help="where to listen, if not at the address in the file"
    )
    node.add_argument(
        "--allow",
        type=opt.number,
        metavar="E",
        help="the most that all runs of the ledger may spend together",
    )
    node.add_argument(
        "--metrics",
        type=opt.whole,
        metavar="PORT",
        help="serve figures for Prometheus on 127.0.0.1:PORT",
    )
    node.add_argument("--log", metavar="FILE", help="write events there, and not to standard error")
    opt.add_json(node)

    up = commands.add_parser(
        "up",
        help="a whole federation on this machine, to try it out",
        epilog=_UP,
        formatter_class=raw,
    )
    up.set_defaults(run=run_up)
    up.add_argument(
        "file", metavar="FILE", help="the federation's file; keys/ and data/ lie beside it"
    )
    up.add_argument(
        "--output",
        metavar="DIR",
        help="folder for ledgers, logs and runs (default: run, beside the file)",
    )
    up.add_argument(
        "--crash",
        action="append",
        default=[],
        metavar="NAME@STEP",
        help="kill a user there, and start it again",
    )
    opt.add_json(up)

    ledger = commands.add_parser(
        "ledger", help="privacy budget a user has spent", epilog=_LEDGER, formatter_class=raw
    )
    ledger.set_defaults(run=run_ledger)
    ledger.add_argument("file", metavar="FILE", help="the ledger")
    opt.add_json(ledger)


def run_node(options: argparse.Namespace) -> int:
    installed()
    from decor.federation.federation import Federation
    from decor.federation.node import Node
    from decor.federation.operator import Logbook, attended
    from decor.federation.terms import Terms
    from decor.learning import own_data
    from decor.net.identity import Identity
    from decor.net.ledger import Ledger

    federation = Federation.read(options.file)
    identity = Identity.load(options.identity)
    number = federation.number_of(identity.public)
    name = federation.members[number].name
    test = None if options.test is None else own_data.read(options.test, label=options.label)
    task = federation.task(own_data.read(options.data, label=options.label), test, user=number)
    path = Path(options.ledger or Path(options.identity).with_suffix(".ledger"))
    output = Path(options.output or f"run-{name}")
    stream = sys.stderr if options.log is None else _opened(Path(options.log))
    _prepare(output, federation.digest)
    with Ledger(path) as ledger:
        node = Node(
            Terms.of(federation),
            number,
            identity,
            task,
            ledger,
            Logbook(name, stream),
            options.allow,
            options.listen,
        )
        node.on_step = lambda step: progress.report(
            f"{name}: training {federation.name}", min(step, node.steps), node.steps
        )
        node.keep = lambda run: run.save(output, overwrite=True)
        run = asyncio.run(attended(node, socket_of(path), options.metrics))
        guarantee, missed = run.guarantee, node.skipped
    progress.report("")
    if options.json:
        write_json(
            {
                "user": name,
                "steps": run.steps_taken,
                "missed": missed,
                "stopped": run.stopped,
                "epsilon": guarantee.epsilon,
                "delta": guarantee.delta,
                "adversary": str(guarantee.adversary),
                "metrics": run.metrics,
                "output": str(output),
                "ledger": str(path),
            }
        )
    else:
        for metric, value in run.metrics.items():
            if metric != "step":
                print(f"{metric.replace('_', ' ')} on public data: {value:.4g}")
        print(f"{guarantee}\n\nwrote {output}, {path}")
    return INTERRUPTED if run.stopped is not None else 0


def run_up(options: argparse.Namespace) -> None:
    installed()
    from decor.federation.federation import Federation

    file = Path(options.file)
    federation = Federation.read(file)
    crashes = _crashes(options.crash, federation)
    steps, users = federation.exposure.steps, len(federation.members)
    output = Path(options.output or file.parent / "run")

    from decor.federation.local_federation import Together
    from decor.federation.terms import Terms

    terms = Terms.of(federation)
    identities, tasks = _everybody(federation, file.parent)

    def shown(said: list[dict[str, Any]]) -> None:
        slowest = min((each["step"] for each in said), default=0)
        progress.report(f"{len(said)} of {users} users at work", slowest, steps)

    runs = Together(terms, identities, tasks, output, crashes, _tell, shown).trained()
    progress.report("")
    metrics = _measured(federation, tasks, runs)
    guarantee = max(runs, key=lambda run: run.steps_taken).guarantee
    if options.json:
        write_json(
            {
                "users": [
                    _outcome(m.name, run) for m, run in zip(federation.members, runs, strict=True)
                ],
                "metrics": metrics,
                "epsilon": guarantee.epsilon,
                "delta": guarantee.delta,
                "adversary": str(guarantee.adversary),
                "statement": str(guarantee),
                "output": str(output),
            }
        )
        return
    rows = [_row(m.name, run) for m, run in zip(federation.members, runs, strict=True)]
    print(f"{federation.name}: {users} users, {steps} steps on {federation.topology.description}")
    print(table(["user", "messages", "steps missed", "test accuracy"], rows))
    if "accuracy" in metrics:
        print(
            f"\nThe average of all models is right on {metrics['accuracy']:.1%} of the public "
            "test records."
        )
    print(f"{guarantee}\n\nwrote {output}: a folder, a ledger and a log of every user")


def _measured(
    federation: Federation, tasks: list[decor.Task], runs: list[decor.Run]
) -> dict[str, float]:
    """What the average of all models is worth.

    It is nothing that was promised: if it fails, the training has not.
    """
    from decor.federation.peers import joined

    every = replace(tasks[0], shards=[task.shards[0] for task in tasks])
    about = runs[0].manifest | {"task": {"name": federation.name, "users": len(runs)}}
    try:
        return dict(joined(every, federation.plan, runs, about).metrics)
    except (decor.DecorError, RuntimeError, MemoryError) as problem:
        _tell(
            "everybody has finished, but the average of all models could not be measured: "
            f"{problem}"
        )
        return {}


def _everybody(federation: Federation, folder: Path) -> tuple[list[Any], list[decor.Task]]:
    """The keys and the data of all users, as `decor federation new --task` has put them beside the
    file.
    """
    from decor.learning import own_data
    from decor.net.identity import Identity

    identities = [Identity.load(folder / "keys" / f"{m.name}.key") for m in federation.members]
    test = own_data.read(folder / "test.npz") if (folder / "test.npz").exists() else None
    shards = [own_data.read(folder / "data" / f"{m.name}.npz") for m in federation.members]
    return identities, [federation.task(shard, test, user=k) for k, shard in enumerate(shards)]


def run_ledger(options: argparse.Namespace) -> None:
    installed()
    from decor.federation.spending import name_of, paid, total
    from decor.net.ledger import Ledger

    path = Path(options.file)
    if not path.is_file() or not path.stat().st_size:
        raise InputError(f"there is no ledger {str(path)!r}")
    with Ledger(path) as ledger:
        entries = ledger.entries()
    each = [(entry, paid(entry)) for entry in entries]
    epsilon, delta = total(entries)
    if options.json:
        runs = [
            {
                "run": entry.run,
                "name": name_of(entry),
                "federation": entry.federation.hex(),
                "messages": entry.steps,
                "epsilon": guarantee.epsilon,
                "delta": guarantee.delta,
                "adversary": str(guarantee.adversary),
                "ended": entry.ended,
                "why": entry.why,
            }
            for entry, guarantee in each
        ]
        write_json({"runs": runs, "epsilon": epsilon, "delta": delta})
        return
    rows = [
        [
            str(e.run),
            name_of(e),
            e.federation.hex()[:12],
            str(e.steps),
            rounded_up(g.epsilon),
            rounded_up(g.delta),
            e.why or "-",
        ]
        for e, g in each
    ]
    print(table(["run", "name", "digest", "messages", "epsilon", "delta", "ended"], rows))
    print(
        f"\nThis user's data has spent epsilon {rounded_up(epsilon)} at delta {rounded_up(delta)} "
        "in all, added up over the runs."
    )


def installed() -> None:
    """Without loading them: a slip in what was typed is told sooner."""
    for library in ("cryptography", "torch"):
        require(library, "all", "nodes")


def _prepare(output: Path, digest: bytes) -> None:
    """Before anything is paid: there is a place for the model, and no other run's model is
    in it.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not os.access(output, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        held = (
            json.loads((output / "manifest.json").read_text())
            if (output / "manifest.json").exists()
            else None
        )
    except (OSError, ValueError) as problem:
        raise InputError(
            f"the run cannot be kept in {str(output)!r}: {problem}; name another "
            "folder with --output"
        ) from None
    if held is not None and held.get("federation") != digest.hex():
        raise InputError(f"{str(output)!r} holds another run; name another folder with --output")


def socket_of(ledger: Path) -> Path:
    """Where the node answers that writes this ledger."""
    return ledger.with_name(ledger.name + ".socket")


def _opened(path: Path) -> Any:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as problem:
        raise InputError(f"the log {str(path)!r} cannot be written: {problem.strerror}") from None


def _crashes(words: list[str], federation: Federation) -> dict[int, int]:
    names = [member.name for member in federation.members]
    found = {}
    for word in words:
        name, at, step = word.rpartition("@")
        if (
            not at
            or name not in names
            or not step.isdecimal()
            or not 0 < int(step) < federation.exposure.steps
        ):
            raise InputError(
                f"--crash {word!r} is not NAME@STEP with a user's name and a step before the "
                f"last, such as {names[0]}@20"
            )
        found[names.index(name)] = int(step)
    return found


def _tell(sentence: str) -> None:
    progress.report("")
    print(sentence, file=sys.stderr, flush=True)


def _outcome(name: str, run: decor.Run) -> dict[str, Any]:
    return {
        "name": name,
        "messages": run.steps_taken,
        "missed": run.manifest["steps_missed"],
        "metrics": run.metrics,
    }


def _row(name: str, run: decor.Run) -> list[str]:
    accuracy = run.metrics.get("accuracy")
    return [
        name,
        str(run.steps_taken),
        str(run.manifest["steps_missed"]),
        "" if accuracy is None else f"{accuracy:.1%}",
    ]
