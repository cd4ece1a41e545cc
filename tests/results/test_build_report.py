"""From runs to the report: numbers arrive as they were measured, and nothing claims more than was
spent.
"""

import json
import math
from dataclasses import replace

import pytest

import decor
from decor.results import build_report, report
from decor.results.report_data import Outcome, Report
from decor.results.report_panels import Choice, Panels
from decor.results.stop_reason import StopReason


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
    entry = build_report.summarise_runs("DECOR ring", 5.0, runs)
    assert entry.final["accuracy"] == tuple(run.metrics["accuracy"] for run in runs)
    assert entry.curve.steps == (0, 2, 4, 6)
    assert entry.curve.rows["loss"][1] == tuple(runs[1].history["loss"])
    assert entry.spent == runs[0].guarantee.epsilon <= 5
    assert entry.guarantee == str(runs[0].guarantee)
    names = [row.adversary for row in entry.adversaries]
    assert names == ["eavesdropper", "curious", "colluding:2", "everyone"]
    assert entry.seeds == (0, 1) and entry.learning_rate == 0.1
    assert entry.sigma_cdp == runs[0].plan.sigma_cdp


def test_an_outcome_is_read_as_it_was_written(runs):
    entry = build_report.summarise_runs("DECOR ring", 5.0, runs)
    assert Outcome.from_json(json.loads(json.dumps(entry.to_json(), allow_nan=False))) == entry


def test_a_run_that_stopped_says_so_and_promises_the_whole_plans_epsilon(runs):
    cut = {name: values[:2] for name, values in runs[0].history.items()}
    stopped = replace(
        runs[0],
        steps_taken=2,
        stopped=StopReason("interrupted after step 2", "interrupted"),
        history=cut,
    )
    entry = build_report.summarise_runs("DECOR ring", 5.0, [stopped, runs[1]])
    assert entry.steps == 2 and entry.stopped == "interrupted after step 2"
    assert entry.curve.rows["loss"][0] == (*cut["loss"], None, None)
    assert entry.spent == runs[1].guarantee.epsilon
    alone = build_report.summarise_runs("DECOR ring", 5.0, [stopped])
    assert alone.spent == stopped.guarantee.epsilon == entry.spent
    assert "the whole plan's; stopped after 2 of 6 steps" in alone.guarantee


def test_a_run_that_diverged_has_no_last_value(runs):
    history = runs[0].history | {"loss": [1.0, 2.0, 3.0, math.nan]}
    broken = replace(runs[0], stopped=StopReason("diverged", "diverged"), history=history)
    entry = build_report.summarise_runs("DECOR ring", 5.0, [broken, runs[1]])
    assert entry.final["accuracy"][0] is None and entry.final["accuracy"][1] is not None
    read_back(build_report.report_of_runs([("a", broken)]))


def read_back(data):
    """The report by way of its file."""
    again = Report.from_json(json.loads(json.dumps(data.to_json(), allow_nan=False)))
    assert again == data
    return again


def test_runs_of_every_kind_are_named_for_what_they_are(runs):
    exposure, budget = decor.Exposure(clip=1.0, steps=6), decor.Budget(5.0, 1e-5)
    plans = {
        "decor": runs[0].plan,
        "central": decor.baselines.central(decor.ring(4), exposure, budget),
        "local": decor.baselines.local(decor.ring(4), exposure, budget),
        "none": decor.NoisePlan(decor.ring(4), exposure, decor.Adversary.eavesdropper(), 0.0, 0.0),
    }
    data = build_report.report_of_runs(
        [(kind, replace(runs[0], plan=plan)) for kind, plan in plans.items()]
    )
    read_back(data)
    assert [method.kind for method in data.methods] == list(plans)
    found = {entry.method: entry for entry in data.outcomes}
    assert (
        "central DP, not SecLDP" in found["central"].guarantee and found["none"].guarantee is None
    )
    assert found["none"].epsilon is None and found["local"].epsilon == 5.0


def test_a_plan_with_less_noise_than_its_budget_needs_says_what_it_cost(runs):
    less = replace(
        runs[0].plan, sigma_cdp=runs[0].plan.sigma_cdp / 10, sigma_cor=runs[0].plan.sigma_cor / 10
    )
    for plan in (less, runs[0].plan.scaled(0.1)):
        (entry,) = build_report.report_of_runs([("a", replace(runs[0], plan=plan))]).outcomes
        assert entry.epsilon == entry.spent > 20, "never the budget that it no longer meets"
    assert (
        runs[0].plan.scaled(0.1).budget is None
        and runs[0].plan.scaled(2.0).budget == runs[0].plan.budget
    )


def test_runs_of_different_tasks_are_not_drawn_together(runs):
    other = replace(runs[0], manifest=runs[0].manifest | {"task": {"name": "digits"}})
    with pytest.raises(decor.InputError, match="different tasks .breast-cancer, digits."):
        build_report.report_of_runs([("a", runs[0]), ("b", other)])


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


def key_figures(data):
    return Panels(data, Choice.first(data)).key_figures()


