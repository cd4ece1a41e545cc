"""The simulator against Algorithm 1 written out in float64, one user, example and edge at a time."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from small_tasks import DIFFERENT, SAME, STEPS, USERS, make, planned, private, shards
from torch import nn

import decor
from decor import Task, Vectorised, losses, models, schedule
from decor.errors import DivergenceWarning, InputError
from decor.learning.batches import Batches

SEED = 3


class Edges:
    """Noise edge by edge: v_ij, which i adds and j subtracts, and each user's own u_i."""

    def parts(self, plan, seed, step, parameters):
        rng = np.random.default_rng([seed, step])
        c = np.broadcast_to(plan.sigma_cor, plan.topology.edge_count)[:, None]
        v = c * rng.normal(size=(plan.topology.edge_count, parameters))
        return v, plan.sigma_cdp * rng.normal(size=(plan.topology.users, parameters))

    def noised(self, plan, seed, step, gradients):
        v, u = self.parts(plan, seed, step, gradients.shape[1])
        K = np.zeros((plan.topology.users, plan.topology.edge_count))
        for e, (i, j) in enumerate(plan.topology.edges.tolist()):
            K[i, e], K[j, e] = 1.0, -1.0
        return gradients + K @ v + u

    def of_user(self, user, plan, seed, step, parameters):
        v, u = self.parts(plan, seed, step, parameters)
        total = u[user].copy()
        for e, (i, j) in enumerate(plan.topology.edges.tolist()):
            if user == i:
                total += v[e]
            elif user == j:
                total -= v[e]
        return total


class Recorded:
    """Noise that an engine has used."""

    def __init__(self, noise):
        self.noise = noise

    def of_user(self, user, plan, seed, step, parameters):
        return self.noise[step][user]


def flat(model, tensors):
    """A vector in the simulator's order: dense weights are [inputs, outputs], then the bias."""
    dense = all(
        isinstance(m, nn.Linear) for m in model.modules() if list(m.parameters(recurse=False))
    )
    return torch.cat([(t.T if dense and t.dim() == 2 else t).flatten() for t in tensors]).numpy()


def unflat(model, vector):
    dense = all(
        isinstance(m, nn.Linear) for m in model.modules() if list(m.parameters(recurse=False))
    )
    parts = torch.split(
        torch.from_numpy(np.ascontiguousarray(vector)), [p.numel() for p in model.parameters()]
    )
    return [
        part.view(p.shape[::-1]).T if dense and p.dim() == 2 else part.view(p.shape)
        for part, p in zip(parts, model.parameters(), strict=True)
    ]


def gradient(model, loss, x, X, y):
    """The gradient of the mean loss of some examples, by autograd on a copy of the model."""
    with torch.no_grad():
        for p, value in zip(model.parameters(), unflat(model, x), strict=True):
            p.copy_(value)
    return flat(
        model,
        [g.detach() for g in torch.autograd.grad(loss(model(X), y), list(model.parameters()))],
    )


def clipped(g, clip):
    return g * min(1.0, clip / np.linalg.norm(g)) if np.linalg.norm(g) > 0 else g


def gossiped(x, topology, rounds, accelerate):
    """One round at a time; accelerated by Chebyshev's T_k(W / l) / T_k(1 / l)."""
    n = topology.users
    neighbours = [[] for _ in range(n)]
    for i, j in topology.edges.tolist():
        neighbours[i].append(j)
        neighbours[j].append(i)

    def averaged(x):
        new = []
        for i in range(n):
            w = {j: 1 / (1 + max(len(neighbours[i]), len(neighbours[j]))) for j in neighbours[i]}
            new.append((1 - sum(w.values())) * x[i] + sum(w[j] * x[j] for j in neighbours[i]))
        return new

    if not accelerate or rounds < 2:
        for _ in range(rounds):
            x = averaged(x)
        return x
    W = np.array(averaged(list(np.eye(n))))
    size = np.sort(abs(np.linalg.eigvalsh(W)))[-2]
    T = [1.0, 1 / size]
    before, now = x, averaged(x)
    for k in range(1, rounds):
        T.append(2 / size * T[k] - T[k - 1])
        new = [
            2 / size * T[k] / T[k + 1] * a - T[k - 1] / T[k + 1] * b
            for a, b in zip(averaged(now), before, strict=True)
        ]
        before, now = now, new
    return now


