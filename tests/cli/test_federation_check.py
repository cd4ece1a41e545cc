"""`decor federation check` answers as the library does."""

import json

import pytest

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
