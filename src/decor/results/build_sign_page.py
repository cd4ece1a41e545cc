"""The sections of pages to sign that follow from a plan and its guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from decor.privacy.adversary import Adversary
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.privacy.plan_answer import AdversaryRow, PlanAnswer, note_on_parts, who_pays
from decor.text import amount, epsilon_text, rounded_up, rounded_up_range

from .build_report import HONEST
from .report_data import MAX_DRAWN_USERS
from .sign_page import SignPage, SignTable
from .signing import Facts, Signing

RELEASES = (
    "Other releases from the same data add up with this one: only a ledger of all of them says "
    "what they cost together."
)
_COALITION = 8
"""Members of a coalition that a table names."""


def page_of_plan(answer: PlanAnswer, name: str, signing: Signing) -> SignPage:
    """The page of a saved plan.

    Args:
        answer: The plan and its guarantee.
        name: The file's name.
        signing: Digest, owner and date.
    """
    plan = answer.plan
    listed = [] if plan.adversary.average_only else answer.adversary_rows()
    return SignPage(
        kind="plan",
        title=f"Noise plan {name}",
        subtitle=f"{plan.topology.description}; {amount(plan.exposure.steps, 'step')}",
        promise=(str(answer.guarantee),),
        warnings=warnings_of(answer),
        figures=promise_figures(
            answer.guarantee, "no: a plan. Nothing is sent, and no data are read, to make it"
        ),
        tables=(
            *([adversary_table(listed, answer.guarantee.delta)] if listed else []),
            *user_tables(answer),
        ),
        training=training_facts(plan),
        not_protected=limits(plan),
        signing=signing,
    )


def promise_figures(guarantee: Guarantee, simulation: str) -> Facts:
    """The promise in figures.

    Args:
        guarantee: The guarantee.
        simulation: Whether the noise can be subtracted because its seed is known, in words.
    """
    change = {"replace": "replaced", "add-remove": "replaced by an empty one"}[guarantee.relation]
    # removing a record leaves an empty one only where everyone knows how many there are
    if guarantee.relation == "add-remove" and not guarantee.counts_are_public:
        change = "added or removed"
    unit = (
        "all data of one user" if guarantee.unit == "user" else f"one record of one user, {change}"
    )
    return (
        ("epsilon", epsilon_text(guarantee.epsilon)),
        ("delta", rounded_up(guarantee.delta)),
        ("protected", unit),
        ("adversary", guarantee.adversary.sentence),
        ("simulation", simulation),
    )


def warnings_of(answer: PlanAnswer) -> tuple[str, ...]:
    """What a reader of the promise must not miss."""
    topology, notes = answer.plan.topology, list(answer.warnings)
    if not topology.is_connected:
        notes.append(note_on_parts(topology))
    return tuple(notes)


def adversary_table(
    rows: Iterable[AdversaryRow], delta: float, unknown: Sequence[Adversary] = ()
) -> SignTable:
    """Epsilon of the most exposed user against each adversary.

    Args:
        rows: What each adversary learns.
        delta: The failure probability.
        unknown: Adversaries against whom epsilon depends on what is not known.
    """
    cells = []
    for row in rows:
        more = ", ..." if len(row.coalition) > _COALITION else ""
        to = f", to {', '.join(row.coalition[:_COALITION])}{more}" if row.coalition else ""
        # an infinite bound is no better than infinity itself
        epsilon = row.epsilon_text("≤") if np.isfinite(row.epsilon) else "∞"
        cells.append((row.adversary.sentence, epsilon, row.most_exposed + to))
    # listed without a figure: their absence would be taken for safety
    cells += [(adversary.sentence, "unknown", "–") for adversary in unknown]
    note = f"Epsilon of the most exposed user, at delta {rounded_up(delta)}."
    if unknown:
        note += " What is unknown depends on the size of the model, whose code was not run."
    return SignTable(
        title="Who learns what",
        header=("adversary", "epsilon", "most exposed user"),
        rows=tuple(cells),
        note=note,
    )


def user_tables(answer: PlanAnswer) -> list[SignTable]:
    """One row per user; no table where a page could not hold it."""
    plan, topology = answer.plan, answer.plan.topology
    if topology.users > MAX_DRAWN_USERS:
        return []
    by_user = isinstance(plan.sigma_cdp, tuple)
    degrees, rows = topology.degrees.tolist(), []
    for degree, user in zip(degrees, answer.user_rows(), strict=True):
        count = [] if user.records is None else [f"{user.records:,}"]
        own = [rounded_up(user.sigma_cdp)] if by_user else []
        rows.append((user.name, f"{degree:,}", *count, *own, epsilon_text(user.epsilon)))
    counted = ["records"] if plan.exposure.counts_are_public else []
    own = ["own noise"] if by_user else []
    pays = who_pays(plan)
    note = f"Against {answer.guarantee.adversary.sentence}."
    return [
        SignTable(
            title="Users",
            header=("user", "neighbours", *counted, *own, "epsilon"),
            rows=tuple(rows),
            note=note if pays is None else f"{note} {pays}",
        )
    ]


def training_facts(plan: NoisePlan) -> Facts:
    """What is public about a plan's training."""
    exposure, topology = plan.exposure, plan.topology
    edges = np.atleast_1d(plan.sigma_cor)
    own = plan.sigma_cdp_per_user
    units = exposure.units(topology)
    what = "users" if exposure.unit == "user" else "records"
    # with a rate the number of records is private, and this one follows from the batch size
    about = "about " if exposure.rate is not None else ""
    facts = [
        ("graph", topology.description),
        ("users", f"{topology.users:,}"),
        ("steps", f"{exposure.steps:,}"),
        ("gradients clipped to", f"{exposure.clip:g}"),
        ("sigma_cdp, noise of each user", rounded_up_range(own.min(), own.max())),
        (
            "sigma_cor, noise of each edge",
            rounded_up_range(min(edges, default=0.0), max(edges, default=0.0)),
        ),
    ]
    if exposure.unit == "example":
        drawn = "of a fixed size" if exposure.sampling == "fixed" else "Poisson"
        facts.append(("batches", f"{drawn}, {exposure.batch_size:,} records"))
    if exposure.rate is not None:
        facts.append(("sampling rate of every record", f"{exposure.rate:g}"))
    facts.append((f"{what} that delta is about", f"{about}{units:,}"))
    return tuple(facts)


def limits(plan: NoisePlan) -> tuple[str, ...]:
    """What no figure of the page covers."""
    records = ""
    if plan.exposure.unit == "example":
        records = " One record is protected, and not all records of a user together" + (
            ", whose number is public." if plan.exposure.counts_are_public else "."
        )
    return f"{HONEST}{records}", RELEASES
