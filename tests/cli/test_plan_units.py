"""`decor plan --compare-units`: both units side by side."""

import pytest

import decor
from decor import Adversary, Budget, Exposure
from decor.privacy.composition import PastRun, Question, compose


def test_both_plans_are_those_of_the_library_with_what_each_gives_the_other_unit(here, ask):
    line = "plan --compare-units --unit example --batch-size 8 --records 200 --epsilon 3 --users 6 "
    line += "--steps 50"
    user, example = ask(line)["units"]
    setting = decor.ring(6), Adversary.curious(), Budget(3.0, 1e-5)
    exposures = Exposure(1.0, 50), Exposure(1.0, 50, unit="example", batch_size=8, records=200)
    for row, exposure in zip((user, example), exposures, strict=True):
        plan = decor.calibrate(setting[0], exposure, *setting[1:])
        assert (row["unit"], row["sigma_cdp"]) == (exposure.unit, plan.sigma_cdp)
        assert row[f"{exposure.unit}_epsilon"] == plan.guarantee().epsilon
    of_user = compose([PastRun(plan)], Question(), 1e-5)
    assert example["user_epsilon"] == of_user > 100
    # a user's data hide its examples too
    assert user["example_epsilon"] == pytest.approx(user["user_epsilon"])
    text = here(*line.split()).stdout
    assert "all data of a user" in text and "epsilon of an example" in text


def test_with_a_common_rate_there_is_no_bound_for_a_user(here):
    line = "plan --compare-units --unit example --batch-size 8 --rate 0.1 --epsilon 3 --users 6"
    assert "no bound" in here(*line.split(), "--steps", 20).stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "needs the batches of the example level"),
        ("--unit example --batch-size 8 --records 200 --ratio 3", "noise of their own"),
        ("--unit example --batch-size 8 --records 200 --save p.json", "noise of their own"),
    ],
)
def test_what_cannot_be_compared_is_refused(here, more, said):
    done = here(*"plan --compare-units --epsilon 3".split(), *more.split(), check=2)
    assert said in done.stderr
