"""From runs to the report: numbers arrive as they were measured, and nothing claims more than was
spent.
"""

import math
from dataclasses import replace

import pytest

import decor
from decor.results import outcomes, report, report_data
from decor.results.report_view import view


@pytest.fixture(scope="module")
def runs():
    task = decor.tasks.breast_cancer(users=4)
    exposure = decor.Exposure(clip=1.0, steps=6)
    plan = decor.calibrate(
        decor.ring(4), exposure, decor.Adversary.eavesdropper(), decor.Budget(5.0, 1e-5)
    )
    return decor.sweep(
        task, [plan], learning_rates=[0.1], seeds=[0, 1], evaluate_every=2, keep_models=True
    ).runs


def test_an_outcome_has_what_every_seed_reached(runs):
    entry = outcomes.outcome("DECOR ring", 5.0, runs)
    assert entry["final"]["accuracy"] == [run.metrics["accuracy"] for run in runs]
    assert (
        entry["curve"]["step"] == [0, 2, 4, 6]
        and entry["curve"]["loss"][1] == runs[1].history["loss"]
    )
    assert entry["spent"] == runs[0].guarantee.epsilon <= 5 and entry["guarantee"] == str(
        runs[0].guarantee
    )
    assert [row["adversary"] for row in entry["adversaries"]] == [
        "eavesdropper",
        "curious",
        "colluding:2",
        "everyone",
    ]
    assert (
        entry["seeds"] == [0, 1]
        and entry["learning_rate"] == 0.1
        and entry["sigma_cdp"] == runs[0].plan.sigma_cdp
    )


def test_a_run_that_stopped_says_so_and_promises_the_whole_plans_epsilon(runs):
    cut = {name: values[:2] for name, values in runs[0].history.items()}
    stopped = replace(runs[0], steps_taken=2, stopped="interrupted after step 2", history=cut)
    entry = outcomes.outcome("DECOR ring", 5.0, [stopped, runs[1]])
    assert entry["steps"] == 2 and entry["stopped"] == "interrupted after step 2"
    assert entry["curve"]["loss"][0] == [*cut["loss"], None, None]
    assert entry["spent"] == runs[1].guarantee.epsilon
    alone = outcomes.outcome("DECOR ring", 5.0, [stopped])
    assert alone["spent"] == stopped.guarantee.epsilon == entry["spent"]
    assert "the whole plan's; stopped after 2 of 6 steps" in alone["guarantee"]


def test_a_run_that_diverged_has_no_last_value(runs):
    broken = replace(
        runs[0], stopped="diverged", history=runs[0].history | {"loss": [1.0, 2.0, 3.0, math.nan]}
    )
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
    data = outcomes.of_runs(
        [(kind, replace(runs[0], plan=plan)) for kind, plan in plans.items()], ""
    )
    report_data.check(data)
    assert [method["kind"] for method in data["methods"]] == list(plans)
    found = {entry["method"]: entry for entry in data["outcomes"]}
    assert (
        "central DP, not SecLDP" in found["central"]["guarantee"]
        and found["none"]["guarantee"] is None
    )
    assert found["none"]["epsilon"] is None and found["local"]["epsilon"] == 5.0


def test_a_plan_with_less_noise_than_its_budget_needs_says_what_it_cost(runs):
    less = replace(
        runs[0].plan, sigma_cdp=runs[0].plan.sigma_cdp / 10, sigma_cor=runs[0].plan.sigma_cor / 10
    )
    for plan in (less, runs[0].plan.scaled(0.1)):
        (entry,) = outcomes.of_runs([("a", replace(runs[0], plan=plan))], "")["outcomes"]
        assert entry["epsilon"] == entry["spent"] > 20, "never the budget that it no longer meets"
    assert (
        runs[0].plan.scaled(0.1).budget is None
        and runs[0].plan.scaled(2.0).budget == runs[0].plan.budget
    )


def test_runs_of_different_tasks_are_not_drawn_together(runs):
    other = replace(runs[0], manifest=runs[0].manifest | {"task": {"name": "digits"}})
    with pytest.raises(decor.InputError, match="different tasks .breast-cancer, digits."):
        outcomes.of_runs([("a", runs[0]), ("b", other)], "")


def by_peers(run, topology=None):
    """A run as a node of a federation leaves it: no seed, and nothing measured on private data."""
    manifest = {name: value for name, value in run.manifest.items() if name != "seed"} | {
        "engine": {"name": "peers"}
    }
    history = {
        name: values[-1:]
        for name, values in run.history.items()
        if name in ("step", "accuracy", "test_loss")
    }
    plan = run.plan if topology is None else replace(run.plan, topology=topology)
    return replace(run, manifest=manifest, history=history, plan=plan)


def test_a_report_of_real_peers_speaks_of_their_secrets_and_of_no_seed(runs):
    own = decor.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)])
    data = outcomes.of_runs(
        [("bonn", by_peers(runs[0], own)), ("ulm", by_peers(runs[1], own))], "decor report bonn ulm"
    )
    page = report.page(data)
    assert (
        data["graphs"][0]["name"] == "the federation's graph"
        and "on the federation's graph, and" in data["methods"][0]["sentence"]
    )
    assert sum("drew from its own operating system" in note for note in data["notes"]) == 1
    assert not any(
        "This is a simulation" in note or "training loss" in note for note in data["notes"]
    )
    assert (
        ">seeds</th>" not in page
        and "over seeds" not in page.partition("<script")[0]
        and "by real peers" in page
    )
    shown = view(data)
    assert shown["single"] == "one run of real peers" == shown["outcomes"][0]["runs"]


def test_a_report_of_a_simulation_speaks_of_its_seed_and_names_its_graph(runs):
    data = outcomes.of_runs([("run", runs[0])], "")
    assert any("This is a simulation" in note for note in data["notes"]) and any(
        "training loss" in note for note in data["notes"]
    )
    assert "on the graph 'ring(4)', and" in data["methods"][0][
        "sentence"
    ] and "real peers" not in report.page(data)
    assert view(data)["outcomes"][0]["runs"] == "1 seed" and ">seeds</th>" in report.page(data)
    own = replace(
        runs[0],
        plan=replace(runs[0].plan, topology=decor.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)])),
    )
    assert "on its own graph, and" in outcomes.of_runs([("run", own)], "")["methods"][0]["sentence"]
    on_grid = {"seed": "secret", "noise": {"kind": "grid", "distance": 1e-25}}
    secret = replace(runs[0], manifest=runs[0].manifest | on_grid)
    kept = outcomes.of_runs([("run", secret)], "")
    assert not any(
        "This is a simulation" in note for note in kept["notes"]
    ) and ">secret</td>" in report.page(kept)
    assert view(kept)["outcomes"][0]["runs"] == "1 private run"
    assert kept["outcomes"][0]["simulated"] is False and data["outcomes"][0]["simulated"] is True
    assert "Simulation with a known seed" in report.page(
        data
    ) and "Simulation with a known" not in report.page(kept)


def test_a_report_of_both_says_which_is_which(runs):
    data = outcomes.of_runs([("simulated", runs[0]), ("deployed", by_peers(runs[1]))], "")
    assert sum("seed" in note for note in data["notes"]) == 2
    page = report.page(data)
    assert ">0</td>" in page and ">none: real peers</td>" in page
    data["outcomes"][0]["noise"] = "dice"
    with pytest.raises(decor.InputError, match="outcomes.0..noise: 'dice' where 'seed' or"):
        report_data.check(data)
