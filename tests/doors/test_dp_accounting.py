"""The accountant behind the real interface of dp-accounting, with the vectors of its own tests."""

import math
import unittest
from dataclasses import replace

import pytest
from oracles import true_delta, true_worst

pytest.importorskip(
    "dp_accounting", reason="dp-accounting is not installed: pip install '.[doors]'"
)

import dp_accounting as dp  # noqa: E402
from dp_accounting import privacy_accountant_test  # noqa: E402
from dp_accounting.pld import pld_privacy_accountant, pld_privacy_accountant_test  # noqa: E402
from dp_accounting.rdp import RdpAccountant  # noqa: E402

import decor  # noqa: E402
from decor.doors.dp_accounting import CorrelatedGaussianDpEvent, DecorAccountant  # noqa: E402
from decor.errors import InputError  # noqa: E402
from decor.privacy.composition import PastRun, Question, compose  # noqa: E402
from decor.privacy.loss.noise_multiplier import noise_multiplier  # noqa: E402

ADD, REPLACE, ZERO = (
    dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    dp.NeighboringRelation.REPLACE_ONE,
    dp.NeighboringRelation.REPLACE_SPECIAL,
)
DELTA = 1e-5
PLD = pld_privacy_accountant.PLDAccountant


def epsilon(event, relation=ADD, count=1, delta=DELTA, accountant=DecorAccountant):
    return accountant(neighboring_relation=relation).compose(event, count).get_epsilon(delta)


def fixed(z, size=64, records=3750):
    return dp.SampledWithoutReplacementDpEvent(records, size, dp.GaussianDpEvent(z))


def poisson(z, rate=64 / 3750):
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z))


