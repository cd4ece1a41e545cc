"""`decor node`: one user takes part in a federation."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from decor import progress
from decor.errors import InputError, require, write_errors
from decor.text import rounded_up

from . import options as opt
from . import values
from .interrupts import sigterm_interrupts
from .json_output import guarantee_json, write_json
from .node_check import check_data

_EXAMPLE = """example:
  decor node heart.toml --identity bonn.key --ledger bonn.ledger --data patients.csv \\
      --label diagnosis --test public.csv --output bonn"""


def add_to(commands: Any) -> None:
    parser = opt.add_command(
        commands, "node", run, "take part in a federation as one of its users", _EXAMPLE
    )
    parser.add_argument("file", metavar="FILE", help="the federation file")
    check = (
        "check the data without joining: show which values would be clamped or counted as "
        '"other", which records would be dropped, and the accuracy of always guessing the most '
        "frequent class; needs neither --identity nor --ledger"
    )
    parser.add_argument("--check", action="store_true", help=check)
    key = "the user's key file, written by decor keygen (required)"
    parser.add_argument("--identity", metavar="FILE", help=key)
    data = (
        "the user's private examples, which never leave this process: .csv, .npz with X and y, or "
        "MODULE:FUNCTION; .csv with a header where the federation file has [data]"
    )
    parser.add_argument("--data", required=True, metavar="FILE", help=data)
    label = (
        "with .csv files, name or number of the label column (default: the last; not with [data] "
        "in the federation file)"
    )
    parser.add_argument("--label", metavar="COLUMN", help=label)
    test = "public examples to test the final model on, in one of the formats of --data"
    parser.add_argument("--test", metavar="FILE", help=test)
    ledger = "record of messages sent and budget spent, made once by decor ledger new (required)"
    parser.add_argument("--ledger", metavar="FILE", help=ledger)
    add_start(parser)
    output = "folder for the model and the run (default: run-NAME for the user NAME)"
    parser.add_argument("--output", metavar="DIR", help=output)
    opt.add_reach(parser)
    allow = (
        "largest epsilon that all runs in the ledger may spend together; it does not lift the "
        "ledger's own limit (default: that limit, or without one the federation's epsilon)"
    )
    parser.add_argument("--allow", type=values.number, metavar="E", help=allow)
    opt.add_metrics(parser)
    opt.add_log(parser)
    serve = "stay at the end until stopped, for neighbours that fetch the final model later"
    parser.add_argument("--serve", action="store_true", help=serve)
    opt.add_json(parser)


def add_start(parser: argparse.ArgumentParser) -> None:
    start = (
        "model to start from, in a renewed federation: a file or the folder of a run (default: "
        "NAME.start.safetensors beside the federation file NAME.toml)"
    )
    parser.add_argument("--start", metavar="PATH", help=start)


@contextmanager
def hangups_ignored() -> Iterator[None]:
    """Meanwhile SIGHUP does nothing: a log may be rotated before its process can reopen it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def run(options: argparse.Namespace) -> int:
    # not required by argparse, because --check needs neither
    missing = [name for name in ("identity", "ledger") if getattr(options, name) is None]
    if missing and not options.check:
        names = " and ".join(map(opt.flag_of, missing))
        raise InputError(f"decor node: {names} required; or look at the data only, with --check")
    # from here on, before anything heavy is loaded; `run_node` has handlers of its own
    with sigterm_interrupts():
        if options.check:
            require_libraries()
            check_data(options)
            return 0
        # without a file, the end of its terminal ends a node
        with nullcontext() if options.log is None else hangups_ignored():
            return _run(options)


