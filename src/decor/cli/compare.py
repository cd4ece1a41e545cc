"""`decor compare`: what privacy costs, with DECOR beside central DP, local DP and none; `decor
report`: saved runs as a page.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import decor
from decor import progress
from decor.errors import InputError
from decor.results.files import clear, replace_text
from decor.text import table

from . import options as opt
from . import training_options
from .terminal import typed, write_json

_COMPARE = """example:
  decor compare --task breast-cancer --users 16 --epsilon 1,3,10,30 --topology ring,torus \\
      --output comparison"""
_REPORT = """example:
  decor report run-a run-b --output report.html"""


_OURS = (
    *(
        "manifest.json",
        "report.html",
        "report.json",
        "outcomes/*.json",
        "metrics/*.jsonl",
        "figures/*.png",
        "figures/*.svg",
    ),
    *(
        f"runs/*/{name}"
        for name in ("manifest.json", "plan.json", "metrics.jsonl", "models-*.safetensors")
    ),
)
"""What a comparison writes into its folder."""


def add_commands(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    compare = commands.add_parser(
        "compare",
        help="what privacy costs: DECOR, central DP, local DP and none",
        epilog=_COMPARE,
        formatter_class=raw,
    )
    compare.set_defaults(run=run_compare)
    training_options.add_task(compare, "breast-cancer")
    compare.add_argument(
        "--epsilon",
        type=opt.numbers,
        default=(1.0, 3.0, 10.0, 30.0),
        metavar="E,...",
        help="(default: 1,3,10,30)",
    )
    opt.add_adversary(compare)
    opt.add_graph(compare, "ring,torus")
    opt.add_exposure(compare, steps=100, several_clips=True)
    training_options.add_training(compare)
    rates = (
        "to choose from, by the training loss (default: twelve from 0.001 to 5, and beyond "
        "for whom an end is best)"
    )
    compare.add_argument("--learning-rate", type=opt.numbers, metavar="R,...", help=rates)
    compare.add_argument(
        "--seeds", type=_seeds, default=4, metavar="N", help="runs of every setting (default: 4)"
    )
    compare.add_argument(
        "--output",
        default="comparison",
        metavar="DIR",
        help="folder for everything (default: comparison)",
    )
    compare.add_argument(
        "--resume", action="store_true", help="go on with an interrupted comparison in that folder"
    )
    compare.add_argument(
        "--overwrite", action="store_true", help="replace the comparison in that folder"
    )
    compare.add_argument(
        "--json",
        action="store_true",
        help="one JSON object on standard output, and nothing else there",
    )

    report = commands.add_parser(
        "report", help="an HTML report of saved runs", epilog=_REPORT, formatter_class=raw
    )
    report.set_defaults(run=run_report)
    report.add_argument(
        "runs", nargs="+", metavar="RUN", help="folders that decor train or decor compare wrote"
    )
    report.add_argument(
        "--output", default="report.html", metavar="FILE", help="(default: report.html)"
    )
    report.add_argument(
        "--json",
        action="store_true",
        help="one JSON object on standard output, and nothing else there",
    )


def _seeds(text: str) -> int:
    """How many; what would be chosen among is never private."""
    if text == "secret":
        raise argparse.ArgumentTypeError(
            "a comparison chooses among runs, and choosing among private runs by their results "
            "reveals more than the epsilon of "
            "one; compare simulations on public data, then decor train --seed secret with the "
            "chosen setting"
        )
    return opt.whole(text)


def run_compare(options: argparse.Namespace) -> None:
    graphs = opt.topologies_of(options)
    task = training_options.task_of(options, graphs[0][1])
    from decor.training.compare import FORMAT, RATES, Comparison, Design

    clips = options.clip or (1.0,)
    options.clip, options.steps = clips[0], 100 if options.steps is None else options.steps
    exposure, batch_size = training_options.exposure_of(options, task)
    if options.seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {options.seeds}")
    design = Design(
        graphs=graphs,
        epsilons=options.epsilon,
        exposure=exposure,
        delta=opt.DELTA if options.delta is None else options.delta,
        adversary=opt.adversary_of(options),
        clips=clips,
        learning_rates=options.learning_rate or RATES,
        seeds=tuple(range(options.seeds)),
        recipe=training_options.recipe_of(options, graphs[0][1], batch_size),
        any_delta=options.any_delta,
    )
    folder = Path(options.output)
    if options.overwrite and not options.resume and (folder / "manifest.json").exists():
        _remove(folder, FORMAT)
    comparison = Comparison(task, design, folder, resume=options.resume, command=typed())
    try:
        data = comparison.run(decor.Vectorised(threads=options.threads))
    except KeyboardInterrupt:
        try:
            written = _write(comparison.data(), folder)
            print(
                f"decor: interrupted; what is finished is in {written['report']}", file=sys.stderr
            )
        except InputError:
            pass
        print(f"decor: go on with {typed()} --resume", file=sys.stderr)
        raise
    _show(data, _write(data, folder), options.json)


def run_report(options: argparse.Namespace) -> None:
    from decor.results import audit_section, outcomes

    if len(options.runs) == 1 and (saved := Path(options.runs[0]) / "report.json").is_file():
        try:
            data = json.loads(saved.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise InputError(f"{str(saved)!r} cannot be read: {problem}") from None
        if isinstance(data, dict):
            data.pop("audits", None)  # comparisons have none
        _show(data, {"report": str(_page(data, options.output))}, options.json)
        return
    runs = [(Path(path).name, decor.Run.load(path)) for path in options.runs]
    if len({name for name, _ in runs}) < len(runs):
        runs = [(str(path), run) for path, (_, run) in zip(options.runs, runs, strict=True)]
    data = outcomes.of_runs(runs, typed())
    audits = [
        (name, audit_section.saved(path, run.plan))
        for (name, run), path in zip(runs, options.runs, strict=True)
    ]
    data["audits"] = [(name, found) for name, found in audits if found]
    _show(data, {"report": str(_page(data, options.output))}, options.json)


def _page(data: dict[str, Any], output: str) -> Path:
    from decor.results import report

    path = Path(output) / "report.html" if Path(output).is_dir() else Path(output)
    report.write(data, path)
    return path


def _write(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Page, figures and data of a report."""
    from decor.results import figures, report

    report.write(data, folder / "report.html")
    main = data["metrics"][0]["name"]
    private = next((m["name"] for m in data["methods"] if m["kind"] == "decor"), None)
    drawn = []
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        replace_text(folder / "report.json", json.dumps(data, allow_nan=False) + "\n")
    except OSError as problem:
        raise InputError(f"the report cannot be written to {str(folder)!r}: {problem}") from None
    for suffix in ("png", "svg"):
        paths = [
            folder / "figures" / f"{name}.{suffix}"
            for name in ("privacy-utility", "curves", "users")
        ]
        figures.comparison_figure(data, main, paths[0])
        figures.curves_figure(data, main, paths[1])
        if private is not None:
            figures.users_figure(data, private, paths[2])
        drawn += [str(path) for path in paths if path.exists()]
    return {
        "report": str(folder / "report.html"),
        "figures": drawn,
        "data": str(folder / "report.json"),
    }


def _show(data: dict[str, Any], written: dict[str, Any], as_json: bool) -> None:
    from decor.results.tables import summary_header, summary_rows

    progress.report("")
    if as_json:
        write_json({**data, "written": written})
        return
    print(data["title"] + (f" ({data['subtitle']})" if data["subtitle"] else ""))
    print(table(summary_header(data), summary_rows(data)))
    kinds = {method["name"]: method["kind"] for method in data["methods"]}
    promised = [entry for entry in data["outcomes"] if entry["guarantee"]]
    promised.sort(key=lambda entry: kinds[entry["method"]] != "decor")
    if promised:
        print(f"\n{promised[0]['method']}: {promised[0]['guarantee']}")
    for note in data["notes"]:
        print(f"- {note}")
    if data["tuning"]:
        print(f"\n{data['tuning']['warning']}")
    print(
        f"\nwrote {written['report']}"
        + (f", {', '.join(written.get('figures', []))}" if written.get("figures") else "")
    )


def _remove(folder: Path, wanted: str) -> None:
    """What a comparison wrote, and nothing else; a folder of something else is left alone."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != wanted:
        raise InputError(
            f"{str(folder)!r} is no comparison that could be overwritten; name "
            "another folder by --output"
        )
    clear(folder, _OURS)