def reference(
    task, plan, noise, rates, *, seed=SEED, momentum=0.0, weight_decay=0.0, gossip_rounds=1, accelerate=False,
    final_gossip_rounds=0, local_steps=1, batch_size=None, steps=None, averaging=0.0,
):  # fmt: skip
    """Every user's messages of every step and its last model, as vectors."""
    exposure, n = plan.exposure, plan.topology.users
    example = exposure.unit == "example"
    size, sampling = (exposure.batch_size, exposure.sampling) if example else (batch_size, "fixed")
    batches = Batches(task.records, size, str(sampling), [seed])
    starts = np.cumsum([0, *task.records])
    model = copy.deepcopy(task.model).double()
    data = [
        (X.double() if X.is_floating_point() else X, y.double() if y.is_floating_point() else y)
        for X, y in task.shards
    ]
    x = [flat(model, [p.detach() for p in model.parameters()]) for _ in range(n)]
    velocity = [np.zeros_like(x[0]) for _ in range(n)]
    wire, every = [], []

    def taken(user, step):
        drawn = batches.draw(step)
        rows = drawn.rows[user].numpy() - starts[user]
        return (
            [int(r) for r in rows if 0 <= r < task.records[user]]
            if size is None
            else _inside(drawn, user, starts)
        )

    for t in range(exposure.steps if steps is None else steps):
        sent = []
        for i in range(n):
            X, y = data[i]
            if example:
                each = [
                    clipped(
                        gradient(model, task.loss, x[i], X[r : r + 1], y[r : r + 1]), exposure.clip
                    )
                    for r in taken(i, t)
                ]
                g = sum(each, np.zeros_like(x[i])) / exposure.batch_size
            else:
                g, here = np.zeros_like(x[i]), x[i]
                for k in range(local_steps):
                    some = taken(i, t * local_steps + k)
                    one = sum(
                        gradient(model, task.loss, here, X[r : r + 1], y[r : r + 1]) for r in some
                    ) / len(some)
                    g, here = g + one, here - rates[t] * one
                g = clipped(g, exposure.clip)
            velocity[i] = momentum * velocity[i] + g + noise.of_user(i, plan, seed, t, len(x[i]))
            sent.append((1 - rates[t] * weight_decay) * x[i] - rates[t] * velocity[i])
        wire.append(np.array(sent))
        x = gossiped(sent, plan.topology, gossip_rounds, accelerate)
        every.append(np.array(x))
    if averaging:
        x = list(np.mean(every[-math.ceil(averaging * len(every)) :], axis=0))
    return wire, np.array(gossiped(x, plan.topology, final_gossip_rounds, accelerate=True))


def _inside(drawn, user, starts):
    """A user's batch, without the examples of weight 0 that only pad it."""
    rows = drawn.rows[user].numpy()
    weights = np.broadcast_to(
        drawn.weights if isinstance(drawn.weights, float) else drawn.weights[user], rows.shape
    )
    return [int(r - starts[user]) for r, w in zip(rows, weights, strict=True) if w > 0]


