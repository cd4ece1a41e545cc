"""`decor reproduce`: the paper's experiments with correct privacy accounting, and further ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import decor
from decor import progress
from decor.errors import InputError, require
from decor.text import table

from . import options as opt
from . import values
from .json_output import command_line, write_json

_EXAMPLE = """studies:
  least-squares, a9a, mnist     the three parts of the paper's Figure 1
  accountant                    epsilon as a function of sigma_cor, as in the paper's appendix
  irregular                     irregular graphs, with uniform and optimal noise per edge
  adversaries                   curious users, and users who collude
  scaling                       16 to 1024 users: the n-fold gain over local DP
  gossip                        whether more gossip rounds are worth their messages
  records                       MNIST and Fashion-MNIST on features that cost no privacy

example:
  decor reproduce least-squares --output least-squares"""


def add_to(commands: Any) -> None:
    help = "repeat the paper's experiments, with correct privacy accounting"
    parser = opt.add_command(commands, "reproduce", run, help, _EXAMPLE)
    parser.add_argument("study", metavar="STUDY", help="one of the studies below")
    quick = "use fewer points, seeds and settings, to take less than a minute"
    parser.add_argument("--quick", action="store_true", help=quick)
    output = "folder for the study (default: STUDY, or STUDY-quick with --quick)"
    parser.add_argument("--output", metavar="DIR", help=output)
    jobs = "number of processes (default: one per core)"
    parser.add_argument("--jobs", type=values.whole, metavar="N", help=jobs)
    opt.add_resume(parser, "study")
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    require("matplotlib", None, "reports")
    from decor.reproductions import catalogue, running, writing

    if options.jobs is not None and options.jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {options.jobs}")
    study = catalogue.study(options.study, options.quick)
    folder = Path(options.output or study.name + ("-quick" if options.quick else ""))
    # a missing data set is reported before the work of hours
    if study.prepare is not None:
        study.prepare()
    if options.overwrite and not options.resume:
        running.remove(folder, writing.FILES)

    def write(rows: Any) -> dict[str, str]:
        return writing.write(study, rows, folder, _provenance(running.seconds(study, folder)))

    try:
        rows = running.run(study, folder, jobs=options.jobs, resume=options.resume)
    except KeyboardInterrupt:
        print(f"decor: interrupted; resume with {command_line()} --resume", file=sys.stderr)
        # an interrupted study is hours of work: its finished points get a page
        if finished := running.rows(study, folder):
            page = write(finished)["report"]
            print(f"decor: the finished points are in {page}", file=sys.stderr)
        raise
    written = write(rows)
    progress.report("")
    rows = [*rows, *study.published]
    if options.json:
        write_json({"study": study.name, "title": study.title, "rows": rows, "written": written})
        return
    unit = ", %" if study.percent else ""
    print(f"{study.title}: {study.value_label}{unit} ({study.better} is better)")
    print(table(*writing.table(study, rows)))
    for note in study.notes:
        print(f"- {note}")
    print(f"\nwrote {', '.join(written.values())}")


def _provenance(seconds: float) -> dict[str, str]:
    """What a reader needs to repeat the study."""
    versions = {"decor": decor.__version__}
    if "torch" in sys.modules:  # studies that train nothing do not load torch
        from decor.training.manifest import versions as all_versions

        versions = all_versions()
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return {
        "command": command_line(),
        "processor time": f"{seconds:.0f} seconds",
        "versions": listed,
    }
