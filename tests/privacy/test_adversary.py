import pytest

from decor import Adversary
from decor.errors import InputError


def test_the_papers_four_adversaries_by_name_and_back():
    for text in ("eavesdropper", "curious", "colluding:2", "everyone"):
        assert str(Adversary.parse(text)) == text
    assert Adversary.curious() == Adversary.colluding(1) == Adversary.parse("colluding:1")
    assert Adversary.eavesdropper() == Adversary.colluding(0)
    assert Adversary.everyone().colluders is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "eve",
        "colluding",
        "colluding:",
        "colluding:-1",
        "colluding:2.5",
        "colluding:x",
        "curious:3",
    ],
)
def test_unknown_adversaries_are_refused_with_the_choices(text):
    with pytest.raises(InputError, match="choose eavesdropper, curious, colluding:Q"):
        Adversary.parse(text)


@pytest.mark.parametrize("colluders", [-1, 2.0, True, "2"])
def test_a_number_of_colluders_is_a_whole_number(colluders):
    with pytest.raises(InputError, match="whole number"):
        Adversary(colluders)


def test_at_least_one_user_is_left_to_protect():
    Adversary.colluding(4).check(5)
    with pytest.raises(InputError, match="leave no user to protect; choose colluding:4"):
        Adversary.colluding(5).check(5)
