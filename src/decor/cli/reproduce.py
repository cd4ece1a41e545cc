"""`decor reproduce`: the paper's experiments with privacy that is true, and experiments that it
does not have.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import decor
from decor import progress
from decor.errors import InputError
from decor.text import table

from . import options as opt
from .terminal import typed, write_json

_EXAMPLE = """studies:
  least-squares, a9a, mnist     the three parts of the paper's Figure 1
  accountant                    epsilon as a function of sigma_cor, as in the paper's appendix
  irregular                     irregular graphs, uniform and optimal noise per edge
  adversaries                   curious users and coalitions
  scaling                       16 to 1024 users: the n-fold gain over local DP
  gossip                        rounds of gossip against communication

example:
  decor reproduce least-squares --output least-squares"""


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "reproduce",
        help="the paper's experiments, with privacy that is true",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run_reproduce)
    parser.add_argument("study", metavar="STUDY", help="one of the studies below")
    parser.add_argument(
        "--quick", action="store_true", help="fewer points, seeds and settings: less than a minute"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="folder for everything (default: the study's name, and -quick)",
    )
    parser.add_argument(
        "--jobs", type=opt.whole, metavar="N", help="processes (default: one for each core)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with an interrupted study in that folder"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the study in that folder")
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object on standard output, and nothing else there",
    )


def run_reproduce(options: argparse.Namespace) -> None:
    from decor.reproductions import catalogue, running, writing

    if options.jobs is not None and options.jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {options.jobs}")
    study = catalogue.study(options.study, options.quick)
    folder = Path(options.output or study.name + ("-quick" if options.quick else ""))
    if study.prepare is not None:
        study.prepare()
    if options.overwrite and not options.resume:
        running.remove(folder, writing.FILES)
    try:
        rows = running.run(study, folder, jobs=options.jobs, resume=options.resume)
    except KeyboardInterrupt:
        print(f"decor: interrupted; go on with {typed()} --resume", file=sys.stderr)
        if finished := running.rows(study, folder):
            written = writing.write(
                study, finished, folder, _repeat(running.seconds(study, folder))
            )
            print(f"decor: what is finished is in {written['report']}", file=sys.stderr)
        raise
    written = writing.write(study, rows, folder, _repeat(running.seconds(study, folder)))
    progress.report("")
    if options.json:
        write_json(
            {
                "study": study.name,
                "title": study.title,
                "rows": [*rows, *study.published],
                "written": written,
            }
        )
        return
    print(
        f"{study.title}: {study.value_label}{', %' if study.percent else ''} ({study.better} is "
        "better)"
    )
    print(table(*writing.table(study, [*rows, *study.published])))
    for note in study.notes:
        print(f"- {note}")
    print(f"\nwrote {', '.join(written.values())}")


def _repeat(seconds: float) -> dict[str, str]:
    found = {"decor": decor.__version__}
    if "torch" in sys.modules:  # studies that train nothing need no torch
        from decor.training.manifest import versions

        found = versions()
    said = ", ".join(f"{name} {version}" for name, version in found.items())
    return {"command": typed(), "processor time": f"{seconds:.0f} seconds", "versions": said}
