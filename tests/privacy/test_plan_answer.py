import json
from dataclasses import replace

import numpy as np
import pytest

import decor
from decor import Adversary, Budget, Exposure, NoisePlan, theory
from decor.graph.gossip import Gossip
from decor.privacy.plan_answer import AdversaryRow, PlanAnswer, advice, note_on_parts, who_pays

BUDGET, EXPOSURE = Budget(3.0, 1e-5), Exposure(1.0, 100)
TOWNS = decor.from_edges(4, [(0, 1), (1, 2), (2, 3), (0, 3)], ["ulm", "bonn", "kiel", "jena"])
RECORDS = {"ulm": 200, "bonn": 300, "kiel": 400, "jena": 500}
EXAMPLES = Exposure(1.0, 20, unit="example", batch_size=16, records=RECORDS)


def answer(topology=TOWNS, exposure=EXPOSURE, adversary=None, **options):
    return PlanAnswer.calibrate(topology, exposure, adversary or Adversary(0), BUDGET, **options)


@pytest.mark.parametrize(
    ("payers", "more"), [(8, ""), (9, " and 1 more user"), (10, " and 2 more users")]
)
def test_the_users_who_pay_are_named_up_to_a_number(payers, more):
    own = (10.0,) * payers + (1.0,) * 12
    plan = NoisePlan(decor.complete(len(own)), EXPOSURE, Adversary(1), own, 1.0)
    assert f", 7 10.0 times{more} the usual own noise" in who_pays(plan)


def test_an_answer_is_the_plan_that_calibrate_makes_with_its_guarantee():
    for options in ({}, {"method": "paper"}, {"ratio": 7.0}):
        plan = decor.calibrate(TOWNS, EXPOSURE, Adversary(0), BUDGET, **options)
        answered = answer(**options)
        assert answered.plan == plan and answered.warnings == ()
        method = options.get("method", "exact")
        assert answered.guarantee.epsilon == plan.guarantee(method=method).epsilon
        assert answered.guarantee.method == method


def test_warnings_become_sentences():
    (warning,) = answer(decor.star(5), adversary=Adversary(1)).warnings
    assert "can isolate user" in warning


@pytest.mark.parametrize("method", ["exact", "paper"])
def test_a_row_of_an_adversary_is_its_guarantee(method):
    answered = answer(method=method)
    plan = answered.plan
    rows = answered.adversary_rows()
    assert [row.adversary for row in rows] == plan.listed_adversaries()
    for row in rows:
        guarantee = plan.guarantee(BUDGET.delta, row.adversary, method)
        assert (row.epsilon, row.exact) == (guarantee.epsilon, guarantee.exact)
        assert row.most_exposed == TOWNS.name(row.worst_user) == TOWNS.name(guarantee.worst_user)
        assert row.coalition == tuple(TOWNS.name(v) for v in guarantee.worst_coalition)
        assert row.epsilon_text().startswith("<=") == (method == "paper")


def test_a_run_accounts_for_its_own_noise_and_is_not_asked_twice():
    answered, asked = answer(), []

    def account(adversary):
        asked.append(adversary)
        return replace(answered.plan.guarantee(adversary=adversary), epsilon=123.0)

    rows = answered.adversary_rows([Adversary(0), Adversary(1)], account)
    assert asked == [Adversary(1)] and rows[1].epsilon == 123.0
    assert rows[0] == AdversaryRow.of(answered.guarantee)


def test_users_have_their_records_at_example_level_only():
    assert [row.records for row in answer().user_rows()] == [None] * 4
    answered = answer(exposure=EXAMPLES)
    rows = answered.user_rows()
    assert {row.name: row.records for row in rows} == RECORDS
    assert [row.epsilon for row in rows] == answered.guarantee.per_user.tolist()


@pytest.mark.parametrize("gossip", [Gossip(), Gossip(3, accelerate=True)], ids=repr)
def test_noise_pairs_are_compared_with_central_dp(gossip):
    answered = answer()
    rows = answered.noise_pair_rows(gossip, (1.0, 100.0))
    names = ["central DP", "ratio 1", "ratio 100", "this plan", "local DP"]
    assert [row.name for row in rows] == names
    central = theory.average_error(rows[0].plan)
    assert rows[0].relative_error == 1.0 and rows[3].plan is answered.plan
    for row in rows[1:]:
        assert row.relative_error == theory.predicted_error(row.plan, gossip) / central
    assert rows[2].plan.sigma_cor / rows[2].plan.sigma_cdp == pytest.approx(10)
    assert len(answer(adversary=Adversary.everyone()).noise_pair_rows(gossip, (1.0,))) == 3


def test_json_has_the_plan_its_guarantee_and_each_user():
    value = answer().to_json()
    assert json.loads(json.dumps(value)) == value
    assert list(value) == [
        *("sigma_cdp", "sigma_cor", "epsilon", "delta", "expected_failures", "adversary"),
        *("worst_user", "worst_coalition", "per_user", "per_user_epsilon", "exact", "users"),
        *("labels", "unit", "steps", "clip", "statement", "warnings"),
    ]
    assert value["expected_failures"] == pytest.approx(4e-5)
    assert value["per_user"][1] == {"user": "bonn", "epsilon": value["per_user_epsilon"][1]}
    by_example = answer(exposure=EXAMPLES).to_json()
    assert by_example["per_user"][2]["records"] == 400
    assert by_example["expected_failures"] == pytest.approx(1400e-5)
    path = decor.path(3)
    by_edge = NoisePlan(path, EXPOSURE, Adversary(0), 2.0, (1.0, 3.0))
    value = PlanAnswer(by_edge, by_edge.guarantee(1e-5)).to_json()
    assert value["edges"] == path.edges.tolist() and "labels" not in value
    assert np.shape(value["sigma_cor"]) == (2,)


def test_advice_names_the_user_that_is_isolated_first():
    two = decor.from_edges(5, [(0, 1), (1, 2), (3, 4)])
    assert advice(two, 0) == note_on_parts(two) and "2 parts" in advice(two, 0)
    assert "no other user" in advice(decor.path(1), None)
    assert advice(decor.path(3), 1).startswith("The only neighbour of user 0 isolates it")
    assert "2 neighbours of user ulm together isolate it" in advice(TOWNS, 2)
    barbell = decor.from_edges(7, [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (4, 6), (5, 6)])
    assert "Already 1 user can cut" in advice(barbell, 1)
