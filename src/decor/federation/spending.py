"""What a user's data has paid over all runs in its ledger, and whether another run may begin."""

from __future__ import annotations

from decor.errors import InputError, LedgerError
from decor.net.ledger import Entry, Ledger
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.results.run import spent

from .terms import Terms


def paid(entry: Entry) -> Guarantee:
    """What the messages of one run have cost, at the delta that its plan was made for."""
    try:
        return spent(NoisePlan.from_json(entry.plan), entry.steps)
    except InputError as problem:
        raise LedgerError(f"run {entry.run} of the ledger has a plan that cannot be read ({problem}); is it damaged?") from None


def total(entries: list[Entry]) -> tuple[float, float]:
    """(epsilon, delta) of all runs together: both add up, whatever the runs were.

    Guarantee: an upper bound of what anybody learns who sees the messages of all runs, if each run's adversary is the one
    that its plan names.
    """
    each = [paid(entry) for entry in entries if entry.steps]
    return sum(g.epsilon for g in each), sum(g.delta for g in each)


def run_of(ledger: Ledger, terms: Terms, allowance: float | None) -> int:
    """The number of the run to take part in: the one under way, or a new one if the budget has room for it."""
    entries = ledger.entries()
    for entry in entries:
        if entry.federation == terms.digest:
            if entry.ended is None:
                return entry.run
            raise InputError(
                f"this user has taken part in {terms.name} to the end ({entry.steps} messages, epsilon "
                f"{paid(entry).epsilon:.4g}): its budget is spent. Another run needs another "
                "federation file, which everybody agrees on"
            )
    budget = terms.plan.budget
    if budget is not None:
        before, _ = total(entries)
        allowed = budget.epsilon if allowance is None else allowance
        if before + budget.epsilon > allowed:
            raise InputError(
                f"the data behind this ledger has spent epsilon {before:.4g} in {len(entries)} earlier runs, and {terms.name} "
                f"costs {budget.epsilon:g} more: together above {allowed:g}. See decor ledger; whoever answers for the data can "
                f"allow it with --allow {before + budget.epsilon:.4g}"
            )
    return ledger.begin(terms.digest, terms.plan.to_json())
