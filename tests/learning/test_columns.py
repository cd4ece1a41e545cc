"""Preparation: record by record, with public constants; values are never refused."""

import dataclasses
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decor.errors import InputError
from decor.learning.columns import (
    CategoryColumn,
    ColumnCounts,
    Label,
    NumberColumn,
    PlainColumn,
    Preparation,
)

AGE = NumberColumn("age", 0, 100, missing=60)
SEX = CategoryColumn("sex", ["m", "f"])
ILL = Label("ill", ["no", "yes"])
PREPARATION = Preparation([AGE, SEX], ILL)
TABLE = {
    "ill": ["no", "yes", "perhaps", "no", " yes "],
    "sex": ["m", "x", "m", "", " f "],
    "age": ["25", "200", "1", "abc", "100"],
}
FEATURES = [[-0.5, 1, 0, 0], [1, 0, 0, 1], [0.2, 0, 0, 1], [1, 0, 1, 0]]


def test_a_table_becomes_features_and_targets():
    prepared = PREPARATION.apply(TABLE)
    assert prepared.features.dtype == np.float32 and prepared.targets.dtype == np.int64
    assert np.allclose(prepared.features, FEATURES)
    assert prepared.targets.tolist() == [0, 1, 0, 1]
    assert PREPARATION.width == 4 == len(PREPARATION.features)
    assert PREPARATION.features == ("age", "sex=m", "sex=f", "sex=other")
    assert PREPARATION.classes == ("no", "yes")


def test_the_owner_learns_what_was_changed():
    counts = PREPARATION.apply(TABLE).counts
    assert (counts.records, counts.dropped, counts.used) == (5, 1, 4)
    # the record that was dropped is not counted again
    assert counts.columns == {
        "age": ColumnCounts(missing=1, clamped=1),
        "sex": ColumnCounts(missing=1, other=1),
    }
    assert counts.classes == {"no": 2, "yes": 2} and counts.base_rate == 0.5
    text = "\n".join(counts.lines())
    for line in (
        "4 of 5 records are used",
        "1 record without a known label was dropped",
        "column 'age': 1 value missing",
        "column 'age': 1 value outside the range, clamped",
        "column 'sex': 1 value not listed, taken as \"other\"",
        "always guessing 'no' is right for 50.0 %",
    ):
        assert line in text


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_frames_are_prepared_as_mappings_are(make):
    ours, theirs = PREPARATION.apply(TABLE), PREPARATION.apply(make(TABLE))
    assert (ours.features == theirs.features).all() and (ours.targets == theirs.targets).all()
    assert ours.counts == theirs.counts


def test_the_order_of_columns_does_not_matter():
    swapped = {name: TABLE[name] for name in sorted(TABLE)}
    assert (PREPARATION.apply(swapped).features == PREPARATION.apply(TABLE).features).all()


CELLS = st.one_of(
    st.none(),
    st.floats(),
    st.integers(),
    st.booleans(),
    st.text(max_size=3),
    st.sampled_from(["m", "f", "no", "yes", "1_0", "1e3", "nan", "-inf", " 5 ", "1.0", "\x001"]),
    st.just(pd.NA),
    st.just(pd.NaT),
)
# mostly what is meant: records without a known label are dropped, and test nothing else
LABELS = st.one_of(st.sampled_from(["no", "yes"]), st.sampled_from(["no", "yes"]), CELLS)
SEXES = st.one_of(st.sampled_from(["m", "f", ""]), CELLS)
NUMBERS = st.one_of(st.integers(-10, 110), CELLS)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(NUMBERS, SEXES, LABELS), min_size=1, max_size=6))
def test_no_value_is_refused_and_each_record_is_prepared_as_if_it_were_alone(records):
    """What privacy rests on: no record's inputs depend on another record."""
    names = ("age", "sex", "ill")

    def table(some):
        return {name: [record[k] for record in some] for k, name in enumerate(names)}

    together = PREPARATION.apply(table(records))
    alone = [PREPARATION.apply(table([record])) for record in records]
    assert (together.features == np.concatenate([each.features for each in alone])).all()
    assert (together.targets == np.concatenate([each.targets for each in alone])).all()
    assert np.isfinite(together.features).all() and (abs(together.features) <= 1).all()
    assert together.counts.dropped == sum(each.counts.dropped for each in alone)


