"""Example level through the front door: plans and guarantees for one example of one user."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import graphs, true_leverages, true_worst

import decor
from decor import Adversary, Budget, Exposure, NoisePlan, Phases, calibrate
from decor.errors import BudgetError, FragileGraphWarning
from decor.privacy.loss import gaussian, subsampled

RING = decor.ring(16)
EAVESDROPPER = Adversary.eavesdropper()
BUDGET = Budget(3.0, 1e-6)


def exposure(records=3750, steps=1000, **options):
    return Exposure(1.0, steps, unit="example", batch_size=64, records=records, **options)


def multiplier(plan, user=0, batch=64):
    """z = b sigma_eff / C, from the definition."""
    leverage = float(true_leverages(plan.topology, plan.sigma_cdp, plan.sigma_cor)[user])
    return batch / math.sqrt(leverage) / plan.exposure.clip


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 2.18), ({"relation": "replace"}, 4.03), ({"sampling": "fixed"}, 4.83)],
    ids=["poisson add-remove", "poisson replace", "fixed replace"],
)
def test_a_plan_has_the_noise_multiplier_of_the_specification(options, expected):
    plan = calibrate(RING, exposure(**options), EAVESDROPPER, Budget(1.0, 1e-5))
    assert multiplier(plan) == pytest.approx(expected, abs=0.006)
    assert plan.guarantee().epsilon <= 1.0
    assert plan.guarantee().epsilon >= 0.999
    assert "one example of one user" in str(plan.guarantee())


def test_an_epsilon_is_that_of_the_subsampled_gaussian_with_the_leverage_of_the_graph():
    plan = NoisePlan(decor.torus(4, 4), exposure(steps=200), Adversary.curious(), 0.02, 0.1)
    guarantee = plan.guarantee(1e-5)
    leverage = float(
        max(v for v in true_leverages(plan.topology, 0.02, 0.1, deleted=(0,)) if v is not None)
    )
    step = subsampled.SubsampledStep(
        64 / math.sqrt(leverage), 64 / 3750, "poisson", "add-remove", 200
    )
    assert guarantee.epsilon == pytest.approx(subsampled.epsilon([step], 1e-5)[0], rel=1e-6)
    assert guarantee.exact and guarantee.worst_coalition == (0,)


def test_batches_of_everything_are_plain_gaussians():
    plan = NoisePlan(RING, exposure(records=64, steps=50), EAVESDROPPER, 0.5, 2.0)
    mu = math.sqrt(50) / multiplier(plan)
    assert plan.guarantee(1e-5).epsilon == pytest.approx(
        float(gaussian.epsilon(mu, 1e-5)), rel=1e-9
    )
    replaced = NoisePlan(
        RING, exposure(records=64, steps=50, relation="replace"), EAVESDROPPER, 0.5, 2.0
    )
    assert replaced.guarantee(1e-5).epsilon == pytest.approx(
        float(gaussian.epsilon(2 * mu, 1e-5)), rel=1e-9
    )


def test_the_smallest_shard_is_the_most_exposed():
    records = [4000] * 15 + [500]
    plan = NoisePlan(RING, exposure(records, steps=50), EAVESDROPPER, 0.02, 0.05)
    guarantee = plan.guarantee(1e-5)
    assert (
        guarantee.worst_user == 15
        and guarantee.per_user[15] == guarantee.epsilon > 1.5 * guarantee.per_user[0]
    )
    equal = NoisePlan(RING, exposure(500, steps=50), EAVESDROPPER, 0.02, 0.05).guarantee(1e-5)
    assert guarantee.epsilon == equal.epsilon


def test_a_plan_for_uneven_shards_protects_the_smallest_and_no_more():
    budget = Budget(2.0, 1e-5)
    uneven = calibrate(
        RING, exposure([4000] * 15 + [500], steps=50), EAVESDROPPER, budget, ratio=10.0
    )
    small = calibrate(RING, exposure(500, steps=50), EAVESDROPPER, budget, ratio=10.0)
    assert uneven.sigma_cdp == pytest.approx(small.sigma_cdp, rel=1e-6)
    assert uneven.guarantee().epsilon <= 2.0
    spread = calibrate(
        decor.star(12),
        exposure([500 + 100 * k for k in range(12)], steps=50),
        EAVESDROPPER,
        budget,
        ratio=10.0,
    )
    assert 1.998 <= spread.guarantee().epsilon <= 2.0, (
        "many different rates, each with its own noise"
    )


KINDS = [("poisson", "add-remove"), ("poisson", "replace"), ("fixed", "replace")]
counts = st.floats(math.log(5), math.log(100_000)).map(lambda size: int(math.exp(size)))


@given(st.data(), st.integers(1, 60), st.sampled_from(KINDS), st.sampled_from([0, 1, 2, None]))
@settings(max_examples=60)
def test_a_plan_for_any_records_on_any_graph_spends_its_budget_and_no_more(
    data, users, kind, colluders
):
    """Within a thousandth of epsilon: every user has the noise of its own sampling rate."""
    possible = [(i, j) for i in range(users) for j in range(i)]
    chosen = (
        st.lists(st.sampled_from(possible), unique=True, max_size=3 * users)
        if possible
        else st.just([])
    )
    tree = (
        [(i, data.draw(st.integers(0, i - 1))) for i in range(1, users)]
        if data.draw(st.booleans())
        else []
    )
    topology = decor.from_edges(users, sorted({*tree, *data.draw(chosen)}))
    records = data.draw(st.lists(counts, min_size=users, max_size=users))
    batch, steps = data.draw(st.integers(1, min(records))), data.draw(st.integers(1, 3000))
    budget = Budget(
        data.draw(st.sampled_from([0.3, 1.0, 3.0, 10.0])), data.draw(st.sampled_from([1e-9, 1e-7]))
    )
    example = Exposure(1.0, steps, "example", batch, records, *kind)
    adversary = Adversary(
        colluders if colluders is None else min(colluders, users - 1, 1 if users > 25 else 2)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FragileGraphWarning)
        plan = calibrate(topology, example, adversary, budget)
    assert plan.guarantee(budget.accounted.delta).epsilon <= budget.epsilon
    assert plan.guarantee().epsilon >= budget.epsilon * (1 - 1e-3)
    curve = plan.couples([0.0, 3.0, 1e4])
    for s, c in zip(curve.sigma_cdp, curve.sigma_cor, strict=True):
        result = NoisePlan(topology, example, adversary, s, c).guarantee(budget.accounted.delta)
        assert budget.epsilon * (1 - 1e-3) <= result.epsilon <= budget.epsilon * (1 + 1e-6)


def test_noise_designed_by_edge_for_uneven_shards_spends_the_budget_too():
    topology, rng = decor.erdos_renyi(12, 0.4, seed=3), np.random.default_rng(1)
    example, budget = exposure(rng.integers(100, 3000, 12).tolist(), steps=100), Budget(3.0, 1e-6)
    for fixed in ({"edges": "optimal"}, {"sigma_cdp": 0.05}, {"sigma_cor": 0.3}, {"ratio": 7.0}):
        plan = calibrate(topology, example, Adversary.curious(), budget, **fixed)
        assert 2.997 <= plan.guarantee().epsilon <= 3.0, fixed


def test_the_branches_of_the_review():
    """40 named users, sizes in alphabetical order: epsilon 2.999 was claimed, 4.735 was true."""
    rng = np.random.default_rng(7)
    names = [f"B{k:02}" for k in rng.permutation(40)]
    sizes = dict(sorted(zip(names, rng.integers(50, 2000, 40).tolist(), strict=True)))
    graph = decor.erdos_renyi(40, 0.15, seed=2)
    topology = decor.from_edges(40, graph.edges, names)
    budget = Budget(3.0, 1e-6)
    with pytest.raises(
        BudgetError, match="records is a list, but the users of this graph have names"
    ):
        calibrate(
            topology,
            Exposure(1.0, 500, "example", 32, list(sizes.values())),
            Adversary.curious(),
            budget,
        )
    plan = calibrate(
        topology, Exposure(1.0, 500, "example", 32, sizes), Adversary.curious(), budget
    )
    assert 2.997 <= plan.guarantee().epsilon <= 3.0
    wrong = calibrate(
        graph,
        Exposure(1.0, 500, "example", 32, list(sizes.values())),
        Adversary.curious(),
        budget,
        gossip_rounds=1,
    )
    truth = NoisePlan(
        topology, plan.exposure, Adversary.curious(), wrong.sigma_cdp, wrong.sigma_cor
    ).guarantee(1e-6)
    assert truth.epsilon > 1.1 * wrong.guarantee().epsilon, (
        "what a list in the order of the alphabet would have understated"
    )


def test_rounded_multipliers_never_lower_an_epsilon():
    topology = decor.erdos_renyi(30, 0.2, seed=5)
    plan = NoisePlan(topology, exposure(steps=20), EAVESDROPPER, 0.02, 0.05)
    guarantee = plan.guarantee(1e-5)
    for user in (0, 7, guarantee.worst_user):
        step = subsampled.SubsampledStep(
            multiplier(plan, user), 64 / 3750, "poisson", "add-remove", 20
        )
        truth = subsampled.epsilon([step], 1e-5)[0]
        assert truth * (1 - 1e-4) <= guarantee.per_user[user] <= truth * 1.02


def test_phases_of_examples_compose():
    first = NoisePlan(RING, exposure(steps=30), EAVESDROPPER, 0.02, 0.05)
    second = NoisePlan(decor.torus(4, 4), exposure(steps=20), EAVESDROPPER, 0.03, 0.05)
    both = Phases([first, second]).guarantee(1e-5)
    alone = [plan.guarantee(1e-5).epsilon for plan in (first, second)]
    assert max(alone) < both.epsilon < sum(alone) and both.steps == 50 and both.exact
    steps = [
        subsampled.SubsampledStep(
            multiplier(plan), 64 / 3750, "poisson", "add-remove", plan.exposure.steps
        )
        for plan in (first, second)
    ]
    assert both.epsilon == pytest.approx(subsampled.epsilon(steps, 1e-5)[0], rel=1e-6)
    curious = Phases([first, second]).guarantee(1e-5, Adversary.curious())
    assert curious.epsilon > both.epsilon and not curious.exact, (
        "each phase's worst coalition: an upper bound"
    )


def test_central_dp_of_examples():
    central = decor.baselines.central(RING, exposure(), Budget(1.0, 1e-5))
    local = decor.baselines.local(RING, exposure(), Budget(1.0, 1e-5))
    assert local.sigma_cdp / central.sigma_cdp == pytest.approx(4.0)
    assert (
        central.guarantee().epsilon <= 1.0 < 3 < central.guarantee(adversary=EAVESDROPPER).epsilon
    )


def test_what_is_not_offered_is_refused():
    plan = NoisePlan(RING, exposure(), EAVESDROPPER, 0.02, 0.05)
    with pytest.raises(BudgetError, match="no accountant for examples"):
        plan.guarantee(1e-5, method="paper")
    with pytest.raises(BudgetError, match="no accountant for examples"):
        calibrate(RING, exposure(), EAVESDROPPER, Budget(1.0, 1e-5), method="paper")
    assert np.isinf(NoisePlan(RING, exposure(), EAVESDROPPER, 0.0, 0.05).guarantee(1e-5).epsilon)


def test_a_bound_that_is_not_known_to_be_attained_is_not_called_exact():
    fixed = NoisePlan(RING, exposure(sampling="fixed"), EAVESDROPPER, 0.05, 0.1).guarantee(1e-5)
    assert not fixed.exact and "certified upper bound" in str(fixed)
    # the user with the highest rate is not the one whose coalition is known to be attained
    records = [4000] * 11 + [300]
    uneven = NoisePlan(
        decor.grid(3, 4), exposure(records, steps=20), Adversary.curious(), 0.02, 0.05
    ).guarantee(1e-5)
    assert uneven.worst_user == 11 and not uneven.exact


def test_a_common_rate_spends_the_budget_and_protects_all_users_alike():
    """5 to 2,000 examples: without it the small ones decide, and the large ones pay."""
    counts = np.random.default_rng(3).integers(5, 2001, 16).tolist()
    rate = Exposure(1.0, 300, unit="example", rate=0.01, weighting="records", records=counts)
    for relation in ("add-remove", "replace"):
        plan = calibrate(
            decor.torus(4, 4), replace(rate, relation=relation), Adversary.curious(), BUDGET
        )
        guarantee = plan.guarantee()
        assert 0.999 * BUDGET.epsilon <= guarantee.epsilon <= BUDGET.epsilon
        assert np.ptp(guarantee.per_user) == 0.0
    # the same as of equal users with public counts: rate and shift are all that matters
    batch = plan.exposure.batch_size
    equal = replace(
        plan.exposure, rate=None, weighting=None, records=100 * batch, relation="replace"
    )
    assert replace(plan, exposure=equal).guarantee().epsilon == guarantee.epsilon
    # on a graph whose users differ, exposures differ and rates do not
    star = NoisePlan(decor.star(5), rate, EAVESDROPPER, 0.01, 0.02).guarantee(1e-6)
    assert len(set(star.per_user.tolist())) == 2


many_counts = st.lists(st.integers(5, 2000), min_size=2, max_size=20)
transitive = (
    st.integers(3, 12).map(decor.ring)
    | st.builds(decor.torus, st.integers(2, 4), st.integers(2, 4))
    | st.integers(2, 8).map(decor.complete)
    | st.integers(1, 3).map(decor.hypercube)
)


@given(transitive | graphs(least=2), many_counts, st.floats(0.01, 1.0), st.sampled_from([0, 1]))
@settings(max_examples=60)
def test_with_a_common_rate_epsilon_differs_by_the_place_in_the_graph_alone(
    topology, counts, rate, colluders
):
    """Equal for all on a vertex-transitive graph, whatever the counts, and not on others."""
    exposed = Exposure(1.0, 20, "example", rate=rate, weighting="records", records=counts)
    adversary = Adversary(colluders)
    cor = 6.0 / exposed.batch_size
    plan = NoisePlan(topology, exposed, adversary, 2.0 / exposed.batch_size, cor)
    guarantee = plan.guarantee(1e-6)
    leverages = np.array(true_worst(topology, plan.sigma_cdp, cor, colluders), dtype=float)
    order = np.argsort(leverages)
    # users with the same leverage have the same epsilon, and more exposed ones no smaller one
    sorted_epsilons, rises = guarantee.per_user[order], np.diff(leverages[order])
    assert (np.diff(sorted_epsilons) >= -1e-6 * sorted_epsilons[1:]).all()
    same = rises <= 1e-9 * leverages[order][1:]
    assert (np.diff(sorted_epsilons)[same] <= 1e-6 * sorted_epsilons[1:][same]).all()
    if topology.vertex_transitive:
        assert np.ptp(guarantee.per_user) == 0.0 and guarantee.alike


def test_with_a_common_rate_users_of_a_random_regular_graph_differ():
    """As many neighbours for all are not enough: the graph looks different from each user."""
    exposed = Exposure(1.0, 300, "example", rate=0.01, batch_size=10)
    graph = decor.random_regular(16, 4, seed=0)
    plan = calibrate(graph, exposed, Adversary.curious(), BUDGET, gossip_rounds=1)
    least, most = plan.guarantee().per_user.min(), plan.guarantee().per_user.max()
    assert most == pytest.approx(3.0, rel=1e-3) and least < 0.97 * most


def test_a_common_rate_says_that_an_example_is_added_or_removed_and_a_plan_holds_no_count():
    exposed = Exposure(1.0, 50, unit="example", rate=0.02, batch_size=7)
    plan = calibrate(RING, exposed, EAVESDROPPER, BUDGET)
    assert "one example of one user added or removed" in str(plan.guarantee())
    assert NoisePlan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json())["exposure"]["records"] is None
    counted = NoisePlan(RING, exposure(), EAVESDROPPER, 0.1, 0.1)
    with pytest.raises(decor.InputError, match="common rate"):
        Phases([plan, counted]).guarantee(1e-6)
