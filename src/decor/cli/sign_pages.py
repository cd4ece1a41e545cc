"""Pages to sign of what reports of runs do not show: a plan, a federation file and a ledger."""

from __future__ import annotations

import math
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import decor
from decor.errors import InputError
from decor.privacy.plan_answer import PlanAnswer
from decor.results.build_report import HONEST
from decor.results.build_sign_page import (
    adversary_table,
    limits,
    page_of_plan,
    promise_figures,
    training_facts,
    user_tables,
    warnings_of,
)
from decor.results.sign_page import PageKind, SignPage, SignTable
from decor.results.signing import Facts, Signing
from decor.text import amount, epsilon_text, rounded_up

from . import federation_check
from .node import require_libraries

if TYPE_CHECKING:
    from decor.federation.federation import Federation
    from decor.federation.spending import Figure
    from decor.net.ledger_reading import Entry, LedgerFacts
    from decor.privacy.composition import Question

_LEDGER = b"SQLite format 3\0"
_WHAT = "a run's folder, a plan (JSON), a federation file (TOML) or a ledger"
_REAL = "no: each user's noise comes from its own operating system"


@dataclass(frozen=True)
class PageOptions:
    """What the command is told of every page.

    Attributes:
        owner: Who answers for it; empty: to be filled in by hand.
        date: The date of the report (ISO 8601).
        delta: The failure probability of a ledger's total, or of a plan; None: their own.
        trust_code: Whether a model's code may be run, to know its size.
    """

    owner: str
    date: str
    delta: float | None = None
    trust_code: bool = False

    def signing(self, digests: Facts, check: Sequence[str]) -> Signing:
        command = shlex.join(["decor", *check])
        return Signing(digests=digests, check=command, owner=self.owner, date=self.date)


def kind_of(path: Path) -> PageKind | None:
    """What a file is; None for a folder.

    Args:
        path: Of a plan, a federation file or a ledger.

    Raises:
        InputError: If it is something else, or not there.
    """
    if not path.exists():
        raise InputError(f"there is no {str(path)!r}; name {_WHAT}")
    if path.is_dir():
        return None
    try:
        with path.open("rb") as file:
            # a ledger holds models, and may be large
            if (data := file.read(len(_LEDGER))) == _LEDGER:
                return "ledger"
            data += file.read()
    except OSError as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem.strerror}") from None
    text = data.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if text.startswith("{"):
        return "plan"
    try:
        found = tomllib.loads(text).get("format")
    except (tomllib.TOMLDecodeError, RecursionError):
        found = None
    if isinstance(found, str) and found.startswith("decor-federation-"):
        return "federation"
    what = f"of format {found!r}" if isinstance(found, str) else "neither plan nor ledger"
    raise InputError(f"there is no report of {str(path)!r}, which is {what}; name {_WHAT}")


def make_page(path: Path, kind: PageKind, options: PageOptions) -> SignPage:
    """The page of a file.

    Args:
        path: The file.
        kind: What it is.
        options: Of every page.

    Raises:
        InputError: If it cannot be read, or an option is for another kind.
    """
    if kind == "federation" and options.delta is not None:
        raise InputError(f"{str(path)!r} sets delta for its users; drop --delta")
    if kind != "federation" and options.trust_code:
        raise InputError(f"{str(path)!r} names no code; drop --trust-code")
    makers = {"plan": _plan_page, "federation": _federation_page, "ledger": _ledger_page}
    return makers[kind](path, options)


def _plan_page(path: Path, options: PageOptions) -> SignPage:
    plan = decor.NoisePlan.load(path)
    delta = options.delta
    if delta is None and plan.budget is None:
        raise InputError(
            f"{str(path)!r} has no budget that names delta; give --delta, such as 1e-5"
        )
    asked = [] if delta is None else ["--delta", str(delta)]
    check = ["account", "--plan", str(path), *asked]
    signing = options.signing((("plan (SHA-256)", plan.digest),), check)
    return page_of_plan(PlanAnswer(plan, plan.guarantee(delta)), path.name, signing)


