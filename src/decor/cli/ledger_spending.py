"""`decor ledger show` and `afford`: the budget that a user has spent, and what more runs cost."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decor
from decor import checks
from decor.errors import InputError
from decor.privacy.budget import Budget, Exposure
from decor.text import epsilon_text, rounded_up, table

from . import options as opt
from . import values
from .json_output import write_json
from .node import require_libraries

if TYPE_CHECKING:
    from decor.federation.spending import Figure
    from decor.net.ledger_reading import Entry
    from decor.privacy.composition import Question

_SHOW = """examples:
  decor ledger show bonn.ledger
  decor ledger bonn.ledger           # the same"""
_AFFORD = """examples:
  decor ledger afford --epsilon 1 --runs 4
  decor ledger afford bonn.ledger --epsilon 1 --runs 4
  decor ledger afford --epsilon 1 --runs 4 --unit example --batch-size 64 --records 3750 \\
      --steps 200"""
_EXPOSURE = ("unit", "batch_size", "records", "rate", "steps", "sampling", "relation")


def add_to(kinds: Any) -> None:
    _add_show(kinds)
    _add_afford(kinds)


def _add_show(kinds: Any) -> None:
    help = "show the privacy budget that a user has spent, run by run and in total"
    parser = opt.add_command(kinds, "show", run_show, help, _SHOW)
    parser.add_argument("file", metavar="FILE", help="the user's ledger, made by decor ledger new")
    delta = "failure probability of all runs together (default: the largest of a run)"
    parser.add_argument("--delta", type=values.probability, metavar="D", help=delta)
    opt.add_json(parser)


def _add_afford(kinds: Any) -> None:
    help = "show what further runs would cost, together with what a ledger has spent"
    parser = opt.add_command(kinds, "afford", run_afford, help, _AFFORD)
    file = "the user's ledger (default: nothing has been spent yet)"
    parser.add_argument("file", nargs="?", metavar="FILE", help=file)
    epsilon = "epsilon of each further run by itself"
    parser.add_argument("--epsilon", type=values.number, required=True, metavar="E", help=epsilon)
    runs = "number of further runs"
    parser.add_argument("--runs", type=values.whole, required=True, metavar="N", help=runs)
    delta = "failure probability, of each run and of all together (default: 1e-5)"
    parser.add_argument("--delta", type=values.probability, metavar="D", help=delta)
    adversary = (
        "the adversary for whom the total is computed, and against whom further runs are planned: "
        f"eavesdropper, curious, colluding:Q or everyone (default: {opt.ADVERSARY})"
    )
    parser.add_argument("--adversary", metavar="WHO", help=adversary)
    for name in _EXPOSURE:
        default = opt.STEPS if name == "steps" else None
        opt.add_field(parser, opt.field_of(Exposure, name), default=default)
    opt.add_json(parser)


def run_show(options: argparse.Namespace) -> None:
    from decor.federation.spending import figures, name_of, own_figure, why_unbounded

    runs = []
    entries = _entries(options.file)
    for entry in entries:
        own = own_figure(entry)
        runs.append(
            {
                "run": entry.run,
                "name": name_of(entry),
                "federation": entry.federation.hex(),
                "messages": entry.steps,
                "repeated": entry.repeated,
                "epsilon": own.so_far,
                "promised": own.promised,
                "delta": own.delta,
                **_question_json(own.question),
                "ended": entry.ended,
                "why": entry.why,
            }
        )
    totals = figures(entries, options.delta)
    if options.json:
        write_json({"runs": runs, "totals": [_total_json(total) for total in totals]})
        return
    columns = ["run", "name", "digest", "messages", "epsilon", "delta", "ended"]
    print(table(columns, [_row(run) for run in runs]))
    # a ledger without runs names no delta at which a total could be given
    if not totals:
        print("\nThis user's data has spent nothing.")
        return
    print(f"\nAll runs together, at delta {rounded_up(totals[0].delta)}:")
    rows = [
        [*_question_json(each.question).values(), *map(epsilon_text, (each.promised, each.so_far))]
        for each in totals
    ]
    print(table(["protected", "relation", "adversary", "epsilon", "so far"], rows))
    print(
        "\nepsilon: with the whole plan of each run that has not ended. so far: if the number of "
        "messages was fixed in advance."
    )
    unbounded = [total for total in totals if math.isinf(total.promised)]
    reasons = [why_unbounded(entries, each.question, each.delta) for each in unbounded]
    # totals against several adversaries mostly lack a bound for one reason
    for reason in dict.fromkeys(reasons):
        print(f"∞: {reason}.")


