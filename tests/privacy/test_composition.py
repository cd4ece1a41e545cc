"""Several runs on one user's data: against closed forms, dp-accounting and brute force."""

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from oracles import true_delta

import decor
from decor import Adversary, Exposure, NoisePlan
from decor.errors import BudgetError, InputError
from decor.privacy.composition import PastRun, Question, compose, compose_delta
from decor.privacy.loss import gaussian

DELTA = 1e-5
RING = decor.ring(6)
USER = Question("user")


def plan(topology=RING, sigma=20.0, ratio=4.0, colluders=1, **exposure):
    settings = {"clip": 1.0, "steps": 50} | exposure
    return decor.NoisePlan(
        topology, decor.Exposure(**settings), decor.Adversary(colluders), sigma, sigma * ratio**0.5
    )


def example_plan(sampling="poisson", sigma=0.05, **more):
    """At example level, with a noise multiplier near 1 for 20 of 400 examples."""
    settings = {"unit": "example", "batch_size": 20, "records": 400, "sampling": sampling} | more
    return plan(sigma=sigma, **settings)


def leverage(plan, user, colluders):
    """(Sigma^-1)_ii for the worst set of colluders, by inverting every matrix."""
    topology, worst = plan.topology, 0.0
    others = [v for v in range(topology.users) if v != user]
    for gone in itertools.combinations(others, min(colluders, len(others))):
        kept = [v for v in range(topology.users) if v not in gone]
        L = np.zeros((topology.users, topology.users))
        for i, j in topology.edges:
            if i not in gone and j not in gone:
                L[[i, j], [i, j]] += 1
                L[i, j] -= 1
                L[j, i] -= 1
        Sigma = plan.sigma_cdp**2 * np.eye(topology.users) + plan.sigma_cor**2 * L
        inverse = np.linalg.inv(Sigma[np.ix_(kept, kept)])
        worst = max(worst, inverse[kept.index(user), kept.index(user)])
    return worst


# --- user level


def test_four_runs_of_epsilon_one_cost_2_155_and_not_four():
    one = decor.calibrate(
        RING, decor.Exposure(1.0, 100), decor.Adversary.curious(), decor.Budget(1.0, DELTA)
    )
    together = compose([PastRun(one)] * 4, USER, DELTA)
    assert 2.154 < together < 2.155
    assert together == pytest.approx(decor.Phases([one] * 4).guarantee().epsilon, rel=1e-9)
    assert compose([PastRun(one)], USER, DELTA) == one.guarantee(DELTA).epsilon


@pytest.mark.parametrize("colluders", [0, 1, 2])
def test_user_level_is_the_closed_form_of_this_users_worst_leverages(colluders):
    star, path = decor.star(6), decor.path(5)
    plans = [plan(star), plan(path, sigma=30.0, clip=0.7), plan(sigma=15.0, ratio=100.0, steps=9)]
    numbers, question = (3, 0, 5), Question("user", "replace", colluders)
    square = 0.0
    for each, number in zip(plans, numbers, strict=True):
        exposure = each.exposure
        exposed = leverage(each, number, colluders)
        square += (2 * exposure.clip) ** 2 * exposure.steps * exposed
    runs = [PastRun(p, n) for p, n in zip(plans, numbers, strict=True)]
    ours = compose(runs, question, DELTA)
    with mpmath.workdps(30):
        assert true_delta(ours, math.sqrt(square) * (1 - 1e-12)) <= DELTA
        assert true_delta(ours * (1 - 1e-6), math.sqrt(square)) > DELTA
    at = compose_delta(runs, question, ours)
    assert DELTA * (1 - 1e-6) <= at <= DELTA * (1 + 1e-6)


def test_this_user_counts_and_without_a_number_the_worst_one():
    star = plan(decor.star(6))
    alone = [compose([PastRun(star, number)], USER, DELTA) for number in range(6)]
    assert compose([PastRun(star)], USER, DELTA) == max(alone) > 1.5 * min(alone)


@pytest.mark.parametrize("unit", ["user", "example"])
def test_with_own_noise_each_user_counts_with_its_own_level(unit):
    more = {} if unit == "user" else {"unit": "example", "batch_size": 8, "records": 64}
    own = (20.0, 35.0, 20.0, 25.0, 80.0, 30.0)
    if unit == "example":
        own = tuple(s / 16 for s in own)
    made = NoisePlan(RING, Exposure(1.0, 50, **more), Adversary.curious(), own, own[0])
    question, expected = Question.of(made), made.guarantee(1e-5)
    for user in range(6):
        alone = compose([PastRun(made, number=user)], question, 1e-5)
        assert alone == pytest.approx(expected.per_user[user], rel=1e-4)
    assert compose([PastRun(made)], question, 1e-5) == pytest.approx(expected.epsilon, rel=1e-4)
    everyone = replace(question, colluders=None)
    worst = [compose([PastRun(made, number=user)], everyone, 1e-5) for user in (0, 4)]
    assert worst[0] > 2 * worst[1]