RING, TWO = decor.ring(5), decor.Adversary.colluding(2)
IRREGULAR = decor.from_edges(6, [(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (4, 5)])


def example_plan(topology=RING, sigma_cdp=0.05, **fields):
    fields = {"batch_size": 10, "records": 200} | fields
    exposure = decor.Exposure(clip=1.0, steps=50, unit="example", **fields)
    return decor.NoisePlan(topology, exposure, decor.Adversary.curious(), sigma_cdp, 0.4)


def user_plan(adversary=TWO, topology=IRREGULAR, sigma_cdp=3.0):
    exposure = decor.Exposure(clip=0.5, steps=40)
    return decor.NoisePlan(topology, exposure, adversary, sigma_cdp, 20.0)


# --- the tests of dp-accounting


class TestInterface(privacy_accountant_test.PrivacyAccountantTest):
    """What every accountant of dp-accounting has to pass."""

    def _make_test_accountants(self):
        return [DecorAccountant(relation) for relation in (ADD, REPLACE, ZERO)]


OTHER_MECHANISMS = (
    "laplace",
    "randomized_response",
    "mixture_of_gaussians",
    "truncated",
    "composition_errors_for_neighboring_relation",  # of those
    "_rr_",
    "zero_noise_multiplier1",
    "zero_noise_multiplier2",
    "zero_noise_multiplier4",
    "zero_noise_multiplier5",
    "zero_probability1",
    "zero_probability3",
    "zero_probability4",
    "zero_probability5",
)
VECTORS = [
    name
    for name in unittest.defaultTestLoader.getTestCaseNames(
        pld_privacy_accountant_test.PldPrivacyAccountantTest
    )
    if not any(other in name for other in OTHER_MECHANISMS)
]


def test_all_vectors_about_gaussians_are_among_those():
    assert len(VECTORS) >= 37
    assert {
        "test_gaussian_basic",
        "test_poisson_subsampled_gaussian",
        "test_self_composed_subsampled_gaussian",
        "test_supports_gaussian0",
        "test_additive_noise_mechanisms_with_zero_noise_multiplier3",
    } <= set(VECTORS)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_the_tightest_accountant_of_dp_accounting(name, monkeypatch):
    monkeypatch.setattr(pld_privacy_accountant, "PLDAccountant", DecorAccountant)
    result = unittest.TestResult()
    pld_privacy_accountant_test.PldPrivacyAccountantTest(name).run(result)
    assert result.testsRun == 1 and not result.skipped
    assert not [*result.failures, *result.errors], result


# --- batches of fixed size


def test_fixed_size_is_2_99_where_dp_accounting_says_5_54():
    """One record of 3,750, batches of 64, 1,000 steps; the noise is 2.32 times the clip."""
    ours = epsilon(fixed(2.32), REPLACE, 1000)
    assert ours == pytest.approx(2.9942, abs=5e-5)
    # dp-accounting takes a multiplier of the sensitivity, which is twice the clip
    assert epsilon(fixed(2.32 / 2), REPLACE, 1000, accountant=RdpAccountant) == pytest.approx(
        5.5436, abs=5e-5
    )
    with pytest.raises(dp.UnsupportedEventError):
        epsilon(fixed(2.32 / 2), REPLACE, 1000, accountant=PLD)
    # ours does not depend on how it is asked for
    exposure = decor.Exposure(
        clip=1.0, steps=1000, unit="example", batch_size=64, records=3750, sampling="fixed"
    )
    plan = decor.NoisePlan(decor.complete(2), exposure, decor.Adversary.everyone(), 2.32 / 64, 0.0)
    assert ours == pytest.approx(plan.guarantee(DELTA).epsilon, rel=1e-9)


def test_a_noise_multiplier_is_of_the_clip_as_the_event_says():
    """dp-accounting's Rényi accountant takes it for one of the sensitivity (its issue 378).

    So the same event comes out below what a mechanism attains: others' values are all C and the
    record goes from C to -C, which moves the sum by 2C if it is drawn.
    """
    attained = epsilon(poisson(2.32 / 2), ADD, 1000, accountant=PLD)
    wrong = epsilon(fixed(2.32), REPLACE, 1000, accountant=RdpAccountant)
    assert wrong < 2.17 < 2.47 < attained < epsilon(fixed(2.32), REPLACE, 1000)
    # where its two accountants differ, ours is with the one that reads the event as documented
    event = dp.GaussianDpEvent(10.0)
    theirs = epsilon(event, REPLACE, 10, accountant=PLD)
    assert epsilon(event, REPLACE, 10) == pytest.approx(theirs, rel=1e-3)
    assert epsilon(event, REPLACE, 10, accountant=RdpAccountant) < 0.6 * theirs


# --- ordinary events


@pytest.mark.parametrize("relation", [ADD, REPLACE, ZERO])
def test_gaussians_are_those_of_40_digits(relation):
    event = dp.ComposedDpEvent([dp.GaussianDpEvent(4.0), dp.GaussianDpEvent(7)])
    mu = math.sqrt(3 * (1 / 16 + 1 / 49)) * (2 if relation is REPLACE else 1)
    value = epsilon(event, relation, 3)
    assert true_delta(value, mu) <= DELTA < true_delta(value * (1 - 1e-9), mu)
    accountant = DecorAccountant(relation).compose(event, 3)
    assert true_delta(1.5, mu) <= accountant.get_delta(1.5) <= true_delta(1.5, mu) * (1 + 1e-5)


@pytest.mark.parametrize("relation", [ADD, REPLACE, ZERO])
def test_mixtures_of_sampled_and_plain_gaussians_are_those_of_privacy_loss_distributions(relation):
    event = dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(poisson(1.5, 0.05), 100),
            dp.GaussianDpEvent(8.0),
            dp.PoissonSampledDpEvent(1.0, dp.GaussianDpEvent(9.0)),
            dp.SelfComposedDpEvent(poisson(0.9, 0.01), 40),
            dp.NoOpDpEvent(),
        ]
    )
    ours = DecorAccountant(relation).compose(event)
    theirs = PLD(relation).compose(event)
    assert ours.get_epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-3)
    assert ours.get_delta(2.0) == pytest.approx(theirs.get_delta(2.0), rel=2e-2)
    assert ours.get_delta(2.0) > theirs.get_delta(2.0) * 0.999
    if relation is ADD:
        assert ours.get_epsilon(DELTA) < RdpAccountant().compose(event).get_epsilon(DELTA)


