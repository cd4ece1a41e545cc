"""`decor ledger`: what was spent, and what more runs cost."""

import json
from dataclasses import replace

import pytest
from ledgers import open_ledger

import decor
from decor.cli.main import main
from decor.privacy.composition import PastRun, Question, compose


@pytest.fixture
def ledger(tmp_path):
    """A file with one finished run of epsilon 1 and one that may go on."""
    plan = decor.calibrate(
        decor.complete(5), decor.Exposure(1.0, 10), decor.Adversary(1), decor.Budget(1.0, 1e-5)
    )
    held = {"name": "heart", "delta": 1e-5, "plan": json.loads(plan.to_json())}
    held |= {"number": 2, "distance": 1e-25}
    path = tmp_path / "bonn.ledger"
    with open_ledger(path) as made:
        for number in range(2):
            run = made.begin(bytes([number]) * 32, json.dumps(held))
            for step in range(10 - 7 * number):
                made.record(run, step, b"message")
        made.end(1, "finished")
    return path, plan


def output(capsys, *arguments):
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def test_four_runs_of_epsilon_one(capsys):
    said = output(capsys, "ledger", "afford", "--epsilon", 1, "--runs", 4)
    assert "4 runs of epsilon 1 cost epsilon 2.155 together" in said and "user" in said
    one = output(capsys, "ledger", "afford", "--epsilon", 1, "--runs", 1)
    assert "1 run of epsilon 1 cost epsilon 1 together" in one.replace("0.9999", "1")


def test_examples_cost_less_than_users(capsys):
    options = ["--unit", "example", "--batch-size", 64, "--records", 3750, "--steps", 100]
    said = output(capsys, "ledger", "afford", "--epsilon", 1, "--runs", 4, *options, "--json")
    answer = json.loads(said)
    assert (answer["unit"], answer["relation"]) == ("example", "add-remove")
    assert 1 < answer["epsilon"] < 2.155


def test_further_runs_are_added_to_those_of_a_ledger(capsys, ledger):
    path, plan = ledger
    said = output(capsys, "ledger", "afford", path, "--epsilon", 1, "--runs", 2, "--json")
    answer = json.loads(said)
    # the unfinished run counts with its whole plan: four runs of epsilon 1 in all
    assert answer["epsilon"] == pytest.approx(2.1545, abs=1e-3)
    assert answer["before"] == pytest.approx(
        compose([PastRun(plan)] * 2, Question(), 1e-5), rel=1e-3
    )
    # against everyone the ledger's runs cost more, further runs the same
    said = output(
        capsys, "ledger", "afford", path, *"--epsilon 1 --runs 2 --adversary everyone".split()
    )
    assert "with 2 more runs of epsilon 1" in said and "against everyone" in said
    assert float(said.split("together, and ")[1].split()[0]) > 3


def test_show_has_every_run_and_a_row_for_every_question(capsys, ledger):
    path, plan = ledger
    old, new = (output(capsys, "ledger", *more, path) for more in ([], ["show"]))
    assert old == new and "finished" in new
    rows = [line.split() for line in new.splitlines()]
    (total,) = [row for row in rows if row[:3] == ["user", "replace", "curious"]]
    assert float(total[4]) < float(total[3]) < 2
    told = json.loads(output(capsys, "ledger", "--json", path))
    assert [run["messages"] for run in told["runs"]] == [10, 3]
    assert told["runs"][1]["epsilon"] < told["runs"][1]["promised"] <= 1
    (total,) = told["totals"]
    half = replace(PastRun(plan, 2), steps_made=3, whole_plan=False)
    assert total["delta"] == 1e-5
    assert total["so_far"] == pytest.approx(
        compose([PastRun(plan, 2), half], Question(), 0.999e-5), rel=1e-9
    )
    (smaller,) = json.loads(output(capsys, "ledger", path, "--delta", 1e-9, "--json"))["totals"]
    assert smaller["delta"] == 1e-9 and smaller["epsilon"] > total["epsilon"]


def test_an_empty_ledger_has_spent_nothing(capsys, tmp_path):
    open_ledger(tmp_path / "new.ledger").close()
    assert "has spent nothing" in output(capsys, "ledger", "show", tmp_path / "new.ledger")


def test_a_ledger_is_neither_made_nor_changed(capsys, ledger, tmp_path):
    path, _ = ledger
    before = path.read_bytes()
    output(capsys, "ledger", path)
    assert path.read_bytes() == before
    assert main(["ledger", "show", str(tmp_path / "none.ledger")]) == 2
    assert "there is no ledger" in capsys.readouterr().err
    assert not (tmp_path / "none.ledger").exists()


@pytest.mark.parametrize("wrong", ["--runs 0 --epsilon 1", "--runs 2 --epsilon 0", "--runs 2"])
def test_mistakes_are_one_sentence(capsys, wrong):
    try:
        code = main(["ledger", "afford", *wrong.split()])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code == 2 and said.count("\n") == 1, said


def test_show_says_what_an_infinite_total_means(capsys, tmp_path, ledger):
    assert "no bound is proven" not in output(capsys, "ledger", "show", ledger[0])
    held = {"name": "heart", "delta": 1e-5, "plan": json.loads(ledger[1].to_json())}
    # noise tables so far from a Gaussian that they take all of delta
    held |= {"number": 2, "distance": 1e-4}
    with open_ledger(tmp_path / "ulm.ledger") as made:
        made.record(made.begin(bytes(32), json.dumps(held)), 0, b"message")
    said = output(capsys, "ledger", "show", tmp_path / "ulm.ledger")
    assert "∞" in said and "∞: no bound is proven." in said