def test_a_report_of_real_peers_speaks_of_their_secrets_and_of_no_seed(runs):
    own = decor.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)])
    named = [("bonn", by_peers(runs[0], own)), ("ulm", by_peers(runs[1], own))]
    data = build_report.report_of_runs(named)
    page = report.page(data)
    assert data.graphs[0].name == "the federation's graph"
    assert "on the federation's graph, and" in data.methods[0].sentence
    assert sum("drew from its own operating system" in note for note in data.notes) == 1
    assert not any("This is a simulation" in n or "training loss" in n for n in data.notes)
    assert ">seeds</th>" not in page and "over seeds" not in page and "by real peers" in page
    assert "one run of real peers" in key_figures(data)


def test_a_report_of_a_simulation_speaks_of_its_seed_and_names_its_graph(runs):
    data = build_report.report_of_runs([("run", runs[0])])
    page = report.page(data)
    for words in ("This is a simulation", "training loss"):
        assert any(words in note for note in data.notes)
    assert "on the graph 'ring(4)', and" in data.methods[0].sentence
    assert ">1 seed<" in key_figures(data) and ">seeds</th>" in page
    assert "real peers" not in page and "Simulation with a known seed" in page
    assert data.outcomes[0].simulated is True


def test_a_graph_without_a_name_is_the_runs_own(runs):
    topology = decor.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    own = replace(runs[0], plan=replace(runs[0].plan, topology=topology))
    method = build_report.report_of_runs([("run", own)]).methods[0]
    assert "on its own graph, and" in method.sentence


def test_a_private_run_is_no_simulation(runs):
    on_grid = {"seed": "secret", "noise": {"kind": "grid", "distance": 1e-25}}
    secret = replace(runs[0], manifest=runs[0].manifest | on_grid)
    data = build_report.report_of_runs([("run", secret)])
    page = report.page(data)
    assert not any("This is a simulation" in note for note in data.notes)
    assert ">secret</td>" in page and "Simulation with a known" not in page
    assert ">1 private run<" in key_figures(data) and data.outcomes[0].simulated is False


def test_a_report_of_both_says_which_is_which(runs):
    named = [("simulated", runs[0]), ("deployed", by_peers(runs[1]))]
    data = build_report.report_of_runs(named)
    assert sum("seed" in note for note in data.notes) == 2
    page = report.page(data)
    assert ">0</td>" in page and ">none: real peers</td>" in page


def test_what_guessing_reaches_stands_beside_runs_on_the_same_test_data(runs):
    other = replace(runs[1], manifest=runs[1].manifest | {"base_rate": 0.9})
    old = replace(runs[1], manifest={**runs[1].manifest, "base_rate": None})
    same = build_report.report_of_runs([("a", runs[0]), ("b", runs[1])])
    assert same.base_rate == decor.tasks.breast_cancer(users=4).base_rate > 0.5
    for third in (other, old):
        mixed = build_report.report_of_runs([("a", runs[0]), ("b", third)])
        assert mixed.base_rate is None


def test_options_are_words_and_count_all_users(runs):
    recipe = runs[0].manifest["recipe"] | {
        "gossip": {"rounds": 4, "accelerate": "designed"},
        "final_gossip": {"rounds": 0, "accelerate": True},
        "schedule": {"name": "Cosine", "final": 0.1},
    }
    # a peer has the data of one user, and says so
    task = {"name": "sick", "users": 1, "parameters": 1234}
    peer = by_peers(runs[0])
    run = replace(peer, manifest=peer.manifest | {"recipe": recipe, "task": task})
    data = build_report.report_of_runs([("bonn", run)])
    page = report.page(data)
    for name, value in (
        ("users", "4"),
        ("task", "sick"),
        ("parameters", "1,234"),
        ("gossip", "4 designed rounds"),
        ("schedule", "Cosine, final 0.1"),
        ("engine", "peers"),
    ):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page
    assert "final_gossip" not in data.repeat.options and "{&quot;" not in page
    odd = replace(run, manifest=run.manifest | {"recipe": {"gossip": 7}, "engine": []})
    assert build_report.report_of_runs([("a", odd)]).repeat.options["gossip"] == "7"


def test_a_run_that_was_measured_once_has_no_curve(runs):
    once = build_report.report_of_runs([("bonn", by_peers(runs[0]))])
    assert Panels(once, Choice.first(once)).curves() == "" and "Over the steps" not in report.page(
        once
    )
    # a comparison with a run that has a curve shows it
    both = build_report.report_of_runs([("bonn", by_peers(runs[0])), ("here", runs[1])])
    assert "<svg" in Panels(both, Choice.first(both)).curves()


def test_runs_are_signed_with_each_digest_once(runs):
    federation = "ab" * 32
    one = replace(runs[0], manifest=runs[0].manifest | {"federation": federation})
    other = replace(runs[1], plan=runs[1].plan.scaled(2.0))
    data = build_report.report_of_runs(
        [("a", one), ("b", runs[1]), ("c", other)], "me", "2026-11-19"
    )
    assert data.signing.digests == (
        ("plan of a, b", one.plan.digest),
        ("federation of a", federation),
        ("plan of c", other.plan.digest),
    )
    assert (data.signing.owner, data.signing.date) == ("me", "2026-11-19")
    read_back(data)
