"""`decor report`: an HTML page that shows saved runs side by side."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decor
from decor import progress
from decor.errors import require
from decor.text import table

from . import options as opt
from .json_output import command_line, write_json

if TYPE_CHECKING:
    from decor.results.report_data import Report

_EXAMPLE = """example:
  decor report run-a run-b --output report.html"""


def add_to(commands: Any) -> None:
    help = "write an HTML report of saved runs"
    parser = opt.add_command(commands, "report", run, help, _EXAMPLE)
    runs = "folders written by decor train, or a single one written by decor compare"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=runs)
    output = "HTML file to write, or an existing folder for it (default: report.html)"
    parser.add_argument("--output", default="report.html", metavar="FILE", help=output)
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    require("matplotlib", None, "reports")
    from decor.results import report

    # a comparison has its report's data in its folder; a run has none
    saved = Path(options.runs[0]) / "report.json"
    is_comparison = len(options.runs) == 1 and saved.is_file()
    data = _read_comparison(saved) if is_comparison else _report_of_runs(options.runs)
    output = Path(options.output)
    page = output / "report.html" if output.is_dir() else output
    report.write(data, page)
    show(data, {"report": str(page)}, options.json)


def _read_comparison(path: Path) -> Report:
    from decor.results.report_data import Report
    from decor.results.safe_files import read_json

    return Report.from_json(read_json(path))


def _report_of_runs(paths: list[str]) -> Report:
    from decor.results.audit_summary import load_audit
    from decor.results.build_report import report_of_runs

    runs = [decor.Run.load(path) for path in paths]
    names = [Path(path).name for path in paths]
    if len(set(names)) < len(names):
        names = paths  # folders with the same name are told apart by their paths
    report = report_of_runs(list(zip(names, runs, strict=True)), command_line())
    audits = [load_audit(path, run.plan) for path, run in zip(paths, runs, strict=True)]
    known = [(name, audit) for name, audit in zip(names, audits, strict=True) if audit is not None]
    return replace(report, audits=tuple(known))


def show(report: Report, written: dict[str, Any], as_json: bool) -> None:
    """Prints the results of runs or of a comparison.

    Args:
        report: What the page shows.
        written: Files that were written: "report", and for a comparison "figures" and "data".
        as_json: Whether to print one JSON object instead of tables.
    """
    from decor.results.tables import base_rate_row, summary_header, summary_rows

    progress.report("")
    if as_json:
        write_json({**report.to_json(), "written": written})
        return
    print(report.title + (f" ({report.subtitle})" if report.subtitle else ""))
    base = base_rate_row(report)
    rows = [*summary_rows(report), *([base] if base else [])]
    print(table(summary_header(report), rows))
    if (first := report.first_guarantee) is not None:
        print(f"\n{first.method}: {first.guarantee}")
    for note in report.notes:
        print(f"- {note}")
    if report.tuning:
        print(f"\n{report.tuning.warning}")
    print(f"\nwrote {', '.join([written['report'], *written.get('figures', [])])}")