def test_one_coalition_for_all_runs_would_understate():
    # on a path each end has one neighbour: another one in each run isolates user 0
    first = decor.from_edges(4, [(0, 1), (1, 2), (2, 3)])
    second = decor.from_edges(4, [(0, 2), (2, 1), (1, 3)])
    plans = [plan(first, ratio=400.0), plan(second, ratio=400.0)]
    fixed_coalition = decor.Phases(plans).guarantee(DELTA, decor.Adversary.curious())
    ours = compose([PastRun(each, 0) for each in plans], USER, DELTA)
    truth = gaussian.epsilon(math.sqrt(2 * 50 * (2 / 20.0) ** 2), DELTA)
    assert fixed_coalition.per_user[0] < 0.95 * truth <= 0.95 * ours * (1 + 1e-9)
    assert ours == pytest.approx(float(truth), rel=1e-9)


def test_a_run_with_too_few_users_counts_as_against_everyone():
    small = PastRun(plan(decor.path(2)), 0)
    everyone = compose([small], Question("user", "replace", None), DELTA)
    assert compose([small], Question("user", "replace", 5), DELTA) == everyone
    assert compose([small], Question("user", "replace", 1), DELTA) == everyone
    assert compose([small], Question("user", "replace", 0), DELTA) < everyone
    alone = PastRun(plan(decor.from_edges(1, []), ratio=0.0, colluders=0), 0)
    assert compose([alone], USER, DELTA) == compose([alone], Question(colluders=0), DELTA)


def test_a_fixed_batch_moves_by_twice_the_clip_whatever_its_size():
    fixed = example_plan("fixed", sigma=20.0)
    assert compose([PastRun(fixed, 2)], USER, DELTA) == compose([PastRun(plan(), 2)], USER, DELTA)


def test_poisson_batches_cost_a_user_their_random_sizes():
    poisson, fixed = (PastRun(example_plan(kind, sigma=20.0), 2) for kind in ("poisson", "fixed"))
    ours, steady = (compose([run], USER, DELTA) for run in (poisson, fixed))
    exposed = leverage(poisson.plan, 2, 1)
    sizes = np.random.default_rng(0).binomial(400, 0.05, size=(50_000, 50)) / 20.0
    mu = 2 * np.sqrt(exposed * (sizes**2).sum(axis=1))
    deltas = np.exp(gaussian.log_delta(ours, mu))
    error = deltas.std() / math.sqrt(len(deltas))
    assert deltas.mean() - 4 * error <= DELTA <= 1.2 * deltas.mean()
    assert 1.01 * steady < ours < 1.2 * steady
    # beside other runs both add up within one Gaussian
    both = compose([poisson, PastRun(plan(), 0)], USER, DELTA)
    assert compose([fixed, PastRun(plan(), 0)], USER, DELTA) < both < ours + steady


def test_a_private_number_of_examples_is_not_bounded_for_a_user():
    hidden = replace(PastRun(example_plan(), 2), public_size=False)
    assert compose([hidden], USER, DELTA) == math.inf
    assert compose_delta([hidden], USER, 3.0) == 1.0
    assert compose([hidden], Question("example", "add-remove"), DELTA) < 10
    steady = replace(PastRun(example_plan("fixed"), 2), public_size=False)
    assert compose([steady], USER, DELTA) < math.inf


# --- example level


def distribution(z, rate, steps, relation):
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    relations = dp_accounting.NeighboringRelation
    return privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sampling_prob=rate,
        value_discretization_interval=2e-4,
        neighboring_relation=relations.REPLACE_ONE
        if relation == "replace"
        else relations.ADD_OR_REMOVE_ONE,
    ).self_compose(steps)


