"""`decor release`: what may be published of a private run, in a folder of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import decor

from . import options as opt
from .terminal import write_json

_RELEASE = """example:
  decor train --task breast-cancer --epsilon 3 --learning-rate 0.1 --seed secret --output run
  decor release run published"""


def add_commands(commands: Any) -> None:
    said = "copies what may be published of a private run, with a model card"
    release = commands.add_parser(
        "release", help=said, epilog=_RELEASE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    release.set_defaults(run=run_release)
    release.add_argument("what", metavar="RUN", help="the folder of a private run, or of a node")
    release.add_argument("to", metavar="DIR", help="a new folder")
    opt.add_json(release)


def run_release(options: argparse.Namespace) -> None:
    run = decor.Run.load(options.what)
    run.release(options.to)
    written = sorted(path.name for path in Path(options.to).iterdir())
    if options.json:
        write_json({"output": options.to, "files": written, "statement": str(run.guarantee)})
        return
    print(f"{run.guarantee}\n\nwrote {options.to}: {', '.join(written)}")
