"""What a user's data has spent over all runs in its ledger, and whether another run may begin.

A figure answers one question (`privacy.composition`): what is protected, and against whom.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from decor.errors import DecorError, InputError, LedgerError, PrivacyStop
from decor.net.ledger import Ledger
from decor.net.ledger_reading import DIVERGED, ENDED_EARLY, Entry
from decor.privacy.budget import ACCOUNTED
from decor.privacy.composition import PastRun, Question, compose
from decor.privacy.plan import NoisePlan
from decor.text import amount, epsilon_text, rounded_up
from decor.training.release_grid import grid_of

from .terms import Terms

_MOST_PARAMETERS = 2**30
"""A message of at most 4 GB holds no more; for ledgers that do not say what the tables add."""
_PRINTED = 1 + 1e-9
"""A total that exceeds its printed value by rounding alone is that value: see `rounded_up`."""


@dataclass(frozen=True)
class Limit:
    """A promise: all runs together, with those that may still go on, stay within it.

    Attributes:
        question: What is protected, and against whom.
        epsilon: The most epsilon of all runs together.
        delta: Failure probability of all runs together.
    """

    question: Question
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InputError(
                "--allow must be a number above 0, the most that all runs together may spend, "
                f"not {self.epsilon!r}"
            )
        if not 0 < self.delta < 1:
            raise InputError(
                f"the delta of a limit must lie between 0 and 1, not {self.delta!r}; the "
                "federation's delta is usual"
            )


@dataclass(frozen=True)
class Figure:
    """What runs cost together, for one question.

    Attributes:
        question: What is protected, and against whom.
        delta: Failure probability of all runs together.
        promised: Epsilon with the whole plan of each run that has not ended: limits are about this.
        so_far: Epsilon of the messages made, if their number was fixed in advance; no promise. At
            example level a run that has begun counts as a whole.
    """

    question: Question
    delta: float
    promised: float
    so_far: float


def ledger_terms(terms: Terms, number: int) -> str:
    """What the ledger stores of a run, as JSON: enough to account for its messages for ever.

    Args:
        terms: Of the federation.
        number: This user, in the order of the federation's file.
    """
    return json.dumps(
        {
            "name": terms.name,
            "delta": terms.delta,
            "plan": json.loads(terms.plan.to_json()),
            "number": number,
            "distance": terms.grid.distance,
        }
    )


def name_of(entry: Entry) -> str:
    """The name of a run's federation."""
    return _terms_of(entry).name


def plan_of(entry: Entry) -> NoisePlan:
    """The plan of a run."""
    return _terms_of(entry).plan


def delta_of(entry: Entry) -> float:
    """The failure probability that a run's federation has promised."""
    return _terms_of(entry).delta


def past_run(entry: Entry, whole_plan: bool | None = None) -> PastRun:
    """A run of the ledger as the composition takes it.

    Args:
        entry: The run.
        whole_plan: Whether all steps of its plan count; None: unless the run has ended.
    """
    terms = _terms_of(entry)
    reserved = entry.ended is None if whole_plan is None else whole_plan
    return PastRun(terms.plan, terms.number, entry.steps, entry.repeated, reserved, terms.distance)


def figure(entries: Iterable[Entry], question: Question, delta: float) -> Figure:
    """What runs of a ledger cost together.

    Args:
        entries: The runs.
        question: What is protected, and against whom.
        delta: Failure probability of all of them together.

    Guarantee: as of `composition.compose`.
    """
    entries = list(entries)
    promised = compose([past_run(entry) for entry in entries], question, delta)
    so_far = compose([past_run(entry, whole_plan=False) for entry in entries], question, delta)
    return Figure(question, delta, promised, so_far)


def own_figure(entry: Entry) -> Figure:
    """What one run costs, for the question and the delta of its own plan."""
    return figure([entry], Question.of(plan_of(entry)), delta_of(entry))


def epsilon_of_plan(entry: Entry) -> float:
    """Epsilon of a run's whole plan, which holds whatever made the run stop."""
    question = Question.of(plan_of(entry))
    return compose([past_run(entry, whole_plan=True)], question, delta_of(entry))


def figures(entries: Sequence[Entry], delta: float | None = None) -> list[Figure]:
    """What all runs cost together, for every question that a plan among them answers.

    Questions about a user come first: they are answered whatever the plans protect.

    Args:
        entries: The runs.
        delta: Failure probability of all of them together; by default the largest of a run.
    """
    if not entries:
        return []
    own = [Question.of(plan_of(entry)) for entry in entries]
    kinds: dict[tuple[str, str], None] = {("user", "replace"): None}
    kinds |= dict.fromkeys(sorted((q.unit, q.relation) for q in own if q.unit == "example"))
    known = {question.colluders for question in own}
    colluders: list[int | None] = [*sorted(q for q in known if q is not None)]
    colluders += [None] if None in known else []
    at = max(map(delta_of, entries)) if delta is None else delta
    questions = [Question(u, r, q) for u, r in kinds for q in colluders]  # type: ignore[arg-type]
    return [figure(entries, question, at) for question in questions]


