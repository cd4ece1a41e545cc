"""`decor report`: saved runs side by side, and plans, federation files and ledgers to sign."""

import hashlib
import html
import json
import re
from dataclasses import replace

import pytest
from ledgers import open_ledger

import decor
from decor.cli.main import main
from decor.federation.federation import Federation, Model
from decor.learning.columns import CategoryColumn, Label, NumberColumn, Preparation
from decor.learning.model_code import hash_source
from decor.net.identity import line_of
from decor.net.ledger import Ledger
from decor.text import rounded_up

from .commands import TRAIN

MODEL = """
def make():
    import torch
    return torch.nn.Linear(30, 2), torch.nn.functional.cross_entropy
"""


def test_report_shows_saved_runs_side_by_side(here, tmp_path):
    runs = []
    for epsilon in (3, 30):
        runs.append(tmp_path / f"run-{epsilon}")
        here(*TRAIN, "--epsilon", epsilon, "--output", runs[-1])
    out = here("report", *runs, "--output", tmp_path / "both.html").stdout
    assert "run-3" in out and "run-30" in out
    page = (tmp_path / "both.html").read_text()
    assert "run-30" in page and "(3, 1e-05)-SecLDP" in page


def test_runs_with_the_same_name_are_shown_by_their_paths(here, tmp_path):
    for folder in ("a", "b"):
        here(*TRAIN, "--output", f"{folder}/run")
    out = here("report", "a/run", "b/run").stdout
    assert "a/run" in out and "b/run" in out and (tmp_path / "report.html").exists()


def test_a_missing_run_is_named(here):
    assert "no-such-run" in here("report", "no-such-run", check=2).stderr


DAY = ("--owner", "Dr Weber", "--date", "2026-11-19")


def read(tmp_path, name="report.html"):
    return (tmp_path / name).read_text("utf-8")


