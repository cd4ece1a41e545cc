"""`decor federation`: the file that all users of a federation share."""

from __future__ import annotations

from typing import Any

from . import federation_check, federation_new, federation_probe, next_federation
from . import options as opt


def add_to(commands: Any) -> None:
    help = "write, check, probe or renew the file that all users of a federation share"
    parser = commands.add_parser("federation", help=help, description=opt.sentence(help))
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (federation_new, federation_check, federation_probe, next_federation):
        command.add_to(kinds)