def trained(task, plan, rate=0.3, *, path="auto", noise=None, seed=SEED, **options):
    """Messages and last models of the engine, as vectors; of one plain round of gossip."""
    wire, options = [], {"gossip_rounds": 1} | options
    engine = Vectorised(
        seed=seed,
        dtype="float64",
        path=path,
        noise=noise,
        on_messages=lambda t, sent: wire.append((t, sent[:, 0, 0].numpy())),
    )
    run = decor.train(task, plan, learning_rate=rate, engine=engine, **options)
    assert [t for t, _ in wire] == list(range(plan.exposure.steps)), "exactly T messages"
    names = [name for name, _ in task.model.named_parameters()]
    last = np.array(
        [flat(task.model, [run.models[name][i] for name in names]) for i in range(task.users)]
    )
    return run, [sent for _, sent in wire], last


def agree(task, plan, rate=0.3, *, path="auto", rates=None, close=1e-12, messages=True, **options):
    source = Edges()
    run, wire, last = trained(task, plan, rate, path=path, noise=source, **options)
    recipe = {name: value for name, value in options.items() if name != "schedule"}
    expected, final = reference(
        task, plan, source, np.full(plan.exposure.steps, rate) if rates is None else rates, **recipe
    )
    assert len(wire) == len(expected)
    if messages:
        for mine, theirs in zip(wire, expected, strict=True):
            assert abs(mine - theirs).max() < close * max(1.0, abs(theirs).max())
    assert abs(last - final).max() < close * max(1.0, abs(final).max())
    return run


KINDS = ["logistic", "multinomial", "tanh", "relu", "squares", "convolution"]


@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e6])
@pytest.mark.parametrize("kind", [*KINDS, "least-squares"])
def test_full_gradients_at_user_level_follow_the_reference(kind, clip):
    for sizes in (SAME, DIFFERENT):
        task = make(kind, sizes)
        agree(task, planned(task, clip=clip))


@pytest.mark.parametrize("kind", KINDS)
def test_batches_at_user_level_follow_the_reference(kind):
    task = make(kind)
    agree(task, planned(task), batch_size=3)


@pytest.mark.parametrize("clip", [1e-3, 0.6, 1e6])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_clipped_records_at_example_level_follow_the_reference(kind, sampling, clip):
    task = make(kind)
    agree(task, planned(task, "example", clip, sampling=sampling))


@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("kind", ["logistic", "tanh", "squares"])
def test_the_generic_path_follows_the_same_reference(kind, unit):
    """Without noise, whose layout is the module's; the convolutions above test it with noise."""
    task = make(kind)
    agree(task, planned(task, unit, s=0.0, c=0.0), path="generic", messages=False)


RECIPES = {
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.4},
    "momentum and decay": {"momentum": 0.7, "weight_decay": 0.3},
    "no gossip": {"gossip_rounds": 0},
    "gossip thrice": {"gossip_rounds": 3},
    "Chebyshev": {"gossip_rounds": 4, "accelerate": True},
    "final gossip": {"final_gossip_rounds": 3},
    "Chebyshev to the end": {"gossip_rounds": 2, "final_gossip_rounds": 5, "accelerate": True},
    "averaging": {"averaging": 0.5, "momentum": 0.9},
    "averaging all, final gossip": {"averaging": 1.0, "final_gossip_rounds": 2},
    "local steps": {"local_steps": 3},
    "local batches": {"local_steps": 2, "batch_size": 3},
    "all at once": {
        "momentum": 0.8, "weight_decay": 0.2, "gossip_rounds": 2, "accelerate": True, "final_gossip_rounds": 2,
        "local_steps": 2, "batch_size": 2,
    },
}  # fmt: skip
GRAPHS = {"ring": decor.ring(USERS), "star": decor.star(USERS), "complete": decor.complete(USERS)}


