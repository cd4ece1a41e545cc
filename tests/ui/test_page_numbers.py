"""The planner's script writes numbers as Python does."""

import math
import random
from importlib import resources

import browser
import pytest

from decor.text import rounded_up, value_text

pytestmark = browser.NEEDED

SOURCE = resources.files("decor.ui").joinpath("page/format.js").read_text("utf-8")


@pytest.fixture(scope="module")
def run_script(tmp_path_factory):
    with browser.started(tmp_path_factory.mktemp("profile")) as driver:
        yield lambda code, values: driver.execute_script(SOURCE + code, values)


def test_epsilons_are_rounded_in_the_browser_as_in_python(run_script):
    rng = random.Random(5)
    values = [rng.choice((1, rng.random())) * 10 ** rng.uniform(-9, 12) for _ in range(400)]
    values += [1, 3.0, 9999.5, 99999, 0.99999, 1e-5, 1e5, 1e-4, 0.1 + 0.2, 2.9999999999]
    assert run_script("return arguments[0].map(roundedUp)", values) == [*map(rounded_up, values)]
    assert run_script("return roundedUp(arguments[0])", "inf") == "∞"


def test_values_have_the_digits_of_the_results_table(run_script):
    rng = random.Random(3)
    sizes = [0.0, *(rng.uniform(1, 10) * 10.0 ** rng.randint(-20, 8) for _ in range(200))]
    cases = [(size, digits) for size in sizes for digits in (1, 2, 4)]
    code = "return arguments[0].map(([value, decimals]) => shown({ decimals }, value))"
    assert run_script(code, cases) == [value_text(*case) for case in cases]
    assert math.isclose(float(run_script(code, [(-0.5, 2)])[0].replace("−", "-")), -0.5)
