"""Sections of pages to sign: the figures are those of the guarantee, and nothing is left unsaid."""

from dataclasses import replace

import pytest
import sample

import decor
from decor.privacy.plan_answer import PlanAnswer
from decor.results.build_sign_page import (
    adversary_table,
    limits,
    page_of_plan,
    promise_figures,
    training_facts,
    user_tables,
    warnings_of,
)
from decor.results.signing import Signing
from decor.text import rounded_up

SIGNING = Signing(digests=(), date="2026-11-19")
BUDGET = decor.Budget(3.0, 1e-5)
USERS = decor.Exposure(1.0, 20)


def answer(graph, exposure=USERS, colluders=1, **more):
    return PlanAnswer.calibrate(graph, exposure, decor.Adversary(colluders), BUDGET, **more)


def page(*arguments, **more):
    return page_of_plan(answer(*arguments, **more), "plan.json", SIGNING)


def test_a_page_has_the_promise_in_words_and_in_figures():
    of = answer(sample.forty_branches())
    content = page_of_plan(of, "plan.json", SIGNING)
    assert content.promise == (str(of.guarantee),)
    figures = dict(content.figures)
    assert figures["epsilon"] == rounded_up(of.guarantee.epsilon) == "3"
    assert figures["delta"] == "1e-05" and figures["protected"] == "all data of one user"
    assert figures["adversary"] == decor.Adversary.curious().sentence
    assert figures["simulation"].startswith("no")
    adversaries, users = content.tables
    assert [row[0] for row in adversaries.rows] == [
        row.adversary.sentence for row in of.adversary_rows()
    ]
    # every user once, in the graph's order, with the figure that is its own
    assert [row[0] for row in users.rows] == sample.LONG_NAMES
    assert users.header == ("user", "neighbours", "epsilon")
    assert [row[-1] for row in users.rows] == [rounded_up(e) for e in of.guarantee.per_user]


def test_own_noise_of_each_user_has_a_column_and_says_who_pays():
    graph = decor.from_edges(6, [(0, 1), *((u, v) for u in range(1, 6) for v in range(u + 1, 6))])
    of = answer(graph, own="per-user")
    (users,) = user_tables(of)
    column = users.header.index("own noise")
    assert [row[column] for row in users.rows] == [rounded_up(s) for s in of.plan.sigma_cdp]
    assert "Who pays: 0 " in users.note


@pytest.mark.parametrize(
    ("more", "protected", "column"),
    [
        ({"records": 40}, "one record of one user, replaced by an empty one", True),
        ({"records": 40, "relation": "replace"}, "one record of one user, replaced", True),
        ({"rate": 0.2}, "one record of one user, added or removed", False),
    ],
)
def test_at_example_level_a_page_says_that_one_record_is_protected(more, protected, column):
    exposure = decor.Exposure(1.0, 10, "example", batch_size=8, **more)
    of = answer(decor.ring(4), exposure)
    assert dict(promise_figures(of.guarantee, "no"))["protected"] == protected
    assert protected.removeprefix("one record of one user, ") in str(of.guarantee)
    assert "One record is protected, and not all records of a user together" in limits(of.plan)[0]
    # a private number of records is nowhere on the page
    (users,) = user_tables(of)
    assert ("records" in users.header) == column
    assert ("whose number is public" in limits(of.plan)[0]) == column
    facts = dict(training_facts(of.plan))
    assert facts["batches"] == "Poisson, 8 records"
    assert facts["records that delta is about"] == ("160" if column else "about 160")


def test_bounds_unknown_and_infinite_figures_are_not_shown_as_exact():
    plan = answer(decor.ring(6)).plan
    silent = replace(plan, sigma_cdp=1.0, sigma_cor=0.0)
    known = PlanAnswer(silent, silent.guarantee()).adversary_rows()
    inexact = replace(known[0], exact=False)
    infinite = replace(known[0], exact=False, epsilon=float("inf"))
    table = adversary_table([inexact, infinite], 1e-5, [decor.Adversary.everyone()])
    assert [row[1] for row in table.rows] == [f"≤ {rounded_up(known[0].epsilon)}", "∞", "unknown"]
    assert "whose code was not run" in table.note


def test_a_graph_in_parts_and_a_fragile_plan_are_warned_of():
    parts = answer(decor.from_edges(4, [(0, 1), (2, 3)]), colluders=0)
    assert any("2 parts that never hear of each other" in text for text in warnings_of(parts))
    assert warnings_of(PlanAnswer(parts.plan, parts.guarantee, ("fragile",)))[0] == "fragile"


def test_central_dp_has_no_adversary_among_users_and_a_crowd_no_table():
    plan = decor.baselines.central(decor.ring(4), USERS, BUDGET)
    content = page_of_plan(PlanAnswer(plan, plan.guarantee()), "central.json", SIGNING)
    assert [table.title for table in content.tables] == ["Users"]
    assert "the curator must be trusted" in content.promise[0]
    crowd = decor.baselines.local(decor.ring(2000), USERS, BUDGET)
    assert user_tables(PlanAnswer(crowd, crowd.guarantee())) == []
