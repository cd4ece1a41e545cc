import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import graphs, true_worst

import decor
from decor import Adversary, Budget, Exposure, baselines, calibrate, couples
from decor.errors import BudgetError, FragileGraphWarning, InputError
from decor.graph.gossip import Gossip
from decor.privacy import theory
from decor.privacy.loss import gaussian

BUDGET = Budget(3.0, 1e-5)
EXPOSURE = Exposure(1.0, 1000)
EAVESDROPPER, CURIOUS = Adversary.eavesdropper(), Adversary.curious()

adversaries = st.sampled_from([Adversary(0), Adversary(1), Adversary(2), Adversary(None)])
budgets = st.builds(
    Budget, st.sampled_from([1e-3, 0.1, 1.0, 7.7, 100.0]), st.sampled_from([1e-12, 1e-5, 0.1])
)


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FragileGraphWarning)
        return calibrate(*args, **kwargs)


@given(graphs(least=3, most=7), adversaries, budgets, st.floats(0.01, 10), st.integers(1, 100_000))
def test_a_plan_accounted_again_never_exceeds_its_budget_nor_wastes_it(
    topology, adversary, budget, clip, steps
):
    plan = quiet(topology, Exposure(clip, steps), adversary, budget, any_delta=True)
    epsilon = plan.guarantee(budget.accounted.delta).epsilon
    assert epsilon <= budget.epsilon
    assert epsilon >= budget.epsilon * (1 - 1e-6)
    assert plan.guarantee().epsilon < epsilon, (
        "a thousandth of delta is left for the tables of the noise"
    )


@given(
    graphs(least=3, most=6),
    st.sampled_from([Adversary(0), Adversary(1), Adversary(2)]),
    st.sampled_from([0.0, 0.5, 30.0, 1e6]),
)
@settings(max_examples=30)
def test_the_noise_pair_is_the_closed_form_over_the_true_leverage(topology, adversary, ratio):
    plan = quiet(topology, EXPOSURE, adversary, BUDGET, ratio=ratio)
    worst = float(max(true_worst(topology, 1.0, math.sqrt(ratio), adversary.colluders)))
    expected = 2 * math.sqrt(1000 * worst) / gaussian.mu(3.0, BUDGET.accounted.delta)
    assert plan.sigma_cdp == pytest.approx(expected, rel=1e-8)
    assert plan.sigma_cor == pytest.approx(math.sqrt(ratio) * expected, rel=1e-8)


@pytest.mark.parametrize(
    "topology",
    [decor.ring(16), decor.torus(4, 4), decor.grid(3, 5), decor.random_regular(16, 4)],
    ids=repr,
)
@pytest.mark.parametrize("adversary", [EAVESDROPPER, CURIOUS], ids=str)
def test_a_fixed_noise_level_stays_fixed(topology, adversary):
    default = calibrate(topology, EXPOSURE, adversary, BUDGET)
    by_s = calibrate(topology, EXPOSURE, adversary, BUDGET, sigma_cdp=default.sigma_cdp)
    by_c = calibrate(topology, EXPOSURE, adversary, BUDGET, sigma_cor=default.sigma_cor)
    assert by_s.sigma_cdp == default.sigma_cdp and by_s.sigma_cor == pytest.approx(
        default.sigma_cor, rel=1e-6
    )
    assert by_c.sigma_cor == default.sigma_cor and by_c.sigma_cdp == pytest.approx(
        default.sigma_cdp, rel=1e-6
    )
    for plan in (by_s, by_c):
        assert plan.guarantee().epsilon <= 3.0


