"""Runs on a GPU and on a CPU: same batches, same Gaussians, results that differ by rounding only."""

import numpy as np
import pytest
import torch
from torch import nn

import decor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
USERS = 6


def shards(features, classes, records=(20, 23, 20, 31, 20, 20), regression=False, users=USERS):
    rng = np.random.default_rng(0)
    made = []
    for k in range(users):
        X = torch.from_numpy(rng.normal(size=(records[k % len(records)], features)))
        y = torch.from_numpy(
            rng.normal(size=len(X)) if regression else rng.integers(0, classes, len(X))
        )
        made.append((X, y))
    return made


def task(kind, **how):
    torch.manual_seed(0)
    if kind == "quadratic":
        return decor.tasks.least_squares(users=how.get("users", USERS), seed=0)
    if kind == "logistic":
        return decor.Task(decor.models.logistic(9), decor.losses.logistic, shards(9, 2, **how))
    if kind == "mlp":
        return decor.Task(
            decor.models.mlp(13, 40, 3),
            decor.losses.cross_entropy,
            shards(13, 3, **how),
            test=shards(13, 3)[0],
        )
    layers = nn.Sequential(nn.Linear(13, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    return decor.Task(layers, decor.losses.cross_entropy, shards(13, 3, **how))


def plan(topology, task=None, sampling="poisson", steps=6, s=0.02, c=0.1):
    example = (
        {}
        if task is None
        else {"unit": "example", "batch_size": 7, "records": task.records, "sampling": sampling}
    )
    return decor.NoisePlan(
        topology,
        decor.Exposure(clip=0.5, steps=steps, **example),
        decor.Adversary.eavesdropper(),
        s,
        c,
    )


def covariance(made):
    i, j = made.topology.edges.T
    L = np.zeros((USERS, USERS))
    (
        np.add.at(L, (i, i), 1),
        np.add.at(L, (j, j), 1),
        np.add.at(L, (i, j), -1),
        np.add.at(L, (j, i), -1),
    )
    return made.sigma_cdp**2 * np.eye(USERS) + made.sigma_cor**2 * L


def apart(one, other):
    """The largest difference of two runs' models, over the largest number."""
    both = [(one.models[name].double(), other.models[name].double()) for name in one.models]
    return max(float((a - b).abs().max()) for a, b in both) / max(
        float(a.abs().max()) for a, _ in both
    )


def pair(given, made, device="cuda", **options):
    dtype = options.pop("dtype", "float64")
    return [
        decor.train(
            given,
            made,
            learning_rate=0.2,
            engine=decor.Vectorised(device=d, dtype=dtype, noise="edges"),
            **options,
        )
        for d in ("cpu", device)
    ]


@pytest.mark.parametrize("kind", ["quadratic", "logistic", "mlp", "module"])
@pytest.mark.parametrize("level", ["user", "user in batches", "fixed", "poisson"])
def test_a_gpu_trains_what_a_cpu_trains(kind, level):
    if kind == "quadratic" and level != "user":
        return
    given = task(kind)
    made = plan(decor.ring(USERS), None if level.startswith("user") else given, level)
    options = {"batch_size": 5} if level == "user in batches" else {}
    cpu, gpu = pair(given, made, **options)
    # Gaussians are float32, and a GPU's logarithm has another last bit
    assert apart(cpu, gpu) < 2e-6
    for name, values in cpu.history.items():
        assert gpu.history[name] == pytest.approx(values, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", ["quadratic", "logistic", "mlp", "module"])
def test_without_noise_both_agree_to_double_precision(kind):
    given = task(kind)
    cpu, gpu = pair(given, plan(decor.torus(2, 3), s=0.0, c=0.0), momentum=0.5, weight_decay=0.1)
    assert apart(cpu, gpu) < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"local_steps": 3, "batch_size": 5},
        {"gossip_rounds": 4},
        {"gossip_rounds": 3, "accelerate": True},
        {"gossip_rounds": 3, "accelerate": "designed", "final_gossip_rounds": 2},
        {"gossip_rounds": 0},
        {"dtype": "float32"},
    ],
    ids=str,
)
def test_every_recipe_does_the_same_on_a_gpu(options):
    limit = 1e-4 if options.get("dtype") == "float32" else 2e-6
    assert (
        apart(*pair(task("mlp"), plan(decor.ring(USERS)), allow_disconnected=True, **options))
        < limit
    )


@pytest.mark.parametrize(
    "topology",
    [
        decor.complete(USERS),
        decor.complete(70),
        decor.star(USERS),
        decor.erdos_renyi(90, 0.1, seed=1),
        decor.ring(300),
    ],
    ids=repr,
)
def test_every_graph_does_the_same_on_a_gpu(topology):
    given = task("logistic", users=topology.users)
    both = pair(given, plan(topology), allow_disconnected=True)
    if topology.users == 70:  # a closed form, which does not draw edge by edge
        both[0] = decor.train(
            given, plan(topology), learning_rate=0.2, engine=decor.Vectorised(dtype="float64")
        )
    assert apart(*both) < 2e-6


