"""Columns from what somebody types, or from a public sample."""

import pytest

from decor.errors import InputError
from decor.learning.column_proposal import (
    parse_column,
    parse_label,
    sample_column,
    sample_label,
)
from decor.learning.columns import CategoryColumn, Label, NumberColumn


def test_what_is_typed_is_a_range_or_categories():
    assert parse_column("age", "0:120") == NumberColumn("age", 0, 120)
    assert parse_column("t", "-1.5:2e3") == NumberColumn("t", -1.5, 2000)
    assert parse_column("ward", " north, south ") == CategoryColumn("ward", ["north", "south"])
    assert parse_label("sick", "no,yes") == Label("sick", ["no", "yes"])
    assert parse_label("days", "0:30") == NumberColumn("days", 0, 30)


@pytest.mark.parametrize("text", ["", "north", "5:1", "a:b", "1:", "0:inf"])
def test_what_is_neither_is_refused(text):
    with pytest.raises(InputError):
        parse_column("age", text)


def test_a_public_sample_gives_ranges_and_categories():
    assert sample_column("age", ["50", "", " 20.5", "1e2"]) == NumberColumn("age", 20.5, 100)
    assert sample_column("one", ["7", "7"]) == NumberColumn("one", 6, 8)
    assert sample_column("ward", ["b", "a", "", "b", "other"]) == CategoryColumn("ward", ["a", "b"])
    assert sample_label("sick", ["yes", "no", ""]) == Label("sick", ["no", "yes"])
    assert sample_label("grade", ["10", "9", "1"]) == Label("grade", ["1", "9", "10"])
    assert sample_label("days", [str(k) for k in range(30)]) == NumberColumn("days", 0, 29)


def test_marks_of_a_missing_value_make_no_category_and_no_class():
    marks = ["", "NA", "n/a", "#N/A", "NaN", "null"]
    assert sample_column("hb", ["13.5", *marks, "9"]) == NumberColumn("hb", 9, 13.5)
    assert sample_column("ward", ["b", *marks, "a"]) == CategoryColumn("ward", ["a", "b"])
    assert sample_label("sick", ["yes", *marks, "no"]) == Label("sick", ["no", "yes"])
    # these can be values of their own
    assert sample_label("pain", ["none", "mild"]) == Label("pain", ["mild", "none"])
    grades = CategoryColumn("grade", ["1", "2", "x"])
    assert sample_column("grade", ["2", "x", "1"]) == grades


@pytest.mark.parametrize(
    ("propose", "cells", "problem"),
    [
        (sample_column, ["", " "], "has no value in the public sample; say what it holds"),
        (sample_column, [f"person {k}" for k in range(60)], "has 60 different texts"),
        (
            sample_column,
            [*map(str, range(18, 60)), "6O"],
            "many different numbers in the public sample, and also '6O'; .* --column x=LOW:HIGH",
        ),
        (sample_label, ["yes", "yes"], "has one value in the public sample, 'yes'"),
    ],
)
def test_a_sample_that_does_not_tell_is_refused(propose, cells, problem):
    with pytest.raises(InputError, match=problem):
        propose("x", cells)