def test_noise_pairs_that_cannot_be_or_need_nothing():
    with pytest.raises(
        BudgetError, match="sigma_cdp 20 is too small for this budget on this graph"
    ):
        calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, sigma_cdp=20)
    plenty = calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, sigma_cdp=500.0)
    assert (plenty.sigma_cdp, plenty.sigma_cor) == (500.0, 0.0)
    huge = calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, sigma_cor=1e12)
    assert huge.sigma_cor == 1e12 and huge.sigma_cdp == pytest.approx(
        baselines.central(decor.ring(16), EXPOSURE, BUDGET).sigma_cdp, rel=1e-6
    )
    nothing = calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, sigma_cor=0.0)
    assert nothing.sigma_cdp == pytest.approx(
        baselines.local(decor.ring(16), EXPOSURE, BUDGET).sigma_cdp, rel=1e-9
    )
    with pytest.raises(InputError, match="at most one"):
        calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, sigma_cor=1.0, ratio=2.0)
    for bad in (-1.0, float("nan"), float("inf"), "x"):
        with pytest.raises(BudgetError, match="finite number"):
            calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, ratio=bad)
    with pytest.raises(InputError, match='"uniform" or "optimal"'):
        calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, edges="best")


@pytest.mark.parametrize("adversary", [EAVESDROPPER, CURIOUS], ids=str)
def test_the_default_noise_pair_has_the_least_predicted_error(adversary):
    for topology in (
        decor.ring(16),
        decor.torus(4, 4),
        decor.star(12) if adversary == EAVESDROPPER else decor.hypercube(4),
    ):
        plan = calibrate(topology, EXPOSURE, adversary, BUDGET, gossip_rounds=1)
        best = theory.predicted_error(plan)
        for ratio in np.geomspace(1e-3, 1e6, 40):
            other = calibrate(topology, EXPOSURE, adversary, BUDGET, ratio=float(ratio))
            assert best <= theory.predicted_error(other) * 1.003


ROUNDS = [{"gossip_rounds": 0}, {"gossip_rounds": 4}, {"gossip_rounds": 4, "accelerate": True}]


@given(graphs(least=3, most=7), adversaries, budgets, st.integers(0, 6), st.booleans())
@settings(max_examples=30)
def test_gossip_never_moves_a_plan_out_of_its_budget(
    topology, adversary, budget, rounds, accelerate
):
    plan = quiet(
        topology,
        EXPOSURE,
        adversary,
        budget,
        gossip_rounds=rounds,
        accelerate=accelerate,
        any_delta=True,
    )
    assert (
        budget.epsilon * (1 - 1e-6)
        <= plan.guarantee(budget.accounted.delta).epsilon
        <= budget.epsilon
    )


@pytest.mark.parametrize("adversary", [EAVESDROPPER, CURIOUS], ids=str)
@pytest.mark.parametrize(
    "topology",
    [decor.ring(16), decor.torus(3, 4), decor.grid(3, 4), decor.random_regular(12, 3)],
    ids=repr,
)
def test_with_more_rounds_the_default_trusts_more_to_noise_that_cancels(topology, adversary):
    plans = [
        calibrate(topology, EXPOSURE, adversary, BUDGET, gossip_rounds=k) for k in (0, 1, 2, 4, 8)
    ]
    assert (np.diff([plan.sigma_cdp for plan in plans]) <= 0).all() and plans[-1].sigma_cdp < plans[
        1
    ].sigma_cdp
    errors = [
        theory.predicted_error(plan, Gossip(k))
        for plan, k in zip(plans, (0, 1, 2, 4, 8), strict=True)
    ]
    assert (np.diff(errors) < 0).all()


@pytest.mark.parametrize("rounds", ROUNDS, ids=str)
def test_the_default_noise_pair_is_the_best_for_the_gossip_it_was_made_for(rounds):
    for topology in (decor.ring(16), decor.grid(3, 4)):
        gossip = Gossip(*rounds.values())
        best = theory.predicted_error(
            calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, **rounds), gossip
        )
        for ratio in np.geomspace(1e-3, 1e6, 30):
            other = calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, ratio=float(ratio))
            assert best <= theory.predicted_error(other, gossip) * 1.003


@pytest.mark.parametrize("rounds", ROUNDS, ids=str)
def test_a_fixed_noise_pair_does_not_depend_on_gossip(rounds):
    for fixed in ({"ratio": 20.0}, {"sigma_cdp": 60.0}, {"sigma_cor": 90.0}):
        plan = calibrate(decor.ring(16), EXPOSURE, CURIOUS, BUDGET, **fixed)
        assert calibrate(decor.ring(16), EXPOSURE, CURIOUS, BUDGET, **fixed, **rounds) == plan