def test_noise_that_differs_by_edge_and_central_dp():
    topology = decor.ring(USERS)
    uneven = plan(topology, c=tuple(0.1 * (1 + k) for k in range(topology.edge_count)))
    some = plan(topology, c=(0.1, 0.0, 0.2, 0.0, 0.1, 0.3), s=0.0)
    central = decor.baselines.central(topology, decor.Exposure(0.5, 6), decor.Budget(5.0, 1e-5))
    for made in (uneven, some, central):
        assert apart(*pair(task("logistic"), made)) < 2e-6


def test_a_grid_of_settings_has_the_numbers_of_single_runs():
    given, rates = task("mlp"), (0.1, 0.3)
    plans = [plan(decor.ring(USERS), given, c=c) for c in (0.1, 0.4)]
    engine = decor.Vectorised(device="cuda", dtype="float64")
    grid = decor.sweep(
        given, plans, learning_rates=rates, seeds=(3, 8), engine=engine, keep_models=True
    )
    for setting, run in zip(grid.settings, grid.runs, strict=True):
        alone = decor.Vectorised(device="cuda", dtype="float64", seed=setting.seed)
        one = decor.train(given, setting.plan, learning_rate=setting.learning_rate, engine=alone)
        assert apart(one, run) < 1e-9


def test_a_run_is_the_same_every_time_and_goes_on_where_it_stopped():
    given, made = task("mlp"), plan(decor.ring(USERS), task("mlp"), steps=40)
    engine = decor.Vectorised(device="cuda")
    options = {"learning_rate": 0.2, "engine": engine, "momentum": 0.5, "evaluate_every": 10}
    first, second = (decor.train(given, made, **options) for _ in range(2))
    assert apart(first, second) == 0.0
    half = decor.train(given, made, callbacks=lambda moment: moment.step == 20, **options)
    assert half.steps_taken == 20
    assert apart(first, decor.train(given, made, resume=half, **options)) == 0.0


def test_messages_are_seen_before_gossip_and_have_the_planned_covariance():
    topology, seen = decor.ring(USERS), []
    given = decor.Task(
        nn.Linear(4000, 1, bias=False),
        decor.losses.squared,
        [(torch.zeros(1, 4000), torch.zeros(1))] * USERS,
    )
    nn.init.zeros_(given.model.weight)
    engine = decor.Vectorised(
        device="cuda", on_messages=lambda step, x: seen.append((step, x.clone()))
    )
    made = plan(topology, s=0.3, c=1.0, steps=4)
    decor.train(
        given, made, learning_rate=1.0, engine=engine, gossip_rounds=0, allow_disconnected=True
    )
    assert [step for step, _ in seen] == [0, 1, 2, 3]
    noise = [seen[0][1]] + [b - a for (_, a), (_, b) in zip(seen, seen[1:], strict=False)]
    Z = torch.cat([part.flatten(1) for part in noise], 1).double().cpu().numpy()
    assert np.allclose(Z @ Z.T / Z.shape[1], covariance(made), atol=6 * 2.1 / np.sqrt(Z.shape[1]))
    assert abs(np.corrcoef(noise[0].flatten().cpu(), noise[1].flatten().cpu())[0, 1]) < 0.04


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_with_short_operands_no_example_moves_a_message_by_more_than_the_clip(precision):
    """Operands have eleven or eight bits; no example's contribution is longer than planned."""
    for scale in (1.0, 1024.0):
        # eleven bits make this number larger by 5 parts in 10,000
        X = torch.full((64, 784), scale * (1 + 2.0**-11 + 2.0**-20))
        y = torch.arange(64) % 10
        one_each = [(X[k : k + 1], y[k : k + 1]) for k in range(64)]
        given = decor.Task(decor.models.mlp(784, 128, 10), decor.losses.cross_entropy, one_each)
        exposure = decor.Exposure(
            clip=0.01,
            steps=1,
            unit="example",
            batch_size=1,
            records=given.records,
            sampling="fixed",
        )
        made = decor.NoisePlan(decor.ring(64), exposure, decor.Adversary.eavesdropper(), 0.0, 0.0)
        engine = decor.Vectorised(device="cuda", **{precision: True})
        run = decor.train(
            given, made, learning_rate=1.0, engine=engine, gossip_rounds=0, allow_disconnected=True
        )
        start = {name: p.detach() for name, p in given.model.named_parameters()}
        moved = sum(
            (run.models[name] - start[name]).double().flatten(1).square().sum(1) for name in start
        ).sqrt()
        assert 0.0099 < float(moved.max()) <= 0.01 * (1 + 1e-4)  # float32 models cannot show less