def multiplier(plan, user):
    exposed = leverage(plan, user, 1)
    return plan.exposure.batch_size / (plan.exposure.clip * math.sqrt(exposed))


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_examples_of_poisson_and_user_level_runs_agree_with_dp_accounting(relation):
    plans = [
        example_plan(sigma=0.08),
        # a run takes the relation asked, whatever its own
        example_plan(sigma=0.1, relation="replace", steps=30, batch_size=40),
        plan(sigma=40.0, steps=10),
    ]
    question = Question("example", relation)
    theirs = distribution(multiplier(plans[0], 1), 0.05, 50, relation)
    theirs = theirs.compose(distribution(multiplier(plans[1], 1), 0.1, 30, relation))
    unsampled = 1 / (2 * math.sqrt(10 * leverage(plans[2], 1, 1)))
    shift = 2 if relation == "replace" else 1
    theirs = theirs.compose(distribution(shift * unsampled, 1.0, 1, relation))
    for delta in (1e-3, 1e-6):
        ours = compose([PastRun(each, 1) for each in plans], question, delta)
        assert ours == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-3)
    epsilon = theirs.get_epsilon_for_delta(1e-4)
    assert 0.99e-4 < compose_delta([PastRun(each, 1) for each in plans], question, epsilon) < 1.1e-4


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_fixed_batches_count_as_replaced_in_both_relations(relation):
    fixed = PastRun(example_plan("fixed", sigma=0.2), 0)
    question = Question("example", relation)
    alone = compose([fixed], question, DELTA)
    assert alone == fixed.plan.guarantee(DELTA).per_user[0]
    # beside a Poisson run: at least what either costs, and what a lower bound for both says
    poisson = PastRun(example_plan(sigma=0.1), 0)
    both = compose([fixed, poisson], question, DELTA)
    apart = compose([poisson], question, DELTA)
    assert max(alone, apart) < both < alone + compose([poisson], question, DELTA)
    z = multiplier(fixed.plan, 0)
    lower = distribution(z / 2, 0.05, 50, "add-remove")
    lower = lower.compose(distribution(multiplier(poisson.plan, 0), 0.05, 50, relation))
    assert lower.get_epsilon_for_delta(DELTA) * (1 - 1e-3) <= both


def test_user_level_runs_alone_are_gaussian_for_an_example():
    runs = [PastRun(plan(), 1)] * 3
    for relation in ("add-remove", "replace"):
        ours = compose(runs, Question("example", relation), DELTA)
        assert ours == compose(runs, USER, DELTA)


def test_full_batches_are_gaussian():
    whole = example_plan(batch_size=400, sigma=0.01)
    question = Question("example", "add-remove")
    ours = compose([PastRun(whole)], question, DELTA)
    assert ours == pytest.approx(whole.guarantee(DELTA).epsilon, rel=1e-9)
    doubled = compose([PastRun(whole)], Question("example", "replace"), DELTA)
    replaced = replace(whole, exposure=replace(whole.exposure, relation="replace"))
    assert doubled == pytest.approx(replaced.guarantee(DELTA).epsilon, rel=1e-9)
    # to a user too
    assert compose([PastRun(whole)], USER, DELTA) == compose(
        [PastRun(plan(sigma=0.01))], USER, DELTA
    )


def test_unequal_examples_and_an_unknown_user_count_the_worst():
    uneven = example_plan(records=(30, 60, 100, 400, 400, 400))
    for question in (Question("example", "add-remove"), Question("example", "replace"), USER):
        alone = [compose([PastRun(uneven, user)], question, DELTA) for user in range(6)]
        unknown = compose([PastRun(uneven)], question, DELTA)
        assert max(alone) * (1 - 1e-6) <= unknown <= 1.01 * max(alone)


def test_many_different_runs_are_merged_upwards():
    plans = [example_plan(sigma=0.1 + 0.002 * i, steps=5) for i in range(60)]
    question = Question("example", "add-remove")
    ours = compose([PastRun(each, 0) for each in plans], question, DELTA)
    theirs = None
    for each in plans[::6]:
        six = distribution(multiplier(each, 0) * 1.05, 0.05, 30, "add-remove")
        theirs = six if theirs is None else theirs.compose(six)
    # six consecutive plans have up to 1.1 times the noise of the first
    assert theirs.get_epsilon_for_delta(DELTA) * 0.95 < ours
    same = compose([PastRun(plans[0], 0)] * 60, question, DELTA)
    assert ours < same


# --- what counts of a run


def steps_of(run, question=USER):
    """The number of steps of the plan that cost as much."""
    value = compose([run], question, DELTA)
    for steps in range(200):
        exposure = replace(run.plan.exposure, steps=max(steps, 1))
        other = PastRun(replace(run.plan, exposure=exposure), run.number)
        if (compose([other], question, DELTA) if steps else 0.0) >= value * (1 - 1e-9):
            return steps
    return None


def test_a_run_reserves_its_plan_until_it_has_ended():
    run = PastRun(plan(), 0, steps_made=7)
    assert steps_of(run) == 50
    assert steps_of(replace(run, whole_plan=False)) == 7
    assert steps_of(replace(run, whole_plan=False, steps_made=0)) == 0
    assert steps_of(replace(run, repeated=3)) == 53
    assert steps_of(replace(run, repeated=3, whole_plan=False)) == 10