def why_unbounded(entries: Iterable[Entry], question: Question, delta: float) -> str:
    """Why runs have no finite epsilon for a question, and what can be asked instead.

    Args:
        entries: Runs of a ledger whose figure for this question is infinite.
        question: What is protected, and against whom.
        delta: Failure probability of all of them together.
    """
    runs = {entry: past_run(entry) for entry in entries}
    # several may have a bound each, and none together
    alone = [entry for entry, run in runs.items() if compose([run], question, delta) == math.inf]
    names = list(dict.fromkeys(map(name_of, alone or runs)))
    listed, is_one = ", ".join(names), len(names) == 1
    noise_only = [replace(runs[entry], distance=0.0) for entry in alone or runs]
    epsilon = compose(noise_only, question, delta)
    tables = (
        f"the noise alone would give epsilon {rounded_up(epsilon)}, and at so large an epsilon the "
        "noise tables take all of delta"
    )
    kinds = {runs[entry].plan.exposure.unit for entry in alone}
    if question.unit == "user" and kinds == {"example"}:
        rated = any(runs[entry].plan.exposure.rate is not None for entry in alone)
        private = "how many examples a user has is private there, so nothing bounds what they do"
        return (
            f"{listed} {'protects' if is_one else 'protect'} one example, and all examples of a "
            f"user together have no bound: {private if rated else tables}. Ask about one example; "
            'all data of a user are protected in federations with unit = "user"'
        )
    if math.isinf(epsilon):
        has = "has" if is_one else "have"
        return f"{listed} {has} no noise against {question.adversary}. Ask about another adversary"
    return f"{tables} ({listed}). Ask with a larger --delta"


def ledger_limits(ledger: Ledger, terms: Terms) -> list[Limit]:
    """What the ledger's owner has promised, whatever a node is started with; empty: nothing.

    The promise is kept for each question that a run was planned for, not for the newest one's
    alone: a later run that protects less, or against fewer, would break it unnoticed.

    Args:
        ledger: The user's ledger.
        terms: Of the federation whose run begins or goes on; its question comes first.
    """
    facts = ledger.facts
    if facts.allow is None:
        return []
    # a run that has ended without a message has told nobody anything: it needs no promise
    counted = [entry for entry in ledger.entries() if entry.ended is None or _has_told(entry)]
    delta = facts.allow_delta
    if delta is None:
        # the smallest: at a large one, which the writer of a file chooses, all cost little together
        delta = min(terms.delta, *map(delta_of, counted)) if counted else terms.delta
    plans = [terms.plan, *map(plan_of, counted)]
    return [Limit(each, facts.allow, delta) for each in dict.fromkeys(map(Question.of, plans))]


def limits_in_force(
    ledger: Ledger,
    terms: Terms,
    allowance: float | None = None,
    allowed_delta: float | None = None,
) -> list[Limit]:
    """All that a federation's run may not exceed, with the other runs; empty: it has no budget.

    Args:
        ledger: The user's ledger.
        terms: Of the federation.
        allowance: As of `open_run`.
        allowed_delta: As of `open_run`.
    """
    promises = ledger_limits(ledger, terms)
    if not promises and allowance is None and terms.plan.budget is not None:
        allowance = terms.plan.budget.epsilon
    if allowance is None:
        return promises
    delta = terms.delta if allowed_delta is None else allowed_delta
    return [Limit(Question.of(terms.plan), allowance, delta), *promises]


def ledger_status(
    ledger: Ledger, terms: Terms, allowance: float | None = None
) -> dict[str, float | None]:
    """What all runs of a ledger cost and may cost, as a node's status has it; None: no limit.

    Args:
        ledger: The user's ledger, in which the federation's run has begun.
        terms: Of the federation.
        allowance: As of `open_run`.
    """
    entries = ledger.entries()
    spent = {
        limit: figure(entries, limit.question, limit.delta).promised
        for limit in limits_in_force(ledger, terms, allowance)
    }
    if not spent:
        return {"ledger_epsilon": None, "ledger_limit": None}
    # the one that leaves least for another run
    limit = max(spent, key=lambda each: spent[each] / each.epsilon)
    return {"ledger_epsilon": spent[limit], "ledger_limit": limit.epsilon}


