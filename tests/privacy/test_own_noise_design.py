"""Own noise per user: within every limit, and within 1 % of the least error of any such plan."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from oracles import true_worst
from scipy.optimize import minimize

import decor
from decor import Adversary, Budget, Exposure, NoisePlan, baselines, calibrate
from decor.errors import CannotBound, InputError
from decor.graph.gossip import Gossip
from decor.privacy import own_noise_design, theory
from decor.privacy.gossip_choice import steady_ratio
from decor.privacy.leverage.limit import LeverageLimit
from decor.privacy.own_noise_design import design_own_noise

BUDGET, EXPOSURE = Budget(3.0, 1e-5), Exposure(1.0, 200)
EAVESDROPPER, CURIOUS = Adversary.eavesdropper(), Adversary.curious()
TWO_ROUNDS = Gossip(2, "designed")
WEAK = decor.from_edges(
    10,
    [*nx.circulant_graph(9, [1, 2]).edges, (2, 9), (6, 9)],
    labels=[f"b{k}" for k in range(9)] + ["weak"],
)
"""Nine users with four neighbours or five, and one with two."""


def designed(topology, adversary, exposure=EXPOSURE, gossip=TWO_ROUNDS):
    """The design from local DP, which is where a search may have to begin."""
    limit = LeverageLimit.of(topology, exposure, adversary, BUDGET)
    limit.sharpen(range(topology.users))
    start = NoisePlan(topology, exposure, adversary, *limit.noise_pair(0.0), BUDGET)
    return design_own_noise(start, limit.allowed, gossip), limit


def least_own(topology, exposure=EXPOSURE):
    """The floor of every user's own noise."""
    return baselines.central(topology, exposure, BUDGET).least_sigma_cdp / np.sqrt(2)


def test_the_user_who_can_be_isolated_pays_and_the_others_do_not():
    adversary = Adversary.colluding(2)
    with pytest.warns(decor.errors.FragileGraphWarning):
        uniform = calibrate(WEAK, EXPOSURE, adversary, BUDGET)
    plan = calibrate(
        WEAK, EXPOSURE, adversary, BUDGET, own="per-user", gossip_rounds=2, accelerate="designed"
    )
    assert BUDGET.epsilon * 0.99 < plan.guarantee().epsilon <= BUDGET.epsilon
    assert isinstance(plan.sigma_cdp, tuple) and np.argmax(plan.sigma_cdp) == 9
    local = baselines.local(WEAK, EXPOSURE, BUDGET).least_sigma_cdp
    assert plan.sigma_cdp[9] == pytest.approx(local, rel=0.01)
    assert np.delete(plan.sigma_cdp, 9).max() < 0.7 * local
    errors = [theory.predicted_error(each, TWO_ROUNDS) for each in (plan, uniform)]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("colluders", [0, 1, 2, 3, None])
def test_every_user_is_within_its_limit_against_every_coalition_by_mpmath(colluders):
    topology = decor.from_networkx(nx.barabasi_albert_graph(8, 2, seed=3))
    plan = calibrate(topology, EXPOSURE, Adversary(colluders), BUDGET, own="per-user")
    allowed = LeverageLimit.of(topology, EXPOSURE, Adversary(colluders), BUDGET).allowed
    truth = true_worst(
        topology, plan.sigma_cdp, plan.sigma_cor, 7 if colluders is None else colluders
    )
    excess = [float(value) / limit for value, limit in zip(truth, allowed, strict=True)]
    assert 0.98 < max(excess) <= 1 + 2e-9


