import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import graphs, true_worst

import decor
from decor import Adversary, Budget, Exposure, NoisePlan, theory
from decor.errors import BudgetError
from decor.graph.gossip import Gossip


@given(
    graphs(least=3, most=7),
    st.floats(0.5, 20),
    st.just(0.0) | st.floats(1e-9, 500),
    st.integers(0, 2),
)
@settings(max_examples=40)
def test_exact_is_never_above_the_papers_theorem(topology, s, c, colluders):
    exact = float(max(true_worst(topology, s, c, colluders)))
    assert exact <= theory.leverage_bound(topology, s, c, colluders) * (1 + 1e-9)
    plan = NoisePlan(topology, Exposure(1.0, 50), Adversary.colluding(colluders), s, c)
    assert plan.guarantee(1e-5).epsilon <= theory.epsilon_bound(plan, 1e-5) * (1 + 1e-9)
    assert plan.guarantee(1e-5, method="paper").epsilon <= theory.epsilon_bound(plan, 1e-5) * (
        1 + 1e-9
    )


@pytest.mark.parametrize("topology", [decor.complete(8), decor.complete(3)], ids=repr)
def test_on_the_complete_graph_the_theorem_is_exact(topology):
    plan = NoisePlan(topology, Exposure(1.0, 50), Adversary.eavesdropper(), 5.0, 9.0)
    assert plan.guarantee(1e-5, method="paper").epsilon == pytest.approx(
        theory.epsilon_bound(plan, 1e-5), rel=1e-9
    )


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
        theory.epsilon_bound(
            NoisePlan(decor.path(3), exposure, Adversary.curious(), 1.0, (1.0, 2.0)), 1e-5
        )


GOSSIPS = [Gossip(), Gossip(0), Gossip(3), Gossip(3, accelerate=True)]


def incidence(topology):
    K = np.zeros((topology.users, topology.edge_count))
    K[topology.edges[:, 0], range(topology.edge_count)] = 1
    K[topology.edges[:, 1], range(topology.edge_count)] = -1
    return K


@given(
    graphs(least=2),
    st.sampled_from([1, 2, 30]),
    st.builds(Gossip, st.integers(0, 5), st.booleans()),
)
def test_predicted_error_is_the_covariance_of_the_recursion_step_by_step(topology, steps, gossip):
    """X <- P (X - noise): its covariance is C <- P (C + Sigma) P, and the error is its trace."""
    n, P = topology.users, gossip.matrix(topology)
    J = (topology.components[:, None] == topology.components[None, :]).astype(float)
    J /= J.sum(axis=1, keepdims=True)
    per_edge = np.linspace(1, 3, topology.edge_count)
    for c in (3.0, tuple(per_edge.tolist())):
        K, C = incidence(topology), np.zeros((n, n))
        Sigma = 4.0 * np.eye(n) + (K * np.square(c)) @ K.T
        for _ in range(steps):
            C = P @ (C + Sigma) @ P
        plan = NoisePlan(topology, Exposure(1.0, steps), Adversary.eavesdropper(), 2.0, c)
        disagreement = theory.predicted_error(plan, gossip) - theory.average_error(plan)
        assert disagreement == pytest.approx(np.trace((np.eye(n) - J) @ C) / n, rel=1e-9, abs=1e-9)
    assert theory.average_error(plan) == pytest.approx(4.0 * steps / n)


@pytest.mark.parametrize("gossip", GOSSIPS, ids=repr)
@pytest.mark.parametrize(
    "topology", [decor.ring(6), decor.star(5), decor.erdos_renyi(7, 0.6, seed=1)], ids=repr
)
def test_predicted_errors_are_measured_in_simulated_training(topology, gossip):
    """Noise and gossip alone: the mean model and the distance to it, tested from both sides."""
    rng, runs = np.random.default_rng(5), 20_000
    s, c, n, K = 2.0, 3.0, topology.users, incidence(topology)
    assert topology.is_connected
    for steps in (1, 12):
        models = np.zeros((n, runs))
        for _ in range(steps):
            noise = s * rng.normal(size=(n, runs)) + c * K @ rng.normal(
                size=(topology.edge_count, runs)
            )
            models = gossip.apply(topology, models - noise)
        weights = theory.error_weights(topology, steps, gossip)
        disagreement = ((models - models.mean(axis=0)) ** 2).sum(axis=0).mean() / n
        for measured, predicted in (
            (disagreement, float(weights.consensus(c**2 / s**2)) * s**2),
            (models.mean(axis=0).var(), weights.average * s**2),
        ):
            assert measured == pytest.approx(predicted, rel=0.05)
            assert measured != pytest.approx(
                predicted * 2 / 3, rel=0.05
            ) and measured != pytest.approx(predicted * 3 / 2, rel=0.05)


@given(
    graphs(least=2),
    st.sampled_from([1, 5, 1000, 10**12]),
    st.builds(Gossip, st.integers(0, 5), st.booleans()),
)
def test_the_lemma_bounds_the_exact_disagreement_from_above(topology, steps, gossip):
    """Lemma consensus: what one step leaves, remembered in all modes as long as in the slowest."""
    forgotten = 1 - gossip.shrinkage(topology) ** 2
    memory = min(steps, 1 / forgotten) if forgotten > 0 else steps
    weights = theory.error_weights(topology, steps, gossip)
    n = topology.users
    assert (
        weights.constant <= gossip.distance_to_average(topology) * memory / n * (1 + 1e-6) + 1e-12
    )
    assert weights.slope <= gossip.edge_residuals(topology).sum() * memory / n * (1 + 1e-6) + 1e-12
    once = theory.error_weights(topology, 1, gossip)
    assert weights.constant >= once.constant * (1 - 1e-9) and weights.slope >= once.slope * (
        1 - 1e-9
    )


def test_predicted_error_of_per_edge_noise_agrees_with_uniform():
    exposure = Exposure(1.0, 100)
    uniform = NoisePlan(decor.star(5), exposure, Adversary.eavesdropper(), 2.0, 3.0)
    per_edge = NoisePlan(decor.star(5), exposure, Adversary.eavesdropper(), 2.0, (3.0,) * 4)
    assert theory.predicted_error(per_edge) == pytest.approx(theory.predicted_error(uniform))
    assert theory.average_error(uniform) == pytest.approx(100 * 4 / 5)
    assert math.isfinite(
        theory.predicted_error(
            NoisePlan(decor.complete(5), exposure, Adversary.curious(), 2.0, 3.0)
        )
    )
