"""`decor predict`: from the folder of a run to a table of predictions."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from own_tables import BY_USER, FILE, PUBLIC, records, without, write, write_all

import decor


@pytest.fixture
def run(tmp_path, monkeypatch, here):
    """A folder with a run of a task's file."""
    write_all(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("task.toml").write_text(FILE + BY_USER + PUBLIC)
    line = "train --task task.toml --epsilon 30 --steps 20 --learning-rate 1 --output run"
    here(*line.split())
    return decor.Run.load("run")


def rows(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def test_each_record_has_a_class_and_its_probabilities(run, ask, here):
    write(Path("new.csv"), without(records(50, seed=2), "sick"), ";")
    seen = ask("predict run --data new.csv --output out.csv")
    found = rows("out.csv")
    assert seen["records"] == len(found) == 50 == sum(seen["classes"].values())
    expected = run.predict(records(50, seed=2))
    assert [row["prediction"] for row in found] == expected.most_likely
    written = [float(row["probability of yes"]) for row in found]
    assert np.allclose(written, expected.values[:, 1], rtol=1e-5)
    assert (
        "50 records"
        in here(*"predict run --data new.csv --output out.csv --overwrite".split()).stdout
    )


def test_bad_input_is_one_sentence(run, here):
    write(Path("new.csv"), without(records(5), "ward"))
    base = "predict run --data new.csv --output out.csv"
    assert "has no column 'ward'" in here(*base.split(), check=2).stderr
    write(Path("new.csv"), records(5))
    here(*base.split())
    # nothing is overwritten without asking, least of all the data
    for output in ("out.csv", "new.csv"):
        line = base.replace("out.csv", output).split()
        assert "exists; replace it with --overwrite" in here(*line, check=2).stderr
    assert len(rows("new.csv")) == 5
    assert "is not a run folder" in here(*base.replace("run", "nothing").split(), check=2).stderr


def test_a_run_of_a_built_in_task_predicts_columns_of_numbers(here, tmp_path):
    line = "train --task digits --users 4 --epsilon 30 --steps 5 --learning-rate 1 --output run"
    here(*line.split())
    task = decor.tasks.digits(users=4)
    X = task.test[0][:20].numpy()
    write(Path("new.csv"), {f"pixel {k}": X[:, k].tolist() for k in range(X.shape[1])})
    here(*"predict run --data new.csv --output out.csv".split())
    run = decor.Run.load("run")
    expected = run.model()(task.test[0][:20]).argmax(dim=1).tolist()
    assert [int(row["prediction"]) for row in rows("out.csv")] == expected
    assert not run.model().training and run.model(user=1) is not None


def test_a_run_of_an_older_version_says_what_is_missing(run, here):
    path = Path("run/manifest.json")
    manifest = json.loads(path.read_text())
    del manifest["definition"]
    path.write_text(json.dumps(manifest))
    said = here(*"predict run --data all.csv --output out.csv".split(), check=2).stderr
    assert "does not say how its model is made" in said and "average_model" in said
    assert decor.Run.load("run").average_model


def test_own_code_is_imported_only_if_it_is_trusted(run, here, monkeypatch):
    Path("own_net.py").write_text(
        "import decor\ndef make():\n    return decor.models.logistic(5), decor.losses.logistic\n"
    )
    monkeypatch.syspath_prepend(Path.cwd())
    path = Path("run/manifest.json")
    manifest = json.loads(path.read_text())
    manifest["definition"]["model"] = {"code": "own_net:make"}
    path.write_text(json.dumps(manifest))
    line = "predict run --data all.csv --output out.csv"
    assert "--trust-code" in here(*line.split(), check=2).stderr and "own_net" not in sys.modules
    here(*line.split(), "--trust-code")
    assert len(rows("out.csv")) == 120
    manifest["definition"]["model"]["code_sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))
    said = here(*line.split(), "--overwrite", "--trust-code", check=2).stderr
    assert "install the version" in said
    sys.modules.pop("own_net", None)
