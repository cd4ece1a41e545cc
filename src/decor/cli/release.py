"""`decor release`: copies what may be published of a private run to a new folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import decor

from . import options as opt
from .json_output import write_json

_EXAMPLE = """example:
  decor train --task breast-cancer --epsilon 3 --learning-rate 0.1 --seed secret --output run
  decor release run published"""


def add_to(commands: Any) -> None:
    help = "copy the publishable part of a private run, with a model card"
    parser = opt.add_command(commands, "release", run, help, _EXAMPLE)
    private = "folder written by decor train --seed secret, or by decor node"
    parser.add_argument("what", metavar="RUN", help=private)
    parser.add_argument("to", metavar="DIR", help="new folder for the copy")
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    private = decor.Run.load(options.what)
    private.release(options.to)
    # the folder itself is listed, so that no released file can be missing from the list
    written = sorted(path.name for path in Path(options.to).iterdir())
    if options.json:
        write_json({"output": options.to, "files": written, "statement": str(private.guarantee)})
    else:
        print(f"{private.guarantee}\n\nwrote {options.to}: {', '.join(written)}")
