"""`decor report`: an HTML page of saved runs, or of a plan, a federation or a ledger, to sign."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decor
from decor import progress
from decor.errors import InputError, require
from decor.text import table

from . import options as opt
from . import values
from .json_output import write_json

if TYPE_CHECKING:
    from decor.results.report_data import Report

_EXAMPLE = """examples:
  decor report run-a run-b --output report.html
  decor report federation.toml --owner "Dr Weber, data protection" --output federation.html
  decor report bonn.ledger --output spent.html"""


def add_to(commands: Any) -> None:
    help = "write an HTML report of runs, a plan, a federation or a ledger, to print and sign"
    parser = opt.add_command(commands, "report", run, help, _EXAMPLE)
    what = (
        "folders written by decor train or a node; or one folder written by decor compare, saved "
        "plan, federation file or ledger"
    )
    parser.add_argument("what", nargs="+", metavar="PATH", help=what)
    output = "HTML file to write, or an existing folder for it (default: report.html)"
    parser.add_argument("--output", default="report.html", metavar="FILE", help=output)
    owner = "name of the person responsible, beside the signature line (default: left blank)"
    parser.add_argument("--owner", metavar="NAME", help=owner)
    date = "date of the report, such as 2026-11-19 (default: today)"
    parser.add_argument("--date", metavar="DAY", help=date)
    delta = (
        "failure probability: of all runs of a ledger together (default: the largest of a run), or "
        "of a plan (default: its budget's)"
    )
    parser.add_argument("--delta", type=values.probability, metavar="D", help=delta)
    trust = (
        "import and call the model's code that a federation file names, which can do anything on "
        "this machine; without it the model's size is unknown"
    )
    parser.add_argument("--trust-code", action="store_true", help=trust)
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    from .sign_pages import kind_of

    output = Path(options.output)
    page = output / "report.html" if output.is_dir() else output
    kinds = {path: kind for path in options.what if (kind := kind_of(Path(path))) is not None}
    if kinds:
        _sign(options, kinds, page)
    else:
        _report(options, page)


def _sign(options: argparse.Namespace, kinds: dict[str, Any], output: Path) -> None:
    """The page of one plan, federation file or ledger."""
    from decor.results import sign_page
    from decor.results.signing import today

    from .sign_pages import PageOptions, make_page

    path, kind = next(iter(kinds.items()))
    if len(options.what) > 1:
        raise InputError(f"{path!r} is a {kind}, which is signed by itself; name it alone")
    told = PageOptions(
        options.owner or "", options.date or today(), options.delta, options.trust_code
    )
    content = make_page(Path(path), kind, told)
    sign_page.write(content, output)
    if options.json:
        write_json({**content.to_json(), "written": {"report": str(output)}})
        return
    print(f"{content.title} ({content.subtitle})\n")
    for sentence in (*content.promise, *content.warnings):
        print(sentence)
    for name, digest in content.signing.digests:
        print(f"{name}: {digest}")
    print(f"\nwrote {output}")


def _report(options: argparse.Namespace, output: Path) -> None:
    """The page of runs, or of a comparison."""
    for flag, given in (("--delta", options.delta), ("--trust-code", options.trust_code)):
        if given:
            raise InputError(f"{flag} is not for runs, which have their own; drop it")
    require("matplotlib", None, "reports")
    from decor.results import report

    # a comparison has its report's data in its folder; a run has none
    saved = Path(options.what[0]) / "report.json"
    if len(options.what) == 1 and saved.is_file():
        for flag, given in (("--owner", options.owner), ("--date", options.date)):
            if given:
                raise InputError(f"a comparison promises nothing to sign; drop {flag}")
        data = _read_comparison(saved)
    else:
        data = _report_of_runs(options)
    report.write(data, output)
    show(data, {"report": str(output)}, options.json)


def _read_comparison(path: Path) -> Report:
    from decor.results.report_data import Report
    from decor.results.safe_files import read_json

    return Report.from_json(read_json(path))


def _report_of_runs(options: argparse.Namespace) -> Report:
    from decor.results.audit_summary import load_audit
    from decor.results.build_report import report_of_runs

    paths = options.what
    runs = [decor.Run.load(path) for path in paths]
    names = [Path(path).name for path in paths]
    if len(set(names)) < len(names):
        names = paths  # folders with the same name are told apart by their paths
    named = list(zip(names, runs, strict=True))
    report = report_of_runs(named, options.owner or "", options.date)
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