def test_queries_on_one_sample_are_one_query():
    """Adding records: several Gaussians on a sample have the noise of one."""
    one = dp.GaussianDpEvent(2.0)
    for queries in (
        dp.SelfComposedDpEvent(one, 4),
        dp.ComposedDpEvent([dp.SelfComposedDpEvent(one, 3), dp.ComposedDpEvent([one])]),
    ):
        for sampled, single, relation in (
            (dp.PoissonSampledDpEvent(0.1, queries), poisson(1.0, 0.1), ADD),
            (
                dp.SampledWithoutReplacementDpEvent(100, 10, queries),
                fixed(1.0, 10, 100),
                REPLACE,
            ),
        ):
            value, wanted = epsilon(sampled, relation, 5), epsilon(single, relation, 5)
            assert wanted <= value == pytest.approx(wanted, rel=1e-9)


def test_less_is_never_promised_for_more():
    base = epsilon(poisson(1.2, 0.02), ADD, 100)
    assert base < epsilon(poisson(1.2, 0.02), ADD, 101)
    assert (
        base < epsilon(poisson(1.2, 0.02), REPLACE, 100) < epsilon(fixed(1.2, 2, 100), REPLACE, 100)
    )
    # a zero record is one of the records that may replace another
    assert epsilon(fixed(1.2, 2, 100), ZERO, 100) == epsilon(fixed(1.2, 2, 100), REPLACE, 100)
    assert epsilon(poisson(1.2, 0.02), ZERO, 100) == base


def test_calibration_of_dp_accounting_finds_our_noise():
    z = dp.calibrate_dp_mechanism(
        lambda: DecorAccountant(REPLACE),
        lambda z: dp.SelfComposedDpEvent(fixed(z, 20, 300), 45),
        3.0,
        DELTA,
        dp.ExplicitBracketInterval(1.0, 10.0),
        tol=1e-3,
    )
    ours = noise_multiplier(3.0, DELTA, 20 / 300, 45, "fixed", "replace")
    assert epsilon(fixed(z, 20, 300), REPLACE, 45) <= 3.0
    assert z == pytest.approx(ours, rel=3e-3)


# --- runs on graphs

