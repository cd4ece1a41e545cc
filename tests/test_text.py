"""Numbers as text: never below the truth, and JSON that every reader takes."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decor
from decor.text import amount, json_safe, rounded_up, table


@given(st.floats(1e-250, 1e250))
def test_a_printed_number_is_not_below_the_truth_and_not_far_above(value):
    shown = float(rounded_up(value))
    assert value * (1 - 2e-9) <= shown <= value * 1.001 + 1e-300


@pytest.mark.parametrize(
    ("value", "shown"), [(3.0, "3"), (2.99901, "3"), (0.0, "0"), (math.inf, "inf")]
)
def test_usual_numbers_read_as_people_write_them(value, shown):
    assert rounded_up(value) == shown


def test_infinities_and_what_is_no_number_survive_json():
    value = {"a": [math.inf, -math.inf, math.nan, 1.5], "b": {"c": (1, "x", None)}}
    plain = json.loads(json.dumps(json_safe(value), allow_nan=False))
    assert plain == {"a": ["inf", "-inf", None, 1.5], "b": {"c": [1, "x", None]}}


def test_columns_of_numbers_are_aligned_to_the_right_and_words_to_the_left():
    lines = table(["user", "epsilon"], [["bonn", "3"], ["ulm", "1,024"]], indent="").splitlines()
    assert lines == ["user  epsilon", "----  -------", "bonn        3", "ulm     1,024"]


def test_one_is_no_plural():
    texts = [amount(count, "edge") for count in (0, 1, 2, 1000)]
    assert texts == ["0 edges", "1 edge", "2 edges", "1,000 edges"]
    assert decor.path(1).description == "1 user on path(1)"
    assert decor.from_edges(2, [(0, 1)]).description == "2 users, 1 edge, connected"
    plan = decor.NoisePlan(
        decor.ring(4), decor.Exposure(clip=1.0, steps=1), decor.Adversary.curious(), 1.0, 2.0
    )
    assert "over 1 step, with" in str(plan.guarantee(1e-5))
