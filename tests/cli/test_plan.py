"""`decor plan` answers as the library does."""

import json
from pathlib import Path

import networkx as nx
import pytest

import decor
from decor import Adversary, Budget, Exposure
from decor.privacy.edge_advice import best_edges

from .commands import run

EXPOSURE, BUDGET = Exposure(1.0, 1000), Budget(3.0, 1e-5)


def test_plan_answers_as_the_library_does():
    line = "plan --topology torus --users 16 --epsilon 3 --adversary curious --json"
    answer = json.loads(run(*line.split()).stdout)
    plan = decor.calibrate(decor.torus(4, 4), EXPOSURE, Adversary.curious(), BUDGET)
    guarantee = plan.guarantee()
    assert (answer["sigma_cdp"], answer["sigma_cor"]) == (plan.sigma_cdp, plan.sigma_cor)
    assert answer["epsilon"] == guarantee.epsilon and answer["exact"] is True
    assert answer["per_user_epsilon"] == guarantee.per_user.tolist()
    assert answer["delta"] == 1e-5 and answer["adversary"] == "curious"
    assert answer["worst_user"] == guarantee.worst_user
    assert answer["worst_coalition"] == list(guarantee.worst_coalition)


def test_tables_show_noise_guarantee_adversaries_and_baselines(here):
    out = here("plan", "--epsilon", 3).stdout
    assert "sigma_cdp" in out and "sigma_cor" in out and "(3, 1e-05)-SecLDP over 1,000 steps" in out
    assert all(name in out for name in ("eavesdropper", "curious", "everyone"))
    assert "central DP" in out and "local DP" in out
    assert max(map(len, out.splitlines())) < 200


def test_gossip_changes_the_default_noise_pair_and_the_errors_but_no_epsilon(here, ask):
    answer = ask("plan --epsilon 3 --gossip-rounds 8 --accelerate")
    setting = decor.ring(16), EXPOSURE, Adversary.curious(), BUDGET
    plan = decor.calibrate(*setting, gossip_rounds=8, accelerate=True)
    assert (answer["sigma_cdp"], answer["sigma_cor"]) == (plan.sigma_cdp, plan.sigma_cor)
    fixed = "plan --epsilon 3 --ratio 200 --gossip-rounds".split()
    one, eight = (here(*fixed, rounds).stdout.split("Other noise pairs") for rounds in (1, 8))
    assert one[0] == eight[0], "a fixed noise pair and its epsilons"
    assert one[1] != eight[1] and "ratio 1000" in eight[1], "the predicted errors"


def test_the_default_adversary_is_a_curious_user(here, ask):
    for line in ("plan --epsilon 3", "account --sigma-cdp 9 --sigma-cor 9"):
        assert ask(line)["adversary"] == "curious"
    alone = here(*"plan --epsilon 3 --topology path --users 1".split(), check=2).stderr
    assert "choose eavesdropper or everyone" in alone


def test_noise_by_edge_comes_with_its_edges(ask, tmp_path):
    path = tmp_path / "ba.gml"
    nx.write_gml(nx.barabasi_albert_graph(12, 2, seed=1), path)
    answer = ask("plan --epsilon 3 --edges optimal --graph", path)
    assert len(answer["sigma_cor"]) == len(answer["edges"]) == 20 and answer["epsilon"] <= 3.0


def test_own_noise_per_user_says_who_pays(here, ask, tmp_path):
    path = tmp_path / "bank.txt"
    pairs = [*nx.circulant_graph(9, [1, 2]).edges, (2, 9), (6, 9)]
    path.write_text("".join(f"branch{a} branch{b}\n" for a, b in pairs))
    line = f"plan --epsilon 3 --adversary colluding:2 --own per-user --graph {path}"
    plan, rows = tmp_path / "plan.json", tmp_path / "users.csv"
    out = here(*line.split(), "--save", plan, "--table", rows).stdout
    assert "Who pays: branch9 " in out and "times the usual own noise" in out
    assert "Warning" not in out and "sigma_cdp  epsilon" in out
    # training by default takes the rounds that the noise was made for
    (row,) = (text.split() for text in out.splitlines() if text.endswith("  auto"))
    (own,) = (text.split() for text in out.splitlines() if "this plan " in text[:12])
    assert row[1] == own[-1] and float(own[-1]) < 3 and int(row[0]) > 1
    answer = ask(line)
    by_user = {each["user"]: each["sigma_cdp"] for each in answer["per_user"]}
    assert max(by_user, key=by_user.get) == "branch9" and answer["epsilon"] <= 3.0
    assert list(by_user.values()) == pytest.approx(answer["sigma_cdp"])
    assert "sigma_cdp" in rows.read_text().splitlines()[0]
    # the saved plan is accounted with the levels of its users
    assert ask("account --plan", plan)["epsilon"] == pytest.approx(answer["epsilon"], rel=1e-9)


def test_the_best_edges_to_add_are_those_of_the_library(here, ask):
    line = (
        "plan --epsilon 3 --topology path --users 8 --adversary eavesdropper --best-edges 2 "
        "--gossip-rounds 1"
    )
    out, answer = here(*line.split()).stdout, ask(line)
    expected = best_edges(decor.path(8), EXPOSURE, Adversary.eavesdropper(), BUDGET, 2)
    assert answer["best_edges"] == expected.to_json() and str(expected) in out
    assert [each["users"] for each in answer["best_edges"]][0] == [
        str(user) for user in expected.edges[0].pair
    ]


