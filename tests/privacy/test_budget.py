from dataclasses import replace

import numpy as np
import pytest

import decor
from decor import Budget, Exposure
from decor.errors import BudgetError, DecorError, InputError
from decor.privacy.budget import ACCOUNTED

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
        (
            {"unit": "example", "batch_size": 64, "records": 63},
            "larger than the smallest shard, 63",
        ),
        (
            {"unit": "example", "batch_size": 64, "records": (100, 63)},
            "larger than the smallest shard, 63",
        ),
        ({"unit": "example", "batch_size": 64, "records": ()}, "records is empty"),
        (
            {"unit": "example", "batch_size": 0, "records": 5},
            "batch_size must be a positive whole number",
        ),
        (
            {"unit": "example", "batch_size": 4, "records": 2.5},
            "records must be a positive whole number",
        ),
        (
            {"unit": "example", "batch_size": 4, "records": 50, "sampling": "shuffle"},
            "no amplification theorem",
        ),
        (
            {"unit": "example", "batch_size": 4, "records": 50, "relation": "swap"},
            "relation must be",
        ),
        (
            {
                "unit": "example",
                "batch_size": 4,
                "records": 50,
                "sampling": "fixed",
                "relation": "add-remove",
            },
            "replace",
        ),
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
    assert (
        Exposure(1.0, 10, unit="example", batch_size=8, records=100, sampling="fixed").relation
        == "replace"
    )


def test_how_far_one_protected_unit_moves_a_message():
    assert Exposure(1.5, 10).shift == 3.0
    assert Exposure(1.5, 10, unit="example", batch_size=10, records=100).shift == pytest.approx(
        0.15
    )
    assert Exposure(
        1.5, 10, unit="example", batch_size=10, records=100, relation="replace"
    ).shift == pytest.approx(0.3)


def test_every_user_has_its_own_sampling_rate():
    exposure = Exposure(1.0, 10, unit="example", batch_size=10, records=[100, 50])
    assert exposure.rates(decor.path(2)) == (0.1, 0.2)
    with pytest.raises(BudgetError, match="records has 2 numbers for 3 users"):
        exposure.rates(decor.path(3))


TOWNS = decor.from_edges(3, [(0, 1), (1, 2)], ["ulm", "bonn", "kiel"])


def by_name(records):
    return Exposure(1.0, 10, unit="example", batch_size=10, records=records)


def test_records_by_name_are_those_of_the_names_in_any_order():
    exposure = by_name({"bonn": 152, "kiel": 40, "ulm": np.int64(80)})
    assert exposure.records_of(TOWNS) == (80, 152, 40) and exposure.rates(TOWNS) == (
        10 / 80,
        10 / 152,
        10 / 40,
    )
    assert exposure == by_name({"ulm": 80, "kiel": 40, "bonn": 152}) and hash(exposure) == hash(
        by_name(exposure.records)
    )
    assert (
        exposure.records["bonn"] == 152
        and exposure.units(TOWNS) == 272
        and "'bonn': 152" in repr(exposure)
    )
    assert by_name({0: 20, 2: 40, 1: 30}).records_of(decor.path(3)) == (20, 30, 40), (
        "users without names are called by numbers"
    )
    assert by_name(33).records_of(TOWNS) == (33, 33, 33)


def test_what_was_given_may_change_afterwards():
    given = {"bonn": 152, "kiel": 40, "ulm": 80}
    exposure = by_name(given)
    given["bonn"] = 1
    assert exposure.records_of(TOWNS) == (80, 152, 40)


@pytest.mark.parametrize(
    "records",
    [(80, 152, 40), [80, 152, 40], np.array([80, 152, 40])],
    ids=["tuple", "list", "array"],
)
def test_a_list_for_named_users_is_refused_and_the_sentence_writes_the_mapping(records):
    said = (
        r"is a list, but the users of this graph have names \(ulm, bonn, "
        r'kiel\).*records=\{"ulm": 152, "bonn": 152, \.\.\.\}'
    )
    exposure = by_name(records)
    for ask in (
        lambda: exposure.rates(TOWNS),
        lambda: decor.NoisePlan(TOWNS, exposure, decor.Adversary.curious(), 1.0, 1.0),
        lambda: decor.calibrate(TOWNS, exposure, decor.Adversary.curious(), Budget(3.0, 1e-5)),
        lambda: decor.couples(TOWNS, exposure, decor.Adversary.curious(), Budget(3.0, 1e-5)),
    ):
        with pytest.raises(BudgetError, match=said):
            ask()


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ({"bonn": 152, "ulm": 80}, "records has nothing for kiel;"),
        ({"bonn": 152, "ulm": 80, "kiel": 40, "jena": 9}, "larger than the smallest shard"),
        (
            {"bonn": 152, "ulm": 80, "kiel": 40, "jena": 90},
            "records names jena, whom the graph does not have;",
        ),
        (
            {"bonn": 152, "ulm": 80, "Kiel": 40},
            "records has nothing for kiel and names Kiel, whom the graph does not have",
        ),
        (
            {"bonn": 152, "ulm": 80, "kiel": 40.5},
            "records of 'kiel' must be a positive whole number",
        ),
        (
            {"bonn": 152, "ulm": 80, "kiel": True},
            "records of 'kiel' must be a positive whole number",
        ),
        ({}, "records is empty"),
        ({"1": 20, 1: 30}, "names a user twice"),
    ],
    ids=str,
)
def test_a_mapping_with_a_missing_or_unknown_user_is_refused_by_name(records, said):
    with pytest.raises(InputError, match=said):
        decor.NoisePlan(TOWNS, by_name(records), decor.Adversary.curious(), 1.0, 1.0)