def tables(page):
    """The body rows of every table, as texts."""
    bodies = re.findall(r"<tbody>(.*?)</tbody>", page, re.S)
    return [
        [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr>.*?</tr>", body)]
        for body in bodies
    ]


def test_runs_are_signed_by_their_digests_and_say_how_they_were_made_in_words(here, tmp_path):
    here(*TRAIN, "--output", tmp_path / "run")
    here("report", "run", *DAY)
    page = read(tmp_path)
    digest = hashlib.sha256((tmp_path / "run" / "plan.json").read_bytes()).hexdigest()
    assert f"<dt>plan</dt><dd>{digest}</dd>" in page and "<dt>federation</dt>" not in page
    assert "<td>Dr Weber</td><td>owner</td>" in page and "<dd>2026-11-19</dd>" in page
    # a run does not know the command that made it, and this one makes only its page
    assert "How it was made" in page and "Repeat this" not in page and "decor report" not in page
    assert "<dt>users</dt><dd>16</dd>" in page and "<dt>gossip</dt><dd>" in page
    assert "{&quot;" not in page


def test_a_plan_is_a_page_to_sign(here, tmp_path, ask):
    here("plan", "--users", 8, "--epsilon", 3, "--save", "plan.json")
    said = here("report", "plan.json", *DAY).stdout
    page, answer = read(tmp_path), ask("account --plan plan.json")
    digest = hashlib.sha256((tmp_path / "plan.json").read_bytes()).hexdigest()
    for text in (said, page):
        assert answer["statement"] in text and digest in text
    assert "decor account --plan plan.json" in page and "Dr Weber" in page
    adversaries, users, signatures = tables(page)
    assert adversaries[1][:2] == ["any one curious user who reads every message", "3"]
    assert [row[0] for row in users] == [str(k) for k in range(8)] and len(signatures) == 3


def test_a_plan_is_accounted_at_the_delta_that_is_asked_for(here, tmp_path, ask):
    here("plan", "--users", 8, "--epsilon", 3, "--save", "plan.json")
    data = ask("report plan.json --delta 1e-7 --output p.html")
    assert data["promise"] == [ask("account --plan plan.json --delta 1e-7")["statement"]]
    assert "--delta 1e-07" in data["signing"]["check"] and data["written"]["report"] == "p.html"
    # noise that was given by hand names no delta
    plan = decor.NoisePlan(decor.ring(4), decor.Exposure(1.0, 5), decor.Adversary(1), 9.0, 9.0)
    plan.save(tmp_path / "own.json")
    assert "give --delta, such as 1e-5" in here("report", "own.json", check=2).stderr
    here("report", "own.json", "--delta", "1e-5")


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A federation that has run, with its ledgers and run folders."""
    folder = tmp_path_factory.mktemp("trial") / "t"
    new = f"federation new --task breast-cancer --users 3 --steps 4 --epsilon 8 --output {folder}"
    assert main([*new.split(), "--topology", "complete"]) == 0
    assert main(["up", str(folder / "federation.toml")]) == 0
    return folder


def test_a_federation_file_is_a_page_to_sign(here, tmp_path, ask, trial):
    file = trial / "federation.toml"
    here("report", file, *DAY)
    page, facts = read(tmp_path), ask(f"federation check {file}")
    for text in (facts["statement"], facts["digest"], f"decor federation check {file}"):
        assert html.escape(text) in page
    adversaries, users, _ = tables(page)
    epsilons = [rounded_up(row["epsilon"]) for row in facts["adversaries"]]
    assert [row[1] for row in adversaries] == epsilons
    assert [row[0] for row in users] == [user["name"] for user in facts["users"]]
    assert [row[-1] for row in users] == [rounded_up(user["epsilon"]) for user in facts["users"]]
    assert f"<dd>{facts['parameters']:,}</dd>" in page and "logistic: 30 features" in page


def test_a_federation_of_tables_says_which_columns_become_public(here, tmp_path, trial):
    columns = [NumberColumn("age <years>", 0, 120), CategoryColumn("ward", ["a", "b"])]
    data = Preparation(columns, Label("ill", ["no", "yes"]))
    federation = Federation.read(trial / "federation.toml")
    # one input for the age, and three for the ward
    own = replace(federation, data=data, model=Model(kind="logistic", features=4))
    (tmp_path / "tables.toml").write_text(own.to_toml())
    here("report", "tables.toml")
    assert tables(read(tmp_path))[2] == [
        ["age &lt;years&gt;", "a number from 0 to 120"],
        ["ward", "one of a, b, or other"],
        ["ill", "the label: one of no, yes"],
    ]


def test_code_of_a_federation_file_is_not_run(here, tmp_path, trial, monkeypatch):
    code = "import pathlib\npathlib.Path('ran').touch()\n" + MODEL
    (tmp_path / "own_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    federation = Federation.read(trial / "federation.toml")
    model = Model(code="own_model:make", code_sha256=hash_source("own_model:make"))
    named = replace(federation, model=model, data=None, run_code=False)
    (tmp_path / "code.toml").write_text(named.to_toml())
    here("report", "code.toml")
    page = read(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert "The code installed here is the file" in page and "unknown: its code was not run" in page
    adversaries = tables(page)[0]
    # against more than was planned for, epsilon needs the size
    assert [row[1] for row in adversaries][-1] == "unknown" and adversaries[1][1] == "8"
    here("report", "code.toml", "--trust-code")
    assert (tmp_path / "ran").exists() and ">unknown<" not in read(tmp_path)


def test_a_ledger_is_a_page_to_sign(here, tmp_path, ask, trial):
    path = next((trial / "run").glob("*.ledger"))
    here("report", path, *DAY)
    page, shown = read(tmp_path), ask(f"ledger show {path}")
    (run,), (total,) = shown["runs"], shown["totals"]
    with Ledger(path) as ledger:
        assert ledger.id in page and line_of(ledger.facts.identities[0]) in page
    assert run["federation"] in page and f"decor ledger show {path}" in page
    sums, runs, _ = tables(page)
    who = decor.Adversary.parse(total["adversary"]).sentence
    epsilon = rounded_up(total["epsilon"])
    assert sums == [[who, "all data of one user", epsilon, rounded_up(total["so_far"])]]
    assert f"is at most {epsilon}, at delta 1e-05, for all data of one user, against {who}." in page
    (row,) = runs
    assert row[0] == f"1: {run['name']}" and row[1] == path.stem and row[2] == "4"
    assert row[3] == rounded_up(run["promised"]) and row[-1] == "finished"


def test_a_run_that_has_not_ended_counts_with_its_whole_plan(here, tmp_path, ask):
    plan = decor.calibrate(
        decor.complete(5), decor.Exposure(1.0, 10), decor.Adversary(1), decor.Budget(1.0, 1e-5)
    )
    held = {"name": "heart", "delta": 1e-5, "plan": json.loads(plan.to_json()), "distance": 1e-25}
    with open_ledger(tmp_path / "bonn.ledger") as made:
        made.record(made.begin(bytes(32), json.dumps(held)), 0, b"message")
    here("report", "bonn.ledger")
    page = read(tmp_path)
    assert "is at most 1, at delta 1e-05" in page.replace("0.9999", "1")
    assert "counts with its whole plan" in page and "not ended" in page
    sums, (row,), _ = tables(page)
    assert float(sums[0][3]) < 0.5 < float(sums[0][2]) <= 1 and float(row[3]) == float(sums[0][2])
    # the worst user counts where the ledger does not say which it is
    assert row[1] == "–"


def test_a_ledger_without_runs_has_spent_nothing(here, tmp_path):
    open_ledger(tmp_path / "new.ledger").close()
    said = here("report", "new.ledger").stdout
    assert "This user's data has spent nothing." in said and len(tables(read(tmp_path))) == 1


def test_a_total_without_a_bound_is_no_number(here, tmp_path):
    exposure = decor.Exposure(1.0, 5, "example", batch_size=8, rate=0.2)
    plan = decor.calibrate(decor.complete(5), exposure, decor.Adversary(1), decor.Budget(1.0, 1e-5))
    held = {"name": "heart", "delta": 1e-5, "plan": json.loads(plan.to_json()), "distance": 0.0}
    with open_ledger(tmp_path / "bonn.ledger") as made:
        made.record(made.begin(bytes(32), json.dumps(held)), 0, b"message")
    here("report", "bonn.ledger")
    page = read(tmp_path)
    assert "has no finite bound, for all data of one user" in page
    assert "∞: heart protects one example" in page and [row[2] for row in tables(page)[0]][0] == "∞"


def test_runs_of_real_peers_name_their_federation(here, tmp_path, trial):
    runs = sorted(path.parent for path in (trial / "run").glob("*/manifest.json"))
    here("report", *runs)
    digest = Federation.read(trial / "federation.toml").digest.hex()
    page = read(tmp_path)
    # the same for all of them: it stands there once, and without their names
    assert page.count(f"<dt>federation</dt><dd>{digest}</dd>") == 1
    # measured once, at the end: a curve of one point says nothing
    assert "Over the steps" not in page
    assert "<dt>users</dt><dd>3</dd>" in page


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["task.toml"], "'task.toml', which is of format 'decor-task-1'; name a run's folder"),
        (["bonn.csv"], "'bonn.csv', which is neither plan nor ledger; name a run's folder"),
        (["other.json"], "'other.json' cannot be read: not a saved plan"),
        (["empty"], "is not a run folder"),
        (["nowhere.json"], "there is no 'nowhere.json'; name a run's folder"),
        (["plan.json", "plan.json"], "is a plan, which is signed by itself; name it alone"),
        (["empty", "plan.json"], "'plan.json' is a plan, which is signed by itself"),
        (["plan.json", "--trust-code"], "'plan.json' names no code; drop --trust-code"),
        (["plan.json", "--date", "soon"], "a day such as 2026-11-19, not 'soon'"),
        (["empty", "--delta", "1e-5"], "--delta is not for runs, which have their own; drop it"),
        (
            ["plan.json", "--output", "no/where.html"],
            "the report 'no/where.html' cannot be written",
        ),
        (["comparison", "--owner", "me"], "a comparison promises nothing to sign; drop --owner"),
    ],
)
def test_wrong_kinds_and_options_are_refused_in_one_sentence(here, tmp_path, arguments, named):
    (tmp_path / "task.toml").write_text('format = "decor-task-1"\n')
    (tmp_path / "bonn.csv").write_text("age,ill\n3,1\n")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "comparison").mkdir()
    (tmp_path / "comparison" / "report.json").write_text("{}")
    plan = decor.baselines.local(decor.ring(3), decor.Exposure(1.0, 5), decor.Budget(3.0, 1e-5))
    plan.save(tmp_path / "plan.json")
    assert named in here("report", *arguments, check=2).stderr
    assert not (tmp_path / "report.html").exists()


def test_a_federation_file_has_its_own_delta(here, trial):
    stderr = here("report", trial / "federation.toml", "--delta", "1e-5", check=2).stderr
    assert "sets delta for its users; drop --delta" in stderr
