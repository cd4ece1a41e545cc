"""What a user's data has paid over all runs in its ledger, and whether another run may begin."""

from __future__ import annotations

import json
import math

from decor.errors import InputError, LedgerError
from decor.net.ledger import Entry, Ledger
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.text import rounded_up

from .terms import Terms


def kept(terms: Terms) -> str:
    """What the ledger keeps of a run, to know for ever what its messages cost."""
    return json.dumps(
        {"name": terms.name, "delta": terms.delta, "plan": json.loads(terms.plan.to_json())}
    )


def name_of(entry: Entry) -> str:
    return str(_read(entry)[0])


def planned(entry: Entry) -> NoisePlan:
    """What a run was to be."""
    return _read(entry)[2]


def paid(entry: Entry) -> Guarantee:
    """What one run counts for in the ledger.

    At user level the messages that were sent, under the limit that was fixed before: what was not
    spent may be spent later. At example level a run that has begun counts whole.
    """
    _, delta, plan = _read(entry)
    whole = plan.exposure.unit == "example" and entry.steps > 0
    return plan.guarantee_on_grid(0.0, delta, steps=None if whole else entry.steps)


def promise(entry: Entry) -> Guarantee:
    """What a run promised, which holds however early it stopped."""
    _, delta, plan = _read(entry)
    return plan.guarantee_on_grid(0.0, delta)


def total(entries: list[Entry]) -> tuple[float, float]:
    """(epsilon, delta) of all runs together: both add up, whatever the runs were.

    Guarantee: an upper bound of what anybody learns who sees the messages of all runs, if each
    run's adversary is the one that its plan names.
    """
    each = [paid(entry) for entry in entries if entry.steps]
    return sum(g.epsilon for g in each), sum(g.delta for g in each)


def run_of(ledger: Ledger, terms: Terms, allowance: float | None) -> tuple[int, bool]:
    """The run to take part in, and whether it is new: the one under way, or a new one; refused if
    the budget has no room.
    """
    entries = ledger.entries()
    own = next((entry for entry in entries if entry.federation == terms.digest), None)
    if own is not None and own.ended is not None:
        raise InputError(
            f"this user has taken part in {terms.name} to the end ({own.steps} messages, epsilon "
            f"{rounded_up(paid(own).epsilon)}): "
            "its budget is spent. Another run needs another federation file, which everybody "
            "agrees on"
        )
    others = [entry for entry in entries if entry is not own]
    budget = terms.plan.budget
    if budget is not None:
        before, _ = total(others)
        allowed = budget.epsilon if allowance is None else allowance
        if not (0 < allowed < math.inf):
            raise InputError(
                "--allow is a number above 0, the most that all runs together may "
                f"spend, not {allowed!r}"
            )
        if not before + budget.epsilon <= allowed:
            raise InputError(
                f"the data behind this ledger has spent epsilon {rounded_up(before)} in other "
                f"runs, and {terms.name} costs up to "
                f"{budget.epsilon:g}: together above {allowed:g}. See decor ledger; whoever "
                "answers for the data can allow it "
                f"with --allow {rounded_up(before + budget.epsilon)}"
            )
    if own is not None:
        return own.run, False
    return ledger.begin(terms.digest, kept(terms)), True


def _read(entry: Entry) -> tuple[str, float, NoisePlan]:
    try:
        held = json.loads(entry.plan)
        return held["name"], held["delta"], NoisePlan.from_json(json.dumps(held["plan"]))
    except (ValueError, KeyError, TypeError) as problem:
        raise LedgerError(
            f"run {entry.run} of the ledger has terms that cannot be read "
            f"({problem}); is it damaged?"
        ) from None
