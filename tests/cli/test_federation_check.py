"""`decor federation check` answers as the library does."""

import json
import re

import pytest
from command_server import decor_command

import decor
from decor.federation.federation import Federation

from .commands import run


@pytest.fixture
def new(tmp_path, users):
    line = "federation new --name heart --epsilon 3 --features 30 --output"
    return tmp_path / "heart.toml", [*line.split(), tmp_path / "heart.toml", *users()]


def test_check_answers_as_the_library_does(new):
    file, arguments = new
    written = json.loads(run(*arguments, "--json").stdout)
    answer = json.loads(run("federation", "check", file, "--json").stdout)
    assert written == answer
    federation = Federation.read(file)
    plan, guarantee = federation.plan, federation.guarantee()
    assert (answer["sigma_cdp"], answer["sigma_cor"]) == (plan.sigma_cdp, plan.sigma_cor)
    assert answer["epsilon"] == guarantee.epsilon <= 3 and answer["delta"] == 1e-5
    assert answer["digest"] == federation.digest.hex()
    adversaries = [row["adversary"] for row in answer["adversaries"]]
    assert adversaries == ["eavesdropper", "curious", "colluding:2", "everyone"]
    for row in answer["adversaries"]:
        adversary = decor.Adversary.parse(row["adversary"])
        assert row["epsilon"] == federation.guarantee(adversary).epsilon
    assert [user["epsilon"] for user in answer["users"]] == guarantee.per_user.tolist()
    assert answer["parameters"] == 31 and answer["message_bytes"] == 8 + 16 + 4 * 31
    assert 1 <= len(answer["hints"]) <= 3 and answer["warnings"] == []


def test_check_names_the_field_that_is_wrong(here, new, tmp_path):
    file, arguments = new
    here(*arguments)
    file.write_text(file.read_text().replace("epsilon = 3.0", 'epsilon = "3"'))
    wrong = here("federation", "check", file, check=2).stderr
    assert "privacy.epsilon must be a positive number" in wrong
    assert "cannot be read" in here("federation", "check", tmp_path / "nowhere", check=2).stderr


TRAP = """
import pathlib
def note(what):
    with (pathlib.Path(__file__).parent / "ran").open("a") as file:
        file.write(what)
note("imported ")
def model():
    note("called ")
    import torch
    return torch.nn.Linear(6, 3), torch.nn.functional.cross_entropy
"""


def check(file, *more):
    """`decor federation check` with the current folder in Python's path, where a file's sender may
    have put a module.
    """
    command = decor_command(as_module=True)
    return run("federation", "check", file, *more, command=command, cwd=file.parent)


@pytest.fixture
def trap(tmp_path, users):
    """Writes a federation file whose model is code; the modules of the folder note that they ran.

    Gives the file's path for a model.code and, where given, a hash.
    """
    (tmp_path / "own.py").write_text(TRAP)
    (tmp_path / "pack").mkdir()
    for name in ("__init__", "inner"):
        (tmp_path / "pack" / f"{name}.py").write_text(TRAP)
    file = tmp_path / "code.toml"

    def write(code, sha256=None):
        words = "federation new --name heart --epsilon 3 --features 30 --overwrite --output"
        run(*words.split(), file, *users())
        more = "" if sha256 is None else f'\ncode_sha256 = "{sha256}"'
        text = file.read_text().replace('kind = "logistic"', f'code = "{code}"{more}')
        file.write_text(re.sub("(features|classes) = .*\n", "", text))
        return file

    return write


@pytest.mark.parametrize("code", ["own:model", "pack.inner:model", "os:abort", "nowhere:model"])
def test_check_never_runs_code_that_a_file_names(trap, tmp_path, code):
    """A file that came by e-mail is judged, not obeyed: not even parent packages are imported."""
    file = trap(code)
    done = check(file)
    ran = [*tmp_path.rglob("ran"), *tmp_path.rglob("__pycache__")]
    assert ran == [], "code from the folder ran"
    assert "The size of the model is unknown because its code is not run" in done.stdout
    for words in ("sigma_cdp", "(3", "curious", "bonn.example.org:7400", "digest"):
        assert words in done.stdout
    answer = json.loads(check(file, "--json").stdout)
    assert answer["parameters"] is None and answer["message_bytes"] is None
    assert 2.9 < answer["epsilon"] <= 3 and len(answer["users"]) == 4
    assert [*tmp_path.rglob("ran"), *tmp_path.rglob("__pycache__")] == []


def test_trusted_code_is_run_and_measured(trap, tmp_path):
    file = trap("own:model")
    answer = json.loads(check(file, "--trust-code", "--json").stdout)
    assert (tmp_path / "ran").read_text().startswith("imported called ")
    assert answer["parameters"] == 21 and answer["message_bytes"] == 8 + 16 + 4 * 21
    assert answer["code"]["sha256"] is None and answer["code"]["run"]
    assert all(row["epsilon"] is not None for row in answer["adversaries"])


def test_check_compares_the_code_without_running_it(trap, tmp_path):
    compared = {}
    installed = json.loads(check(trap("own:model"), "--json").stdout)["code"]["installed_sha256"]
    for case, code, sha256, words in (
        ("same", "own:model", installed, "is the file's"),
        ("other", "own:model", "0" * 64, "is NOT the file's"),
        ("absent", "nowhere:model", "0" * 64, "'nowhere' is not installed"),
        ("unsaid", "own:model", None, "has no model.code_sha256"),
    ):
        file = trap(code, sha256)
        assert words in check(file).stdout
        compared[case] = json.loads(check(file, "--json").stdout)
    assert compared["same"]["code"]["sha256"] == installed
    assert compared["other"]["code"]["installed_sha256"] == installed
    assert compared["absent"]["code"]["installed_sha256"] is None
    assert len({answer["digest"] for answer in compared.values()}) == 4
    unknown = [row["adversary"] for row in compared["same"]["adversaries"] if not row["epsilon"]]
    assert unknown == ["colluding:2", "everyone"]
    assert not (tmp_path / "ran").exists()