def open_run(
    ledger: Ledger,
    terms: Terms,
    number: int,
    allowance: float | None = None,
    allowed_delta: float | None = None,
) -> tuple[int, bool]:
    """Continues the federation's run in the ledger, or begins it.

    Args:
        ledger: The user's ledger.
        terms: Of the federation.
        number: This user, in the order of the federation's file.
        allowance: The most epsilon that all runs together may spend, for the question of this plan;
            None: the ledger's limit, or this plan's budget.
        allowed_delta: The delta of that; None: the federation's.

    Returns:
        The run's number, and whether it is new.

    Raises:
        PrivacyStop: The run has ended, or a limit does not allow its whole plan.
        DecorError: The run has ended because its model diverged.
    """
    entries = ledger.entries()
    # one run per federation: the digest is of the file and its noise
    own = next((entry for entry in entries if entry.federation == terms.digest), None)
    # a second run of the same file would spend the budget twice
    if own is not None and own.ended is not None:
        # its model is still there, for this user's folder and for neighbours
        if ledger.final_model(own.run) is not None:
            return own.run, False
        if own.why == DIVERGED:
            raise DecorError(
                f"the model of this user has diverged at step {own.last_step}, and its run of "
                f"{terms.name} has ended. Another run needs another federation file, with a "
                "smaller learning rate, which all users agree on"
            )
        if own.repeated:
            raise PrivacyStop(f"this user's run of {terms.name} has ended for good: {own.why}")
        # never begun again, also without messages: a restored ledger may lack those that were sent
        if own.why == ENDED_EARLY:
            raise PrivacyStop(
                f"this user's run of {terms.name} was ended by decor ledger end after "
                f"{amount(own.steps, 'message')}, and never goes on. Another run needs another "
                "federation file, which all users agree on"
            )
        raise PrivacyStop(
            f"this user has taken part in {terms.name} to the end ({own.steps} messages, epsilon "
            f"{rounded_up(own_figure(own).so_far)}): its budget is spent. Another run needs "
            "another federation file, which all users agree on"
        )
    limits = limits_in_force(ledger, terms, allowance, allowed_delta)
    promises = ledger_limits(ledger, terms)
    others = [entry for entry in entries if entry is not own]
    # the whole plan, not its cost so far: it may be spent from here on
    steps, repeated = (0, 0) if own is None else (own.steps, own.repeated)
    new = PastRun(terms.plan, number, steps, repeated, True, terms.grid.distance)
    for limit in limits:
        _check(limit, others, new, terms.name, is_promise=limit in promises)
    if own is not None:
        return own.run, False
    return ledger.begin(terms.digest, ledger_terms(terms, number)), True


def _check(
    limit: Limit, others: Sequence[Entry], new: PastRun, name: str, is_promise: bool
) -> None:
    """Raises unless all runs together are within the limit, with the whole plan of the new one."""
    before = [past_run(entry) for entry in others]
    question, delta = limit.question, limit.delta
    together = compose([*before, new], question, delta)
    if together <= limit.epsilon * _PRINTED:
        return
    kind = f"delta {rounded_up(delta)}, {question.protected}, against {question.adversary}"
    # reserved, and perhaps not spent: a run that began by mistake reserves its plan too
    open_runs = [entry for entry in others if entry.ended is None]
    reserved, end = "", ""
    if open_runs:
        names = ", ".join(f"{name_of(entry)} (run {entry.run})" for entry in open_runs)
        reserved = f", with the whole plan of {names}, not ended"
        end = "; a run that will never go on is ended with decor ledger end"
    if is_promise:
        # no option of a node lifts it
        way_out = (
            "this limit of the ledger is kept for every question that one of its runs was planned "
            "for"
        )
    elif math.isfinite(together):
        way_out = (
            f"the person responsible for the data can allow it with --allow {rounded_up(together)}"
        )
    else:
        way_out = "no --allow suffices for this question"
    raise PrivacyStop(
        f"other runs in this ledger come to epsilon "
        f"{epsilon_text(compose(before, question, delta))}{reserved}; with {name} it comes to "
        f"{epsilon_text(together)}: above {limit.epsilon:g} ({kind}). See decor ledger show; "
        f"{way_out}{end}"
    )


def _has_told(entry: Entry) -> bool:
    """Whether any message of a run has left, as far as the ledger or a neighbour knows."""
    return bool(entry.steps or entry.repeated)


@dataclass(frozen=True)
class _StoredTerms:
    name: str
    delta: float
    plan: NoisePlan
    number: int | None
    distance: float


def _terms_of(entry: Entry) -> _StoredTerms:
    try:
        return _read(entry.plan)
    except (ValueError, KeyError, TypeError) as problem:
        # an error, not a run without cost
        raise LedgerError(
            f"run {entry.run} of the ledger has terms that cannot be read ({problem}); is it "
            "damaged?"
        ) from None


@lru_cache(maxsize=256)
def _read(text: str) -> _StoredTerms:
    held = json.loads(text)
    plan = NoisePlan.from_json(json.dumps(held["plan"]))
    # ledgers of earlier versions have neither: the worst user, and the most that tables can add
    number, distance = held.get("number"), held.get("distance")
    if distance is None:
        distance = _largest_distance(plan)
    stored = _StoredTerms(str(held["name"]), float(held["delta"]), plan, number, float(distance))
    PastRun(plan, stored.number, distance=stored.distance)  # validates both
    return stored


def _largest_distance(plan: NoisePlan) -> float:
    """The most that noise tables add to a run of this plan, whatever the size of its model."""
    low, high = 0, _MOST_PARAMETERS + 1
    distance = -1.0
    # a grid grows with the model until it is refused, and nodes have refused it then too
    while high - low > 1:
        middle = (low + high) // 2
        try:
            low, distance = middle, grid_of(plan, middle).distance
        except InputError:
            high = middle
    if distance >= 0:
        return distance
    if plan.budget is None:
        return 1.0
    # what was checked before such a run began
    share = (1 - ACCOUNTED) * plan.budget.delta * _PRINTED
    return share / (1 + math.exp(min(plan.budget.epsilon, 700.0)))
