"""The contract of the engines: same plan, same secrets, same data give the same models on the
network and in the simulator.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from party import train_together

import decor
import decor.training.engine
from decor.learning.batches import Batch, Batches, CommonRate, secret_batch
from decor.learning.recipe import Recipe
from decor.net import session
from decor.net.peer import Peer
from decor.noise.agreement import Agreement
from decor.noise.grid import Grid

USERS, STEPS = 5, 6


class Bytes:
    """Random bytes that can be had again: the n-th draw of a user."""

    def __init__(self, user):
        self.user, self.drawn = user, []

    def __call__(self, count):
        start = hashlib.sha256(f"{self.user} {len(self.drawn)}".encode()).digest()
        self.drawn.append(np.random.default_rng(list(start)).bytes(count))
        return self.drawn[-1]


class Streams:
    """The peers' noise, from the keys that they have used."""

    def __init__(self, grid, multiples, keys, own):
        self.grid, self.multiples, self.keys, self.own = grid, multiples, keys, own

    def noised(self, plan, seed, step, gradients):
        found = np.empty_like(gradients)
        for i, gradient in enumerate(gradients):
            edges = [(self.keys[i, step][j], multiple) for j, multiple in self.multiples[i].items()]
            found[i], _ = self.grid.add_noise(gradient, self.own[i][step], edges)
        return found


@pytest.fixture
def keys(monkeypatch):
    """Every key that a user has asked for, by (user, step)."""
    found, ask = {}, Peer.take_keys

    async def noted(self, step, draw):
        asked = await ask(self, step, draw)
        found[self.config.identity.public, step] = asked
        return asked

    monkeypatch.setattr(Peer, "take_keys", noted)
    # what neighbours agree with is the system's, so that a user's own draws are those of its steps
    monkeypatch.setattr(
        session, "Agreement", lambda identity, edge, random: Agreement(identity, edge)
    )
    return found


def small(kind):
    rng = np.random.default_rng(1)
    X = [rng.normal(size=(7 + i, 4)) for i in range(USERS)]
    if kind == "linear":
        return decor.Task(
            decor.models.linear(4), decor.losses.squared, [(x, rng.normal(size=len(x))) for x in X]
        )
    y = [rng.integers(0, 3, len(x)) for x in X]
    if kind == "transformer":
        tokens = [rng.integers(0, 7, x.shape) for x in X]
        layer = torch.nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        parts = (torch.nn.Embedding(7, 4, padding_idx=0), layer, torch.nn.Flatten())
        model = torch.nn.Sequential(*parts, torch.nn.Linear(16, 3)).double()
        pairs = list(zip(tokens, y, strict=True))
        return decor.Task(model, decor.losses.cross_entropy, pairs)
    if kind == "logistic":
        return decor.Task(
            decor.models.logistic(4),
            decor.losses.logistic,
            [(x, c % 2) for x, c in zip(X, y, strict=True)],
        )
    model = decor.models.mlp(4, 6, 3)
    if kind == "cnn":
        model = torch.nn.Sequential(
            torch.nn.Unflatten(1, (1, 2, 2)),
            torch.nn.Conv2d(1, 4, 2, padding=1),
            torch.nn.GroupNorm(2, 4),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(36, 3),
        )
    if kind == "module":
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)
        )
    return decor.Task(model.double(), decor.losses.cross_entropy, list(zip(X, y, strict=True)))


RECIPES = {
    "paper": Recipe(gossip_rounds=1),
    "momentum": Recipe(
        gossip_rounds=1, momentum=0.7, weight_decay=0.01, schedule=decor.schedule.Cosine(0.1)
    ),
    "gossip": Recipe(gossip_rounds=3, accelerate="designed", final_gossip_rounds=4),
    "chebyshev": Recipe(gossip_rounds=3, accelerate="chebyshev", local_steps=2),
}
IRREGULAR = decor.from_edges(USERS, [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4)])
OWN_WEIGHTS = IRREGULAR.with_mixing(0.3 * np.eye(USERS) + 0.7 * IRREGULAR.mixing.toarray())


