"""gossip_rounds="auto": few rounds, nearly as good as perfect averaging, and none that amplify."""

import math
from dataclasses import replace

import numpy as np
import pytest

import decor
from decor import Adversary, Budget, Exposure, theory
from decor.errors import InputError
from decor.graph.gossip import Gossip
from decor.privacy.gossip_choice import (
    MOST_ROUNDS,
    WITHIN,
    choose_gossip,
    gossip_for,
    is_steady,
    steady_ratio,
)

BUDGET = Budget(3.0, 1e-5)
SETTINGS = [
    (decor.ring(16), Adversary.curious(), 50),
    (decor.torus(4, 4), Adversary(2), 400),
    (decor.random_regular(16, 4, seed=1), Adversary.curious(), 100),
    (decor.random_regular(40, 4, seed=1), Adversary.eavesdropper(), 400),
    (decor.star(8), Adversary.eavesdropper(), 100),
    (decor.complete(6), Adversary.curious(), 100),
]


def searched(topology, adversary, exposure, rounds):
    """The least predicted error over plans with 60 ratios, by calibration of each."""
    ratios = np.geomspace(0.01, steady_ratio(topology.users, exposure.steps), 60)
    gossip = Gossip(rounds, "designed") if rounds > 1 else Gossip(1)
    errors = []
    for x in ratios:
        plan = decor.calibrate(topology, exposure, adversary, BUDGET, ratio=float(x))
        perfect = rounds == math.inf
        errors.append(
            theory.average_error(plan) if perfect else theory.predicted_error(plan, gossip)
        )
    return min(errors)


@pytest.mark.parametrize(("topology", "adversary", "steps"), SETTINGS, ids=repr)
def test_the_rounds_are_the_fewest_within_five_percent_of_perfect_averaging(
    topology, adversary, steps
):
    exposure = Exposure(1.0, steps)
    choice = choose_gossip(topology, exposure, adversary, BUDGET)
    rounds = choice.gossip.rounds
    # perfect averaging has no disagreement, so only the error of the average is left
    ratio = steady_ratio(topology.users, steps)
    best = decor.calibrate(topology, exposure, adversary, BUDGET, ratio=ratio)
    perfect = theory.average_error(best)
    assert choice.perfect == pytest.approx(perfect, rel=0.01)
    assert searched(topology, adversary, exposure, rounds) <= 1.02 * WITHIN * perfect
    fewer = [row.gossip.rounds for row in choice.rows[: rounds - 1] if row.is_steady]
    if fewer:
        assert searched(topology, adversary, exposure, max(fewer)) > WITHIN * perfect
    # calibrate takes the same rounds, its plan is as good, and one absence stays cheap
    plan = decor.calibrate(topology, exposure, adversary, BUDGET, gossip_rounds="auto")
    assert decor.gossip_for(plan) == choice.gossip
    assert theory.predicted_error(plan, choice.gossip) <= 1.02 * WITHIN * perfect
    assert (plan.sigma_cor / plan.sigma_cdp) ** 2 <= 1.001 * ratio
    assert plan.guarantee().epsilon <= BUDGET.epsilon


def test_on_a_ring_of_sixteen_auto_is_several_times_better_than_one_round():
    exposure = Exposure(1.0, 50)
    errors = []
    for rounds in ("auto", 1):
        plan = decor.calibrate(
            decor.ring(16), exposure, Adversary.curious(), BUDGET, gossip_rounds=rounds
        )
        gossip = gossip_for(plan) if rounds == "auto" else Gossip()
        errors.append(theory.predicted_error(plan, gossip))
    assert errors[1] > 7 * errors[0]


def test_auto_is_the_default_of_plans_recipes_runs_and_sweeps():
    pytest.importorskip("torch", reason="torch is not installed")
    task = decor.tasks.breast_cancer(users=8)
    setting = decor.ring(8), Exposure(0.1, 4), Adversary.curious(), BUDGET
    plan = decor.calibrate(*setting)
    auto = decor.calibrate(*setting, gossip_rounds="auto")
    assert plan.sigma_cdp == auto.sigma_cdp != decor.calibrate(*setting, gossip_rounds=1).sigma_cdp
    gossip = gossip_for(plan)
    assert gossip.rounds > 1 and decor.Recipe().gossip_rounds == "auto"
    said = {"gossip_rounds": gossip.rounds, "accelerate": "designed"}
    (swept,) = decor.sweep(task, [plan], learning_rates=[0.1], keep_models=True).runs
    for run in (decor.train(task, plan, learning_rate=0.1), swept):
        (weight, *_) = run.models.values()
        (same, *_) = decor.train(task, plan, learning_rate=0.1, **said).models.values()
        assert (weight == same).all()