def test_a_fragile_graph_gets_a_warning(here, ask):
    out = here(*"plan --epsilon 3 --adversary colluding:2".split()).stdout
    assert "Warning: 16 users on ring(16), against" in out and "can isolate user 0" in out
    assert "Give every user at least 4 neighbours, or plan for curious" in out
    answer = ask("plan --epsilon 3 --adversary colluding:2")
    assert len(answer["warnings"]) == 1 and answer["sigma_cor"] == 0


def test_a_large_delta_is_refused_before_anything_is_made_unless_it_is_allowed(here, ask):
    answer = ask("plan --epsilon 3 --delta 1/100000")
    assert answer["delta"] == 1e-5 and answer["expected_failures"] == pytest.approx(16e-5)
    train = "train --task digits --learning-rate 1 --output x"
    for line in ("plan", "compare --output y", "audit", train):
        wrong = here(*line.split(), "--epsilon", 3, "--delta", "1/40", check=2).stderr
        assert "delta 0.025 is too large for 16 users: at most 0.001" in wrong
        assert "1e-05" in wrong and "--any-delta" in wrong
    assert not Path("x").exists() and not Path("y").exists()
    large = ask("plan --epsilon 3 --delta 0.5 --any-delta")
    assert large["delta"] == 0.5 and large["expected_failures"] == 8
    assert ask("account --sigma-cdp 9 --sigma-cor 9 --delta 0.5")["delta"] == 0.5


def test_the_command_says_how_it_read_a_graph_and_skips_its_header(here, tmp_path):
    (tmp_path / "bank.csv").write_text("Von;Nach;Mbit/s\n" + "a b;c;1,5\nc;d;2\nd;a b;3\n")
    done = here("plan", "--graph", tmp_path / "bank.csv", "--epsilon", 3, "--json")
    said = "3 users, 3 edges; separator: semicolon; header skipped: 'Von;Nach;Mbit/s'"
    assert said in done.stderr and json.loads(done.stdout)["labels"] == ["a b", "c", "d"]


def test_users_of_unequal_size_sample_at_a_common_rate_and_no_number_is_saved(here, tmp_path):
    line = "plan --epsilon 3 --users 4 --steps 200 --unit example --rate 0.02".split()
    counts = ("--weighting", "records", "--records", "5,2000,300,40")
    done = here(*line, *counts, "--save", tmp_path / "plan.json")
    assert "Largest local step: 3.334 clips in an expected batch (user 1, 2,000" in done.stdout
    assert "added or removed" in done.stdout and "2000" not in (tmp_path / "plan.json").read_text()
    declared = json.loads(here(*line, "--batch-size", 12, "--json").stdout)
    assert declared["sigma_cdp"] == decor.NoisePlan.load(tmp_path / "plan.json").sigma_cdp
    assert len(set(declared["per_user_epsilon"])) == 1
    account = here("account", "--plan", tmp_path / "plan.json")
    assert "added or removed" in account.stdout


def test_the_steps_that_a_budget_pays_for_are_those_of_the_library(here, ask, tmp_path):
    line = "plan --solve steps --sigma-cdp 30 --sigma-cor 90 --epsilon 3 --users 8"
    answer = ask(line)
    again = ask("plan --solve steps --sigma-cdp 30 --ratio 9 --epsilon 3 --users 8")
    assert answer["steps"] == again["steps"] and 0.99 * 3 <= answer["epsilon"] <= 3
    plan = decor.NoisePlan(
        decor.ring(8), Exposure(1.0, answer["steps"] + 1), Adversary.curious(), 30.0, 90.0
    )
    assert plan.guarantee(BUDGET.accounted.delta).epsilon > 3
    out = here(*line.split(), "--save", tmp_path / "plan.json").stdout
    assert f"pays for {answer['steps']} steps" in out
    assert decor.NoisePlan.load(tmp_path / "plan.json").exposure.steps == answer["steps"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--solve epsilon", "solves for steps"),
        ("--solve steps --steps 10 --sigma-cdp 3 --ratio 1", "drop --steps"),
        ("--solve steps --sigma-cdp 3", "needs the noise"),
        ("--solve steps --sigma-cdp 3 --sigma-cor 1 --ratio 1", "needs the noise"),
        ("--solve steps --sigma-cdp 0.01 --sigma-cor 1", "one step with this noise costs"),
    ],
)
def test_a_question_about_steps_that_makes_no_sense_is_refused(here, more, said):
    assert said in here("plan", "--epsilon", 3, *more.split(), check=2).stderr


def test_auto_rounds_are_said_and_are_those_of_the_library(here, ask):
    answer = ask("plan --epsilon 3 --steps 50 --gossip-rounds auto")
    ring, exposure = decor.ring(16), Exposure(1.0, 50)
    plan = decor.calibrate(ring, exposure, Adversary.curious(), BUDGET, gossip_rounds="auto")
    assert answer["gossip_rounds"] == decor.gossip_for(plan).rounds
    assert (answer["sigma_cdp"], answer["sigma_cor"]) == (plan.sigma_cdp, plan.sigma_cor)
    out = here(*"plan --epsilon 3 --steps 50 --gossip-rounds auto".split()).stdout
    row = next(line.split() for line in out.splitlines() if line.endswith("auto"))
    rounds = answer["gossip_rounds"]
    assert row[0] == str(rounds) and row[2:4] == [f"{50 * rounds:,}", f"{200 * rounds:,}"]
    assert "amplifies: such rounds enlarge what a missing neighbour leaves" in out
    refused = here(*"plan --epsilon 3 --gossip-rounds auto --accelerate".split(), check=2)
    assert "drop --accelerate" in refused.stderr