@given(st.floats(-1e90, 1e90), st.floats(1e-6, 1e90), st.floats(0, 1))
def test_a_number_is_scaled_by_its_public_range(low, width, part):
    high = low + width
    if not low < high:
        return
    (value,) = NumberColumn("a", low, high).scale(np.array([low + part * width]))[0]
    assert abs(value[0] - (2 * part - 1)) <= 1e-6 + 1e-12 * abs(low) / width


def test_whole_numbers_are_the_same_category_in_every_form():
    ward = CategoryColumn("ward", [1, 2.0, "3"])
    assert ward.values == ("1", "2", "3")
    scaled, counts = ward.scale(
        np.array([1, "1", 1.0, "1.0", "01", 3, np.float32(2)], dtype=object)
    )
    assert scaled.argmax(1).tolist() == [0, 0, 0, 0, 3, 2, 1] and counts.other == 1


def test_missing_counts_as_what_the_description_says():
    assert NumberColumn("a", 0, 10).missing == 5
    scaled, counts = NumberColumn("a", 0, 10, missing=10).scale(np.array([math.nan]))
    assert scaled.tolist() == [[1]] and counts == ColumnCounts(missing=1)
    scaled, _ = CategoryColumn("a", ["x", "y"], missing="y").scale(
        np.array([None, ""], dtype=object)
    )
    assert scaled.tolist() == [[0, 1, 0]] * 2


def test_a_number_is_a_label_too():
    table = {"a": [1, 2, 3], "price": [0, None, 500]}
    prepared = Preparation([NumberColumn("a", 1, 3)], NumberColumn("price", 0, 100)).apply(table)
    assert prepared.targets.tolist() == [[-1], [1]] and prepared.targets.dtype == np.float32
    assert prepared.counts.dropped == 1 and prepared.counts.columns["price"].clamped == 1
    assert prepared.counts.base_rate is None


def test_plain_columns_are_taken_as_they_are():
    plain = Preparation([PlainColumn("a"), PlainColumn("b")], PlainColumn("y"))
    prepared = plain.apply({"y": [0, 1.0], "b": [1, 2], "a": [True, 1e9]})
    assert prepared.features.tolist() == [[1, 1], [1e9, 2]] and prepared.targets.tolist() == [0, 1]
    half = plain.apply({"y": [0.5, 1], "b": [1, 2], "a": [0, 0]}).targets
    assert half.tolist() == [[0.5], [1]] and half.dtype == np.float32


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (["x", "y"], "column 'a' holds text, not numbers.*CategoryColumn.*NumberColumn"),
        (["1,5", None], "column 'a' holds text, not numbers.*CategoryColumn.*NumberColumn"),
        (
            [1, None],
            "column 'a' has 1 value that is missing.*; fill it in.*NumberColumn.*missing.$",
        ),
        (["1", "x"], "column 'a' has 1 value that is missing.*NumberColumn.*CategoryColumn"),
        ([1, math.inf], "column 'a' has 1 value that is missing"),
        ([math.inf, math.nan], "column 'a' has 2 values that are missing.*; fill them in"),
        (np.full(2, np.nan), "column 'a' has no value in any record.*NumberColumn"),
        ([math.nan, None], "column 'a' has no value in any record"),
        (["", " "], "column 'a' has no value in any record"),
        (np.array(["2026-01-01", "2026-01-02"], "M8[D]"), "column 'a' holds date, not numbers"),
    ],
)
def test_plain_columns_refuse_what_they_cannot_take_and_repeat_no_value(column, what):
    plain = Preparation([PlainColumn("a")], ILL)
    with pytest.raises(InputError, match=what) as caught:
        plain.apply({"a": column, "ill": ["no", "yes"]})
    assert "'x'" not in str(caught.value)


def test_records_to_predict_need_no_label():
    table = {name: TABLE[name] for name in ("age", "sex")}
    prepared = PREPARATION.apply(table, labelled=False)
    assert prepared.targets is None and len(prepared.features) == 5
    # a label that is there is not looked at, and drops nothing
    assert len(PREPARATION.apply(TABLE, labelled=False).features) == 5


def test_an_empty_table_is_prepared_too():
    prepared = PREPARATION.apply({"age": [], "sex": [], "ill": []})
    assert prepared.features.shape == (0, 4) and prepared.counts.base_rate is None


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["age", "ill"], "bonn.csv has no column 'sex'; its header has 'age', 'ill'; add it"),
        (["age", "gender", "ill"], "no column 'sex', but has 'gender'.*rename"),
        (["age", "sex", "ill", "id"], "has column 'id', which the description does not name"),
        (["age", "sex", "ill", "age "], "bonn.csv has column 'age' more than once"),
    ],
)
def test_wrong_columns_are_refused(names, what):
    with pytest.raises(InputError, match=what):
        PREPARATION.check_names(names, "bonn.csv")


