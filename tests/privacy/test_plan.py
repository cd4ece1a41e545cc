import hashlib
import json
from itertools import permutations

import networkx as nx
import pytest

import decor
from decor import Adversary, Budget, Exposure, NoisePlan
from decor.errors import BudgetError, DecorError, InputError

TOWNS = decor.from_edges(3, [(0, 1), (1, 2)], ["kiel", "ulm", "bonn"])


def sized(records):
    return Exposure(0.5, 20, unit="example", batch_size=8, records=records)


def plans():
    example = Exposure(
        0.5, 20, unit="example", batch_size=8, records=[100, 60, 70, 80], sampling="fixed"
    )
    labelled = decor.from_networkx(nx.florentine_families_graph())
    return [
        NoisePlan(decor.ring(5), Exposure(1.0, 10), Adversary.curious(), 2.0, 3.0),
        NoisePlan(
            decor.torus(3, 4), Exposure(1.0, 10), Adversary.everyone(), 2.0, 0.0, Budget(1.0, 1e-6)
        ),
        NoisePlan(decor.path(4), example, Adversary.colluding(2), 2.0, (1.0, 0.1, 5.0)),
        NoisePlan(labelled, Exposure(1.0, 10), Adversary.eavesdropper(), 0.1 + 0.2, 1e-99),
        NoisePlan(
            TOWNS, sized({"ulm": 80, "bonn": 152, "kiel": 40}), Adversary.curious(), 2.0, 3.0
        ),
        NoisePlan(decor.ring(5), Exposure(1.0, 10), Adversary(0, average_only=True), 1 / 3, 0.0),
        NoisePlan(TOWNS, Exposure(1.0, 10), Adversary.curious(), (2.0, 0.1 + 0.2, 1e7), (3.0, 0.0)),
    ]


@pytest.mark.parametrize("plan", plans(), ids=lambda p: repr(p.topology))
def test_a_saved_plan_is_the_plan(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    again = NoisePlan.load(tmp_path / "plan.json")
    assert again == plan and again.topology.family == plan.topology.family
    # what anyone can compute of the file
    file = hashlib.sha256((tmp_path / "plan.json").read_bytes()).hexdigest()
    assert plan.digest == again.digest == file != plan.scaled(2.0).digest


def test_a_plan_of_before_records_went_by_name_is_read_in_the_graphs_order():
    plan = NoisePlan(
        TOWNS, sized({"ulm": 80, "bonn": 152, "kiel": 40}), Adversary.curious(), 2.0, 3.0
    )
    value = json.loads(plan.to_json())
    assert value["exposure"]["records"] == {"kiel": 40, "ulm": 80, "bonn": 152}
    value["exposure"]["records"] = [40, 80, 152]
    assert NoisePlan.from_json(json.dumps(value)) == plan
    value["exposure"]["records"] = [40, 80]
    with pytest.raises(InputError, match="records is a list"):
        NoisePlan.from_json(json.dumps(value))


def test_a_plan_whose_users_levels_do_not_fit_its_graph_is_refused():
    plan = NoisePlan(TOWNS, Exposure(1.0, 10), Adversary.curious(), (2.0, 5.0, 3.0), 3.0)
    assert plan.sigma_cdp_per_user.tolist() == [2.0, 5.0, 3.0] and plan.least_sigma_cdp == 2.0
    value = json.loads(plan.to_json())
    assert value["sigma_cdp"] == [2.0, 5.0, 3.0]
    for levels, said in (([2.0, 5.0], "2 numbers for 3 users"), ([2.0, 0, 3.0], "user ulm is 0")):
        value["sigma_cdp"] = levels
        with pytest.raises(BudgetError, match=said):
            NoisePlan.from_json(json.dumps(value))


def test_scaling_a_plan_scales_every_level():
    plan = NoisePlan(TOWNS, Exposure(1.0, 10), Adversary.curious(), (2.0, 5.0, 3.0), (3.0, 4.0))
    double = plan.scaled(2.0)
    assert double.sigma_cdp == (4.0, 10.0, 6.0) and double.sigma_cor == (6.0, 8.0)
    assert plan.scaled(1.0) == plan


def test_what_takes_one_level_refuses_one_per_user():
    plan = NoisePlan(TOWNS, Exposure(1.0, 10), Adversary.curious(), (2.0, 5.0, 3.0), 3.0)
    with pytest.raises(InputError, match="a GPU takes one sigma_cdp for all users"):
        plan.uniform_sigma_cdp("a GPU")


def test_equal_plans_have_equal_texts():
    texts = {
        NoisePlan(TOWNS, sized(dict(pairs)), Adversary.curious(), 2.0, 3.0).to_json()
        for pairs in permutations([("ulm", 80), ("bonn", 152), ("kiel", 40)])
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"sigma_cdp": -1},
        {"sigma_cdp": "x"},
        {"sigma_cor": [1, 2]},
        {"adversary": "nobody"},
        {"adversary": 3},
        {"topology": {"family": "__import__", "sizes": ["os"]}},
        {"topology": {"users": 3, "edges": [[0, 9]], "labels": None}},
        {"topology": None},
        {"exposure": {"clip": 1.0, "steps": 0}},
        {"exposure": {"clip": 1.0, "steps": 3, "surprise": 1}},
        {"budget": {"epsilon": 1.0, "delta": 2.0}},
    ],
)
def test_a_plan_file_that_was_tampered_with_is_refused(change):
    text = json.dumps(json.loads(plans()[0].to_json()) | change)
    with pytest.raises(DecorError):
        NoisePlan.from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "\0"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(InputError, match="not a saved plan"):
        NoisePlan.from_json(text)


def test_a_missing_or_binary_plan_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        NoisePlan.load(tmp_path / "nowhere.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        NoisePlan.load(tmp_path / "binary")


def test_a_plan_is_made_of_the_right_things():
    with pytest.raises(InputError, match="topology must be a Topology"):
        NoisePlan("ring", Exposure(1.0, 10), Adversary.curious(), 2.0, 3.0)
    with pytest.raises(BudgetError, match="records has 4 numbers for 5 users"):
        NoisePlan(decor.ring(5), plans()[2].exposure, Adversary.curious(), 2.0, 3.0)
    with pytest.raises(BudgetError, match="made without a budget"):
        plans()[0].couples()