def _federation_page(path: Path, options: PageOptions) -> SignPage:
    from decor.federation.federation import Federation

    # as for `federation check`: nobody here has agreed to run the code of whoever wrote the file
    federation = Federation.read(path, run_code=options.trust_code)
    answer = PlanAnswer(federation.plan, federation.guarantee(), tuple(federation.notes))
    rows, unknown = federation_check.adversary_rows(federation, answer)
    trust = ["--trust-code"] if options.trust_code else []
    data = federation.data
    columns = []
    if data is not None:
        cells = [(column.name, column.description) for column in (*data.columns, data.label)]
        label, what = cells[-1]
        cells[-1] = (label, f"the label: {what}")
        columns.append(
            SignTable(
                title="Columns of each user's table",
                header=("column", "holds"),
                rows=tuple(cells),
                note="Names, ranges, categories and classes are public; they are in the file.",
            )
        )
    return SignPage(
        kind="federation",
        title=f"Federation {federation.name}",
        subtitle=f"{amount(len(federation.members), 'user')}, "
        f"{amount(federation.training.steps, 'step')}",
        promise=(str(answer.guarantee),),
        warnings=(*warnings_of(answer), *_code_warnings(federation)),
        figures=promise_figures(answer.guarantee, _REAL),
        tables=(
            adversary_table(rows, answer.guarantee.delta, unknown),
            *user_tables(answer),
            *columns,
        ),
        training=_federation_facts(federation),
        not_protected=limits(federation.plan),
        signing=options.signing(
            (("federation", federation.digest.hex()),), ["federation", "check", str(path), *trust]
        ),
    )


def _code_warnings(federation: Federation) -> list[str]:
    """What members have to know of code that their nodes run."""
    if federation.model.code is None:
        return []
    lines = federation_check.code_lines(federation_check.code_facts(federation))
    return [" ".join(lines)]


def _federation_facts(federation: Federation) -> Facts:
    training, recipe = federation.training, federation.recipe
    known = federation.is_size_known
    facts = [
        *training_facts(federation.plan),
        ("learning rate", f"{training.learning_rate:g}, {training.schedule}"),
        ("gossip in each step", recipe.gossip.description),
        ("model", federation.model.description),
        ("parameters", f"{federation.parameters:,}" if known else "unknown: its code was not run"),
    ]
    if federation.model.start_sha256 is not None:
        facts.append(("training begins with the model of SHA-256", federation.model.start_sha256))
    return tuple(facts)


def _ledger_page(path: Path, options: PageOptions) -> SignPage:
    require_libraries()
    from decor.federation.spending import figures, why_unbounded
    from decor.net.ledger_reading import read_entries, read_facts

    entries, facts = read_entries(path), read_facts(path)
    totals = figures(entries, options.delta)
    promise = [_total_sentence(entries, total) for total in totals]
    reasons = [
        f"∞: {why_unbounded(entries, total.question, total.delta)}."
        for total in totals
        if math.isinf(total.promised)
    ]
    asked = [] if options.delta is None else ["--delta", str(options.delta)]
    return SignPage(
        kind="ledger",
        title=f"Privacy spent: {facts.data or path.name}",
        subtitle=f"{amount(len(entries), 'run')} on one user's data",
        promise=tuple(promise) or ("This user's data has spent nothing.",),
        # totals against several adversaries mostly lack a bound for one reason
        warnings=tuple(dict.fromkeys(reasons)),
        figures=(
            *(
                ("epsilon", f"{epsilon_text(each.promised)} for {_scope(each.question)}")
                for each in totals
            ),
            *([("delta", rounded_up(totals[0].delta))] if totals else []),
            ("the owner's limit for all runs", _limit_text(facts)),
            ("simulation", _REAL),
        ),
        tables=tuple(_ledger_tables(entries, totals)),
        training=_run_facts(entries),
        not_protected=(
            "The ledger counts the messages of its own runs. "
            "Data that are also in another ledger, and what was released in other ways, are not "
            "counted.",
            HONEST,
        ),
        signing=options.signing(
            _ledger_digests(entries, facts), ["ledger", "show", str(path), *asked]
        ),
    )


