"""Means, standard errors, and values as text."""

import math

import pytest
import sample

from decor.results.report_data import Curve
from decor.results.tables import Spread, curve_spreads, spread_text, summary_rows
from decor.text import rounded_down, rounded_up


def test_means_and_errors_are_the_textbook_ones():
    spread = Spread.of_seeds([1.0, 2.0, 4.0, None])
    assert spread.mean == pytest.approx(7 / 3)
    assert spread.error == pytest.approx(
        math.sqrt(((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2) / 2 / 3)
    )
    assert (spread.low, spread.high, spread.seeds, spread.of) == (1.0, 4.0, 3, 4)
    assert spread_text(spread, 2) == "2.33 ± 0.88 (3 of 4 seeds)"
    assert spread_text(spread, 1, "%") == "2.3 ± 0.9 % (3 of 4 seeds)"
    assert Spread.of_seeds([None, None]) is None and spread_text(None, 2) == "no value"
    single = Spread.of_seeds([0.5], 100)
    assert single.error is None and spread_text(single, 1) == "50.0"


@pytest.mark.parametrize(
    ("mean", "error", "digits", "shown"),
    [
        (98.2, 0.4, 1, "98.2 ± 0.4"),
        (98.2, 0.04, 1, "98.20 ± 0.04"),
        (0.0684, 0.0041, 1, "0.068 ± 0.004"),
        (3.14e-17, 8e-18, 4, "3.1e-17 ± 0.8e-17"),
        (3.1e-6, 2e-8, 4, "3.10e-06 ± 0.02e-06"),
        (0.0, 0.0, 4, "0 ± 0"),
        (98.2, 1e-14, 1, "98.2 ± 0"),
        (98.2301, 2e-6, 1, "98.2 ± 0"),
        (98.2301, 2e-3, 1, "98.230 ± 0.002"),
        (3.1e-17, 1e-24, 4, "3.1e-17 ± 0"),
        (1e-9, 0.003, 3, "0.000 ± 0.003"),
        (1.5e7, 2e5, 1, "1.50e+07 ± 0.02e+07"),
        (3e-17, None, 4, "3e-17"),
        (0.0456, None, 4, "0.0456"),
        (0.0, None, 4, "0"),
    ],
)
def test_a_mean_and_its_error_end_at_the_same_digit(mean, error, digits, shown):
    assert spread_text(Spread(mean, error, mean, mean, 4, 4), digits) == shown


def test_every_epsilon_of_the_table_is_rounded_up():
    cases = {
        2.99991: "3",
        1.00001: "1.001",
        0.123456: "0.1235",
        12345.6: "1.235e+04",
        "inf": "∞",
        None: "none",
    }
    for given, shown in cases.items():
        data = sample.star()
        data["outcomes"][0]["epsilon"] = given
        assert summary_rows(sample.read(data))[0][1] == shown


@pytest.mark.parametrize(
    "value", [1e-320, 1e-7, 0.12344, 0.99991, 1, 2.5, 9.9999, 123.45, 99999, 123456, 1e300]
)
def test_rounding_up_never_understates_and_rounding_down_never_overstates(value):
    assert float(rounded_up(value)) >= value * (1 - 1e-8)
    assert float(rounded_down(value)) <= value * (1 + 1e-11)


def test_no_value_of_a_table_is_rounded_to_nothing():
    data = sample.comparison()
    for outcome in data["outcomes"]:
        outcome["final"]["loss"] = [1e-9 * value for value in outcome["final"]["loss"]]
    for text in (row[-1] for row in summary_rows(sample.read(data))):
        assert all(float(part) > 0 for part in text.split(" ± ")), text


def test_a_diverged_outcome_has_no_number():
    rows = {(row[0], row[1]): row for row in summary_rows(sample.read(sample.diverged()))}
    assert rows["Local DP", "1"][2:] == ["no value", "no value"]
    assert rows["Local DP", "3"][2].endswith("(3 of 4 seeds)")


def test_long_curves_are_thinned_and_keep_their_ends():
    metric = sample.read(sample.star()).metrics[0]
    values = tuple(k / 5001 for k in range(5001))
    curve = Curve(tuple(range(5001)), {metric.name: (values,)})
    points = curve_spreads(curve, metric, 400)
    assert len(points) == 400 and (points[0][0], points[-1][0]) == (0, 5000)
    assert points[-1][1].mean == pytest.approx(100 * 5000 / 5001)
    single = Curve((7,), {metric.name: ((0.5,),)})
    assert [step for step, _ in curve_spreads(single, metric, 400)] == [7]
