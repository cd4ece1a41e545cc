"""Gossip weights of one's own: what is refused, and that every engine averages by them while no
epsilon changes.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import decor
from decor.errors import GraphError
from decor.graph import mixing
from decor.graph.gossip import Gossip
from decor.privacy.plan import NoisePlan
from decor.training.mixer import choose_mixer


def lazy(topology, share=0.5):
    """Weights between Metropolis ones and none."""
    return (1 - share) * topology.mixing.toarray() + share * np.eye(topology.users)


GRAPHS = {
    "ring": decor.ring(6),
    "complete": decor.complete(5),
    "star": decor.star(5),
    "named": decor.from_edges(3, [(0, 1), (1, 2)], ["bonn", "ulm", "kiel"]),
    "large": decor.torus(9, 9),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_weights_are_those_that_were_given(name, sparse):
    graph = GRAPHS[name]
    W = lazy(graph)
    own = graph.with_mixing(csr_array(W) if sparse else W)
    assert np.allclose(own.mixing.toarray(), W, atol=1e-15)
    assert np.allclose(own.self_weights, W.diagonal())
    assert own.labels == graph.labels and (own.edges == graph.edges).all()
    assert own != graph and own.digest != graph.digest and own == graph.with_mixing(W)
    assert "own weights" in repr(own) and graph.own_weights is None
    with pytest.raises(ValueError, match="read-only"):
        own.own_weights[0] = 1.0


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_random_symmetric_doubly_stochastic_matrices_are_taken(users, seed):
    rng = np.random.default_rng(seed)
    graph = decor.complete(users)
    W = np.zeros((users, users))
    for share in rng.dirichlet(np.ones(4)):
        order = rng.permutation(users)
        P = np.eye(users)[order]
        W += share * (P + P.T) / 2
    # a little of the average, so that no part is cut off
    W = 0.9 * W + 0.1 / users
    assert np.allclose(graph.with_mixing(W).mixing.toarray(), W, atol=1e-9)


def changed(**cells):
    W = lazy(GRAPHS["named"])
    for cell, value in cells.items():
        W[int(cell[1]), int(cell[2])] = value
    return W


@pytest.mark.parametrize(
    ("W", "says"),
    [
        (np.eye(2), r"W has shape \(2, 2\); give a row and a column for each of the 3 users"),
        ([["a"]], "must be a matrix of numbers"),
        (changed(c01=np.nan), "from bonn to ulm is nan; weights are shares"),
        (changed(c01=-0.1, c10=-0.1), "from bonn to ulm is -0.1; weights are shares"),
        (changed(c01=0.3), "from bonn to ulm is 0.3.*W must be symmetric"),
        (changed(c02=0.1, c20=0.1), "bonn to kiel is 0.1, and they share no edge"),
        (changed(c00=0.5), "weights of bonn sum to .*doubly stochastic"),
        (np.eye(3), "bonn and ulm never hear of each other, although the graph joins them"),
    ],
)
def test_what_is_no_average_on_the_graph_is_refused_in_one_sentence(W, says):
    with pytest.raises(GraphError, match=says) as refused:
        GRAPHS["named"].with_mixing(W)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["ring", "complete", "star"])
@pytest.mark.parametrize("accelerate", [False, "chebyshev", "designed"])
def test_rates_and_rounds_are_those_of_the_matrix(name, accelerate):
    graph = GRAPHS[name]
    W = lazy(graph, 0.3)
    own = graph.with_mixing(W)
    values = np.sort(np.abs(np.linalg.eigvalsh(W)))
    assert mixing.consensus_rate(own) == pytest.approx(1 - values[-2] ** 2)
    n = graph.users
    assert mixing.distance_to_average(own) == pytest.approx(
        np.linalg.norm(W - np.full((n, n), 1 / n)) ** 2
    )
    gossip = Gossip(3, accelerate)
    models = np.random.default_rng(0).normal(size=(n, 4))
    expected = before = models
    for a, b, c in gossip.steps(own):
        expected, before = a * W @ expected + b * before + c * expected, expected
    assert gossip.apply(own, models) == pytest.approx(expected)
    # whatever the rounds, the average of all models stays
    assert expected.mean(0) == pytest.approx(models.mean(0))
    blocks = [torch.from_numpy(models.copy()).view(n, 1, 1, 4)]
    (mixed,) = choose_mixer(own, False, torch.float64).mix(blocks, gossip)
    assert mixed.view(n, 4).numpy() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["ring", "complete", "star", "large"])
def test_no_epsilon_depends_on_the_weights(name):
    graph = GRAPHS[name]
    exposure = decor.Exposure(clip=1.0, steps=10)
    for adversary in (decor.Adversary.eavesdropper(), decor.Adversary.curious()):
        plans = [
            NoisePlan(each, exposure, adversary, 3.0, 5.0)
            for each in (graph, graph.with_mixing(lazy(graph)))
        ]
        epsilons = [plan.guarantee(1e-5).epsilon for plan in plans]
        assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-9)


def test_a_plan_keeps_its_weights_and_plans_without_keep_their_text(tmp_path):
    graph = decor.ring(6).with_mixing(lazy(decor.ring(6)))
    budget = decor.Budget(5.0, 1e-5)
    plan = decor.calibrate(
        graph, decor.Exposure(clip=1.0, steps=10), decor.Adversary.curious(), budget
    )
    read = NoisePlan.from_json(plan.to_json())
    assert read == plan and read.topology == graph
    assert np.array_equal(read.topology.own_weights, graph.own_weights)
    assert (
        "weights" not in NoisePlan.from_json(plan.to_json().replace('"weights"', '"w"')).to_json()
    )
    with pytest.raises(GraphError, match="2 weights were given for 6 edges"):
        text = plan.to_json()
        start = text.index('"weights": [') + len('"weights": [')
        NoisePlan.from_json(text[:start] + "0.1, 0.2" + text[text.index("]", start) :])
    with pytest.raises(GraphError, match="graph files have no gossip weights"):
        decor.write(graph, tmp_path / "graph.edges")


def test_training_averages_by_these_weights():
    """Without noise and with one user's gradient alone, one step shows a column of W."""
    graph = decor.ring(6)
    W = lazy(graph, 0.2)
    X = torch.zeros(6, 1, 2)
    X[2] = 1.0
    task = decor.Task(decor.models.linear(2), decor.losses.squared, [(x, torch.ones(1)) for x in X])
    exposure = decor.Exposure(clip=1.0, steps=1)
    plan = NoisePlan(graph.with_mixing(W), exposure, decor.Adversary.curious(), 0.0, 0.0)
    run = decor.train(task, plan, learning_rate=1.0, gossip_rounds=1)
    moved = (run.models["weight"] - task.model.weight.detach())[:, 0, 0].numpy()
    assert moved / moved.sum() == pytest.approx(W[:, 2], abs=1e-6)