@pytest.mark.parametrize(("colluders", "seed"), [(0, 1), (0, 2), (1, 1), (1, 2)])
def test_no_other_noise_is_better_by_an_independent_solver(colluders, seed):
    """SLSQP on the logarithms of all variances, against every coalition."""
    topology = decor.from_networkx(nx.barabasi_albert_graph(6, 2, seed=seed))
    design, limit = designed(topology, Adversary(colluders))
    n, m = topology.users, topology.edge_count
    own, edges = theory.error_prices(topology, EXPOSURE.steps, TWO_ROUNDS)
    prices = np.concatenate([own, np.maximum(edges, 1e-6 * own.max())])
    prices = prices / (prices[:n].sum() * least_own(topology) ** 2)
    K = np.zeros((n, m))
    K[topology.edges[:, 0], range(m)], K[topology.edges[:, 1], range(m)] = 1, -1

    def slack(u):
        x, left = np.exp(u), []
        for gone in range(n) if colluders else [n]:
            kept = np.arange(n) != gone
            used = ~(topology.edges == gone).any(axis=1)
            sigma = np.diag(x[:n]) + (K[:, used] * x[n:][used]) @ K[:, used].T
            G = np.linalg.inv(sigma[np.ix_(kept, kept)])
            left.append(limit.allowed[kept] - G.diagonal())
        return np.concatenate(left) / limit.allowed.min()

    start = np.log(np.full(n + m, 1.2 / limit.allowed.min()))
    floor = 2 * np.log(least_own(topology))
    other = minimize(
        lambda u: prices @ np.exp(u),
        start,
        bounds=[(floor, None)] * n + [(floor - 12, floor + 18)] * m,
        constraints=[{"type": "ineq", "fun": slack}],
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-10},
    )
    assert other.success
    scale = (own.sum() * least_own(topology) ** 2) / 1.0
    best = other.fun * scale
    assert theory.predicted_error(design.plan, TWO_ROUNDS) <= best * 1.011
    assert design.bound <= best * (1 + 1e-4)


@pytest.mark.parametrize("colluders", [0, 1, 2])
def test_no_plan_within_the_limits_costs_less_than_the_bound(colluders):
    design, limit = designed(WEAK, Adversary(colluders))
    error = theory.predicted_error(design.plan, TWO_ROUNDS)
    assert error <= 1.0101 * design.bound
    rng, floor, n = np.random.default_rng(0), least_own(WEAK), WEAK.users
    found = []
    for k in range(40):
        # around the optimum, and far from it
        spread = 0.05 if k % 2 else 1.0
        own = design.plan.sigma_cdp_per_user * np.exp(spread * rng.normal(size=n))
        cor = np.asarray(design.plan.sigma_cor) * np.exp(spread * rng.normal(size=WEAK.edge_count))
        other = replace(design.plan, sigma_cdp=np.maximum(own, floor), sigma_cor=cor)
        truth = np.array(
            [float(v) for v in true_worst(WEAK, other.sigma_cdp, other.sigma_cor, colluders)]
        )
        factor = np.sqrt((truth / limit.allowed).max())
        scaled = other.scaled(float(factor))
        if scaled.least_sigma_cdp >= floor * (1 - 1e-9):
            found.append(theory.predicted_error(scaled, TWO_ROUNDS))
    assert len(found) > 10 and min(found) >= design.bound * (1 - 1e-9)
    assert min(found) < 1.2 * design.bound, "some of them are close"


@pytest.mark.parametrize("adversary", [EAVESDROPPER, CURIOUS], ids=str)
@pytest.mark.parametrize(
    "graph",
    [WEAK, decor.star(8), decor.path(5), decor.star(3)],
    ids=["weak", "star", "path", "three"],
)
def test_noise_for_chosen_rounds_stays_cheap_for_one_absence(graph, adversary):
    """Also where some can be isolated by their only neighbour (which divided by zero)."""
    plan = calibrate(graph, EXPOSURE, adversary, BUDGET, own="per-user")
    ratio = (np.max(plan.sigma_cor) / plan.least_sigma_cdp) ** 2
    assert 0.01 < ratio <= steady_ratio(graph.users, EXPOSURE.steps) * (1 + 1e-6)
    assert 2.99 <= plan.guarantee().epsilon <= 3.0


def test_a_limit_of_the_ratio_is_kept_and_its_bound_is_true():
    free, limit = designed(WEAK, CURIOUS)
    # the largest is so far away that it limits nothing, as where the rounds are given
    for largest in (3.0, 30.0, 1e9):
        start = NoisePlan(WEAK, EXPOSURE, CURIOUS, *limit.noise_pair(0.0), BUDGET)
        design = design_own_noise(start, limit.allowed, TWO_ROUNDS, largest)
        plan = design.plan
        assert (np.max(plan.sigma_cor) / plan.least_sigma_cdp) ** 2 <= largest * (1 + 1e-9)
        error = theory.predicted_error(plan, TWO_ROUNDS)
        assert design.bound <= error <= 1.0101 * design.bound
        assert design.bound > free.bound or largest == 1e9, "less is allowed"


def test_where_all_users_are_alike_one_pair_is_kept():
    plan = calibrate(decor.ring(10), EXPOSURE, EAVESDROPPER, BUDGET, own="per-user")
    assert plan == calibrate(decor.ring(10), EXPOSURE, EAVESDROPPER, BUDGET)
    everyone = calibrate(WEAK, EXPOSURE, Adversary.everyone(), BUDGET, own="per-user")
    assert everyone == baselines.local(WEAK, EXPOSURE, BUDGET)
    alone = calibrate(decor.path(1), EXPOSURE, EAVESDROPPER, BUDGET, own="per-user")
    assert alone.guarantee().epsilon <= 3.0 and isinstance(alone.sigma_cdp, float)