@pytest.mark.parametrize("graph", ["ring", "star"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", ["logistic", "tanh", "squares"])
def test_recipes_follow_the_reference_at_user_level(kind, recipe, graph):
    task = make(kind)
    agree(task, planned(task, topology=GRAPHS[graph]), **RECIPES[recipe])


@pytest.mark.parametrize(
    "recipe", [name for name, options in RECIPES.items() if "local_steps" not in options]
)
@pytest.mark.parametrize("kind", ["logistic", "relu", "convolution"])
def test_recipes_follow_the_reference_at_example_level(kind, recipe):
    task = make(kind)
    graph = GRAPHS["star" if recipe == "Chebyshev" else "ring"]
    agree(task, planned(task, "example", topology=graph), **RECIPES[recipe])


@pytest.mark.parametrize("kind", ["multinomial", "least-squares"])
def test_other_graphs_follow_the_reference(kind):
    task = make(kind)
    edges = np.random.default_rng(0).uniform(0.1, 0.9, decor.torus(2, 3).edge_count)
    for topology, c in (
        (GRAPHS["complete"], 0.4),
        (decor.torus(2, 3), edges),
        (decor.path(USERS), 0.0),
    ):
        agree(task, planned(task, topology=topology, c=c), gossip_rounds=2)


@pytest.mark.parametrize("users", [70])
def test_large_graphs_follow_the_reference(users):
    task = make("logistic", (3,) * users)
    agree(
        task,
        planned(task, topology=decor.star(users), steps=2),
        gossip_rounds=3,
        accelerate=True,
        momentum=0.5,
    )


SCHEDULES = {
    "constant": (schedule.Constant(), lambda t: 0.3),
    "inverse time": (schedule.InverseTime(4.0), lambda t: 0.3 / (1 + t / 4)),
    "cosine": (
        schedule.Cosine(0.1),
        lambda t: 0.3 * (0.1 + 0.9 * (1 + math.cos(math.pi * t / (STEPS - 1))) / 2),
    ),
    "name": ("cosine:0.1", lambda t: SCHEDULES["cosine"][1](t)),
    "function": (lambda t: 0.9**t, lambda t: 0.3 * 0.9**t),
    "corrected PL": (
        schedule.PolyakLojasiewicz(5.0, 10.0, 0.9, 2.0),
        lambda t: min(0.3, 16 / (5 * (t + 16 * 2 * 10 / (5 * 0.9)))),
    ),
}


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_follow_the_reference(name, momentum):
    given, rate = SCHEDULES[name]
    task = make("logistic")
    rates = [rate(t) for t in range(STEPS)]
    assert name == "constant" or len({round(r, 12) for r in rates}) == STEPS
    agree(task, planned(task), schedule=given, rates=rates, momentum=momentum, weight_decay=0.1)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_decay_that_leaves_little_of_a_model_follows_the_reference_and_one_that_leaves_nothing_is_refused(
    momentum,
):
    task = make("logistic")
    agree(task, planned(task), rate=0.5, weight_decay=1.999, momentum=momentum, close=1e-11)
    for decay in (2.0, 3.0):
        with pytest.raises(InputError, match="leaves nothing of a model in one step; lower one"):
            decor.train(
                task, planned(task), learning_rate=0.5, weight_decay=decay, momentum=momentum
            )


@pytest.mark.parametrize("users", [USERS, 70])
@pytest.mark.parametrize("decay", [0.0, 0.4])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["logistic", "tanh"])
def test_the_engines_own_noise_fed_to_the_reference_gives_the_same_models(
    kind, momentum, decay, users
):
    """Noise depends on seed, step and place only: a twin without gradients has the same."""
    if kind == "logistic":
        model, loss, data = (
            nn.Linear(5, 1, bias=False),
            losses.logistic,
            shards((3,) * users, (5,), "two"),
        )
        nn.init.ones_(model.weight)
    else:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 1, bias=False))
        loss, data = losses.squared, shards((3,) * users, (4,), "numbers")
    task = Task(model, loss, data)
    twin = Task(model, loss, [(0 * X, y) for X, y in data])
    plan = planned(task, steps=3)
    _, wire, _ = trained(twin, plan, rate=1.0, gossip_rounds=0)
    start = flat(model, [p.detach().double() for p in model.parameters()])
    noise = -np.diff([np.broadcast_to(start, wire[0].shape), *wire], axis=0)
    recipe = {"momentum": momentum, "weight_decay": decay}
    _, found, last = trained(task, plan, **recipe)
    expected, final = reference(task, plan, Recorded(noise), [0.3] * 3, **recipe)
    assert abs(found[0] - start).max() > 0.01
    for mine, theirs in zip([*found, last], [*expected, final], strict=True):
        assert abs(mine - theirs).max() < 1e-11


