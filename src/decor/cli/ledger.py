"""`decor ledger`: the privacy budget that a user's data has spent, run by run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.text import rounded_up, table

from . import options as opt
from .node import require_libraries
from .terminal import guarantee_json, write_json

_EXAMPLE = """example:
  decor ledger bonn.ledger"""


def add_to(commands: Any) -> None:
    help = "show the privacy budget that a user has spent"
    parser = opt.add_command(commands, "ledger", run, help, _EXAMPLE)
    parser.add_argument("file", metavar="FILE", help="the user's ledger, written by decor node")
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    require_libraries()
    from decor.federation.spending import cost, name_of, total_cost
    from decor.net.ledger import Ledger

    path = Path(options.file)
    # Ledger would create a missing file
    if not path.is_file() or not path.stat().st_size:
        raise InputError(f"there is no ledger {str(path)!r}")
    with Ledger(path) as ledger:
        entries = ledger.entries()
    epsilon, delta = total_cost(entries)
    runs = []
    for entry in entries:
        guarantee = cost(entry)
        runs.append(
            {
                "run": entry.run,
                "name": name_of(entry),
                "federation": entry.federation.hex(),
                "messages": entry.steps,
                **guarantee_json(guarantee),
                "ended": entry.ended,
                "why": entry.why,
            }
        )
    if options.json:
        write_json({"runs": runs, "epsilon": epsilon, "delta": delta})
        return
    print(
        table(
            ["run", "name", "digest", "messages", "epsilon", "delta", "ended"],
            [_row(run) for run in runs],
        )
    )
    print(
        f"\nThis user's data has spent epsilon {rounded_up(epsilon)} at delta {rounded_up(delta)} "
        "in total, added up over the runs."
    )


def _row(run: dict[str, Any]) -> list[str]:
    return [
        str(run["run"]),
        run["name"],
        run["federation"][:12],  # enough to tell federations apart
        str(run["messages"]),
        rounded_up(run["epsilon"]),
        rounded_up(run["delta"]),
        run["why"] or "-",
    ]
