"""`decor ledger show` and `afford`: what was spent, and what more runs cost."""

import json
import re
import sqlite3
from contextlib import closing
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


@pytest.mark.parametrize("command", ["ledger show", "ledger afford --epsilon 1 --runs 1", "status"])
def test_a_ledger_of_a_newer_version_is_not_read_as_if_it_were_known(capsys, ledger, command):
    path, _ = ledger
    with closing(sqlite3.connect(path)) as db:
        # with a cost that this version does not know
        db.execute("ALTER TABLE runs ADD COLUMN doubled INTEGER NOT NULL DEFAULT 1")
        db.execute("UPDATE facts SET value = 'decor-ledger-3' WHERE name = 'format'")
        db.commit()
    assert main([*command.split(), str(path)]) == 2
    said = capsys.readouterr()
    assert (
        "is a ledger of another version (decor-ledger-3); use the decor that wrote it" in said.err
    )
    assert said.out == "" and len(said.err.splitlines()) == 1


@pytest.mark.parametrize("wrong", ["--runs 0 --epsilon 1", "--runs 2 --epsilon 0", "--runs 2"])
def test_mistakes_are_one_sentence(capsys, wrong):
    try:
        code = main(["ledger", "afford", *wrong.split()])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code == 2 and said.count("\n") == 1, said


def begin_run(path, plan, name="heart", distance=1e-30):
    """A ledger that has a run of this plan, with one message."""
    held = {"name": name, "delta": 1e-5, "plan": json.loads(plan.to_json())}
    held |= {"number": 2, "distance": distance}
    with open_ledger(path) as made:
        run = made.begin(name.encode().ljust(32), json.dumps(held))
        made.record(run, 0, b"message")
    return path


def why_infinite(capsys, path, *more):
    """The sentences that say why a figure is infinite."""
    said = output(capsys, "ledger", "show", path, *more)
    rows = [line for line in said.splitlines() if line.endswith("∞")]
    reasons = [line for line in said.splitlines() if line.startswith("∞: ")]
    assert bool(rows) == bool(reasons), said
    return reasons


def test_noise_tables_that_take_all_of_delta_are_named(capsys, tmp_path, ledger):
    assert why_infinite(capsys, ledger[0]) == []
    path = begin_run(tmp_path / "ulm.ledger", ledger[1], distance=1e-4)
    (reason,) = why_infinite(capsys, path)
    assert "the noise tables take all of delta (heart). Ask with a larger --delta." in reason
    # what it advises is a way out
    assert why_infinite(capsys, path, "--delta", 0.01) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"batch_size": 64, "records": 3750}, "the noise alone would give epsilon .*e.06, and at"),
        ({"batch_size": 64, "rate": 0.02}, "how many examples a user has is private there"),
    ],
)
def test_a_run_that_protects_examples_does_not_bound_a_user_and_says_what_to_ask(
    capsys, tmp_path, ledger, more, why
):
    exposure = decor.Exposure(1.0, 200, unit="example", **more)
    plan = decor.calibrate(
        decor.ring(5), exposure, decor.Adversary.curious(), decor.Budget(3, 1e-5)
    )
    path = begin_run(tmp_path / "ulm.ledger", plan)
    # another run, which does protect users, is not to blame
    begin_run(path, ledger[1], "lung")
    (reason,) = why_infinite(capsys, path)
    assert re.match(f"∞: heart protects one example, and all examples of a user .*{why}", reason)
    assert "lung" not in reason
    assert reason.endswith(
        'Ask about one example; all data of a user are protected in federations with unit = "user".'
    )
    # the question that it advises has an answer
    told = json.loads(output(capsys, "ledger", "show", path, "--json"))["totals"]
    finite = [total["unit"] for total in told if total["epsilon"] != "inf"]
    assert finite == ["example"] and len(told) == 2
    said = output(capsys, "ledger", "afford", path, *"--epsilon 1 --runs 2".split())
    assert reason in said
    begin_run(path, plan, "heart-2")
    (two,) = why_infinite(capsys, path)
    assert two.startswith("∞: heart, heart-2 protect one example, and")
