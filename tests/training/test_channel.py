"""Messages, seen through `train` and `sweep` only, have exactly the noise that is accounted."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import decor
from decor import Adversary, Exposure, NoisePlan, Task, Vectorised, losses
from decor.errors import InputError
from decor.graph import mixing
from decor.graph.gossip import Gossip

RATE = 0.25


def still(users, dimension, layers=1):
    """A task with zero gradients (zero inputs, no bias): a message is the model and its noise."""
    sizes = [dimension] * layers + [1]
    parts = [
        part
        for a, b in itertools.pairwise(sizes)
        for part in (nn.Linear(a, b, bias=False), nn.Tanh())
    ][:-1]
    model = nn.Sequential(*parts)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
    shard = (torch.zeros(2, dimension), torch.zeros(2, 1))
    return Task(model, losses.squared, [shard] * users)


def weights(topology):
    """Metropolis and Hastings, one edge at a time."""
    W = np.eye(topology.users)
    degree = [0] * topology.users
    for i, j in topology.edges.tolist():
        degree[i] += 1
        degree[j] += 1
    for i, j in topology.edges.tolist():
        w = 1 / (1 + max(degree[i], degree[j]))
        W[i, j] += w
        W[j, i] += w
        W[i, i] -= w
        W[j, j] -= w
    return W


def noise(plan, task, learning_rates=(RATE,), seeds=(5,), plans=(), dtype="float64", momentum=0.0):
    """The noise of all messages, divided by the rate: [steps, users, seeds, settings, d]."""
    wire = []
    engine = Vectorised(
        dtype=dtype, on_messages=lambda step, sent: wire.append((step, sent.double().numpy()))
    )
    plans = [plan, *plans]
    decor.sweep(
        task,
        plans,
        learning_rates=learning_rates,
        seeds=seeds,
        engine=engine,
        momentum=momentum,
        evaluate_every=10**6,
        gossip_rounds=1,
    )
    assert [step for step, _ in wire] == list(range(plan.exposure.steps))
    start = torch.cat([p.detach().T.flatten() for p in task.model.parameters()]).double().numpy()
    model = np.broadcast_to(start, wire[0][1].shape)
    W = (
        np.full((task.users, task.users), 1 / task.users)
        if plan.adversary.average_only
        else weights(plan.topology)
    )
    found, before = [], 0.0
    rates = np.array([rate for _ in plans for rate in learning_rates])[:, None]
    for _, sent in wire:
        moved = (model - sent) / rates
        found.append(moved - momentum * before)
        model, before = np.tensordot(W, sent, 1), moved
    return np.stack(found)


def true_sigma(topology, s, c):
    sigma = np.diag(np.broadcast_to(np.square(s), topology.users)).astype(float)
    for (i, j), each in zip(
        topology.edges.tolist(), np.broadcast_to(c, topology.edge_count).tolist(), strict=True
    ):
        sigma[[i, j], [i, j]] += each**2
        sigma[i, j] -= each**2
        sigma[j, i] -= each**2
    return sigma


def whitened(samples, sigma):
    """Samples in the eigenvectors of sigma: standard and independent if sigma is right."""
    values, vectors = np.linalg.eigh(sigma)
    return samples @ vectors / np.sqrt(values)


def consistent(samples, sigma, alarm=1e-6):
    """Whether samples [count, users] can be N(0, sigma), by chi-square and normal tests.

    Tests each mode's variance, their sum and each two modes' correlation. Right samples are refused
    with probability `alarm` at most (Bonferroni).
    """
    z = whitened(samples, sigma)
    count, users = z.shape
    each = alarm / (users * (users + 1) / 2 + 1)
    squares = z.T @ z

    def right(found, degrees):
        low, high = stats.chi2.ppf([each / 2, 1 - each / 2], degrees)
        return (low <= found) & (found <= high)

    off = abs(squares[np.triu_indices(users, 1)]) / math.sqrt(count)
    modes = np.diag(squares)
    return bool(
        right(modes, count).all()
        and right(modes.sum(), count * users)
        and (off <= stats.norm.isf(each / 2)).all()
    )


def only_its_own(samples, topology, s, c):
    """Accepts sigma; refuses 2/3 and 3/2 of either deviation."""
    s = np.asarray(s)
    wrong = [(f * s, c) for f in (2 / 3, 3 / 2)] + [(s, f * np.asarray(c)) for f in (2 / 3, 3 / 2)]
    if not np.any(c):
        wrong = wrong[:2]
    return consistent(samples, true_sigma(topology, s, c)) and not any(
        consistent(samples, true_sigma(topology, *other)) for other in wrong
    )


def by_users(found, seed=0, setting=0):
    """[steps, users, seeds, settings, d] -> samples [steps * d, users]."""
    return found[:, :, seed, setting].transpose(0, 2, 1).reshape(-1, found.shape[1])


def plan_of(topology, s, c, steps=20, adversary=None):
    return NoisePlan(topology, Exposure(1.0, steps), adversary or Adversary.eavesdropper(), s, c)


def test_the_test_itself_knows_its_false_alarms_and_what_it_must_refuse():
    """NumPy Gaussians: right ones are accepted; scaled, moved and mixed ones are refused."""
    rng = np.random.default_rng(0)
    topology = decor.ring(8)
    F = np.linalg.cholesky(true_sigma(topology, 1.0, 2.0))
    trials = [rng.normal(size=(2000, 8)) @ F.T for _ in range(400)]
    refused = sum(not consistent(x, true_sigma(topology, 1.0, 2.0), alarm=0.05) for x in trials)
    assert 2 <= refused <= 40, "20 expected of an alarm of 0.05"
    assert all(only_its_own(x, topology, 1.0, 2.0) for x in trials[:20])
    assert not consistent(trials[0] @ weights(topology), true_sigma(topology, 1.0, 2.0)), (
        "noise that was gossiped"
    )
    assert not consistent(
        trials[0][:, ::-1] * [1, 1, 1, 1, -1, -1, -1, -1], true_sigma(topology, 1.0, 2.0)
    ), "a wrong sign"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "topology",
    [
        decor.ring(16),
        decor.torus(4, 4),
        decor.star(16),
        decor.erdos_renyi(16, 0.3, seed=3),
        decor.complete(12),
        decor.path(2),
    ],
    ids=repr,
)
def test_transmitted_noise_is_sigmas_on_small_graphs(topology, dtype):
    for s, c in ((0.3, 2.0), (1.5, 0.7), (0.8, 0.0)):
        found = noise(plan_of(topology, s, c), still(topology.users, 150), dtype=dtype)
        assert only_its_own(by_users(found), topology, s, c)


@pytest.mark.parametrize(
    ("topology", "root"),
    [
        (decor.ring(100), "band"),
        (decor.torus(10, 10), "edges"),
        (decor.complete(80), "closed form"),
        (decor.star(70), "edges"),
        (decor.erdos_renyi(90, 0.08, seed=5), "edges"),
    ],
    ids=lambda value: str(value),
)
def test_transmitted_noise_is_sigmas_on_large_graphs(topology, root):
    found = noise(plan_of(topology, 0.5, 1.2, steps=12), still(topology.users, 700))
    assert only_its_own(by_users(found), topology, 0.5, 1.2), root


@pytest.mark.parametrize(
    "topology", [decor.ring(12), decor.star(9), decor.ring(100), decor.torus(9, 9)], ids=repr
)
def test_transmitted_noise_is_sigmas_when_edges_differ(topology):
    c = np.random.default_rng(1).uniform(0.3, 3.0, topology.edge_count)
    c[3] = 0.0
    found = noise(plan_of(topology, 0.5, c, steps=12), still(topology.users, 700))
    assert only_its_own(by_users(found), topology, 0.5, c)
    assert not consistent(
        by_users(found), true_sigma(topology, 0.5, float(np.sqrt((c**2).mean())))
    ), "one number for all edges"
    assert not consistent(by_users(found), true_sigma(topology, 0.5, np.roll(c, 1))), (
        "each edge its own"
    )


@pytest.mark.parametrize(
    ("topology", "dimension"),
    [
        (decor.ring(12), 700),
        (decor.star(9), 700),
        (decor.erdos_renyi(20, 0.3, seed=3), 700),
        (decor.ring(100), 700),  # a band
        (decor.ring(16), 10_000),  # a band for a large model
        (decor.torus(9, 9), 700),  # edges
    ],
    ids=str,
)
def test_transmitted_noise_is_sigmas_when_users_differ(topology, dimension):
    rng = np.random.default_rng(4)
    s = 0.5 * rng.uniform(1.0, 3.0, topology.users)
    s[1], s[4] = 0.4, 4.0
    c = rng.uniform(0.3, 3.0, topology.edge_count)
    steps = 12 if dimension < 1000 else 1
    found = by_users(noise(plan_of(topology, s, c, steps), still(topology.users, dimension)))
    assert only_its_own(found, topology, s, c)
    assert only_its_own(
        by_users(noise(plan_of(topology, s, 0.0, steps), still(topology.users, 700))),
        topology,
        s,
        0.0,
    )
    mean = float(np.sqrt((s**2).mean()))
    assert not consistent(found, true_sigma(topology, mean, c)), "one number for all users"
    swapped = s.copy()
    swapped[[1, 4]] = s[[4, 1]]
    assert not consistent(found, true_sigma(topology, swapped, c)), "each user its own"


@pytest.mark.parametrize("users", [9, 70])
def test_plans_whose_users_differ_share_a_sweep_and_keep_their_law(users):
    """In proportion, so that eigenvectors are shared."""
    topology, rng = decor.ring(users), np.random.default_rng(2)
    s, c = rng.uniform(0.5, 2.0, users), rng.uniform(0.5, 2.0, users)
    levels = [(s, c), (2 * s, 2 * c), (0.25 * s, 0.25 * c)]
    plans = [plan_of(topology, *each, steps=8) for each in levels]
    found = noise(plans[0], still(users, 800), plans=plans[1:])
    for k, each in enumerate(levels):
        assert only_its_own(by_users(found, 0, k), topology, *each)


def test_own_noise_of_each_user_on_a_large_complete_graph_is_refused_in_words():
    made = plan_of(decor.complete(70), np.linspace(1.0, 2.0, 70), 1.0)
    with pytest.raises(InputError, match="takes one sigma_cdp for all users; make the plan with"):
        decor.train(still(70, 3), made, learning_rate=RATE, gossip_rounds=1)


@pytest.mark.parametrize(
    "topology",
    [decor.ring(10), decor.star(8), decor.ring(80), decor.torus(8, 9), decor.complete(70)],
    ids=repr,
)
def test_every_setting_of_a_sweep_has_its_own_law_and_every_seed_its_own_noise(topology):
    couples = [(0.4, 1.5), (1.2, 0.3), (0.7, 0.0), (0.05, 2.0)]
    plans = [plan_of(topology, s, c, steps=8) for s, c in couples]
    found = noise(plans[0], still(topology.users, 800), (RATE, 2.0), (5, 6), plans[1:])
    for seed in range(2):
        for k, (s, c) in enumerate(couples):
            for setting in (2 * k, 2 * k + 1):
                assert only_its_own(by_users(found, seed, setting), topology, s, c)
    sigma = true_sigma(topology, *couples[0])
    one, two = (whitened(by_users(found, seed), sigma) for seed in (0, 1))
    assert unrelated(one, two), "seeds share nothing"


@pytest.mark.parametrize("users", [9, 70])
def test_plans_whose_edges_differ_in_proportion_share_a_sweep_and_keep_their_law(users):
    topology = decor.ring(users)
    c = np.random.default_rng(2).uniform(0.5, 2.0, users)
    plans = [plan_of(topology, s, f * c, steps=8) for s, f in ((0.5, 1.0), (1.0, 2.0), (0.4, 0.25))]
    found = noise(plans[0], still(users, 800), seeds=(1, 2), plans=plans[1:])
    for k, (s, f) in enumerate(((0.5, 1.0), (1.0, 2.0), (0.4, 0.25))):
        assert only_its_own(by_users(found, 1, k), topology, s, f * c)


@pytest.mark.parametrize("topology", [decor.ring(12), decor.star(12), decor.torus(8, 9)], ids=repr)
def test_with_momentum_every_step_still_adds_fresh_noise_of_sigma(topology):
    found = noise(plan_of(topology, 0.6, 1.3, steps=15), still(topology.users, 400), momentum=0.9)
    assert only_its_own(by_users(found), topology, 0.6, 1.3)
    assert unrelated_steps(found, true_sigma(topology, 0.6, 1.3))


@pytest.mark.parametrize("users", [12, 80])
def test_central_noise_is_everybodys_own_and_the_server_averages(users):
    topology = decor.ring(users)
    plan = plan_of(topology, 0.9, 0.0, adversary=Adversary(0, average_only=True))
    found = noise(plan, still(users, 300))
    assert only_its_own(by_users(found), topology, 0.9, 0.0)
    run = decor.train(still(users, 300), plan, learning_rate=RATE, gossip_rounds=1)
    weight = run.models["0.weight"]
    assert (weight == weight[0]).all() and run.metrics["consensus"] < 1e-10


@pytest.mark.parametrize(
    "topology",
    [
        decor.ring(16),
        decor.star(9),
        decor.erdos_renyi(20, 0.3, seed=1),
        decor.torus(9, 9),
        decor.ring(100),
    ],
    ids=repr,
)
def test_correlated_noise_cancels_in_the_sum_over_users(topology):
    for s in (0.0, 1e-4, 1e-8):
        found = by_users(noise(plan_of(topology, s, 1.0, steps=5), still(topology.users, 300)))
        total = found.sum(axis=1)
        assert found.std() > 0.5
        if s == 0:
            assert abs(total).max() < 1e-6
        else:
            z = (total**2).sum() / (topology.users * s**2)
            assert stats.chi2.ppf(5e-7, len(total)) < z < stats.chi2.ppf(1 - 5e-7, len(total)), (
                "n sigma_cdp^2, no less and no more"
            )


def unrelated(x, y):
    """No correlation of values and of squares, five deviations."""
    x, y = x.ravel(), y.ravel()
    return all(
        abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(len(x))
        for a, b in ((x, y), (x**2, y**2), (x, y**2), (x**2, y))
    )


def unrelated_steps(found, sigma):
    z = [whitened(step[:, 0, 0].T, sigma) for step in found]
    return all(unrelated(a, b) for a, b in itertools.combinations(z, 2))


@pytest.mark.parametrize(
    "topology",
    [decor.ring(16), decor.star(8), decor.ring(100), decor.torus(9, 9), decor.complete(80)],
    ids=repr,
)
def test_noise_is_fresh_in_every_step(topology):
    found = noise(plan_of(topology, 0.5, 2.0, steps=8), still(topology.users, 300))
    assert unrelated_steps(found, true_sigma(topology, 0.5, 2.0))
    assert not unrelated_steps(
        np.stack([found[0], found[1], found[0]]), true_sigma(topology, 0.5, 2.0)
    ), "reused noise is seen"


@pytest.mark.parametrize(
    "topology", [decor.ring(10), decor.ring(70), decor.torus(8, 9), decor.complete(66)], ids=repr
)
@pytest.mark.parametrize("dimension", [5, 12, 40])
def test_noise_is_independent_between_coordinates_and_between_layers(topology, dimension):
    """Three layers, whose widths are below and above what shares a group of Gaussians."""
    task = still(topology.users, dimension, layers=3)
    sizes = [p.numel() for p in task.model.parameters()]
    assert sizes == [dimension**2, dimension**2, dimension]
    steps = 20_000 // (topology.users * dimension**2) + 12
    found = noise(plan_of(topology, 0.5, 1.0, steps=steps), task)
    assert consistent(by_users(found), true_sigma(topology, 0.5, 1.0))
    # [steps, d, users]
    z = whitened(found[:, :, 0, 0].transpose(0, 2, 1), true_sigma(topology, 0.5, 1.0))
    d = dimension**2
    assert unrelated(z[:, :d], z[:, d : 2 * d]), "layers of one shape, place by place"
    assert unrelated(z[:, :dimension], z[:, 2 * d :]) and unrelated(
        z[:, d : d + dimension], z[:, 2 * d :]
    )
    assert unrelated(z[:, 1:], z[:, :-1]) and unrelated(z[:, :, 1:], z[:, :, :-1])
    if len(z) * topology.users > 8 * z.shape[1]:
        each = np.corrcoef(z.transpose(1, 0, 2).reshape(z.shape[1], -1))
        off = abs(each[np.triu_indices(len(each), 1)])
        assert off.max() < stats.norm.isf(5e-7 / len(off)) / math.sqrt(len(z) * topology.users), (
            "any two coordinates"
        )


@pytest.mark.parametrize(
    "topology",
    [
        decor.ring(16),
        decor.torus(4, 5),
        decor.star(12),
        decor.erdos_renyi(15, 0.4, seed=2),
        decor.torus(9, 9),
    ],
    ids=repr,
)
def test_one_round_of_gossip_leaves_of_the_correlated_noise_what_lemma_noisereduce_says(topology):
    """E |N W|_F^2 = 2 H_G(W) |E| d sigma_cor^2, of the models that users hold after the round."""
    c, d = 1.7, 20_000
    task = still(topology.users, d)
    run = decor.train(
        task,
        plan_of(topology, 0.0, c, steps=1),
        learning_rate=RATE,
        engine=Vectorised(seed=3, dtype="float64"),
        gossip_rounds=1,
    )
    left = (
        ((run.models["0.weight"].squeeze(1) - task.model[0].weight.detach()) / RATE)
        .square()
        .sum()
        .item()
    )
    expected = 2 * mixing.heterogeneity(topology) * topology.edge_count * d * c**2
    # the sum of d independent quadratic forms: their variance is 2 |W L W|_F^2 c^4
    W, L = weights(topology), true_sigma(topology, 0.0, 1.0)
    deviation = math.sqrt(2 * d) * np.linalg.norm(W @ L @ W) * c**2
    assert abs(left - expected) < 5 * deviation
    for wrong in (2 / 3, 3 / 2):
        assert abs(left - wrong**2 * expected) > 5 * deviation


@pytest.mark.parametrize("rounds", [0, 1, 2, 7])
@pytest.mark.parametrize("accelerate", [False, True, "designed"])
@pytest.mark.parametrize(
    "topology",
    [decor.ring(12), decor.star(7), decor.complete(6), decor.ring(70), decor.star(80)],
    ids=repr,
)
def test_models_after_a_step_are_the_messages_gossiped(topology, rounds, accelerate):
    sent = []
    engine = Vectorised(
        dtype="float64", on_messages=lambda step, messages: sent.append(messages[:, 0, 0].numpy())
    )
    task, plan = still(topology.users, 37), plan_of(topology, 1.0, 2.0, steps=3)
    run = decor.train(
        task, plan, learning_rate=RATE, engine=engine, gossip_rounds=rounds, accelerate=accelerate
    )
    P = Gossip(rounds, accelerate).matrix(topology)
    assert np.allclose(run.models["0.weight"].squeeze(1).numpy(), P @ sent[-1], atol=1e-12)


@pytest.mark.parametrize("topology", [decor.ring(7), decor.ring(70), decor.complete(66)], ids=repr)
@pytest.mark.parametrize("dimension", [9, 64, 500])
def test_more_threads_make_the_same_noise(topology, dimension):
    task, plan = still(topology.users, dimension), plan_of(topology, 0.5, 1.0, steps=3)
    engines = [Vectorised(threads=threads) for threads in (1, 2, 3)]
    one, *others = (
        decor.train(task, plan, learning_rate=RATE, engine=engine, gossip_rounds=1).models[
            "0.weight"
        ]
        for engine in engines
    )
    assert one.std() > 0.1 and all((one - other).abs().max() < 1e-5 for other in others), (
        "up to the order of sums"
    )


def test_plans_without_noise_add_none():
    for users in (8, 80):
        run = decor.train(
            still(users, 20),
            plan_of(decor.ring(users), 0.0, 0.0),
            learning_rate=RATE,
            gossip_rounds=1,
        )
        assert run.metrics["consensus"] < 1e-12


def test_noise_that_differs_by_edge_on_a_large_complete_graph_is_refused_in_words():
    topology = decor.complete(70)
    with pytest.raises(InputError, match="use one sigma_cor"):
        decor.train(
            still(70, 3),
            plan_of(topology, 1.0, np.ones(topology.edge_count)),
            learning_rate=RATE,
            gossip_rounds=1,
        )


@pytest.mark.parametrize("threads", [1, 2])
def test_large_models_on_small_rings_have_the_plans_sigmas_too(threads):
    """From 10,000 parameters on, a ring's noise comes from a band, on any number of threads."""
    topology, wire = decor.ring(16), []
    engine = Vectorised(
        threads=threads, on_messages=lambda step, sent: wire.append(sent.double().numpy())
    )
    task = still(16, 12_000)
    # so little of everybody's own noise takes another root, and another tensor
    sigmas = [(1.0, 3.0), (2.0, 1.0), (1e-6, 1.0)]
    plans = [plan_of(topology, s, c, steps=1) for s, c in sigmas]
    decor.sweep(
        task,
        plans,
        learning_rates=[RATE],
        seeds=(1, 2),
        engine=engine,
        evaluate_every=10**6,
        gossip_rounds=1,
    )
    start = task.model[0].weight.detach().flatten().double().numpy()
    together, apart = ((start - sent) / RATE for sent in wire)
    for k, (s, c) in enumerate(sigmas[:2]):
        for seed in (0, 1):
            assert only_its_own(together[:, seed, k].T, topology, s, c)
    assert consistent(apart[:, 0, 0].T[:, 1:], true_sigma(topology, 0.0, 1.0)[1:, 1:])
    for k, sent in ((1, wire[0][:, 1, 1]), (2, wire[1][:, 1, 0])):
        alone: list = []
        one = Vectorised(
            threads=1,
            seed=2,
            on_messages=lambda step, sent, alone=alone: alone.append(sent.double().numpy()),
        )
        decor.train(task, plans[k], learning_rate=RATE, engine=one, gossip_rounds=1)
        assert np.allclose(alone[0][:, 0, 0], sent, atol=1e-5), (
            "alone as among others, on one thread as on two"
        )


def test_weak_edges_keep_their_noise_beside_strong_ones():
    """Edges seven orders of magnitude apart, little noise per user: none is lost in rounding."""
    topology = decor.path(3)
    plan = NoisePlan(topology, Exposure(1e-8, 40), Adversary.eavesdropper(), 1e-9, (1.0, 1e-7))
    found = noise(plan, still(3, 50))[:, :, 0, 0]  # [steps, users, d]
    assert consistent(found[:, 2].reshape(-1, 1), np.array([[1e-14 + 1e-18]]))
