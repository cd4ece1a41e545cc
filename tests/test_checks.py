"""Checks return the value or raise a sentence with what, the value and the way out."""

import math

import numpy as np
import pytest

from decor import checks
from decor.errors import BudgetError, InputError


@pytest.mark.parametrize("value", [1, 7, np.int64(3)])
def test_a_whole_number_is_returned_as_an_int(value):
    assert checks.count("users", value) == value and type(checks.count("users", value)) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None, math.nan, 2**63])
def test_what_is_no_positive_whole_number_is_refused_with_its_value(value):
    with pytest.raises(InputError) as refused:
        checks.count("users", value, hint="give 16")
    assert str(refused.value) == f"users must be a positive whole number, not {value!r}; give 16"


def test_limits_are_named_where_they_matter():
    with pytest.raises(InputError, match="from 0 to 10, not 11"):
        checks.count("rounds", 11, 0, 10)
    with pytest.raises(InputError, match="from 1 to 1,000,000,000,000,000, not 10"):
        checks.count("steps", 10**16, 1, 10**15)
    with pytest.raises(InputError, match="a positive whole number, not 0"):
        checks.count("steps", 0, 1, 10**15)


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "1", None, 10**400])
def test_what_is_no_positive_number_is_refused(value):
    with pytest.raises(BudgetError, match="epsilon must be a positive finite number"):
        checks.positive("epsilon", value, error=BudgetError)


@pytest.mark.parametrize("value", [1e-200, 1e200])
def test_numbers_whose_squares_overflow_or_vanish_are_refused(value):
    with pytest.raises(InputError, match="between 1e-100 and 1e"):
        checks.positive("clip", value)
    with pytest.raises(InputError, match="0 or lie between"):
        checks.not_negative("sigma_cor", value)


def test_zero_is_no_positive_number_and_no_negative_one():
    assert checks.not_negative("sigma_cor", 0) == 0.0
    with pytest.raises(InputError):
        checks.positive("sigma_cor", 0)
    with pytest.raises(InputError, match="at least 0, not -1"):
        checks.not_negative("sigma_cor", -1)


def test_a_choice_is_returned_and_another_is_refused_with_all_choices():
    assert checks.one_of("unit", "user", ("user", "example")) == "user"
    for value in ("users", None, 3):
        with pytest.raises(InputError, match='unit must be "user" or "example", not'):
            checks.one_of("unit", value, ("user", "example"))
