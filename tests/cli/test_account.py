"""`decor account` gives the epsilon of given noise and of saved plans."""

import json

import decor
from decor import Adversary

from .commands import run


def test_account_gives_the_epsilon_that_plan_was_asked_for():
    line = "plan --topology ring --users 16 --epsilon 2.5 --steps 300 --json"
    plan = json.loads(run(*line.split()).stdout)
    noise = ["--sigma-cdp", plan["sigma_cdp"], "--sigma-cor", plan["sigma_cor"]]
    line = "account --users 16 --steps 300 --delta 1e-5 --json"
    account = json.loads(run(*line.split(), *noise).stdout)
    assert account["epsilon"] == plan["epsilon"] and account["sigma_cdp"] == plan["sigma_cdp"]
    assert set(plan) == {*account, "gossip_rounds"}, "which change no epsilon"


def test_options_that_a_saved_plan_sets_are_refused(here, ask, tmp_path):
    file = tmp_path / "plan.json"
    plan = ask("plan --epsilon 1 --edges optimal --topology grid --save", file)
    assert len(plan["sigma_cor"]) == len(plan["edges"])
    assert ask("account --plan", file)["epsilon"] == plan["epsilon"]
    options = ("--sigma-cdp", "--steps", "--users", "--clip", "--graph", "--unit", "--records")
    for option in options:
        assert f"drop {option}" in here("account", "--plan", file, option, 9, check=2).stderr


def test_a_saved_plan_has_its_own_delta_and_adversary_unless_others_are_given(here, ask, tmp_path):
    file = tmp_path / "plan.json"
    here(*"plan --epsilon 1 --delta 1e-9 --save".split(), file)
    own = ask("account --plan", file)
    assert own["delta"] == 1e-9 and 0.999 < own["epsilon"] <= 1.0 and own["adversary"] == "curious"
    other = ask("account --adversary everyone --delta 1e-5 --plan", file)
    assert other["delta"] == 1e-5 and other["adversary"] == "everyone"
    expected = decor.NoisePlan.load(file).guarantee(1e-5, Adversary.everyone()).epsilon
    assert other["epsilon"] == expected > 1.5


def test_infinity_is_a_json_string(ask):
    answer = ask("account --sigma-cdp 0 --sigma-cor 5")
    assert answer["epsilon"] == "inf" and answer["per_user_epsilon"] == ["inf"] * 16