def test_batches_of_fixed_size_are_distinct_records_of_ones_own_and_all_subsets_are_as_likely():
    batches = Batches((5, 3, 6), 3, "fixed", [7])
    counts = [{}, {}, {}]
    many = 4000
    for step in range(many):
        drawn = batches.draw(step)
        assert drawn.weights == 1 / 3
        for user, (first, size) in enumerate(((0, 5), (5, 3), (8, 6))):
            rows = tuple(sorted((drawn.rows[user] - first).tolist()))
            assert len(set(rows)) == 3 and 0 <= rows[0] and rows[-1] < size
            counts[user][rows] = counts[user].get(rows, 0) + 1
    assert len(counts[1]) == 1
    for user, size in ((0, 5), (2, 6)):
        assert (
            len(counts[user]) == math.comb(size, 3)
            and stats.chisquare(list(counts[user].values())).pvalue > 1e-6
        )


def test_poisson_batches_take_every_record_at_its_users_rate_independently_and_weigh_by_the_expected_size():
    records, size, many = (12, 4, 30), 4, 6000
    batches = Batches(records, size, "poisson", [7])
    starts = np.cumsum([0, *records])
    taken = np.zeros((many, sum(records)))
    for step in range(many):
        drawn = batches.draw(step)
        for user in range(3):
            rows, weights = drawn.rows[user].numpy(), drawn.weights[user].numpy()
            assert set(weights) <= {0.0, 1 / size} and (rows[weights == 0] == sum(records)).all()
            mine = rows[weights > 0]
            assert (
                len(set(mine)) == len(mine)
                and ((mine >= starts[user]) & (mine < starts[user + 1])).all()
            )
            taken[step, mine] = 1
    for user, m in enumerate(records):
        mine, q = taken[:, starts[user] : starts[user + 1]], size / m
        z = (mine.mean(axis=0) - q) / math.sqrt(max(q * (1 - q), 1e-12) / many)
        assert abs(z).max() < 5
        assert (abs(mine.mean(axis=0) - 1.5 * q) > 0.05).all() and (
            abs(mine.mean(axis=0) - q / 1.5) > 0.01
        ).all()
        spread = mine.sum(axis=1).var() / max(m * q * (1 - q), 1e-12) if q < 1 else 1.0
        assert abs(spread - 1) < 0.1, "sizes vary as a binomial's: records are independent"
    varied = taken[:, [k for k in range(sum(records)) if not 12 <= k < 16]]
    together, over_steps = np.corrcoef(varied.T), np.corrcoef(varied[1:].T, varied[:-1].T)
    assert abs(together[np.triu_indices(len(together), 1)]).max() < 5.5 / math.sqrt(many)
    assert abs(over_steps[: varied.shape[1], varied.shape[1] :]).max() < 5.5 / math.sqrt(many), (
        "nor over steps"
    )


@pytest.mark.parametrize("room", [1, 2, 5])
def test_a_poisson_batch_that_does_not_fit_is_drawn_again_with_room(room):
    """Cutting it short would change the distribution; the space fails once in 10^30 batches."""
    usual, tight = (Batches((40, 10), 5, "poisson", [7, 8]) for _ in range(2))
    for step in range(20):
        tight._rows = np.empty((4, room), dtype=np.int64)
        for one, two in zip(
            *((b.rows.tolist(), b.weights.tolist()) for b in (usual.draw(step), tight.draw(step))),
            strict=True,
        ):
            assert one == two


