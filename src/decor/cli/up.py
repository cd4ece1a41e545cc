"""`decor up`: a whole federation on this machine, each user in its own process."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decor
from decor import progress
from decor.errors import InputError
from decor.results.safe_files import json_or_empty
from decor.text import amount, rounded_up, table

from . import options as opt
from . import values
from .json_output import guarantee_json, write_json
from .ledger_setup import check_allow
from .node import add_start, require_libraries

if TYPE_CHECKING:
    from decor.federation.federation import Federation
    from decor.federation.local_federation import LocalFederation
    from decor.federation.member_data import Pair
    from decor.federation.process_starter import ProcessStarter
    from decor.net.identity import Identity

_EXAMPLE = """examples:
  decor federation new --task breast-cancer --users 8 --epsilon 10 --output trial
  decor up trial/federation.toml
  # kills ulm after its 20th message, and restarts it:
  decor up trial/federation.toml --output again --crash ulm@20
  # two quarters, with the same ledgers:
  decor up trial/federation.toml --allow 15
  decor federation renew trial/federation.toml --output trial/next.toml --start trial/run/bonn
  decor up trial/next.toml --output trial/run-2 --ledgers trial/run"""


def add_to(commands: Any) -> None:
    help = "run a whole federation on this machine, to try it out"
    parser = opt.add_command(commands, "up", run, help, _EXAMPLE)
    file = "federation file written by decor federation new --task, with keys and data beside it"
    parser.add_argument("file", metavar="FILE", help=file)
    output = "folder for ledgers, logs and runs (default: run, beside the file)"
    parser.add_argument("--output", metavar="DIR", help=output)
    add_start(parser)
    ledgers = (
        "folder of the users' ledgers (default: that of --output); in a renewed federation the "
        "folder of the run before, so that what the data has spent still counts"
    )
    parser.add_argument("--ledgers", metavar="DIR", help=ledgers)
    allow = (
        "largest epsilon that all runs in a ledger may spend together, for ledgers made now "
        "(default: no limit, and each run refuses more than its own federation's epsilon)"
    )
    parser.add_argument("--allow", type=values.number, metavar="E", help=allow)
    crash = "kill the user NAME after STEP messages, and restart it; can be repeated"
    parser.add_argument("--crash", action="append", default=[], metavar="NAME@STEP", help=crash)
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    require_libraries()
    from decor.federation.process_starter import ProcessStarter

    # first: it loads torch while the file and the data are read here, where torch is never loaded
    with ProcessStarter() as starter:
        _run(options, starter)


def _run(options: argparse.Namespace, starter: ProcessStarter) -> None:
    from decor.federation.federation import Federation, build_tasks
    from decor.federation.local_federation import LocalFederation
    from decor.federation.start_model import find_start
    from decor.federation.terms import Terms

    file = Path(options.file)
    federation = Federation.read(file)
    crashes = _crashes(options.crash, federation)
    steps, members = federation.exposure.steps, federation.members
    output = Path(options.output or file.parent / "run")

    def on_status(nodes: list[dict[str, Any]]) -> None:
        slowest = min((each["step"] for each in nodes), default=0)
        progress.report(f"{len(nodes)} of {len(members)} users running", slowest, steps)

    _check_ledgers(federation, output, options.ledgers)
    # before any process starts: a missing key or file is one error here, and not one per user
    start = find_start(federation.model.start_sha256, file, options.start)
    identities, shards, test = _keys_and_data(federation, file.parent)
    local = LocalFederation(
        starter,
        Terms.of(federation),
        identities,
        partial(build_tasks, federation, shards, test, start),
        output,
        crashes,
        _print_error,
        on_status,
        ledgers=None if options.ledgers is None else Path(options.ledgers),
    )
    _refuse_other_runs(local)
    if options.allow is not None:
        _make_ledgers(local, options.allow)
    # models stay where they are: to read them, this process would have to load torch
    runs = local.run(models=False)
    progress.report("")
    metrics = _average_metrics(starter)
    # a user that missed steps has spent less: the guarantee for all is that of the longest run
    guarantee = max(runs, key=lambda run: run.steps_taken).guarantee
    if options.json:
        users = [
            {
                "name": member.name,
                "messages": run.steps_taken,
                "missed": run.manifest["steps_missed"],
                "noise_left": run.manifest["noise_left"],
                "metrics": run.metrics,
            }
            for member, run in zip(members, runs, strict=True)
        ]
        write_json(
            {
                "users": users,
                "metrics": metrics,
                **guarantee_json(guarantee),
                "statement": str(guarantee),
                "output": str(output),
            }
        )
        return
    graph = federation.topology.description
    print(f"{federation.name}: {amount(len(members), 'user')}, {amount(steps, 'step')} on {graph}")
    rows = [_row(member.name, run) for member, run in zip(members, runs, strict=True)]
    print(table(["user", "messages", "steps missed", "test accuracy"], rows))
    for member, run in zip(members, runs, strict=True):
        if (left := run.manifest["noise_left"]) > 1:
            print(f"{member.name}: noise left: {rounded_up(left)} x planned, which did not cancel")
    if "accuracy" in metrics:
        shown = f"{metrics['accuracy']:.1%} of the public test records"
        if (rate := runs[0].manifest.get("base_rate")) is not None:
            shown += f"; always the same guess, on {rate:.1%}"
        print(f"\nThe average of all models is right on {shown}.")
    print(f"{guarantee}\n\nwrote {output}: a folder, a ledger and a log for each user")


def _check_ledgers(federation: Federation, output: Path, ledgers: str | None) -> None:
    """Refuses to begin new ledgers where a run has been before: they would not count it."""
    from decor.federation.user_files import UserFiles

    folder = None if ledgers is None else Path(ledgers)
    users = [UserFiles(k, m.name, output, folder) for k, m in enumerate(federation.members)]
    new = [user for user in users if not user.ledger.exists()]
    place = repr(str(folder or output))
    if len(new) == len(users):
        if folder is not None:
            raise InputError(
                f"no member has a ledger in {place}; give --ledgers the folder in which those of "
                "the run before are"
            )
        if federation.model.start_sha256 is not None:
            raise InputError(
                f"{federation.name} goes on from an earlier run, and no member has a ledger in "
                f"{place}; give --ledgers the folder in which those of that run are, so that they "
                "count what the data has spent"
            )
        return
    for user in new:
        _print_error(
            f"decor: note: {user.name} has no ledger in {place}, and a new one is made: right for "
            "a new member, wrong for data that has taken part before"
        )


def _refuse_other_runs(local: LocalFederation) -> None:
    """Refuses folders with the run of another federation: its models would be replaced."""
    for user in local.users:
        manifest = json_or_empty(user.run_folder / "manifest.json")
        # an empty one: nothing there that is worth keeping
        if manifest and manifest.get("federation") != local.terms.digest.hex():
            # not --output alone: new ledgers would not know what the data has spent
            raise InputError(
                f"{str(user.run_folder)!r} holds another run; name another folder with --output, "
                f"and give --ledgers {local.folder} if the data is the same, so that its ledgers "
                "go on"
            )


def _make_ledgers(local: LocalFederation, allow: float) -> None:
    """Makes the ledgers that do not exist yet, with a limit."""
    from decor.net.ledger import Ledger

    check_allow(allow)
    for user, identity in zip(local.users, local.identities, strict=True):
        if not user.ledger.exists():
            Ledger.create(user.ledger, identity.public, local.terms.name, allow)
            continue
        with Ledger(user.ledger, identity.public) as ledger:
            limit = ledger.facts.allow
        if limit != allow:
            has = "no limit" if limit is None else f"the limit {limit:g}"
            raise InputError(
                f"{str(user.ledger)!r} was made with {has}, which nothing changes; drop --allow"
            )


def _crashes(texts: list[str], federation: Federation) -> dict[int, int]:
    """User number -> number of messages after which it is killed."""
    names = [member.name for member in federation.members]
    crashes = {}
    for text in texts:
        name, at, step = text.rpartition("@")
        # a user that has sent its last message has nothing left to restart for
        last = federation.exposure.steps
        if not at or name not in names or not step.isdecimal() or not 0 < int(step) < last:
            raise InputError(
                f"--crash {text!r} is not NAME@STEP with a user's name and a step before the "
                f"last, such as {names[0]}@20"
            )
        crashes[names.index(name)] = int(step)
    return crashes


def _keys_and_data(
    federation: Federation, folder: Path
) -> tuple[list[Identity], list[Pair], Pair | None]:
    """The keys and data of all users, from where `decor federation new --task` wrote them."""
    from decor.federation.member_data import read_member_data, read_test_data
    from decor.net.identity import Identity

    # CSV files where the federation's file says how columns are prepared, else arrays
    suffix = ".npz" if federation.data is None else ".csv"
    identities = [Identity.load(folder / "keys" / f"{m.name}.key") for m in federation.members]
    # a task need not have test records that anyone may see
    public = folder / f"test{suffix}"
    test = read_test_data(federation, public) if public.exists() else None
    shards = [
        read_member_data(federation, folder / "data" / f"{m.name}{suffix}", number=k).shard
        for k, m in enumerate(federation.members)
    ]
    return identities, shards, test


def _average_metrics(starter: ProcessStarter) -> dict[str, float]:
    """Metrics of the average of all models.

    They are extra: if they cannot be measured, the training has still succeeded.
    """
    try:
        return starter.average_metrics()
    except decor.DecorError as problem:
        _print_error(
            f"all users have finished, but their average model could not be measured: {problem}"
        )
        return {}


def _print_error(sentence: str) -> None:
    progress.report("")
    # on a line of its own: the progress has been cleared away above
    print(sentence, file=sys.stderr, flush=True)


def _row(name: str, run: decor.Run) -> list[str]:
    accuracy = run.metrics.get("accuracy")
    shown = "" if accuracy is None else f"{accuracy:.1%}"
    return [name, str(run.steps_taken), str(run.manifest["steps_missed"]), shown]