def run_afford(options: argparse.Namespace) -> None:
    from decor.privacy.composition import PastRun, Question, compose

    # bounded, because the composition gets each run by itself
    checks.count("--runs", options.runs, 1, 10**6)
    delta, adversary = opt.delta_of(options), opt.adversary_of(options)
    # the noise that local DP needs: these runs cost the same against every adversary
    plan = decor.calibrate(
        # any graph would do, as no noise is shared: this is the smallest
        decor.path(2),
        opt.exposure_of(options),
        decor.Adversary.everyone(),
        Budget(options.epsilon, delta),
        any_delta=True,
    )
    # independent noise alone, so that it does not matter who colludes with whom
    more = PastRun(replace(plan, sigma_cor=0.0, budget=None))
    question = replace(Question.of(plan), colluders=adversary.colluders)
    past, entries = [], []
    if options.file is not None:
        from decor.federation.spending import past_run, why_unbounded

        entries = _entries(options.file)
        past = [past_run(entry) for entry in entries]
    before = compose(past, question, delta)
    # composed and not added: their sum would mostly say more than is spent
    together = compose([*past, *[more] * options.runs], question, delta)
    if options.json:
        write_json(
            {
                "epsilon": together,
                "delta": delta,
                **_question_json(question),
                "before": before,
                "runs": options.runs,
                "each": options.epsilon,
            }
        )
        return
    kind = f"delta {rounded_up(delta)}, {question.protected}"
    count, each = f"{options.runs:,}", f"of epsilon {options.epsilon:g}"
    runs = "run" if options.runs == 1 else "runs"
    if options.file is None:
        print(f"{count} {runs} {each} cost epsilon {epsilon_text(together)} together ({kind}).")
        return
    print(
        f"The runs in {options.file} cost epsilon {epsilon_text(before)} together, and "
        f"{epsilon_text(together)} with {count} more {runs} {each} ({kind}, against "
        f"{question.adversary})."
    )
    if math.isinf(before):
        print(f"∞: {why_unbounded(entries, question, delta)}.")


def _entries(file: str) -> list[Entry]:
    """The runs in a ledger."""
    require_libraries()
    from decor.net.ledger_reading import read_entries

    path = Path(file)
    # SQLite takes an empty file for a database, and its complaint would explain nothing
    if not path.is_file() or not path.stat().st_size:
        raise InputError(f"there is no ledger {str(path)!r}")
    return read_entries(path)


def _question_json(question: Question) -> dict[str, str]:
    adversary = str(question.adversary)
    return {"unit": question.unit, "relation": question.relation, "adversary": adversary}


def _total_json(total: Figure) -> dict[str, Any]:
    figures = {"epsilon": total.promised, "so_far": total.so_far, "delta": total.delta}
    return _question_json(total.question) | figures


def _row(run: dict[str, Any]) -> list[str]:
    return [
        str(run["run"]),
        run["name"],
        run["federation"][:12],  # enough to tell federations apart
        # steps that may have been made twice, as after an old copy: they cost budget too
        str(run["messages"]) + (f" + {run['repeated']}" if run["repeated"] else ""),
        epsilon_text(run["epsilon"]),
        rounded_up(run["delta"]),
        run["why"] or "-",
    ]