def test_what_is_drawn_for_a_seed_does_not_depend_on_the_other_seeds():
    for sampling, size in (("fixed", 3), ("poisson", 3)):
        alone, both = Batches((6, 5), size, sampling, [9]), Batches((6, 5), size, sampling, [4, 9])
        for step in range(50):
            one, two = alone.draw(step), both.draw(step)
            for user in range(2):
                a, b = (
                    [r for r in rows if r < 11]
                    for rows in (one.rows[user].tolist(), two.rows[2 * user + 1].tolist())
                )
                assert a == b
                assert sampling == "poisson" or two.rows[2 * user].tolist() != b or user or step


def test_averaging_measures_and_keeps_the_mean_of_the_last_models():
    task = make("logistic")
    plan = planned(task)
    assert STEPS == 5
    options = {"learning_rate": 0.3, "evaluate_every": 1, "engine": Vectorised(seed=SEED)}
    plain, seen = decor.train(task, plan, **options), []

    def see(moment):
        seen.append(moment.run().models["weight"])

    run = decor.train(task, plan, averaging=0.41, callbacks=see, **options)
    # three of five: before, what is kept and measured is the model itself
    for name in ("loss", "consensus"):
        assert run.history[name][:4] == plain.history[name][:4]
        assert run.history[name][4] != plain.history[name][4]
    once = decor.train(task, plan, averaging=0.01, **options)
    assert torch.equal(once.models["weight"], plain.models["weight"])
    steps = []
    decor.train(
        task, plan, callbacks=lambda moment: steps.append(moment.run().models["weight"]), **options
    )
    for last in (3, 4, 5):
        mean = torch.stack(steps[3 : last + 1]).mean(0)
        assert torch.allclose(seen[last], mean, rtol=0, atol=1e-6)
    assert run.plan is plain.plan
    assert run.manifest["recipe"]["averaging"] == 0.41
    assert "averaging" not in plain.manifest["recipe"], "as in manifests of version 0.1"


def test_a_run_takes_exactly_its_steps_and_its_guarantee_is_the_plans():
    task = make("logistic")
    plan = private(task)
    sent = []
    run = decor.train(
        task, plan, learning_rate=0.1, engine=Vectorised(on_messages=lambda t, _: sent.append(t))
    )
    assert sent == list(range(12)) and run.steps_taken == 12 and run.stopped is None
    assert (
        run.guarantee.steps == 12
        and run.guarantee.epsilon == plan.guarantee(0.999 * plan.budget.delta).epsilon
    )
    assert run.history["step"][0] == 0 and run.history["step"][-1] == 12


@pytest.mark.parametrize("reason", [True, "seen enough"])
def test_a_run_that_a_callback_stops_promises_what_the_whole_plan_does(reason):
    task = make("logistic")
    plan = private(task)
    sent, seen = [], []

    def enough(moment):
        seen.append((moment.step, moment.guarantee.epsilon))
        return reason if moment.step == 5 else None

    engine = Vectorised(on_messages=lambda t, _: sent.append(t))
    run = decor.train(
        task, plan, learning_rate=0.1, callbacks=[enough], engine=engine, final_gossip_rounds=2
    )
    shorter = (
        replace(plan, exposure=replace(plan.exposure, steps=5))
        .guarantee(0.999 * plan.budget.delta)
        .epsilon
    )
    assert sent == list(range(5)) and run.steps_taken == 5, "no message after the last that counts"
    assert (
        run.guarantee.steps == 12
        and run.guarantee.epsilon == plan.guarantee(0.999 * plan.budget.delta).epsilon
    )
    reached = "stopped by a callback after step 5" if reason is True else "seen enough"
    assert f"-SecLDP, the whole plan's; stopped after 5 of 12 steps ({reached}); with" in str(
        run.guarantee
    )
    if_fixed = run.guarantee_at(steps=5)
    assert (
        if_fixed.epsilon == shorter < run.guarantee.epsilon
        and "if 5 was fixed in advance" in str(if_fixed)
    )
    assert (
        [step for step, _ in seen] == [0, 1, 2, 3, 4, 5]
        and seen[0][1] == 0
        and seen[5][1] == shorter
    )
    assert run.stopped == reached
    assert run.guarantee_at(1e-3).epsilon < run.guarantee.epsilon


