"""`decor federation probe`: a dry run, at all members at the same time."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.errors import InputError, require, write_errors
from decor.text import table

from . import options as opt
from . import values
from .json_output import write_json

if TYPE_CHECKING:
    from decor.federation.probe import Outcome

_EXAMPLE = """example:
  decor federation probe heart.toml --identity bonn.key --output probe.txt"""


def add_to(commands: Any) -> None:
    help = "try the network, clocks and versions of all members; spends nothing"
    parser = opt.add_command(commands, "probe", run, help, _EXAMPLE)
    parser.description = (
        "Try the network, clocks and versions of all members before nodes are started. Run it at "
        "every member at the same time. It opens no ledger, agrees on no secret and sends no "
        "model, so it spends nothing. Exit status: 0 if this member reaches all its neighbours "
        "and everything agrees, else 1."
    )
    parser.add_argument("file", metavar="FILE", help="the federation file")
    key = "the user's key file, written by decor keygen; its node must not be running"
    parser.add_argument("--identity", required=True, metavar="FILE", help=key)
    opt.add_reach(parser)
    seconds = "seconds to wait for other members (default: 30)"
    parser.add_argument("--seconds", type=values.number, default=30.0, metavar="S", help=seconds)
    output = "write the table to this file too"
    parser.add_argument("--output", metavar="FILE", help=output)
    opt.add_json(parser)


def run(options: argparse.Namespace) -> int:
    require("cryptography", "peer", "probes")
    from decor.federation.federation import Federation
    from decor.federation.member_graph import reach_of
    from decor.federation.probe import Probe
    from decor.net.identity import Identity

    if not options.seconds > 0:
        raise InputError(f"--seconds must be positive, not {options.seconds:g}")
    # no model is sent, so that the file's code need not be run to learn its size
    federation = Federation.read(options.file, run_code=False)
    identity = Identity.load(options.identity)
    number = federation.number_of(identity.public)
    member = federation.members[number]
    if options.output is not None:
        _write(Path(options.output), "")  # before the probe: it takes a while
    reach = reach_of(federation.digest, member, options.listen, opt.proxy_of(options))
    probe = Probe(federation, number, identity, reach, _log)
    names = [each.name for each in federation.members]
    outcome = asyncio.run(probe.run(options.seconds))
    text = show(outcome, names)
    if options.output is not None:
        _write(Path(options.output), text + "\n")
    if options.json:
        write_json(asdict(outcome) | {"agrees": not outcome.problems})
    else:
        print(text)
    # 1, as for what may pass: mostly a member is not there yet, or a port is closed
    return 1 if outcome.problems else 0


def show(outcome: Outcome, names: list[str]) -> str:
    """What a probe has found, in plain ASCII, to be sent by e-mail.

    Args:
        outcome: Of the probe.
        names: All members, in the order of the file.
    """
    # UTC, because the tables of several members are compared side by side
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(outcome.at))
    parts = [
        f"{outcome.federation}: probe by {outcome.user}, {at}\ndigest {outcome.digest}",
        table(("member", "decor", "python", "torch", "code"), _members(outcome, names)),
        table(
            ("edge", "way", "round trip", "MB/s there", "MB/s back", "clock", "reported by"),
            _edges(outcome, names),
        ),
    ]
    # apart from this member's problems: what others tell may be wrong, and decides nothing
    told = [
        f"{name} says: {row.neighbour} {row.problem}"
        for name, report in outcome.reports.items()
        for row in report.rows
        if name != outcome.user and row.problem
    ]
    if told:
        parts.append("reported by others, not verified:\n" + _lines(told))
    if outcome.missing:
        # found here, and no problem of this member's: its own neighbours are among the problems
        silent = [f"{name} has sent no report" for name in outcome.missing]
        parts.append(f"not heard by {outcome.user}:\n" + _lines(silent))
    problems = _lines(list(outcome.problems))
    good = f"{outcome.user} reaches all its neighbours, and everything agrees"
    parts.append(f"problems:\n{problems}" if problems else good)
    return "\n\n".join(parts)


def _members(outcome: Outcome, names: list[str]) -> list[list[str]]:
    rows = []
    for name in names:
        report = outcome.reports.get(name)
        if report is None:
            # a row all the same: who has not been heard should be seen at a glance
            rows.append([name, "-", "-", "-", "-"])
            continue
        found = report.versions
        code = "-" if found.code is None else found.code[:12]
        rows.append([name, found.decor, found.python, found.torch or "none", code])
    return rows


def _edges(outcome: Outcome, names: list[str]) -> list[list[str]]:
    """A row for each edge of the file: what this member has measured, else what its users tell."""
    order = [outcome.user, *(name for name in names if name != outcome.user)]
    # others may tell of edges that the file does not have
    left = {frozenset(edge): " - ".join(edge) for edge in outcome.edges}
    rows = []
    for name in order:
        report = outcome.reports.get(name)
        for row in () if report is None else report.rows:
            edge = frozenset((name, row.neighbour))
            if left.pop(edge, None) is None:
                continue
            clock = "-" if row.clock is None else f"{row.clock:+.2f} s"
            trip = "-" if row.round_trip is None else f"{1e3 * row.round_trip:.1f} ms"
            rates = [
                "-" if each is None else f"{each / 1e6:.3g}" for each in (row.sent, row.received)
            ]
            way = row.way or "none"
            rows.append([f"{name} - {row.neighbour}", way, trip, *rates, clock, name])
    # of two members that are both silent
    return rows + [[edge, *["-"] * 5, "nobody"] for edge in left.values()]


def _lines(sentences: list[str]) -> str:
    return "\n".join(f"  {each}" for each in sentences)


def _log(event: str, **facts: object) -> None:
    """Progress, on standard error."""
    rest = " ".join(f"{value}" for name, value in facts.items() if name in ("why", "way"))
    print(f"{facts.get('neighbour', '')} {event}: {rest}".strip(), file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    with write_errors(path):
        path.write_text(text, encoding="ascii")