def test_gossip_that_cannot_be_is_refused_even_where_it_would_not_matter():
    for fixed in ({}, {"ratio": 20.0}):
        with pytest.raises(InputError, match="gossip rounds must be a whole number"):
            calibrate(decor.ring(16), EXPOSURE, CURIOUS, BUDGET, gossip_rounds=-1, **fixed)


def test_a_fragile_graph_is_planned_and_the_warning_says_what_would_help():
    with pytest.warns(
        FragileGraphWarning,
        match="users 1 and 15 can isolate user 0.* Give every user at least 4 neighbours, or plan "
        "for curious",
    ):
        plan = calibrate(decor.ring(16), EXPOSURE, Adversary.colluding(2), BUDGET)
    assert plan.sigma_cor == 0 and plan.guarantee().epsilon <= 3.0
    with pytest.warns(FragileGraphWarning, match="user 0 can isolate user 1"):
        calibrate(decor.star(5), EXPOSURE, CURIOUS, BUDGET)
    with pytest.warns(FragileGraphWarning, match="no user shares a secret with user 2"):
        calibrate(decor.from_edges(3, [(0, 1)]), EXPOSURE, EAVESDROPPER, BUDGET)


def test_a_disconnected_graph_is_planned_by_its_smallest_part():
    parts = decor.from_edges(9, np.concatenate([decor.ring(6).edges, decor.ring(3).edges + 6]))
    plan = calibrate(parts, EXPOSURE, EAVESDROPPER, BUDGET, ratio=1e12)
    local = baselines.local(parts, EXPOSURE, BUDGET).sigma_cdp
    assert plan.sigma_cdp == pytest.approx(local / math.sqrt(3), rel=1e-6)
    assert plan.guarantee().worst_user == 6


def test_the_papers_method_needs_the_papers_noise():
    exact = calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, ratio=20.0)
    paper = calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, ratio=20.0, method="paper")
    assert exact.sigma_cdp / paper.sigma_cdp == pytest.approx(0.819, abs=5e-4)
    assert paper.guarantee(method="paper").epsilon == pytest.approx(3.0, rel=1e-8), (
        "the paper's formula keeps nothing"
    )
    assert paper.guarantee().epsilon < 3.0
    with pytest.raises(InputError, match='"exact" or "paper"'):
        calibrate(decor.ring(16), EXPOSURE, EAVESDROPPER, BUDGET, method="other")


def test_what_rounding_takes_away_is_given_back():
    """The accountant has the last word: a plan short of noise comes back with a little more."""
    from decor.privacy.calibrate import _enlarge_to_budget

    plan = calibrate(decor.ring(8), EXPOSURE, CURIOUS, BUDGET)
    for short in (1e-6, 1e-3):
        lacking, delta = replace(plan.scaled(1 - short), budget=plan.budget), BUDGET.accounted.delta
        assert lacking.guarantee(delta).epsilon > 3.0
        mended = _enlarge_to_budget(lacking, BUDGET.accounted, "exact")
        assert mended.guarantee(delta).epsilon <= 3.0 and mended.sigma_cdp <= plan.sigma_cdp * (
            1 + 4 * short
        )


def test_things_of_the_wrong_kind_are_refused():
    for arguments in (
        ("ring", EXPOSURE, CURIOUS, BUDGET),
        (decor.ring(4), 1, CURIOUS, BUDGET),
        (decor.ring(4), EXPOSURE, "x", BUDGET),
    ):
        with pytest.raises(InputError, match="is needed, not"):
            calibrate(*arguments)
    with pytest.raises(InputError, match="no user to protect"):
        couples(decor.ring(4), EXPOSURE, Adversary.colluding(9), BUDGET)
    with pytest.raises(InputError, match="ratios must be numbers"):
        couples(decor.ring(4), EXPOSURE, CURIOUS, BUDGET, "x")