@pytest.mark.parametrize("kind", ["logistic", "squares", "tanh"])
def test_a_run_that_diverges_stops_and_warns(kind):
    task = make(kind)
    plan = private(task, steps=40, clip=1e6)
    sent = []
    engine = Vectorised(on_messages=lambda t, _: sent.append(t))
    with pytest.warns(DivergenceWarning, match="lower the learning rate from 1e.30 to 1e.29"):
        run = decor.train(task, plan, learning_rate=1e30, engine=engine, gossip_rounds=1)
    assert run.stopped.startswith("diverged") and "lower the learning rate" in run.stopped
    assert run.steps_taken == len(sent) < 40
    assert (
        run.guarantee.steps == 40
        and run.guarantee.epsilon == plan.guarantee(0.999 * plan.budget.delta).epsilon
    )
    assert f"the whole plan's; stopped after {len(sent)} of 40 steps (diverged);" in str(
        run.guarantee
    )
    assert not math.isfinite(run.metrics["loss"]) or not math.isfinite(run.metrics["consensus"])
    with pytest.raises(InputError, match="diverged.*start a new one"):
        decor.train(task, plan, learning_rate=1e30, resume=run, gossip_rounds=1)


def test_users_worked_on_in_parts_are_worked_on_alike(monkeypatch):
    """Large models take a few users at a time; nothing may depend on how many."""
    from decor.training import descent

    for kind, unit, options in itertools.chain(
        itertools.product(
            ["logistic", "tanh", "squares"],
            ["user"],
            [{}, {"local_steps": 2, "batch_size": 2}, {"momentum": 0.5}],
        ),
        itertools.product(["logistic", "relu", "convolution"], ["example"], [{}]),
    ):
        task = make(kind)
        plan = planned(task, unit)
        whole = trained(task, plan, **options)[2]
        monkeypatch.setattr(descent, "_CPU_VALUES", 1)
        parts = trained(task, plan, **options)[2]
        monkeypatch.undo()
        assert abs(whole - parts).max() < 1e-12, (kind, unit, options)


def test_classes_written_as_floats_are_refused_before_training():
    X = shards((5,) * USERS, (4,), "two")[0][0]
    with pytest.raises(InputError):
        task = Task(
            models.multinomial(4, 3),
            losses.cross_entropy,
            [(X, torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0]))] * USERS,
        )
        decor.train(task, planned(task), learning_rate=0.1)


@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("total", [1.0, 0.5])
def test_shares_of_classes_follow_the_reference_even_if_they_do_not_sum_to_one(total, unit):
    """Without noise, because its layout depends on the path, and this claim does not."""
    data = [(X, total * torch.softmax(X[:, :3], 1)) for X, _ in shards(DIFFERENT, (4,), "two")]
    task = Task(models.multinomial(4, 3), losses.cross_entropy, data)
    agree(task, planned(task, unit, s=0.0, c=0.0), path="auto", messages=False)


@pytest.mark.parametrize("kind", ["logistic", "multinomial", "squares", "tanh"])
def test_both_paths_measure_the_same(kind):
    task = make(kind)
    X, y = task.shards[0]
    task = Task(task.model, task.loss, task.shards, test=(X[:5], y[:5]))
    plan = planned(task, s=0.0, c=0.0)
    fast, generic = (trained(task, plan, path=path)[0].history for path in ("auto", "generic"))
    assert fast.keys() == generic.keys()
    for name in fast:
        assert np.allclose(fast[name], generic[name], atol=1e-12), name