def test_rounds_that_amplify_what_is_missing_are_passed_over_and_the_note_says_so():
    """Two designed rounds are exact on a star; without one of its users they enlarge a mode."""
    star = decor.star(8)
    assert not is_steady(star, Gossip(2, "designed")) and is_steady(star, Gossip(3, "designed"))
    choice = choose_gossip(star, Exposure(1.0, 100), Adversary.eavesdropper(), BUDGET)
    assert choice.gossip.rounds == 3 and "2 designed rounds would do" in choice.note
    assert (
        choose_gossip(decor.torus(4, 4), Exposure(1.0, 9), Adversary.curious(), BUDGET).note is None
    )


@pytest.mark.parametrize(
    "topology",
    [decor.ring(16), decor.random_regular(16, 4, 1), decor.erdos_renyi(30, 0.2, 3), decor.path(6)],
    ids=repr,
)
def test_a_crash_is_amplified_by_no_steady_rounds(topology):
    """Without any one user's edges, or any one edge, no mode grows in a step."""
    for rounds in range(2, MOST_ROUNDS + 1):
        gossip = Gossip(rounds, "designed")
        if not is_steady(topology, gossip):
            continue
        W = topology.mixing.toarray()
        for user in range(topology.users):
            left = W.copy()
            left[user, :] = left[:, user] = 0
            np.fill_diagonal(left, 0)
            np.fill_diagonal(left, 1 - left.sum(1))
            P = np.eye(topology.users)
            for a, _, c in gossip.steps(topology):
                P = a * (left @ P) + c * P
            assert np.linalg.norm(P, 2) <= 1 + 1e-6


def test_a_plan_with_noise_of_the_callers_takes_rounds_for_that_noise():
    exposure = Exposure(1.0, 100)
    ring, curious = decor.ring(16), Adversary.curious()
    little = decor.calibrate(ring, exposure, curious, BUDGET, ratio=0.0)
    assert gossip_for(little).rounds < 5
    by_hand = decor.NoisePlan(ring, exposure, curious, 1.0, 20.0)
    gossip = gossip_for(by_hand)
    assert theory.predicted_error(by_hand, gossip) <= WITHIN * theory.average_error(by_hand)
    # without noise, and with central DP's, only models' own differences count
    assert gossip_for(replace(by_hand, sigma_cdp=0.0, sigma_cor=0.0)).rounds >= 1
    central = decor.baselines.central(ring, exposure, BUDGET)
    assert 1 <= gossip_for(central).rounds <= MOST_ROUNDS


def test_a_plan_with_own_noise_per_user_takes_the_rounds_that_it_was_made_for():
    """One user with two neighbours does not make all of them train as with local DP."""
    edges = [*decor.ring(9).edges.tolist(), *((k, (k + 2) % 9) for k in range(9)), (2, 9), (6, 9)]
    setting = decor.from_edges(10, edges), Exposure(1.0, 200), Adversary.colluding(2), BUDGET
    plan = decor.calibrate(*setting, own="per-user")
    gossip = gossip_for(plan)
    assert gossip == choose_gossip(*setting, own="per-user").gossip
    assert theory.predicted_error(plan, gossip) <= WITHIN * theory.average_error(plan)
    assert theory.predicted_error(plan, Gossip(1)) > 2 * theory.average_error(plan)


def test_graphs_without_edges_and_too_large_ones_are_answered_too():
    one = decor.from_edges(3, [])
    assert choose_gossip(one, Exposure(1.0, 5), Adversary.curious(), BUDGET).gossip == Gossip(1)
    large = decor.erdos_renyi(2500, 0.004, seed=0)
    choice = choose_gossip(large, Exposure(1.0, 20), Adversary.eavesdropper(), BUDGET)
    assert choice.gossip.accelerate is True or choice.gossip.rounds == 1


def test_other_weights_than_designed_ones_are_refused():
    for accelerate in ("chebyshev", True):
        with pytest.raises(InputError, match="drop accelerate"):
            decor.calibrate(
                decor.ring(5),
                Exposure(1.0, 5),
                Adversary.curious(),
                BUDGET,
                gossip_rounds="auto",
                accelerate=accelerate,
            )
        with pytest.raises(InputError, match="drop accelerate"):
            decor.Recipe(gossip_rounds="auto", accelerate=accelerate)
    with pytest.raises(InputError, match="depends on a plan"):
        _ = decor.Recipe(gossip_rounds="auto").gossip
