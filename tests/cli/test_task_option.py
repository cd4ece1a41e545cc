"""`--task` takes a built-in name, a task's file or a function, in every command that has it."""

import json
import sys
from pathlib import Path

import pytest
from own_tables import BY_USER, EACH, FILE, ONE_FILE, PUBLIC, write_all

import decor
from decor.cli.main import parser
from decor.cli.task_option import TaskOption
from decor.errors import InputError
from decor.federation.federation import Federation
from decor.net.identity import Identity

SHORT = "--epsilon 10 --steps 3 --learning-rate 0.5".split()
MODULE = """
import decor

def fixed():
    task = decor.tasks.breast_cancer(users=("a", "b", "c"))
    return task

def free(users=4, seed=0):
    return decor.tasks.digits(users=users, seed=seed)

def wrong():
    return 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_all(tmp_path)
    (tmp_path / "task.toml").write_text(FILE + BY_USER + PUBLIC)
    (tmp_path / "own_functions.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_functions", None)


def test_train_takes_a_file(folder, ask):
    seen = ask("train --task task.toml --output run", *SHORT)
    assert 0 <= seen["metrics"]["accuracy"] <= 1
    run = decor.Run.load("run")
    assert (
        run.plan.topology.labels == ("bonn", "kiel", "ulm") and run.manifest["task"]["task_digest"]
    )
    # at example level the numbers of records are the data's
    line = "train --task task.toml --unit example --batch-size 8 --output run2"
    assert ask(line, *SHORT)["epsilon"] == pytest.approx(10, rel=1e-3)
    assert decor.Run.load("run2").plan.exposure.records == dict.fromkeys(
        ("bonn", "kiel", "ulm"), 40
    )


def test_train_takes_a_file_whose_records_are_split(folder, ask):
    table = (folder / "all.csv").read_text().splitlines()
    Path("all.csv").write_text("\n".join(line.partition(",")[2] for line in table))
    Path("task.toml").write_text(FILE + ONE_FILE)
    ask("train --task task.toml --users 5 --shards dirichlet --output run", *SHORT)
    assert decor.Run.load("run").plan.topology.users == 5


def test_train_takes_a_function(folder, ask, here):
    ask("train --task own_functions:fixed --output run", *SHORT)
    assert decor.Run.load("run").plan.topology.labels == ("a", "b", "c")
    ask("train --task own_functions:free --users 5 --output free", *SHORT)
    assert decor.Run.load("free").plan.topology.users == 5
    for name, problem in (
        ("own_functions:wrong", "must return a decor.Task, not int"),
        ("own_functions:none", "has no function 'none'"),
        ("own_nothing:none", "cannot be imported"),
        ("own", "there is no task named 'own'; there are least-squares"),
        ("none.toml", "cannot be read"),
    ):
        assert problem in here("train", "--task", name, *SHORT, "--output", "x", check=2).stderr


def test_another_number_of_users_than_the_tasks_is_refused(folder, here):
    for task in ("task.toml", "own_functions:fixed"):
        said = here(
            "train", "--task", task, "--users", "4", *SHORT, "--output", "x", check=2
        ).stderr
        assert f"the task {task} has 3 users, not 4; drop --users" in said


def test_users_are_matched_by_the_names_of_a_graphs_file(folder, ask):
    Path("graph.txt").write_text("ulm kiel\nkiel bonn\nbonn ulm\n")
    ask("train --task task.toml --graph graph.txt --output run", *SHORT)
    assert decor.Run.load("run").plan.topology.labels == ("ulm", "kiel", "bonn")
    Path("graph.txt").write_text("ulm kiel\nkiel rome\nrome ulm\n")
    line = ("train", "--task", "task.toml", "--graph", "graph.txt", *SHORT, "--output", "x")
    options = parser().parse_args(line)
    with pytest.raises(InputError, match="has nothing for rome"):
        options.run(options)


def test_compare_takes_a_file(folder, here):
    line = "compare --task task.toml --epsilon 10 --topology ring,complete --steps 3 --seeds 1"
    here(*line.split(), "--learning-rate", "0.5", "--output", "comparison")
    report = json.loads(Path("comparison/report.json").read_text())
    assert "heart" in json.dumps(report) and Path("comparison/report.html").exists()
    assert list(Path("comparison/figures").glob("*.png"))


def test_audit_takes_the_users_of_a_task(folder, ask):
    line = "audit --task task.toml --epsilon 3 --unit example --batch-size 8 --canaries 3000"
    seen = ask(f"{line} --audit-steps 2 --adversary eavesdropper")
    assert seen["passed"] and "3 users" in seen["topology"]


def test_federation_new_takes_a_file_for_a_trial(folder, here):
    here(*"federation new --task task.toml --epsilon 10 --output trial".split())
    federation = Federation.read("trial/federation.toml")
    assert [m.name for m in federation.members] == ["bonn", "kiel", "ulm"]
    assert federation.definition == TaskOption("task.toml").file.definition
    # users' tables as they are, prepared by nobody yet
    assert Path("trial/data/ulm.csv").read_text().startswith("age,dose,ward,sick\n")
    assert Path("trial/test.csv").exists()
    again = "federation new --task task.toml --epsilon 10 --overwrite --output trial"
    here(*again.split())
    said = here(*again.replace("10", "10 --users 4").split(), check=2).stderr
    assert "has 3 users, not 4; drop --users" in said


def test_at_example_level_a_trial_counts_records_with_and_without_a_label(folder, here):
    line = "federation new --task task.toml --unit example --batch-size 8 --epsilon 3 --output t"
    here(*line.split())
    assert [m.records for m in Federation.read("t/federation.toml").members] == [40, 40, 40]


def test_federation_new_takes_columns_and_model_of_a_file_for_users_with_keys(folder, here):
    options = []
    for name in ("rom", "pisa", "bari"):
        options += ["--user", f"{name},{name}.example.org:7400,{Identity.new().line}"]
    line = "federation new --task task.toml --name heart --epsilon 3 --output heart.toml"
    here(*line.split(), *options)
    federation = Federation.read("heart.toml")
    assert federation.data is not None and federation.model.features == 5
    assert (
        "both only with a task.toml"
        in here(*line.replace("task.toml", "digits").split(), *options, check=2).stderr
    )


def test_federation_new_takes_a_function_whose_model_a_file_can_name(folder, here):
    here(*"federation new --task own_functions:free --users 3 --epsilon 10 --output t".split())
    assert Federation.read("t/federation.toml").model.kind == "multinomial"


def test_the_hash_of_own_code_is_compared(folder, here):
    (folder / "own_model.py").write_text(
        "import decor\ndef make():\n    return decor.models.logistic(5), decor.losses.logistic\n"
    )
    code = 'code = "own_model:make"\ncode_sha256 = "' + "0" * 64 + '"'
    Path("task.toml").write_text(FILE.replace('kind = "logistic"', code) + EACH)
    said = here(*"federation new --task task.toml --epsilon 3 --output t".split(), check=2).stderr
    assert "install the version" in said and not Path("t").exists()
    Path("task.toml").write_text(
        FILE.replace('kind = "logistic"', 'code = "own_model:make"') + EACH
    )
    here(*"federation new --task task.toml --epsilon 3 --output t".split())
    federation = Federation.read("t/federation.toml", run_code=False)
    assert federation.model.code_sha256 is not None
    # reading the file runs nothing of it
    (folder / "own_model.py").write_text("raise SystemExit('this was imported')\n")
    here(*"federation check t/federation.toml".split())


def test_nothing_is_read_before_it_is_needed():
    assert TaskOption("none.toml").text == "none.toml"
    with pytest.raises(InputError, match="cannot be read"):
        _ = TaskOption("none.toml").users
