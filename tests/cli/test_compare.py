"""`decor compare` writes a comparison, resumes it, and never overwrites by accident."""

import json
import signal
from dataclasses import replace

import pytest

import decor

from .commands import TRAIN, run, start, wait_for

COMPARE = (
    "compare --epsilon 3,30 --topology ring --steps 20 --learning-rate 0.05,0.2 --seeds 2".split()
)


def test_compare_writes_and_prints_all_methods(tmp_path):
    folder = tmp_path / "c"
    out = run(*COMPARE, "--output", folder).stdout
    methods = {"no privacy", "central DP", "DECOR ring", "local DP ring"}
    for words in (*methods, "test accuracy", "SecLDP", "no epsilon here counts", "always the same"):
        assert words in out
    for name in ("report.html", "figures/privacy-utility.png", "figures/curves.svg"):
        assert (folder / name).stat().st_size > 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"] is True and len(manifest["finished"]) == 4
    lines = "".join(path.read_text() for path in (folder / "metrics").iterdir()).splitlines()
    assert {json.loads(line)["method"] for line in lines} == methods
    saved = decor.Run.load(folder / "runs" / "decor-ring-epsilon-3")
    assert saved.guarantee.epsilon <= 3 and saved.models["weight"].shape == (16, 1, 30)
    data = json.loads((folder / "report.json").read_text())
    loss = {(each["method"], each["epsilon"]): each["final"]["loss"] for each in data["outcomes"]}
    best = {setting: sum(seeds) for setting, seeds in loss.items()}
    assert best["no privacy", None] < best["central DP", 30] < best["local DP ring", 3]


def test_an_interrupted_comparison_resumes_where_it_stopped(here, tmp_path):
    longer = [*COMPARE[:5], "--steps", 400, *COMPARE[7:]]
    process = start(*longer, "--output", tmp_path / "c")
    wait_for(tmp_path / "c" / "outcomes" / "no-privacy.json", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert manifest["complete"] is False and "no privacy" in manifest["finished"]
    assert "Interrupted" in (tmp_path / "c" / "report.html").read_text()
    first = (tmp_path / "c" / "outcomes" / "no-privacy.json").stat().st_mtime_ns
    assert "local DP" in here(*longer, "--output", tmp_path / "c", "--resume").stdout
    assert (tmp_path / "c" / "outcomes" / "no-privacy.json").stat().st_mtime_ns == first, (
        "what was finished is not done again"
    )
    here(*longer, "--output", tmp_path / "whole")
    for path in (tmp_path / "whole" / "outcomes").iterdir():
        assert path.read_text() == (tmp_path / "c" / "outcomes" / path.name).read_text()


def test_a_comparison_is_never_overwritten_by_accident(here, tmp_path):
    folder, other = tmp_path / "c", tmp_path / "mine"
    compare = [*COMPARE, "--output", folder]
    here(*compare)
    (folder / "notes.txt").write_text("mine")
    assert "--resume" in here(*compare, check=2).stderr
    changed = here(*compare, "--delta", "1e-6", "--resume", check=2).stderr
    assert "delta: 1e-05, now 1e-06" in changed
    here(*compare, "--overwrite")
    assert (folder / "notes.txt").read_text() == "mine"
    (other / "runs").mkdir(parents=True)
    (other / "manifest.json").write_text('{"name": "my web app"}')
    (other / "runs" / "thesis.txt").write_text("precious")
    for command in (COMPARE, TRAIN):
        here(*command, "--output", other, "--overwrite", check=2)
    assert (other / "runs" / "thesis.txt").exists()
    assert "web app" in (other / "manifest.json").read_text()


BAD = [
    ("--epsilon 1,x", "number"),
    ("--epsilon -1", "epsilon"),
    ("--topology ring,ring", "twice"),
    ("--topology ring,moebius", "moebius"),
    ("--seeds 0", "--seeds"),
    ("--messages 40 --steps 10", "drop --steps"),
    ("--messages 0", "messages must be"),
    ("--seeds secret", "choosing among private runs"),
    ("--learning-rate 0", "learning_rate"),
    ("--resume", "nothing to resume"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(here, line, words, tmp_path):
    assert words in here("compare", *line.split(), "--output", tmp_path / "out", check=2).stderr


def test_a_learning_rate_at_an_end_of_the_grid_is_reported(here, tmp_path):
    line = "compare --epsilon 30 --topology ring --steps 10 --seeds 2 --output"
    compare = [*line.split(), tmp_path / "c", "--learning-rate"]
    out = here(*compare, "0.001,0.002").stdout
    (note,) = [line for line in out.splitlines() if line.startswith("- no privacy took the")]
    assert "the largest learning rate of the grid, 0.002" in note
    assert note.removeprefix("- ") in (tmp_path / "c" / "report.html").read_text()
    single = here(*compare, 0.001, "--overwrite").stdout
    assert "took the" not in single, "a single rate is at no end"


def test_the_default_rates_are_extended_where_the_best_is_at_an_end(tmp_path, monkeypatch):
    from decor.training import compare

    monkeypatch.setattr(compare, "RATES", (0.01, 0.05))
    monkeypatch.setattr(
        compare, "BEYOND", {"smallest": (0.0001, 0.001), "largest": (0.2, 1.0, 1e4)}
    )
    task, graphs = decor.tasks.breast_cancer(users=4), (("ring", decor.ring(4)),)
    design = compare.Design(
        graphs, (0.5,), decor.Exposure(1.0, 10), learning_rates=(0.01, 0.05), seeds=(0, 1)
    )
    report = compare.Comparison(task, design, tmp_path / "usual").run()
    rates = {entry.method: entry.learning_rate for entry in report.outcomes}
    assert rates["no privacy"] == 1.0 and rates["local DP ring"] in (0.0001, 0.001), rates
    ends = [note for note in report.notes if "took the" in note]
    assert all("took the smallest" in note and "0.0001" in note for note in ends), (
        "1 has 10,000 above it"
    )
    grid = report.tuning.grid["learning rate, if the best is the largest"]
    assert list(grid) == [0.2, 1.0, 1e4]
    given = replace(design, learning_rates=(0.01, 0.02))
    chosen = compare.Comparison(task, given, tmp_path / "chosen").run()
    assert {entry.learning_rate for entry in chosen.outcomes} <= {0.01, 0.02}, (
        "a grid that was given is kept"
    )