def _run(options: argparse.Namespace) -> int:
    require_libraries()
    from decor.federation.exit_codes import run_code
    from decor.federation.federation import Federation
    from decor.federation.member_data import read_member_data, read_test_data
    from decor.federation.node import Node
    from decor.federation.operator import EventLog, run_node
    from decor.federation.start_model import find_start
    from decor.federation.terms import Terms
    from decor.federation.user_files import socket_of
    from decor.net.identity import Identity
    from decor.net.ledger import Ledger
    from decor.net.status import metrics_address

    # a mistyped port is found now, and not after minutes of reading data
    metrics = None if options.metrics is None else metrics_address(options.metrics)
    federation = Federation.read(options.file)
    identity = Identity.load(options.identity)
    # the key says who this is: a name on the command line might be another member's
    number = federation.number_of(identity.public)
    name = federation.members[number].name
    test = None if options.test is None else read_test_data(federation, options.test, options.label)
    start = find_start(federation.model.start_sha256, options.file, options.start)
    data = read_member_data(federation, options.data, options.label, number)
    task = federation.task(data.shard, test, user=number, start=start)
    path = Path(options.ledger)
    output = Path(options.output or f"run-{name}")
    to = sys.stderr if options.log is None else open_log(Path(options.log))
    log = EventLog(name, to, options.log_format)
    # before the ledger is opened: a mistake here must not begin a run
    prepare_output(output, federation.digest)
    # locked until the end: two nodes at one ledger could send two messages of one step
    with Ledger(path, identity.public) as ledger:
        terms = Terms.of(federation)
        node = Node(terms, number, identity, task, ledger, log, options.allow)
        node.reach = opt.reach_of(options, terms, number)
        node.serve = options.serve
        node.on_step = lambda step: progress.report(
            f"{name}: training {federation.name}", min(step, node.steps), node.steps
        )
        # overwrites only this very run: `prepare_output` has refused folders of others
        node.save = lambda run: run.save(output, overwrite=True)
        reopen = None if options.log is None else log.reopen
        result = asyncio.run(run_node(node, socket_of(path), metrics, reopen))
    progress.report("")
    guarantee = result.guarantee
    if options.json:
        write_json(
            {
                "user": name,
                "steps": result.steps_taken,
                "missed": node.missed,
                "noise_left": node.noise_left(),
                "stopped": result.stopped,
                **guarantee_json(guarantee),
                "metrics": result.metrics,
                "output": str(output),
                "ledger": str(path),
            }
        )
    else:
        for metric, value in result.metrics.items():
            if metric != "step":
                print(f"{metric.replace('_', ' ')} on public data: {value:.4g}")
        if (rate := result.manifest.get("base_rate")) is not None:
            print(f"accuracy of always the same guess: {rate:.4g}")
        print(f"{guarantee}\n\nwrote {output}, {path}")
        # at 1 all shared noise has cancelled as planned, and there is nothing to tell
        if (left := node.noise_left()) > 1:
            print(f"noise left: {rounded_up(left)} x planned, which did not cancel between users")
    # not simply 0: a model with more noise than planned should not pass unnoticed
    return run_code(result)


def require_libraries() -> None:
    """Checks that nodes can run, without loading torch: mistyped options are reported sooner."""
    for library in ("cryptography", "torch"):
        require(library, "all", "nodes")


def prepare_output(output: Path, digest: bytes) -> None:
    """Makes the folder for the model, before any budget is spent; refuses that of another run."""
    manifest = output / "manifest.json"
    try:
        output.mkdir(parents=True, exist_ok=True)
        # a folder that exists may still be read-only, and the model comes after the budget is spent
        if not os.access(output, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        saved = json.loads(manifest.read_text()) if manifest.exists() else None
    except (OSError, ValueError) as problem:
        raise InputError(
            f"the run cannot be saved in {str(output)!r}: {problem}; name another folder with "
            "--output"
        ) from None
    # by digest: a file that was edited or renewed may have kept its name
    if saved is not None and saved.get("federation") != digest.hex():
        raise InputError(f"{str(output)!r} holds another run; name another folder with --output")


def open_log(path: Path) -> TextIO:
    with write_errors(path, before="the log "):
        # appended: after a crash the lines before it say what happened
        return path.open("a", encoding="utf-8")
