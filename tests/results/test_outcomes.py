"""From runs to the report: numbers arrive as they were measured, and nothing claims more than was spent."""

import math
from dataclasses import replace

import pytest

import decor
from decor.results import outcomes, report_data


@pytest.fixture(scope="module")
def runs():
    task = decor.tasks.breast_cancer(users=4)
    exposure = decor.Exposure(clip=1.0, steps=6)
    plan = decor.calibrate(decor.ring(4), exposure, decor.Adversary.eavesdropper(), decor.Budget(5.0, 1e-5))
    return decor.sweep(task, [plan], learning_rates=[0.1], seeds=[0, 1], evaluate_every=2, keep_models=True).runs


def test_an_outcome_has_what_every_seed_reached(runs):
    entry = outcomes.outcome("DECOR ring", 5.0, runs)
    assert entry["final"]["accuracy"] == [run.metrics["accuracy"] for run in runs]
    assert entry["curve"]["step"] == [0, 2, 4, 6] and entry["curve"]["loss"][1] == runs[1].history["loss"]
    assert entry["spent"] == runs[0].guarantee.epsilon <= 5 and entry["guarantee"] == str(runs[0].guarantee)
    assert [row["adversary"] for row in entry["adversaries"]] == ["eavesdropper", "curious", "colluding:2", "everyone"]
    assert entry["seeds"] == [0, 1] and entry["learning_rate"] == 0.1 and entry["sigma_cdp"] == runs[0].plan.sigma_cdp


def test_a_run_that_stopped_says_so_and_spent_less(runs):
    cut = {name: values[:2] for name, values in runs[0].history.items()}
    stopped = replace(runs[0], steps_taken=2, stopped="interrupted after step 2", history=cut)
    entry = outcomes.outcome("DECOR ring", 5.0, [stopped, runs[1]])
    assert entry["steps"] == 2 and entry["stopped"] == "interrupted after step 2"
    assert entry["curve"]["loss"][0] == [*cut["loss"], None, None]
    assert entry["spent"] == runs[1].guarantee.epsilon, "of the seed that took most steps"
    alone = outcomes.outcome("DECOR ring", 5.0, [stopped])
    assert alone["spent"] == stopped.guarantee.epsilon < entry["spent"] and "over 2 steps" in alone["guarantee"]


def test_a_run_that_diverged_has_no_last_value(runs):
    broken = replace(runs[0], stopped="diverged", history=runs[0].history | {"loss": [1.0, 2.0, 3.0, math.nan]})
    entry = outcomes.outcome("DECOR ring", 5.0, [broken, runs[1]])
    assert entry["final"]["accuracy"][0] is None and entry["final"]["accuracy"][1] is not None
    report_data.check(outcomes.of_runs([("a", broken)], "decor report a"))


def test_runs_of_every_kind_are_named_for_what_they_are(runs):
    exposure, budget = decor.Exposure(clip=1.0, steps=6), decor.Budget(5.0, 1e-5)
    plans = {
        "decor": runs[0].plan,
        "central": decor.baselines.central(decor.ring(4), exposure, budget),
        "local": decor.baselines.local(decor.ring(4), exposure, budget),
        "none": decor.NoisePlan(decor.ring(4), exposure, decor.Adversary.eavesdropper(), 0.0, 0.0),
    }
    data = outcomes.of_runs([(kind, replace(runs[0], plan=plan)) for kind, plan in plans.items()], "")
    report_data.check(data)
    assert [method["kind"] for method in data["methods"]] == list(plans)
    found = {entry["method"]: entry for entry in data["outcomes"]}
    assert "central DP, not SecLDP" in found["central"]["guarantee"] and found["none"]["guarantee"] is None
    assert found["none"]["epsilon"] is None and found["local"]["epsilon"] == 5.0


def test_a_plan_with_less_noise_than_its_budget_needs_says_what_it_cost(runs):
    less = replace(runs[0].plan, sigma_cdp=runs[0].plan.sigma_cdp / 10, sigma_cor=runs[0].plan.sigma_cor / 10)
    for plan in (less, runs[0].plan.scaled(0.1)):
        (entry,) = outcomes.of_runs([("a", replace(runs[0], plan=plan))], "")["outcomes"]
        assert entry["epsilon"] == entry["spent"] > 20, "never the budget that it no longer meets"
    assert runs[0].plan.scaled(0.1).budget is None and runs[0].plan.scaled(2.0).budget == runs[0].plan.budget


def test_runs_of_different_tasks_are_not_drawn_together(runs):
    other = replace(runs[0], manifest=runs[0].manifest | {"task": {"name": "digits"}})
    with pytest.raises(decor.InputError, match="different tasks .breast-cancer, digits."):
        outcomes.of_runs([("a", runs[0]), ("b", other)], "")