def test_wrong_columns_of_a_table_are_refused():
    with pytest.raises(InputError, match="no column 'sex'"):
        PREPARATION.apply({"age": [1], "ill": ["no"]})
    with pytest.raises(InputError, match="column 'age' more than once"):
        PREPARATION.apply({"age": [1], "age ": [1], "sex": ["m"], "ill": ["no"]})
    twice = pd.DataFrame([[1, 2, "m", "no"]], columns=["age", "age", "sex", "ill"])
    with pytest.raises(InputError, match="column 'age' more than once"):
        PREPARATION.apply(twice)
    with pytest.raises(InputError, match="different length"):
        PREPARATION.apply({"age": [1, 2], "sex": ["m"], "ill": ["no"]})
    with pytest.raises(InputError, match="column 'id'"):
        PREPARATION.apply({**TABLE, "id": range(5)})
    assert len(PREPARATION.apply({**TABLE, "id": range(5)}, extra="ignore").features) == 4


BAD = {
    "empty range": (lambda: NumberColumn("a", 1, 1), "no values; give low below high"),
    "endless range": (lambda: NumberColumn("a", 0, math.inf), "high of column 'a' .* finite"),
    "missing outside": (lambda: NumberColumn("a", 0, 1, 2), "must lie in its range 0 to 1, not 2"),
    "blank name": (lambda: NumberColumn(" a", 0, 1), "without blanks"),
    "no values": (lambda: CategoryColumn("a", []), "at least 1"),
    "one text": (lambda: CategoryColumn("a", "xy"), "must be a list"),
    "same value": (lambda: CategoryColumn("a", [1, "1"]), "value '1' more than once"),
    "other": (lambda: CategoryColumn("a", ["other"]), "always added; drop it"),
    "unknown missing": (lambda: CategoryColumn("a", ["x"], "y"), "one of its values or"),
    "one class": (lambda: Label("ill", ["no"]), "at least 2"),
    "no columns": (lambda: Preparation([], ILL), "no columns beside the label"),
    "column twice": (lambda: Preparation([AGE, AGE], ILL), "column 'age' more than once"),
    "label as column": (
        lambda: Preparation([AGE, SEX], Label("age", [0, 1])),
        "column 'age' more than once",
    ),
    "a name": (lambda: Preparation(["age"], ILL), "describe each column"),
    "label a name": (lambda: Preparation([AGE], "ill"), "Label\\(name, classes"),
    "kind": (
        lambda: Preparation.from_json({"columns": [{"name": "a", "kind": "date"}], "label": {}}),
        "column 1 must have a name and a kind",
    ),
    "key": (
        lambda: Preparation.from_json(
            {"columns": [{"name": "a", "kind": "number", "low": 0, "up": 1}], "label": {}}
        ),
        "column 1 of kind 'number': .*'up'",
    ),
    "key left out": (
        lambda: Preparation.from_json({"columns": [{"name": "a", "kind": "number"}], "label": {}}),
        "column 1 of kind 'number': .*low",
    ),
    "sections": (lambda: Preparation.from_json({"columns": []}), "columns and label"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_description_that_makes_no_sense_is_refused(case):
    make, what = BAD[case]
    with pytest.raises(InputError, match=what):
        make()


def test_a_description_is_read_from_plain_values():
    written = PREPARATION.to_json()
    assert Preparation.from_json(written) == PREPARATION
    short = {
        "columns": [
            {"name": "age", "kind": "number", "low": 0, "high": 100, "missing": 60},
            {"name": "sex", "kind": "category", "values": ["m", "f"]},
        ],
        "label": {"name": "ill", "classes": ["no", "yes"]},
    }
    assert Preparation.from_json(short) == PREPARATION
    assert Preparation.from_json(short).digest() == PREPARATION.digest()


@pytest.mark.parametrize(
    "other",
    [
        Preparation([SEX, AGE], ILL),
        Preparation([dataclasses.replace(AGE, missing=50), SEX], ILL),
        Preparation([dataclasses.replace(AGE, high=101), SEX], ILL),
        Preparation([AGE, CategoryColumn("sex", ["f", "m"])], ILL),
        Preparation([AGE, SEX], Label("ill", ["yes", "no"])),
        Preparation([PlainColumn("age"), SEX], ILL),
    ],
)
def test_the_digest_is_of_everything_that_is_described(other):
    assert other.digest() != PREPARATION.digest()
