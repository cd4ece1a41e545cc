"""Tables of any kind, seen as columns by name."""

import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest

from decor.errors import InputError, MissingExtra
from decor.learning import frames


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, dict])
def test_columns_have_names_and_values(make):
    table = frames.table_of(make({" a": [1, 2], "b": ["x", None]}))
    assert table.names == ("a", "b") and table.records == 2
    assert table.column("a").tolist() == [1, 2] and table.column("b").tolist()[0] == "x"
    assert table.column("b").tolist()[1] in (None, pytest.approx(np.nan, nan_ok=True))


def test_numbers_beside_texts_stay_what_they_are():
    assert frames.table_of({"a": [1, "1.50", None]}).column("a").tolist() == [1, "1.50", None]


@pytest.mark.parametrize("library", [pd, pl])
def test_rows_of_a_frame_are_a_frame_of_the_same_library(library):
    frame = library.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    part = frames.rows(frame, np.array([2, 0]))
    assert type(part) is type(frame)
    assert part["a"].to_list() == [3, 1] and part["b"].to_list() == ["z", "x"]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.zeros((2, 2)), "is not a table, but ndarray; give a DataFrame"),
        (pl.LazyFrame({"a": [1]}), r"is a lazy table; give its \.collect"),
        ({"a": [1, 2], "b": [1]}, "different length .'a' 2, 'b' 1"),
        ({"a": np.zeros((2, 2))}, "column 'a' of the table has several values per record"),
    ],
)
def test_what_is_no_table_is_refused(value, what):
    with pytest.raises(InputError, match=what):
        frames.table_of(value)


def test_without_narwhals_a_frame_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "narwhals", None)
    monkeypatch.setattr("decor.errors.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"DataFrames need narwhals.*\[tables\]"):
        frames.table_of(pd.DataFrame({"a": [1]}))
    assert frames.table_of({"a": [1]}).records == 1
