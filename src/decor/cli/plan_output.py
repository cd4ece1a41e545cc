"""What `decor plan`, `decor account` and `decor federation check` print about a plan."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from decor.privacy.budget import Exposure
from decor.privacy.plan import NoisePlan
from decor.privacy.plan_answer import AdversaryRow, PlanAnswer, note_on_parts, who_pays
from decor.text import amount, rounded_up, rounded_up_range, table

from .json_output import write_json

MANY_USERS = 2000
"""Above this number of users the tables of users and of noise pairs are left out: too slow."""
_LISTED = 20
"""Users in the table of users."""
_COALITION = 8
"""Members of a coalition that a table names."""


def show(
    answer: PlanAnswer,
    options: argparse.Namespace,
    last_table: Callable[[], str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Prints and draws a plan as the options ask: `--json` and `--plot`.

    Args:
        answer: The plan and its guarantee.
        options: The parsed options.
        last_table: Makes a table to print below the others; called only if tables are printed.
        more: Further keys of the JSON object.
    """
    # each adversary may need a search, which is wasted on rows that nobody sees
    rows = [] if options.json and not options.plot else answer.adversary_rows()
    if options.json:
        write_json({**answer.to_json(), **(more or {})})
    else:
        print(_heading(answer))
        print(_users(answer), end="")
        print(adversary_table(rows, answer.guarantee.delta, "user "))
        if last_table is not None:
            print(last_table())
    if options.plot is not None:
        from decor.results import plan_figures

        plan_figures.plan_figure(answer, rows, options.plot)
        # programs parse standard output, where this line would follow the object
        if not options.json:
            print(f"\nwrote {options.plot}")


def local_step_line(exposure: Exposure, counts: Sequence[int], names: Sequence[str]) -> str:
    """The largest step that a user's own examples make, with a common rate.

    Args:
        exposure: With a rate.
        counts: Each user's number of examples.
        names: Of the users.
    """
    largest = max(range(len(counts)), key=counts.__getitem__)
    clips = rounded_up(exposure.local_step(counts[largest]))
    return (
        f"Largest local step: {clips} clips in an expected batch (user {names[largest]}, "
        f"{counts[largest]:,} records; sums are divided by {exposure.batch_size:,})."
    )


def sigma_cdp_text(plan: NoisePlan) -> str:
    """The one sigma_cdp, or the least and the largest of all users."""
    return rounded_up_range(plan.least_sigma_cdp, float(plan.sigma_cdp_per_user.max()))


def noise_lines(own: str, correlated: str, place: str = "on each edge") -> list[str]:
    return [
        f"  sigma_cdp  {own:>10}  independent noise of every user",
        f"  sigma_cor  {correlated:>10}  noise shared {place}, cancelled by the neighbour",
    ]


def adversary_table(rows: Iterable[AdversaryRow], delta: float, prefix: str = "") -> str:
    """A table of what each adversary learns; `prefix` precedes the most exposed user's name."""
    cells = []
    for row in rows:
        more = ", ..." if len(row.coalition) > _COALITION else ""
        coalition = f"to {', '.join(row.coalition[:_COALITION])}{more}" if row.coalition else ""
        if row.alike:
            who = "all users" + (f", such as {row.most_exposed} {coalition}" if coalition else "")
        else:
            who = prefix + row.most_exposed + (f", {coalition}" if coalition else "")
        cells.append([str(row.adversary), row.epsilon_text(), who])
    lines = table(["adversary", "epsilon", "most exposed"], cells)
    return f"Who learns what (epsilon at delta {delta:g}):\n{lines}\n"


def _heading(answer: PlanAnswer) -> str:
    plan, guarantee = answer.plan, answer.guarantee
    sigma, own = plan.sigma_cor, sigma_cdp_text(plan)
    if isinstance(sigma, float):
        noise = noise_lines(own, rounded_up(sigma))
    else:
        # a graph without edges has no noise to share
        low, high = (rounded_up(pick(sigma, default=0.0)) for pick in (min, max))
        noise = noise_lines(own, f"{low} to {high}", "by edge (--json lists them)")
    units = plan.exposure.units(plan.topology)
    what = "users" if plan.exposure.unit == "user" else "records"
    # with a rate the number of records is private, and this one follows from the batch size
    about = "about " if plan.exposure.rate is not None else ""
    lines = [
        f"{plan.topology.description}; {amount(plan.exposure.steps, 'step')}, "
        f"clip {plan.exposure.clip:g}",
        *noise,
        "",
        str(guarantee),
        *([pays] if (pays := who_pays(plan)) is not None else []),
        f"delta x {about}{units:,} {what} = {guarantee.delta * units:.2g}: the expected number of "
        f"{what} for which the guarantee may fail.",
        *(f"Warning: {note}" for note in answer.warnings),
    ]
    if not plan.topology.is_connected:
        lines.append(note_on_parts(plan.topology))
    return "\n".join(lines) + "\n"


def _users(answer: PlanAnswer) -> str:
    """The most exposed users, where users have names or differ in their number of examples."""
    topology, exposure = answer.plan.topology, answer.plan.exposure
    records = exposure.records_of(topology) if exposure.counts_are_public else ()
    if topology.users > MANY_USERS or (topology.labels is None and len(set(records)) < 2):
        return ""
    cells, by_user = [], isinstance(answer.plan.sigma_cdp, tuple)
    # stable: users with equal epsilon stay in the order of the graph
    for row in sorted(answer.user_rows(), key=lambda row: -row.epsilon)[:_LISTED]:
        count = [] if row.records is None else [f"{row.records:,}"]
        own = [rounded_up(row.sigma_cdp)] if by_user else []
        cells.append([row.name, *count, *own, rounded_up(row.epsilon)])
    header = ["user", *(["records"] if records else []), *(["sigma_cdp"] if by_user else [])]
    header.append("epsilon")
    left = topology.users - len(cells)
    more = f"\n  and {left} less exposed (--json lists all users)" if left else ""
    against = answer.guarantee.adversary
    return f"Each user, against {against}:\n{table(header, cells)}{more}\n\n"
