import numpy as np
import pytest

from decor import Budget, Exposure
from decor.errors import BudgetError, DecorError

NONSENSE = [0, -1, float("nan"), float("inf"), -float("inf"), "3", None, True]


@pytest.mark.parametrize("epsilon", NONSENSE)
def test_a_nonsense_epsilon_is_refused_with_its_value(epsilon):
    with pytest.raises(BudgetError, match="epsilon must be a positive finite number, not"):
        Budget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0, 1, 1.5, -1e-5, float("nan"), "x", None])
def test_a_nonsense_delta_is_refused_with_its_value(delta):
    with pytest.raises(BudgetError, match="delta must lie strictly between 0 and 1, not"):
        Budget(1.0, delta)


@pytest.mark.parametrize("clip", NONSENSE)
def test_a_nonsense_clip_is_refused(clip):
    with pytest.raises(BudgetError, match="clip must be a positive finite number"):
        Exposure(clip, 10)


@pytest.mark.parametrize("steps", [0, -5, 2.5, float("nan"), "10", True, None])
def test_steps_are_a_positive_whole_number(steps):
    with pytest.raises(BudgetError, match="steps must be a positive whole number"):
        Exposure(1.0, steps)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unit": "hospital"}, 'unit must be "user" or "example"'),
        ({"batch_size": 64}, "do not apply"),
        ({"relation": "add-remove"}, "not offered"),
        ({"unit": "example"}, "needs batch_size and records"),
        ({"unit": "example", "batch_size": 64, "records": 63}, "larger than the smallest shard, 63"),
        ({"unit": "example", "batch_size": 64, "records": (100, 63)}, "larger than the smallest shard, 63"),
        ({"unit": "example", "batch_size": 64, "records": ()}, "records is empty"),
        ({"unit": "example", "batch_size": 0, "records": 5}, "batch_size must be a positive whole number"),
        ({"unit": "example", "batch_size": 4, "records": 2.5}, "records must be a positive whole number"),
        ({"unit": "example", "batch_size": 4, "records": 50, "sampling": "shuffle"}, "no amplification theorem"),
        ({"unit": "example", "batch_size": 4, "records": 50, "relation": "swap"}, "relation must be"),
        ({"unit": "example", "batch_size": 4, "records": 50, "sampling": "fixed", "relation": "add-remove"}, "replace"),
    ],
)
def test_exposures_that_cannot_be_accounted_are_refused(options, said):
    with pytest.raises(BudgetError, match=said) as caught:
        Exposure(1.0, 10, **options)
    assert isinstance(caught.value, DecorError) and isinstance(caught.value, ValueError)


def test_defaults_say_what_is_protected():
    assert Exposure(1.0, 10).relation == "replace"
    example = Exposure(1.0, 10, unit="example", batch_size=8, records=np.int64(100))
    assert (example.sampling, example.relation, example.records) == ("poisson", "add-remove", 100)
    assert Exposure(1.0, 10, unit="example", batch_size=8, records=100, sampling="fixed").relation == "replace"


def test_how_far_one_protected_unit_moves_a_message():
    assert Exposure(1.5, 10).shift == 3.0
    assert Exposure(1.5, 10, unit="example", batch_size=10, records=100).shift == pytest.approx(0.15)
    assert Exposure(1.5, 10, unit="example", batch_size=10, records=100, relation="replace").shift == pytest.approx(0.3)


def test_every_user_has_its_own_sampling_rate():
    exposure = Exposure(1.0, 10, unit="example", batch_size=10, records=[100, 50])
    assert exposure.rates(2) == (0.1, 0.2)
    with pytest.raises(BudgetError, match="records has 2 numbers for 3 users"):
        exposure.rates(3)