@pytest.mark.parametrize(
    ("kind", "recipe", "graph"),
    [("mlp", recipe, decor.ring(USERS)) for recipe in RECIPES]
    + [
        (kind, "gossip", decor.ring(USERS))
        for kind in ("linear", "logistic", "module", "cnn", "transformer")
    ]
    + [("mlp", "momentum", IRREGULAR), ("logistic", "gossip", IRREGULAR)]
    + [("mlp", "paper", OWN_WEIGHTS), ("mlp", "gossip", OWN_WEIGHTS)],
    ids=lambda value: value if isinstance(value, str) else value.description.split(",")[0],
)
def test_peers_train_the_simulators_models_at_user_level(kind, recipe, graph, keys, tmp_path):
    task, how = small(kind), RECIPES[recipe]
    plan = decor.calibrate(
        graph,
        decor.Exposure(clip=0.3, steps=STEPS),
        decor.Adversary.eavesdropper(),
        decor.Budget(5.0, 1e-5),
        ratio=30.0,
    )
    sources = [Bytes(i) for i in range(USERS)]
    nodes, runs = train_together(task, plan, how, tmp_path, random=sources.__getitem__)
    # of 32 bytes are keys; a module's own draws have a seed of 8
    own = [[drawn for drawn in source.drawn if len(drawn) == 32] for source in sources]
    assert all(len(each) == STEPS for each in own), (
        "every step asks for a key of 32 bytes, and for no more"
    )
    compare(replayed(task, plan, how, nodes, keys, own), runs)


def uneven():
    """One user has 2 records, another 60."""
    rng, task = np.random.default_rng(2), small("mlp")
    sizes = (2, 60, 9, 7, 11)
    shards = [(rng.normal(size=(m, 4)), rng.integers(0, 3, m)) for m in sizes]
    return replace(task, shards=shards)


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [("mlp", sampling) for sampling in ("poisson", "fixed", "common rate")]
    + [("cnn", "poisson"), ("transformer", "poisson"), ("transformer", "fixed")],
)
def test_peers_train_the_simulators_models_at_example_level(
    kind, sampling, keys, tmp_path, monkeypatch
):
    common = sampling == "common rate"
    task = uneven() if common else small(kind)
    options = {"rate": 0.2} if common else {"records": task.records, "sampling": sampling}
    exposure = decor.Exposure(clip=0.5, steps=STEPS, unit="example", batch_size=3, **options)
    of_peers = CommonRate.of(exposure.rate, 3)
    sampling = "poisson" if common else sampling
    plan = decor.calibrate(
        decor.ring(USERS), exposure, decor.Adversary.curious(), decor.Budget(5.0, 1e-3), ratio=20.0
    )
    sources = [Bytes(i) for i in range(USERS)]
    nodes, runs = train_together(
        task, plan, Recipe(gossip_rounds=1), tmp_path, random=sources.__getitem__
    )
    # a batch is drawn before a user's own key, in every step; and before it a module's own draws
    each = 2 if kind == "mlp" else 3
    assert all(
        len(source.drawn) == each * STEPS
        and all(len(key) == 32 for key in source.drawn[each - 1 :: each])
        for source in sources
    )
    drawn = [source.drawn[each - 2 :: each] for source in sources]

    def same(self, step):
        batches = [
            secret_batch(m, 3, sampling, lambda _, i=i: drawn[i][step], of_peers)
            for i, m in enumerate(task.records)
        ]
        wide = max(batch.rows.shape[1] for batch in batches)
        rows, weights = (
            torch.full((USERS, wide), self.null),
            torch.zeros(USERS, wide, dtype=torch.float64),
        )
        for i, batch in enumerate(batches):
            if isinstance(batch.weights, float):
                rows[i, : batch.rows.shape[1]] = batch.rows + self.starts[i]
                weights[i, : batch.rows.shape[1]] = batch.weights
        return Batch(rows, weights)

    monkeypatch.setattr(Batches, "draw", same)
    own = [source.drawn[each - 1 :: each] for source in sources]
    # peers' clips are shorter, by what sums of records are rounded by; sums over tokens are longer
    # than what they sum to, and rounded more often
    tolerance = 1e-10 if kind == "mlp" else 3e-4
    compare(replayed(task, plan, Recipe(gossip_rounds=1), nodes, keys, own), runs, tolerance)


def replayed(task, plan, how, nodes, keys, own):
    """The simulator with the noise that the peers have had."""
    terms = nodes[0].terms
    assert isinstance(terms.grid, Grid)
    by_user = {
        (node.number, step): keys[node.identity.public, step]
        for node in nodes
        for step in range(STEPS)
    }
    multiples = [terms.multiples(i) for i in range(USERS)]
    source = Streams(terms.grid, multiples, by_user, own)
    engine = decor.Vectorised(dtype="float64", noise=source)
    return engine.run(task, [decor.training.engine.Setting(plan, terms.learning_rate, 0)], how)[0]


def compare(simulated, runs, tolerance=1e-12):
    for name, stacked in simulated.models.items():
        for i, run in enumerate(runs):
            theirs = run.models[name][0]
            assert run.models[name].dtype == torch.float64
            scale = float(stacked.abs().max()) + 1
            assert float((theirs - stacked[i]).abs().max()) < tolerance * scale, name
    assert all(run.steps_taken == STEPS and run.stopped is None for run in runs)