PLANS = {
    "users": (user_plan(), (REPLACE, ZERO)),
    "examples": (example_plan(), (ZERO,)),
    "examples replaced": (example_plan(relation="replace"), (REPLACE,)),
    "fixed size": (example_plan(sampling="fixed"), (REPLACE, ZERO)),
    "private numbers": (example_plan(rate=0.05, records=None), (ADD, ZERO)),
    "all of everyone": (example_plan(batch_size=200), (ZERO,)),
    "uneven": (
        example_plan(
            IRREGULAR,
            (0.05, 0.06, 0.04, 0.07, 0.05, 0.05),
            records=[200, 300, 150, 180, 400, 160],
        ),
        (ZERO,),
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_run_has_the_epsilon_of_its_plan(name):
    plan, relations = PLANS[name]
    for relation in relations:
        accountant = DecorAccountant(relation).compose(CorrelatedGaussianDpEvent(plan))
        promised = plan.guarantee(DELTA).epsilon
        assert accountant.get_epsilon(DELTA) == pytest.approx(promised, rel=1e-12)
        assert DELTA <= accountant.get_delta(promised) * (1 + 1e-9)
        if name != "uneven":
            assert accountant.get_delta(promised) < 1.05 * DELTA
        # again, with fresh noise
        again = replace(plan, exposure=replace(plan.exposure, steps=3 * plan.exposure.steps))
        assert accountant.compose(CorrelatedGaussianDpEvent(plan), 2).get_epsilon(
            DELTA
        ) == pytest.approx(again.guarantee(DELTA).epsilon, rel=1e-12)


def test_a_run_whose_neighbours_differ_otherwise_is_accounted_for_that():
    plan = example_plan()
    asked = replace(plan, exposure=replace(plan.exposure, relation="replace"))
    value = epsilon(CorrelatedGaussianDpEvent(plan), REPLACE)
    assert value == pytest.approx(asked.guarantee(DELTA).epsilon, rel=1e-12)
    assert value > plan.guarantee(DELTA).epsilon


def test_runs_of_several_plans_are_composed_as_a_ledger_composes_them():
    one, other = user_plan(), user_plan(topology=decor.ring(6))
    event = dp.ComposedDpEvent(
        [
            CorrelatedGaussianDpEvent(one),
            dp.SelfComposedDpEvent(CorrelatedGaussianDpEvent(other), 2),
        ]
    )
    ledger = [PastRun(one), PastRun(other), PastRun(other)]
    question = Question("user", "replace", 2)
    assert epsilon(event, REPLACE) == pytest.approx(compose(ledger, question, DELTA), rel=1e-12)


def test_a_run_and_another_release_of_the_same_user_are_one_gaussian():
    z = 6.0
    event = dp.ComposedDpEvent([CorrelatedGaussianDpEvent(user_plan()), dp.GaussianDpEvent(z)])
    ours = epsilon(event, REPLACE)
    # every coalition, in 80 digits; 40 steps, in which a user moves its message by 2C = 1
    leverage = float(max(true_worst(IRREGULAR, 3.0, 20.0, 2)))
    mu = math.sqrt(40 * leverage + (2 / z) ** 2)
    assert true_delta(ours, mu) <= DELTA < true_delta(ours * (1 - 1e-6), mu)


def test_examples_of_runs_and_of_other_events_are_composed():
    plan = example_plan(rate=0.05, records=None)
    event = dp.ComposedDpEvent(
        [CorrelatedGaussianDpEvent(plan), dp.SelfComposedDpEvent(poisson(2.0, 0.03), 30)]
    )
    # the noise that is left to the most exposed user, as a sampled Gaussian without a graph
    leverage = float(max(true_worst(plan.topology, 0.05, 0.4, 1)))
    z = 10 / math.sqrt(leverage)
    theirs = (
        PLD(ADD).compose(poisson(z, 0.05), 50).compose(poisson(2.0, 0.03), 30).get_epsilon(DELTA)
    )
    assert epsilon(event, ADD) == pytest.approx(theirs, rel=1e-3)


def test_an_event_is_a_value_that_goes_through_a_named_tuple():
    event = CorrelatedGaussianDpEvent(user_plan())
    again = dp.DpEvent.from_named_tuple(dp.SelfComposedDpEvent(event, 2).to_named_tuple())
    assert again == dp.SelfComposedDpEvent(event, 2)
    accountant = DecorAccountant(REPLACE).compose(event).compose(event)
    assert accountant.ledger == again


# --- what cannot be accounted for


def refusals():
    run = CorrelatedGaussianDpEvent
    user, example = run(user_plan()), run(example_plan())
    everyone = run(user_plan(decor.Adversary.everyone()))
    central = run(user_plan(decor.Adversary(0, average_only=True)))
    one = dp.GaussianDpEvent(1.0)
    adaptive = dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(one, 2))
    minus = dp.SelfComposedDpEvent(one, -1)
    return [
        (dp.LaplaceDpEvent(1.0), dp.LaplaceDpEvent(1.0), ADD, "Unsupported event"),
        (dp.ZCDpEvent(1.0), dp.ZCDpEvent(1.0), ADD, "Unsupported event"),
        (fixed(1.0), fixed(1.0), ADD, "REPLACE_ONE"),
        (fixed(1.0, 11, 10), fixed(1.0, 11, 10), REPLACE, "sample_size"),
        (adaptive, adaptive, REPLACE, "single `GaussianDpEvent`"),
        (dp.PoissonSampledDpEvent(0.1, example), example, ADD, "sampling in its plan"),
        (dp.PoissonSampledDpEvent(0.1, poisson(1.0)), poisson(1.0), ADD, "may be in a sample"),
        (poisson(1.0, 1.1), poisson(1.0, 1.1), ADD, "sampling_probability"),
        (dp.GaussianDpEvent(-1.0), dp.GaussianDpEvent(-1.0), ADD, "noise_multiplier"),
        (dp.ComposedDpEvent([one, minus]), minus, ADD, "count"),
        (user, user, ADD, "no user is added"),
        (example, example, ADD, "rate="),
        (central, central, REPLACE, "central DP"),
        (run("plan"), run("plan"), REPLACE, "NoisePlan"),
        (dp.ComposedDpEvent([user, one, everyone]), everyone, REPLACE, "adversaries"),
        (dp.ComposedDpEvent([user, example]), example, REPLACE, "units"),
    ]


@pytest.mark.parametrize(("event", "part", "relation", "words"), refusals())
def test_what_cannot_be_accounted_for_is_named_and_leaves_nothing_behind(
    event, part, relation, words
):
    accountant = DecorAccountant(relation)
    before = accountant.compose(dp.GaussianDpEvent(5.0)).get_epsilon(DELTA)
    assert not accountant.supports(event)
    details = accountant._maybe_compose(event, 1, False)
    assert details.invalid_event == part and words in details.error_message
    with pytest.raises(dp.UnsupportedEventError, match="caused by subevent"):
        accountant.compose(event)
    assert accountant.get_epsilon(DELTA) == before
    assert accountant.ledger == dp.GaussianDpEvent(5.0)


def test_runs_against_other_adversaries_are_refused_after_those_before():
    accountant = DecorAccountant(REPLACE).compose(CorrelatedGaussianDpEvent(user_plan()))
    with pytest.raises(dp.UnsupportedEventError, match="colluding:2 and everyone"):
        accountant.compose(CorrelatedGaussianDpEvent(user_plan(decor.Adversary.everyone())))


def test_nothing_is_hidden_without_noise_and_extremes_stay_bounds():
    twice = dp.ComposedDpEvent([dp.GaussianDpEvent(0.0)] * 2)
    for event, relation in (
        (dp.GaussianDpEvent(0), REPLACE),
        (fixed(0.0), REPLACE),
        (dp.PoissonSampledDpEvent(0.1, twice), ADD),
        (CorrelatedGaussianDpEvent(user_plan(sigma_cdp=0.0)), REPLACE),
        (dp.GaussianDpEvent(1e-300), ADD),
    ):
        accountant = DecorAccountant(relation).compose(event)
        assert accountant.get_epsilon(0.1) == math.inf
        assert accountant.get_delta(3.0) == 1
    for event in (fixed(1.0, 0), poisson(1.0, 0.0), poisson(0.0, 0.0)):
        assert epsilon(event, REPLACE, delta=0) == 0
    for event in (dp.GaussianDpEvent(math.inf), poisson(1e300, 1e-300)):
        assert 0 <= epsilon(event, ADD) < 1e-6
        assert epsilon(event, ADD, delta=0) == math.inf


def test_nonsense_is_refused():
    with pytest.raises(InputError, match="NeighboringRelation"):
        DecorAccountant("replace")
    accountant = DecorAccountant().compose(dp.GaussianDpEvent(1.0))
    for delta in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match="target_delta"):
            accountant.get_epsilon(delta)
    for value in (-1, math.nan):
        with pytest.raises(InputError, match="target_epsilon"):
            accountant.get_delta(value)
