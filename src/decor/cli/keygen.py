"""`decor keygen`: a user's key for a federation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.federation.file_member import NAME
from decor.federation.file_rules import net_module

from . import options as opt
from .federation_files import make_folder
from .json_output import write_json

_EXAMPLE = """example:
  decor keygen bonn    # writes bonn.key (keep it secret), prints the public key (share it)"""


def add_to(commands: Any) -> None:
    parser = opt.add_command(
        commands, "keygen", run, "create a user's key for a federation", _EXAMPLE
    )
    name = "the user's name; the key is written to NAME.key"
    parser.add_argument("name", metavar="NAME", help=name)
    output = "folder for the key (default: the current folder)"
    parser.add_argument("--output", default=".", metavar="DIR", help=output)
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    # a name with a slash would write outside the folder
    if NAME.accept(options.name) is None:
        raise InputError(f"NAME must be {NAME.description}, not {options.name!r}")
    identity = net_module("identity").Identity.new()
    file = make_folder(Path(options.output)) / f"{options.name}.key"
    identity.save(file)
    if options.json:
        write_json({"name": options.name, "file": str(file), "public": identity.line})
    else:
        print(identity.line)
