"""`decor task new`: a task's file from headers and what is public, never from private values."""

import io
import sys
from pathlib import Path

import pytest
from own_tables import NAMES, write_all

from decor.learning.columns import CategoryColumn, Label, NumberColumn
from decor.learning.task_file import TaskFile

ALL = "task new --data all.csv --user-column hospital --label sick"
TYPED = "--classes no,yes --column age=0:100 --column dose=0:1 --column ward=north,south"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_all(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def private(*paths):
    """Replaces all records of these files: whoever reads them would be noticed."""
    for path in map(Path, paths):
        header = path.read_text().partition("\n")[0]
        path.write_text(header + "\n" + "77123,77124\n")


def test_a_public_sample_gives_ranges_categories_and_test_records(folder, ask, here):
    private("all.csv")
    seen = ask(f"{ALL} --public public.csv")
    file = TaskFile.read("task.toml")
    age, dose, ward = file.definition.preparation.columns
    assert age.name == "age" and 0 <= age.low < age.high <= 100 and dose.high <= 1
    assert ward == CategoryColumn("ward", ["north", "south", "west"])
    assert file.definition.classes == ("no", "yes") and file.definition.model.kind == "logistic"
    assert (file.source.file, file.source.user) == ("all.csv", "hospital")
    assert file.source.test == "public.csv" and file.source.test_public
    assert seen["digest"] == file.digest and "77123" not in Path("task.toml").read_text()
    shown = here(*ALL.split(), "--public", "public.csv", "--overwrite").stdout
    assert "public sample" in shown and "Only the header of the data was read" in shown


def test_without_a_sample_everything_is_typed(folder, here):
    files = [f"--data={name}={name}.csv" for name in NAMES]
    private(*(f"{name}.csv" for name in NAMES))
    here("task", "new", *files, *"--label sick --output sub.toml".split(), *TYPED.split())
    file = TaskFile.read("sub.toml")
    assert file.users == {name: f"{name}.csv" for name in NAMES} and file.name == "sub"
    preparation = file.definition.preparation
    assert preparation.columns[:2] == (NumberColumn("age", 0, 100), NumberColumn("dose", 0, 1))
    assert preparation.label == Label("sick", ["no", "yes"])


def test_what_is_not_known_is_asked_for(folder, here, monkeypatch):
    answers = "0:100\nmany\n0:1\nnorth,south\nno,yes\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
    said = here(*ALL.split()).stderr
    assert "column 'age'" in said and "not 'many'" in said
    assert TaskFile.read("task.toml").definition.preparation.columns[1].high == 1


def test_what_is_neither_public_nor_typed_is_never_taken_from_the_data(folder, here, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    from decor.cli.main import main

    assert main(ALL.split()) == 2 and not Path("task.toml").exists()


def test_the_model_follows_from_the_label_or_from_options(folder, here):
    sub = Path("sub")
    sub.mkdir()
    for more, kind, loss in (
        ("", "logistic", None),
        ("--hidden 8,4", "mlp", None),
        ("--classes 0:10 --hidden 8", "mlp", "squared"),
        ("--classes 0:10", "linear", None),
        ("--classes no,yes,perhaps", "multinomial", None),
    ):
        here(*f"{ALL} {TYPED} {more} --overwrite --output sub/task.toml".split())
        file = TaskFile.read("sub/task.toml")
        assert (file.definition.model.kind, file.definition.model.loss) == (kind, loss)
    assert file.source.file == "../all.csv" and file.path(file.source.file).exists()


def test_own_code_is_named_with_its_hash(folder, here, monkeypatch):
    Path("own_code.py").write_text("raise SystemExit('this was imported')\n")
    monkeypatch.syspath_prepend(folder)
    here(*f"{ALL} {TYPED} --code own_code:make".split())
    assert len(TaskFile.read("task.toml").definition.model.code_sha256) == 64


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (ALL.replace("sick", "ill"), "--label 'ill' is no column of 'all.csv'; there are hospital"),
        (ALL.replace("hospital", "town"), "--user-column 'town' is no column"),
        (f"{ALL} --column bp=0:1", "--column bp is no column of the data beside the label"),
        (f"{ALL} --column age", "must be NAME=LOW:HIGH or NAME=A,B"),
        ("task new --label sick --data bonn.csv --data ulm.csv", "a different NAME=FILE for each"),
        (
            "task new --label sick --data a=bonn.csv --data b=all.csv",
            "drop it from the one, or add",
        ),
        (f"{ALL} --public all.csv", "has the column 'hospital', which names the user of a record"),
        (f"{ALL} {TYPED} --model linear", "which model.kind 'linear' does not predict"),
        ("task new --label sick --data none.csv", "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(folder, here, line, problem):
    assert problem in here(*line.split(), check=2).stderr and not Path("task.toml").exists()


def test_nothing_is_overwritten_without_asking(folder, here):
    here(*f"{ALL} {TYPED}".split())
    assert "exists; replace it with --overwrite" in here(*f"{ALL} {TYPED}".split(), check=2).stderr
