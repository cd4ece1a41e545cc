import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import graphs, true_worst

import decor
from decor import Adversary, Budget, Exposure, NoisePlan, theory
from decor.errors import BudgetError


@given(graphs(least=3, most=7), st.floats(0.5, 20), st.just(0.0) | st.floats(1e-9, 500), st.integers(0, 2))
@settings(max_examples=40)
def test_exact_is_never_above_the_papers_theorem(topology, s, c, colluders):
    exact = float(max(true_worst(topology, s, c, colluders)))
    assert exact <= theory.leverage_bound(topology, s, c, colluders) * (1 + 1e-9)
    plan = NoisePlan(topology, Exposure(1.0, 50), Adversary.colluding(colluders), s, c)
    assert plan.guarantee(1e-5).epsilon <= theory.epsilon_bound(plan, 1e-5) * (1 + 1e-9)
    assert plan.guarantee(1e-5, method="paper").epsilon <= theory.epsilon_bound(plan, 1e-5) * (1 + 1e-9)


@pytest.mark.parametrize("topology", [decor.complete(8), decor.complete(3)], ids=repr)
def test_on_the_complete_graph_the_theorem_is_exact(topology):
    plan = NoisePlan(topology, Exposure(1.0, 50), Adversary.eavesdropper(), 5.0, 9.0)
    assert plan.guarantee(1e-5, method="paper").epsilon == pytest.approx(theory.epsilon_bound(plan, 1e-5), rel=1e-9)


@pytest.mark.parametrize("colluders", [0, 1])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 11.0])
def test_the_corollarys_noise_keeps_its_budget_and_is_never_better_than_ours(colluders, epsilon):
    exposure, budget = Exposure(1.0, 1000), Budget(epsilon, 1e-5)
    for topology in (decor.ring(8), decor.torus(3, 4), decor.complete(6)):
        s, c = theory.corollary_noise(topology, exposure, budget, colluders)
        adversary = Adversary.colluding(colluders)
        assert NoisePlan(topology, exposure, adversary, s, c).guarantee(1e-5).epsilon <= epsilon
        ours = decor.calibrate(topology, exposure, adversary, budget, ratio=(c / s) ** 2)
        assert ours.sigma_cdp < s and ours.sigma_cor < c


def test_theory_refuses_what_it_does_not_cover():
    exposure = Exposure(1.0, 10)
    with pytest.raises(BudgetError, match="log\\(1/delta\\)"):
        theory.corollary_noise(decor.ring(5), exposure, Budget(20.0, 1e-5))
    with pytest.raises(BudgetError, match="stays connected"):
        theory.corollary_noise(decor.star(5), exposure, Budget(1.0, 1e-5), colluders=1)
    with pytest.raises(BudgetError, match="one sigma_cor on all edges"):
        theory.epsilon_bound(NoisePlan(decor.path(3), exposure, Adversary.curious(), 1.0, (1.0, 2.0)), 1e-5)


def test_predicted_consensus_error_is_what_gossip_leaves_by_simulation():
    """One step of noise, one round of gossip: distance to the average, per coordinate (Lemma consensus without its factor n)."""
    rng = np.random.default_rng(5)
    s, c = 2.0, 3.0
    for topology in (decor.ring(6), decor.star(5), decor.erdos_renyi(7, 0.6, seed=1)):
        n = topology.users
        K = np.zeros((n, topology.edge_count))
        K[topology.edges[:, 0], range(topology.edge_count)] = 1
        K[topology.edges[:, 1], range(topology.edge_count)] = -1
        noise = rng.normal(size=(200_000, n)) * s + c * rng.normal(size=(200_000, topology.edge_count)) @ K.T
        after = noise @ topology.mixing.toarray()
        measured = ((after - after.mean(axis=1, keepdims=True)) ** 2).sum(axis=1).mean() / n
        weights = theory.error_weights(topology, 1)
        assert measured == pytest.approx(float(weights.consensus(c**2 / s**2)) * s**2, rel=0.02)
        assert after.mean(axis=1).var() == pytest.approx(weights.average * s**2, rel=0.02)


def test_predicted_error_of_per_edge_noise_agrees_with_uniform():
    exposure = Exposure(1.0, 100)
    uniform = NoisePlan(decor.star(5), exposure, Adversary.eavesdropper(), 2.0, 3.0)
    per_edge = NoisePlan(decor.star(5), exposure, Adversary.eavesdropper(), 2.0, (3.0,) * 4)
    assert theory.predicted_error(per_edge) == pytest.approx(theory.predicted_error(uniform))
    assert theory.average_error(uniform) == pytest.approx(100 * 4 / 5)
    assert math.isfinite(theory.predicted_error(NoisePlan(decor.complete(5), exposure, Adversary.curious(), 2.0, 3.0)))
