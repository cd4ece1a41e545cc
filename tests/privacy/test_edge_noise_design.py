import networkx as nx
import numpy as np
import pytest
from oracles import true_leverages, true_worst

import decor
from decor import Adversary, Budget, Exposure, baselines, calibrate
from decor.errors import InputError
from decor.graph.mixing import edge_heterogeneity
from decor.privacy import theory

BUDGET, EXPOSURE = Budget(3.0, 1e-5), Exposure(1.0, 1000)
EAVESDROPPER = Adversary.eavesdropper()


def left_after_gossip(plan):
    return float(
        edge_heterogeneity(plan.topology)
        @ np.broadcast_to(np.square(plan.sigma_cor), plan.topology.edge_count)
    )


@pytest.mark.parametrize(("attachments", "expected"), [(2, 0.75), (4, 0.25)])
def test_on_an_irregular_graph_designed_noise_costs_what_the_specification_measured(
    attachments, expected
):
    """Barabasi-Albert, 32 users, at equal epsilon and equal sigma_cdp."""
    topology = decor.from_networkx(nx.barabasi_albert_graph(32, attachments, seed=1))
    s = baselines.central(topology, EXPOSURE, BUDGET).sigma_cdp * np.sqrt(1.1)
    uniform = calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, sigma_cdp=s)
    designed = calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, sigma_cdp=s, edges="optimal")
    assert designed.sigma_cdp == uniform.sigma_cdp == s
    assert left_after_gossip(designed) / left_after_gossip(uniform) == pytest.approx(
        expected, abs=0.005
    )
    assert theory.predicted_error(designed) < theory.predicted_error(uniform)
    assert 3.0 * (1 - 1e-4) < designed.guarantee().epsilon <= 3.0


def test_designed_noise_is_within_budget_by_mpmath_too():
    topology = decor.from_networkx(nx.florentine_families_graph())
    plan = calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, edges="optimal")
    uniform = calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET)
    truth = max(true_leverages(topology, plan.sigma_cdp, plan.sigma_cor))
    assert truth <= max(true_leverages(topology, uniform.sigma_cdp, uniform.sigma_cor)) * (1 + 1e-9)
    assert len(set(plan.sigma_cor)) > 5


def test_no_other_noise_is_better_by_an_independent_solver():
    from scipy.optimize import minimize

    topology = decor.from_networkx(nx.lollipop_graph(4, 2))
    plan = calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, edges="optimal")
    s2 = plan.sigma_cdp**2
    cost = edge_heterogeneity(topology)
    cost = np.maximum(cost, 1e-9 * cost.max())
    K = np.zeros((topology.users, topology.edge_count))
    K[topology.edges[:, 0], range(topology.edge_count)] = 1
    K[topology.edges[:, 1], range(topology.edge_count)] = -1
    ours = np.square(plan.sigma_cor) / s2
    ceiling = np.linalg.inv(np.eye(topology.users) + (K * ours) @ K.T).diagonal().max()

    def slack(u):
        return ceiling - np.linalg.inv(np.eye(topology.users) + (K * np.exp(u)) @ K.T).diagonal()

    start = np.log(np.full(topology.edge_count, ours.max()))
    other = minimize(
        lambda u: cost @ np.exp(u),
        start,
        constraints=[{"type": "ineq", "fun": slack}],
        method="SLSQP",
        options={"maxiter": 1000},
    )
    assert cost @ ours <= other.fun * (1 + 1e-3)


def test_regular_graphs_gain_nothing_and_keep_one_number():
    plan = calibrate(decor.ring(12), EXPOSURE, EAVESDROPPER, BUDGET, edges="optimal")
    assert isinstance(plan.sigma_cor, float)


def test_noise_designed_against_a_curious_user_holds_against_every_one():
    topology = decor.from_networkx(nx.barabasi_albert_graph(9, 3, seed=2))
    adversary = Adversary.curious()
    uniform = calibrate(topology, EXPOSURE, adversary, BUDGET)
    designed = calibrate(topology, EXPOSURE, adversary, BUDGET, edges="optimal")
    assert designed.guarantee().epsilon <= 3.0
    assert left_after_gossip(designed) < 0.98 * left_after_gossip(uniform)
    allowed = max(true_worst(topology, uniform.sigma_cdp, uniform.sigma_cor, 1))
    assert max(true_worst(topology, designed.sigma_cdp, designed.sigma_cor, 1)) <= allowed * (
        1 + 1e-8
    )


def test_too_many_edges_are_refused():
    with pytest.raises(InputError, match="up to 3000 edges"):
        calibrate(decor.complete(90), EXPOSURE, EAVESDROPPER, BUDGET, edges="optimal")


def test_nothing_to_design_and_nothing_to_compute_with_leave_uniform_noise():
    alone = calibrate(decor.path(1), EXPOSURE, EAVESDROPPER, BUDGET, ratio=1.0, edges="optimal")
    assert isinstance(alone.sigma_cor, float) and alone.guarantee().epsilon <= 3.0
    for topology, ratio in ((decor.path(8), 1e17), (decor.star(5), 1e30)):
        extreme = calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, ratio=ratio, edges="optimal")
        assert extreme.guarantee().epsilon <= 3.0