def _total_sentence(entries: Sequence[Entry], total: Figure) -> str:
    """What all runs promise together, for one question."""
    # never a number where there is none
    if math.isinf(total.promised):
        bound = "has no finite bound"
    else:
        bound = f"is at most {epsilon_text(total.promised)}, at delta {rounded_up(total.delta)}"
    reserved = ""
    if any(entry.ended is None for entry in entries):
        reserved = " A run that has not ended counts with its whole plan."
    runs = (
        "The epsilon of the run" if len(entries) == 1 else f"The epsilon of all {len(entries)} runs"
    )
    return f"{runs} in this ledger {bound}, for {_scope(total.question)}.{reserved}"


def _scope(question: Question) -> str:
    """What a figure is about."""
    return f"{_unit(question)}, against {question.adversary.sentence}"


def _unit(question: Question) -> str:
    if question.unit == "user":
        return "all data of one user"
    return f"one record ({question.relation})"


def _limit_text(facts: LedgerFacts) -> str:
    if facts.allow is None:
        return "none was set"
    delta = "" if facts.allow_delta is None else f" at delta {rounded_up(facts.allow_delta)}"
    return f"epsilon {facts.allow:g}{delta}"


def _ledger_tables(entries: Sequence[Entry], totals: Sequence[Figure]) -> list[SignTable]:
    from decor.federation.spending import name_of, own_figure, past_run, plan_of

    if not entries:
        return []
    sums = [
        (
            total.question.adversary.sentence,
            _unit(total.question),
            epsilon_text(total.promised),
            epsilon_text(total.so_far),
        )
        for total in totals
    ]
    runs = []
    for entry in entries:
        own, plan, number = own_figure(entry), plan_of(entry), past_run(entry).number
        # steps that may have been made twice, as after an old copy: they cost budget too
        repeated = f" + {entry.repeated:,}" if entry.repeated else ""
        runs.append(
            (
                f"{entry.run}: {name_of(entry)}",
                "–" if number is None else plan.topology.name(number),
                f"{entry.steps:,}{repeated}",
                epsilon_text(own.promised),
                rounded_up(own.delta),
                f"{_unit(own.question)}, {own.question.adversary}",
                entry.why or "not ended",
            )
        )
    return [
        SignTable(
            title="All runs together",
            header=("adversary", "protected", "epsilon", "so far"),
            rows=tuple(sums),
            note="Epsilon counts the whole plan of each run that has not ended. So far: if the "
            "number of messages was fixed in advance; this is no promise.",
        ),
        SignTable(
            title="Runs",
            header=("run", "user", "messages", "epsilon", "delta", "for", "ended"),
            rows=tuple(runs),
            note="Each run by itself, for what its own plan protects.",
        ),
    ]


def _run_facts(entries: Sequence[Entry]) -> Facts:
    """What is public about the training of each run."""
    from decor.federation.spending import name_of, plan_of
    from decor.privacy.composition import Question

    facts = []
    for entry in entries:
        plan = plan_of(entry)
        text = (
            f"{plan.topology.description}; {amount(plan.exposure.steps, 'step')}, clip "
            f"{plan.exposure.clip:g}; protects {_unit(Question.of(plan))}"
        )
        facts.append((f"run {entry.run}: {name_of(entry)}", text))
    return tuple(facts)


def _ledger_digests(entries: Sequence[Entry], facts: LedgerFacts) -> Facts:
    """The ledger, the keys that may use it, and the federations of its runs."""
    from decor.federation.spending import name_of
    from decor.net.identity import line_of

    # ledgers of version 0.1 say neither
    rows = [("ledger", facts.id)] if facts.id else []
    rows += [("key", line_of(public)) for public in facts.identities]
    rows += [
        (f"federation of run {entry.run}, {name_of(entry)}", entry.federation.hex())
        for entry in entries
    ]
    return tuple(rows)
