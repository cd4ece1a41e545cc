"""`decor rehearse`: what it says, and what it never opens."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_WATCHED = """
import json, os, sys
opened = []
def watch(event, arguments):
    if event == "open" or event.startswith(("sqlite3.", "socket.connect", "socket.bind")):
        opened.append([event, os.path.abspath(os.fsdecode(arguments[0]))
                       if event == "open" and isinstance(arguments[0], (str, bytes)) else ""])
sys.addaudithook(watch)
from decor.cli.main import main
code = main(sys.argv[2:])
json.dump(opened, open(sys.argv[1], "w"))
sys.exit(code)
"""


@pytest.fixture
def trial(here):
    """A federation with keys and data of its users, and an accuracy that is worth something."""
    new = "federation new --task breast-cancer --users 3 --epsilon 10 --steps 20 --output trial"
    here(*new.split())
    return Path("trial/federation.toml")


@pytest.mark.parametrize("more", [(), ("--public", "trial/test.npz")])
def test_no_key_ledger_socket_or_data_of_a_user_is_opened(trial, more, tmp_path):
    before = sorted(Path().rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, str(tmp_path / "opened.json"), "rehearse", trial, *more],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    opened = json.loads((tmp_path / "opened.json").read_text())
    here = str(Path.cwd())
    own = {Path(name).relative_to(here).as_posix() for _, name in opened if name.startswith(here)}
    assert {"trial/federation.toml", *more[1:]} <= own
    assert own <= {"trial/federation.toml", "opened.json", *more[1:]}
    assert {event for event, _ in opened} == {"open"}, "a ledger or a socket"
    assert sorted(set(Path().rglob("*")) - {Path("opened.json")}) == before
    assert "Nothing was sent or spent. No key, no ledger and no user's data was opened" in (
        done.stdout
    )


def test_without_a_sample_accuracy_is_a_ceiling_and_nothing_else(trial, here, ask):
    score = ask(f"rehearse {trial} --seeds 1")["score"]
    assert score["source"] == "planted" and score["is_forecast"] is False
    assert score["meaning"] == "a ceiling, not a forecast"
    shown = here("rehearse", trial, "--seeds", "1").stdout
    accuracy = shown[shown.index("\nAccuracy\n") :].splitlines()[2]
    assert accuracy.strip().startswith("a ceiling, not a forecast: ")
    assert "--public SAMPLE says more" in shown and "public sample (" not in shown


def test_with_a_sample_accuracy_stands_beside_the_base_rate(trial, here, ask):
    facts = ask(f"rehearse {trial} --public trial/test.npz")
    score = facts["score"]
    assert score["is_forecast"] and 0.6 < score["base_rate"] < 0.7 < score["mean"] <= 1
    assert facts["spent"] is False and not facts["warnings"]
    assert facts["epsilon"] <= 10 and facts["seconds"]["total"] > 20 * 0.05
    shown = here("rehearse", trial, "--public", "trial/test.npz").stdout
    assert "ceiling" not in shown and f"right for {score['base_rate']:.1%}" in shown


def test_a_model_that_is_worth_nothing_is_a_warning(here, ask):
    new = "federation new --task breast-cancer --users 3 --epsilon 0.05 --steps 20 --output trial"
    here(*new.split())
    warnings = ask("rehearse trial/federation.toml --public trial/test.npz")["warnings"]
    assert any("no better than always guessing '1'" in each for each in warnings)
    assert any("even where all gradients agree" in each for each in warnings)


def test_own_code_runs_only_if_it_is_trusted(here, users, monkeypatch, ask):
    Path("mine.py").write_text(
        "import pathlib, torch\n"
        "pathlib.Path('imported').touch()\n"
        "def make():\n    return torch.nn.Linear(3, 1)\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    line = "federation new --name own --epsilon 8 --steps 5 --code mine:make --loss logistic"
    here(*line.split(), "--output", "own.toml", *users(count=3))
    Path("imported").unlink(missing_ok=True)
    sys.modules.pop("mine", None)
    said = here("rehearse", "own.toml", check=2).stderr
    assert "give --trust-code" in said and not Path("imported").exists()
    rows = [f"{k},{-k},1,{k % 2}" for k in range(40)]
    Path("public.csv").write_text("\n".join(["a,b,c,y", *rows]))
    facts = ask("rehearse own.toml --trust-code --public public.csv")
    assert Path("imported").exists() and facts["score"]["source"] == "sample"
    assert (
        "own code, which may know more"
        in here("rehearse", "own.toml", "--trust-code", check=2).stderr
    )