def test_what_a_module_draws_is_decided_by_the_seed_as_well():
    shard = (
        torch.randn(6, 3, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 0, 1, 0, 1]),
    )
    task = decor.Task(
        nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).train(),
        losses.cross_entropy,
        [shard] * 2,
    )
    plan = decor.NoisePlan(
        decor.complete(2), decor.Exposure(1.0, 4), decor.Adversary.eavesdropper(), 0.1, 0.1
    )
    first, again = (decor.train(task, plan, learning_rate=0.1).models["0.weight"] for _ in range(2))
    other = decor.train(task, plan, learning_rate=0.1, engine=Vectorised(seed=1)).models["0.weight"]
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("engine", [Vectorised, decor.ProcessGroup])
@pytest.mark.parametrize("unit", ["user", "example"])
def test_short_operands_are_a_choice_that_a_simulation_records(engine, unit):
    task = decor.tasks.breast_cancer(users=4)
    more = {"batch_size": 8, "records": task.records} if unit == "example" else {}
    exposure = decor.Exposure(clip=0.5, steps=10, unit=unit, **more)
    plan = decor.NoisePlan(
        decor.complete(4), exposure, decor.Adversary.eavesdropper(), sigma_cdp=0.01, sigma_cor=0.01
    )
    full, short = (
        decor.train(task, plan, learning_rate=0.5, engine=engine(bf16=bf16))
        for bf16 in (False, True)
    )
    assert short.manifest["engine"]["bf16"] is True and "bf16" not in full.manifest["engine"]
    gap = (full.models["weight"] - short.models["weight"]).abs().max()
    assert 1e-6 < float(gap) < 0.05
    assert abs(full.metrics["test_loss"] - short.metrics["test_loss"]) < 0.01


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": None}, "bf16 is for simulations: the exact sums of a private run"),
        ({"dtype": "float64"}, "bf16 is a way to multiply float32 values, and dtype is 'float64'"),
    ],
)
def test_short_operands_are_refused_where_nothing_is_shown_for_them(options, words):
    for engine in (Vectorised, decor.ProcessGroup):
        with pytest.raises(InputError, match=words):
            engine(bf16=True, **options)


def test_a_secret_seed_is_kept_nowhere_and_never_the_same():
    task = decor.tasks.breast_cancer(users=4)
    plan = decor.calibrate(
        decor.ring(4),
        decor.Exposure(1.0, 3),
        decor.Adversary.eavesdropper(),
        decor.Budget(3.0, 1e-5),
    )
    one, two = (
        decor.train(task, plan, learning_rate=0.1, engine=Vectorised(seed=None)) for _ in range(2)
    )
    assert one.manifest["seed"] == "secret" and not torch.equal(
        one.models["weight"], two.models["weight"]
    )


def test_steps_compute_in_full_precision_whatever_a_program_has_set():
    """A CPU with matrix units would multiply float32 operands in eight bits: the clip allows for
    roundings of float32.
    """
    seen, mkldnn = [], torch.backends.mkldnn

    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            if self.training:
                seen.append((mkldnn.matmul.fp32_precision, mkldnn.conv.fp32_precision))
            # not a chain of known layers, whose steps would not call this
            return self.layer(torch.sin(x))

    rng = np.random.default_rng(0)
    users = [(rng.normal(size=(6, 3)), rng.integers(0, 2, 6)) for _ in range(3)]
    task = Task(Looking().train(), losses.logistic, users)
    exposure = decor.Exposure(1.0, 2, unit="example", batch_size=3, records=task.records)
    plan = decor.NoisePlan(decor.complete(3), exposure, decor.Adversary.eavesdropper(), 0.1, 0.1)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert mkldnn.matmul.fp32_precision == "bf16"
        decor.train(task, plan, learning_rate=0.1, evaluate_every=10)
        assert mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision(before)
    # calls before training may see what the program has set
    assert seen[-2:] == [("ieee", "ieee")] * 2