@pytest.mark.parametrize("question", [Question("example", "add-remove"), USER])
def test_a_sampled_run_counts_as_a_whole_once_it_has_begun(question):
    ended = PastRun(example_plan(steps=12, sigma=20.0), 0, steps_made=1, whole_plan=False)
    if question.unit == "example":
        ended = replace(ended, plan=example_plan(steps=12, sigma=0.05))
    assert steps_of(ended, question) == 12
    assert steps_of(replace(ended, repeated=2), question) == 14
    assert steps_of(replace(ended, steps_made=0), question) == 0


def test_a_user_level_run_that_ended_early_counts_whole_for_an_example():
    ended = PastRun(plan(), 0, steps_made=7, whole_plan=False)
    assert steps_of(ended, Question("example", "replace")) == 50


def test_distances_of_tables_add_up_and_grow_with_the_total_epsilon():
    alone = PastRun(plan(sigma=5.0), 0, distance=1e-15)
    bare = [replace(alone, distance=0.0)]
    for count in (1, 2, 3):
        epsilon = compose(bare * count, USER, DELTA)
        added = compose_delta([alone] * count, USER, epsilon) - DELTA
        assert added == pytest.approx(count * (1 + math.exp(epsilon)) * 1e-15, rel=1e-3, abs=1e-14)
    # what they take is taken from delta: the result is a bound with it, or there is none
    finite = [compose([alone] * count, USER, DELTA) for count in (1, 2, 3)]
    assert all(
        value == math.inf or compose_delta([alone] * count, USER, value) <= DELTA * (1 + 1e-8)
        for count, value in enumerate(finite, 1)
    )
    assert finite[0] < math.inf
    assert compose([replace(alone, distance=1e-5)], USER, DELTA) == math.inf
    longer = replace(alone, repeated=50)
    assert longer.whole_distance == 2e-15
    assert replace(alone, steps_made=3, whole_plan=False).whole_distance == 1e-15


def test_a_run_without_own_noise_has_no_bound():
    for question in (USER, Question("example", "add-remove")):
        for bare in (plan(sigma=0.0), example_plan(sigma=0.0), example_plan("fixed", sigma=0.0)):
            assert compose([PastRun(bare)], question, DELTA) == math.inf
            assert compose_delta([PastRun(bare)], question, 1.0) == 1.0


def test_nothing_costs_nothing():
    for question in (USER, Question("example", "add-remove")):
        assert compose([], question, DELTA) == 0 and compose_delta([], question, 0.5) == 0


def test_questions_and_runs_are_checked():
    with pytest.raises(BudgetError, match="relation"):
        Question("user", "add-remove")
    with pytest.raises(InputError, match="colluding users"):
        Question("user", "replace", -1)
    with pytest.raises(BudgetError, match="unit"):
        Question("person")
    with pytest.raises(InputError, match="number"):
        PastRun(plan(), 6)
    with pytest.raises(InputError, match="repeated"):
        PastRun(plan(), 0, repeated=-1)
    with pytest.raises(InputError, match="distance"):
        PastRun(plan(), 0, distance=math.nan)
    with pytest.raises(InputError, match="NoisePlan"):
        PastRun("plan")
    with pytest.raises(BudgetError, match="delta"):
        compose([PastRun(plan())], USER, 1.0)
    with pytest.raises(BudgetError, match="epsilon"):
        compose_delta([PastRun(plan())], USER, math.nan)
    assert Question.of(plan(colluders=2)) == Question("user", "replace", 2)
    assert Question.of(example_plan()) == Question("example", "add-remove", 1)
    assert str(Question("user", "replace", None).adversary) == "everyone"


def test_a_run_with_a_common_rate_counts_its_rate_and_has_no_bound_for_a_user():
    exposure = Exposure(1.0, 50, unit="example", rate=0.05, batch_size=20)
    plan = NoisePlan(decor.ring(6), exposure, Adversary.curious(), 0.1, 0.3)
    run, question = PastRun(plan, 2), Question.of(plan)
    assert compose([run], question, DELTA) == pytest.approx(plan.guarantee(DELTA).epsilon, rel=1e-6)
    assert compose([run, run], question, DELTA) > compose([run], question, DELTA)
    # a user's part of a batch is as large as its private number of examples, at any rate
    for rate in (0.05, 1.0):
        hidden = PastRun(replace(plan, exposure=replace(exposure, rate=rate)), 2)
        assert compose([hidden], USER, DELTA) == math.inf
