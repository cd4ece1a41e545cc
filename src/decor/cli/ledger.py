"""`decor ledger`: the record of what a user's data have spent."""

from __future__ import annotations

from typing import Any

from . import ledger_setup, ledger_spending
from . import options as opt


def add_to(commands: Any) -> None:
    help = "make a user's ledger, show what it has spent, and what more runs would cost"
    parser = commands.add_parser("ledger", help=help, description=opt.sentence(help))
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # before there were several commands, `decor ledger FILE` was the only one
    parser.default_command = ("show", kinds.choices)
    ledger_setup.add_to(kinds)
    ledger_spending.add_to(kinds)
