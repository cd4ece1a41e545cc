"""What a user's data has spent over all runs in its ledger, and whether another run may begin."""

from __future__ import annotations

import json
import math

from decor.errors import InputError, LedgerError
from decor.net.ledger import Entry, Ledger
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.text import rounded_up

from .terms import Terms


def ledger_terms(terms: Terms) -> str:
    """What the ledger stores of a run, as JSON: enough to account for its messages for ever."""
    return json.dumps(
        {"name": terms.name, "delta": terms.delta, "plan": json.loads(terms.plan.to_json())}
    )


def name_of(entry: Entry) -> str:
    """The name of a run's federation."""
    return str(_read(entry)[0])


def plan_of(entry: Entry) -> NoisePlan:
    """The plan of a run."""
    return _read(entry)[2]


def cost(entry: Entry) -> Guarantee:
    """What one run counts for in the ledger.

    At user level only messages that were sent count, under the limit that was fixed before: the
    rest may be spent later. At example level a run that has begun counts as a whole.
    """
    _, delta, plan = _read(entry)
    whole = plan.exposure.unit == "example" and entry.steps > 0
    return plan.guarantee_on_grid(0.0, delta, steps=None if whole else entry.steps)


def promise(entry: Entry) -> Guarantee:
    """What a run promised, which holds however early it stopped."""
    _, delta, plan = _read(entry)
    return plan.guarantee_on_grid(0.0, delta)


def total_cost(entries: list[Entry]) -> tuple[float, float]:
    """(epsilon, delta) of all runs together: both add up, whatever the runs were.

    Guarantee: an upper bound of what an adversary learns from the messages of all runs, if in each
    run it is the adversary of that run's plan.
    """
    # a run without messages has cost nothing
    each = [cost(entry) for entry in entries if entry.steps]
    return sum(g.epsilon for g in each), sum(g.delta for g in each)


def open_run(ledger: Ledger, terms: Terms, allowance: float | None) -> tuple[int, bool]:
    """Continues the federation's run in the ledger, or begins it.

    Args:
        ledger: The user's ledger.
        terms: Of the federation.
        allowance: The most epsilon that all runs together may spend; None: this plan's budget.

    Returns:
        The run's number, and whether it is new.

    Raises:
        InputError: The run has finished, or the allowance does not suffice.
    """
    entries = ledger.entries()
    # one run per federation: the digest is of the file and its noise
    own = next((entry for entry in entries if entry.federation == terms.digest), None)
    # a second run of the same file would spend the budget twice
    if own is not None and own.ended is not None:
        raise InputError(
            f"this user has taken part in {terms.name} to the end ({own.steps} messages, epsilon "
            f"{rounded_up(cost(own).epsilon)}): its budget is spent. Another run needs another "
            "federation file, which all users agree on"
        )
    budget = terms.plan.budget
    if budget is not None:
        before, _ = total_cost([entry for entry in entries if entry is not own])
        allowed = budget.epsilon if allowance is None else allowance
        if not (0 < allowed < math.inf):
            raise InputError(
                "--allow must be a number above 0, the most that all runs together may spend, "
                f"not {allowed!r}"
            )
        # the whole budget of this run, not its cost so far: it may be spent from here on
        if not before + budget.epsilon <= allowed:
            raise InputError(
                f"the data behind this ledger has spent epsilon {rounded_up(before)} in other "
                f"runs, and {terms.name} costs up to {budget.epsilon:g}: together above "
                f"{allowed:g}. See decor ledger; the person responsible for the data can allow it "
                f"with --allow {rounded_up(before + budget.epsilon)}"
            )
    if own is not None:
        return own.run, False
    return ledger.begin(terms.digest, ledger_terms(terms)), True


def _read(entry: Entry) -> tuple[str, float, NoisePlan]:
    """(name, delta, plan) of a run."""
    try:
        held = json.loads(entry.plan)
        return held["name"], held["delta"], NoisePlan.from_json(json.dumps(held["plan"]))
    except (ValueError, KeyError, TypeError) as problem:
        # an error, not a run without cost
        raise LedgerError(
            f"run {entry.run} of the ledger has terms that cannot be read ({problem}); is it "
            "damaged?"
        ) from None