def test_names_for_users_without_any_are_refused_with_both_ways_out():
    with pytest.raises(
        InputError,
        match=r"users \(a, b, c\), but those of ring\(3\) have no "
        r"names; give a list for users 0..2",
    ):
        decor.NoisePlan(
            decor.ring(3), by_name(dict.fromkeys("abc", 20)), decor.Adversary.curious(), 1.0, 1.0
        )
    named = replace(decor.ring(3), labels=["a", "b", "c"])
    assert by_name(dict.fromkeys("abc", 20)).records_of(named) == (20, 20, 20)


ONE_RECORD = Exposure(1.0, 10, unit="example", batch_size=10, records=300)


@pytest.mark.parametrize(
    ("topology", "exposure", "delta", "said"),
    [
        (
            decor.ring(5),
            Exposure(1.0, 10),
            0.5,
            "delta 0.5 is too large for 5 users: at most 0.001.* 2.5 of them.*Take 1e-05",
        ),
        (decor.ring(5), Exposure(1.0, 10), 0.1, "for 5 users: at most 0.001 .* 0.5 of them"),
        (
            decor.ring(1000),
            Exposure(1.0, 10),
            0.01,
            "for 1,000 users: at most 0.001 .* 10 of them.*Take 1e-05",
        ),
        (
            decor.ring(20_000),
            Exposure(1.0, 10),
            1e-4,
            "for 20,000 users: at most 5e-05 .* 2 of them.*Take 1e-06",
        ),
        (
            decor.ring(5),
            ONE_RECORD,
            7e-4,
            r"for 1,500 examples: at most 0.0006667 .*set any_delta "
            r"\(the option --any-delta",
        ),
        (
            TOWNS,
            by_name({"bonn": 10**6, "ulm": 20, "kiel": 30}),
            1e-5,
            "for 1,000,050 examples: .*Take 1e-08",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_plan_is_not_made_for_a_delta_with_which_publishing_a_users_data_is_within_budget(
    topology, exposure, delta, said
):
    budget, curious = Budget(1.0, delta), decor.Adversary.curious()
    for make in (
        lambda **more: decor.calibrate(topology, exposure, curious, budget, ratio=1.0, **more),
        lambda **more: decor.baselines.local(topology, exposure, budget, **more),
        lambda **more: decor.baselines.central(topology, exposure, budget, **more),
    ):
        with pytest.raises(BudgetError, match=said):
            make()
        assert make(any_delta=True).guarantee().epsilon <= 1.0


def test_deltas_up_to_the_limit_are_taken_and_accounting_answers_any():
    curious = decor.Adversary.curious()
    for users, delta in ((5, 1e-3), (1000, 1e-3), (10_000, 1e-4)):
        assert (
            decor.calibrate(
                decor.ring(users), Exposure(1.0, 10), curious, Budget(1.0, delta), ratio=1.0
            ).budget.delta
            == delta
        )
    whole = Exposure(1.0, 10, unit="example", batch_size=10, records=20_000)
    plan = decor.calibrate(decor.ring(5), whole, curious, Budget(1.0, 1e-5), ratio=1.0)
    assert plan.guarantee(0.5).epsilon < plan.guarantee().epsilon <= 1.0


def test_of_delta_a_thousandth_is_not_spent():
    assert Budget(2.0, 1e-5).accounted == Budget(2.0, ACCOUNTED * 1e-5) and ACCOUNTED == 0.999


def common(**options):
    return Exposure(1.5, 10, unit="example", **{"rate": 0.1, "batch_size": 20} | options)


def test_with_a_common_rate_every_user_has_the_same_rate_and_shift_and_no_count_is_kept():
    declared = common()
    assert declared.rates(TOWNS) == (0.1,) * 3 and declared.shift == pytest.approx(1.5 / 20)
    assert declared.units(TOWNS) == 600 and not declared.counts_are_public
    counts = {"ulm": 5, "bonn": 2000, "kiel": 95}
    computed = common(batch_size=None, weighting="records", records=counts)
    # rate x mean number of examples, and nothing else of them
    assert computed.batch_size == 70 and computed.records is None
    assert "2000" not in repr(computed) and "2000" not in str(computed.to_json())
    assert Exposure(**computed.to_json()) == computed
    assert computed.local_step(2000) == pytest.approx(2000 / 700)
    for records in ((5, 2000, 95), 700):
        assert common(batch_size=None, weighting="records", records=records) == computed
    with pytest.raises(BudgetError, match="nobody's number of examples"):
        declared.records_of(TOWNS)
    # plans of before have none of the new fields
    assert "rate" not in by_name(33).to_json() and "weighting" not in Exposure(1.0, 1).to_json()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate": 0.0}, "rate must be a probability"),
        ({"rate": 1.5}, "rate must be a probability"),
        ({"rate": float("nan")}, "rate must be a probability"),
        ({"rate": None, "weighting": "records"}, "rate must be a probability"),
        ({"records": 100}, "drop records"),
        ({"batch_size": None}, "needs a public batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"sampling": "fixed"}, "draws every example independently"),
        ({"weighting": "votes"}, "weighting"),
        ({"weighting": "records", "records": 100}, "drop batch_size"),
        ({"unit": "user"}, "rate and weighting do not apply"),
    ],
)
def test_a_common_rate_that_makes_no_sense_is_refused(options, said):
    with pytest.raises(BudgetError, match=said):
        Exposure(1.5, 10, **{"unit": "example", "rate": 0.1, "batch_size": 20} | options)