def test_users_with_fewer_records_have_limits_of_their_own():
    sizes = [100, 100, 100, 800, 800, 800, 800, 800, 800, 800]
    records = dict(zip(WEAK.labels, sizes, strict=True))
    exposure = Exposure(1.0, 50, unit="example", batch_size=10, records=records)
    plan = calibrate(WEAK, exposure, CURIOUS, BUDGET, own="per-user", gossip_rounds=2)
    each = plan.guarantee().per_user
    assert each.max() <= BUDGET.epsilon and each.max() > 0.99 * BUDGET.epsilon
    uniform = calibrate(WEAK, exposure, CURIOUS, BUDGET, gossip_rounds=2)
    errors = [theory.predicted_error(p, Gossip(2)) for p in (plan, uniform)]
    assert errors[0] < 0.9 * errors[1]
    assert np.mean(plan.sigma_cdp[:3]) > np.mean(plan.sigma_cdp[3:9])


def test_a_graph_that_mixes_slowly_is_certified_as_well(monkeypatch):
    # edges cost little there: with prices as they are, the solver's tolerance is far above theirs,
    # and after 120 rounds the bound was still 4 % away
    monkeypatch.setattr(own_noise_design, "_ROUNDS", 80)
    ring = [(1 + k, 1 + (k + step) % 39) for k in range(39) for step in (1, 2)]
    slow = decor.from_edges(40, sorted([*ring, (0, 1), (0, 20)]))
    exposure = Exposure(1.0, 100)
    plan = calibrate(slow, exposure, CURIOUS, BUDGET, own="per-user", gossip_rounds=1)
    # within 1 % of the bound, or `calibrate` would have raised
    assert BUDGET.epsilon * 0.99 < plan.guarantee().epsilon <= BUDGET.epsilon
    assert np.argmax(plan.sigma_cdp) == 0


def test_coalitions_that_are_not_all_tried_would_not_do(monkeypatch):
    """Broken on purpose: without the weak user's neighbours the design is far from its bound."""
    right = own_noise_design._Coalitions.sets.func

    def some(self):
        sets = right(self)
        return sets[~(np.isin(sets, (2, 6)).all(axis=1))]

    wrong = type("_Some", (own_noise_design._Coalitions,), {"sets": property(some)})
    monkeypatch.setattr(own_noise_design, "_Coalitions", wrong)
    design, _ = designed(WEAK, Adversary.colluding(2))
    assert design.plan.guarantee(0.999e-5).epsilon > 1.2 * BUDGET.epsilon
    # calibrate still keeps its budget: what it returns is accounted again
    plan = calibrate(WEAK, EXPOSURE, Adversary.colluding(2), BUDGET, own="per-user")
    assert plan.guarantee().epsilon <= BUDGET.epsilon


def test_what_own_noise_per_user_does_not_take_is_refused():
    for given in ({"ratio": 1.0}, {"sigma_cdp": 5.0}, {"sigma_cor": 5.0}):
        with pytest.raises(InputError, match="drop ratio, sigma_cdp and sigma_cor"):
            calibrate(WEAK, EXPOSURE, CURIOUS, BUDGET, own="per-user", **given)
    with pytest.raises(InputError, match=r'own must be "uniform" or "per-user"'):
        calibrate(WEAK, EXPOSURE, CURIOUS, BUDGET, own="mine")
    big = decor.random_regular(64, 4, seed=0)
    with pytest.raises(InputError, match=r"the 7,624,512 of 5 among 64 users are too many"):
        calibrate(big, EXPOSURE, Adversary.colluding(5), BUDGET, own="per-user")
    with pytest.raises(InputError, match="up to 3,000 edges, not 4,005"):
        calibrate(decor.complete(90), EXPOSURE, EAVESDROPPER, BUDGET, own="per-user")


def test_a_search_that_does_not_meet_its_bound_says_so(monkeypatch):
    monkeypatch.setattr(own_noise_design, "_ROUNDS", 2)
    with pytest.raises(CannotBound, match="not shown to be within 1% of the optimum in 2 rounds"):
        calibrate(WEAK, EXPOSURE, Adversary.colluding(2), BUDGET, own="per-user")
