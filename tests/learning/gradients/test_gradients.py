"""Every path of gradients against plain autograd: one user, one seed, one setting and one record at
a time.
"""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import decor
from decor.learning import losses, models
from decor.learning.batches import Batch, Batches
from decor.learning.gradients import layers, modules, records
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.clip import add_clipped
from decor.learning.gradients.layers import Layers
from decor.learning.gradients.linear import Linear
from decor.learning.gradients.modules import Modules
from decor.learning.gradients.quadratic import Quadratic
from decor.learning.gradients.stack import Stack
from decor.learning.task import Task

torch.set_num_threads(1)
SIZES = (4, 7, 3)
SEEDS, SETTINGS = 2, 3
F64 = torch.float64


def mlp(*sizes, activation=nn.Tanh, bias=(True, True, True), flat=False):
    parts = [nn.Flatten()] if flat else []
    for k, (inputs, outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        parts += [nn.Linear(inputs, outputs, bias=bias[k]), activation()]
    return nn.Sequential(*parts[:-1])


def task(model, loss, shape=(5,), classes=3, sizes=SIZES, seed=0, test=False, X=None):
    """Users with unlike numbers of records, and targets such as the loss wants."""
    generator = torch.Generator().manual_seed(seed)

    def shard(m):
        features = (
            torch.randn(m, *shape, generator=generator, dtype=F64) if X is None else X(m, generator)
        )
        if loss is losses.squared:
            return features, torch.randn(m, classes, generator=generator, dtype=F64)
        return features, torch.randint(classes, (m,), generator=generator)

    with torch.no_grad():  # torch's own start would be another in every process
        for p in model.parameters():
            p.copy_(0.6 * torch.randn(p.shape, generator=generator))
    return Task(model.double(), loss, [shard(m) for m in sizes], shard(9) if test else None)


BUILT_IN = {
    "logistic": lambda: task(nn.Linear(5, 1), losses.logistic, classes=2),
    "logistic without bias": lambda: task(nn.Linear(5, 1, bias=False), losses.logistic, classes=2),
    "linear": lambda: task(nn.Linear(5, 1), losses.squared, classes=1),
    "linear without bias": lambda: task(nn.Linear(5, 1, bias=False), losses.squared, classes=1),
    "one layer of a sequence": lambda: task(
        nn.Sequential(nn.Linear(5, 1)), losses.logistic, classes=2
    ),
    "multinomial": lambda: task(nn.Linear(5, 3), losses.cross_entropy),
    "multinomial without bias": lambda: task(nn.Linear(5, 3, bias=False), functional.cross_entropy),
    "several outputs": lambda: task(nn.Linear(5, 2), losses.squared, classes=2),
    "tanh": lambda: task(mlp(5, 4, 3), losses.cross_entropy),
    "relu": lambda: task(mlp(5, 6, 3, activation=nn.ReLU), losses.cross_entropy),
    "relu, first bias only": lambda: task(
        mlp(5, 6, 3, activation=nn.ReLU, bias=(True, False)), losses.cross_entropy
    ),
    "tanh, last bias only": lambda: task(mlp(5, 4, 3, bias=(False, True)), losses.cross_entropy),
    "relu without biases": lambda: task(
        mlp(5, 6, 2, activation=nn.ReLU, bias=(False, False)), losses.squared, classes=2
    ),
    "deep tanh logistic": lambda: task(mlp(5, 4, 3, 1), losses.logistic, classes=2),
    "deep relu": lambda: task(mlp(5, 7, 6, 3, activation=nn.ReLU), losses.cross_entropy),
    "deep, middle bias only": lambda: task(
        mlp(5, 4, 3, 2, bias=(False, True, False)), losses.squared, classes=2
    ),
    "one hidden unit": lambda: task(mlp(5, 1, 1), losses.squared, classes=1),
    "pictures": lambda: task(mlp(6, 4, 3, flat=True), losses.cross_entropy, (2, 3)),
}


def fast(given, dtype=F64):
    stack = Stack.of(given.model, given.loss, given.shards[0][0].shape[1:])
    assert stack is not None
    return Linear(given, stack, dtype) if Linear.takes(stack) else Layers(given, stack, dtype)


PATHS = {"fast": fast, "generic": lambda given, dtype=F64: Modules(given, dtype)}


def scattered(gradients, users, seed=1, shape=(SEEDS, SETTINGS), scale=0.3):
    """Models [users, seeds, settings, ...] that all differ."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [b.expand(users, *shape, *b.shape).clone() for b in gradients.initial()]
    return [
        b + scale * torch.randn(b.shape, generator=generator, dtype=F64).to(b.dtype) for b in blocks
    ]


def same_models(into, source, blocks):
    return into.blocks(source.state(blocks))


def batches_of(given, kind, step=3, seeds=SEEDS):
    names = list(range(11, 11 + seeds))
    if kind == "all":
        return Batches(given.records, None, "fixed", names).draw(step)
    return Batches(given.records, 3, kind, names).draw(step)


def clips():
    clip = torch.tensor([[1e-7, 0.5, 3.0], [1e9, 0.05, 0.9]], dtype=F64)
    return clip, torch.tensor([[-0.1, 1.0, 2.0], [0.7, -3.0, 1e-3]], dtype=F64)


def autograd(given, model, state, X, y):
    """Gradients of the loss of some records, by the names that are trained; `model` is a copy to
    work with.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(state[name])
    found = torch.autograd.grad(given.loss(model(X), y), list(trained.values()), allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(trained.items(), found, strict=True)
    }


def norm(state):
    return float(torch.cat([g.flatten() for g in state.values()]).norm())


def expected(given, state, batch, clip, alpha, levels=("user", "example")):
    """What every user, seed and setting must add at each level, from single records' gradients."""
    joint = [torch.cat(part) for part in zip(*given.shards, strict=True)]
    null, copied = sum(given.records), copy.deepcopy(given.model)
    added = {
        level: {name: torch.zeros_like(value) for name, value in state.items()} for level in levels
    }
    users, seeds, settings = next(iter(state.values())).shape[:3]
    for u, s, k in np.ndindex(users, seeds, settings):
        at = u * seeds + s if len(batch.rows) == users * seeds else u
        weights = (
            [batch.weights] * batch.rows.shape[1]
            if isinstance(batch.weights, float)
            else batch.weights[at].tolist()
        )
        taken = [(r, w) for r, w in zip(batch.rows[at].tolist(), weights, strict=True) if r != null]
        model = {name: value[u, s, k] for name, value in state.items()}
        each = [(autograd(given, copied, model, joint[0][[r]], joint[1][[r]]), w) for r, w in taken]
        limit, rate = float(clip[s, k]), float(alpha[s, k])
        for level in levels:
            factors = [
                min(1.0, limit / norm(g)) if level == "example" and norm(g) else 1.0
                for g, _ in each
            ]
            total = {
                name: sum(
                    (w * f * g[name] for (g, w), f in zip(each, factors, strict=True)),
                    torch.zeros_like(value),
                )
                for name, value in model.items()
            }
            shrunk = limit / norm(total) if level == "user" and norm(total) > limit else 1.0
            for name, g in total.items():
                added[level][name][u, s, k] = rate * shrunk * g
    return added


def added_by(gradients, blocks, batch, level, parts=None, clip=None, alpha=None):
    clip, alpha = clips() if clip is None else (clip, alpha)
    dtype = blocks[0].dtype
    before = [torch.full_like(b, 0.25) for b in blocks]
    to, held = [b.clone() for b in before], [b.clone() for b in blocks]
    add = gradients.add_records if level == "example" else gradients.add_means
    for users in parts or [slice(0, len(blocks[0]))]:
        add(to, held, batch, users, clip.to(dtype), alpha.to(dtype))
    assert all(torch.equal(a, b) for a, b in zip(held, blocks, strict=True)), (
        "models are left as they were"
    )
    return gradients.state([a - b for a, b in zip(to, before, strict=True)])


def assert_close(found, wanted, tolerance=1e-10):
    assert found.keys() == wanted.keys()
    for name in found:
        assert found[name].shape == wanted[name].shape
        gap = (found[name] - wanted[name]).abs().max()
        assert gap <= tolerance * max(1.0, float(wanted[name].abs().max())), (
            f"{name} is off by {gap:.3g}"
        )


@pytest.mark.parametrize("kind", ["poisson", "fixed", "all"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_clipped_gradients_are_those_of_autograd(name, path, kind):
    given = BUILT_IN[name]()
    gradients, batch = PATHS[path](given), batches_of(given, kind)
    blocks = scattered(gradients, given.users)
    state = gradients.state(blocks)
    assert {n: v.shape[3:] for n, v in state.items()} == {
        n: p.shape for n, p in given.model.named_parameters()
    }
    for level, wanted in expected(given, state, batch, *clips()).items():
        assert_close(added_by(gradients, blocks, batch, level), wanted)


@pytest.mark.parametrize(
    "name", ["logistic", "multinomial", "relu, first bias only", "deep tanh logistic"]
)
@pytest.mark.parametrize("path", PATHS)
def test_mean_gradients_are_the_weighted_sums_of_single_ones(path, name):
    given = BUILT_IN[name]()
    gradients = PATHS[path](given)
    blocks = scattered(gradients, given.users)
    for kind in ("poisson", "fixed", "all"):
        batch = batches_of(given, kind)
        unclipped = expected(
            given,
            gradients.state(blocks),
            batch,
            torch.full((2, 3), 1e99, dtype=F64),
            torch.ones(2, 3),
            ["user"],
        )["user"]
        whole = slice(0, given.users)
        assert_close(gradients.state(gradients.mean(blocks, batch, whole)), unclipped)
        part = gradients.state(gradients.mean(blocks, batch, slice(1, 2)))
        assert_close(part, {k: v[1:2] for k, v in unclipped.items()})


@pytest.mark.parametrize("level", ["user", "example"])
@pytest.mark.parametrize("name", BUILT_IN)
def test_the_generic_path_gives_the_numbers_of_the_built_in_one(name, level):
    given = BUILT_IN[name]()
    quick, generic = fast(given), Modules(given, F64)
    blocks = scattered(quick, given.users, seed=5)
    for kind in ("poisson", "fixed", "all"):
        batch = batches_of(given, kind, step=8)
        one = added_by(quick, blocks, batch, level)
        assert_close(one, added_by(generic, same_models(generic, quick, blocks), batch, level))


@pytest.mark.parametrize("level", ["user", "example"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["linear", "deep relu", "pictures", "multinomial"])
def test_users_in_parts_are_the_users_together(name, path, level):
    given = BUILT_IN[name]()
    gradients = PATHS[path](given)
    blocks = scattered(gradients, given.users)
    for kind in ("poisson", "fixed", "all"):
        batch = batches_of(given, kind)
        together = added_by(gradients, blocks, batch, level)
        assert_close(
            added_by(gradients, blocks, batch, level, [slice(0, 1), slice(1, 3)]), together, 1e-13
        )
        one = added_by(gradients, blocks, batch, level, [slice(1, 2)])
        for key, value in one.items():
            assert not value[0].any() and not value[2].any(), "nobody else is touched"
            assert torch.allclose(value[1], together[key][1], atol=1e-13)


@pytest.mark.parametrize("level", ["user", "example"])
def test_settings_that_take_turns_are_those_worked_on_together(monkeypatch, level):
    """Large first layers are taken one setting at a time: what is written must reach the models all
    the same.
    """
    given = BUILT_IN["deep relu"]()
    gradients = fast(given)
    blocks = scattered(gradients, given.users)
    together = {
        kind: added_by(gradients, blocks, batches_of(given, kind), level)
        for kind in ("poisson", "fixed", "all")
    }
    monkeypatch.setattr(layers, "_REPEATED", 0)
    for kind, wanted in together.items():
        assert_close(added_by(gradients, blocks, batches_of(given, kind), level), wanted, 1e-13)


def test_records_that_do_not_fit_together_are_taken_in_turns(monkeypatch):
    given = BUILT_IN["tanh"]()
    gradients = Modules(given, F64)
    blocks, batch = scattered(gradients, given.users), batches_of(given, "poisson")
    wanted = added_by(gradients, blocks, batch, "example")
    monkeypatch.setattr(modules, "_ROOM", 1)
    assert batch.rows.shape[1] > 1
    assert_close(added_by(gradients, blocks, batch, "example"), wanted, 1e-13)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("level", ["user", "example"])
def test_a_gradient_of_exactly_zero_stays_zero(path, level):
    zeros = lambda m, generator: torch.zeros(m, 5, dtype=F64)  # noqa: E731
    dead = mlp(5, 4, 2, activation=nn.ReLU, bias=(False, False))
    cases = [
        task(nn.Linear(5, 1, bias=False), losses.logistic, classes=2, X=zeros),
        task(nn.Linear(5, 3, bias=False), losses.cross_entropy, X=zeros),
        task(dead, losses.cross_entropy, classes=2, X=zeros),
        task(nn.Linear(5, 1), losses.cross_entropy, classes=1),
    ]
    for given in cases:
        gradients = PATHS[path](given)
        blocks = scattered(gradients, given.users)
        for kind in ("poisson", "fixed", "all"):
            for value in added_by(gradients, blocks, batches_of(given, kind), level).values():
                assert torch.equal(value, torch.zeros_like(value))


@pytest.mark.parametrize("path", PATHS)
def test_an_empty_batch_adds_nothing(path):
    """What Poisson sampling may draw: every row is the null record with weight zero."""
    for name in ("logistic", "linear", "deep relu", "pictures"):
        given = BUILT_IN[name]()
        gradients = PATHS[path](given)
        null = sum(given.records)
        batch = Batch(
            torch.full((given.users * SEEDS, 2), null),
            torch.zeros(given.users * SEEDS, 2, dtype=F64),
        )
        for level in ("user", "example"):
            found = added_by(gradients, scattered(gradients, given.users), batch, level)
            assert not any(value.any() for value in found.values())


def test_a_users_batch_holds_its_own_records_and_seed():
    """Users and seeds that see each other's rows would pass any test in which everybody has the
    same data.
    """
    given = task(nn.Linear(5, 3), losses.cross_entropy, sizes=(2, 2, 2))
    batch = Batch(torch.tensor([[0], [1], [2], [3], [4], [5]]), 1.0)
    for path in PATHS:
        gradients = PATHS[path](given)
        blocks = scattered(gradients, 3)
        for level, wanted in expected(given, gradients.state(blocks), batch, *clips()).items():
            assert_close(added_by(gradients, blocks, batch, level), wanted)


@pytest.mark.parametrize("level", ["user", "example"])
@pytest.mark.parametrize("path", PATHS)
def test_one_users_record_never_reaches_anothers_gradient(path, level):
    """Not even through the padding of a batch: zero times what overflows is not zero."""
    kept = BUILT_IN["several outputs"]()
    (X, y), *others = kept.shards
    extreme = torch.cat([torch.full_like(X[:1], 3e38), X[1:]])
    found = []
    for first in (X, extreme):
        given = Task(kept.model, kept.loss, [(first, y), *others])
        gradients = PATHS[path](given, torch.float32)
        blocks = scattered(gradients, 3)
        found.append(
            [
                added_by(gradients, blocks, batches_of(given, kind), level)
                for kind in ("poisson", "all")
            ]
        )
    for one, two in zip(*found, strict=True):
        assert all(torch.equal(one[name][1:], two[name][1:]) for name in one)


HOSTILE = {
    "huge": lambda m, generator: torch.randn(m, 5, generator=generator, dtype=F64) * 1e10,
    "tiny": lambda m, generator: torch.randn(m, 5, generator=generator, dtype=F64) * 1e-10,
    "unlike": lambda m, generator: (
        torch.randn(m, 5, generator=generator, dtype=F64) * torch.tensor([1e10, 1, 0, 1e-8, 1e5])
    ),
    "equal": lambda m, generator: torch.full((m, 5), 255.0, dtype=F64),
}
MODELS = {
    "logistic": lambda X: task(nn.Linear(5, 1), losses.logistic, classes=2, X=X),
    "linear": lambda X: task(nn.Linear(5, 1), losses.squared, classes=1, X=X),
    "multinomial": lambda X: task(nn.Linear(5, 3), losses.cross_entropy, X=X),
    "relu": lambda X: task(mlp(5, 6, 3, activation=nn.ReLU), losses.cross_entropy, X=X),
    "deep": lambda X: task(mlp(5, 6, 4, 3, activation=nn.ReLU), losses.squared, X=X),
    "tanh": lambda X: task(mlp(5, 4, 1), losses.logistic, classes=2, X=X),
}


def lengths(found):
    return sum(value.double().flatten(3).square().sum(-1) for value in found.values()).sqrt()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("features", HOSTILE)
@pytest.mark.parametrize("name", MODELS)
def test_no_data_makes_what_is_added_longer_than_the_clip(name, features, dtype):
    given = MODELS[name](HOSTILE[features])
    paths = [make(given, dtype) for make in PATHS.values()]
    paths += [Quadratic(given, dtype)] if Quadratic.takes(given, None) else []
    first = torch.tensor([0, 4, 11]).unsqueeze(1)
    for gradients in paths:
        blocks = scattered(gradients, 3, shape=(1, 4))
        for limit in (1e-12, 1e-6, 1.0, 1e6):
            clip, alpha = torch.full((1, 4), limit, dtype=dtype), torch.ones(1, 4, dtype=dtype)
            zero = [torch.zeros_like(b) for b in blocks]
            gradients.add_means(zero, blocks, batches_of(given, "all"), slice(0, 3), clip, alpha)
            reached = lengths(gradients.state(zero))
            assert torch.isfinite(reached).all() and (reached <= limit * (1 + 1e-6)).all()
            if isinstance(gradients, Quadratic):
                continue
            zero = [torch.zeros_like(b) for b in blocks]
            gradients.add_records(zero, blocks, Batch(first, 1.0), slice(0, 3), clip, alpha)
            reached = lengths(gradients.state(zero))
            assert torch.isfinite(reached).all() and (reached <= limit * (1 + 1e-6)).all()


@pytest.mark.parametrize("value", [0.1, 0.3, 1.7])
@pytest.mark.parametrize("blocks", [1, 2])
def test_long_gradients_in_float32_are_clipped_to_the_clip(blocks, value):
    """A norm summed in float32 over a million numbers is too small by parts in a thousand, and the
    clip is exceeded by that.
    """
    d = 1_000_000
    gradients = [torch.full((1, 1, 1, d // blocks), value) for _ in range(blocks)]
    to = [torch.zeros_like(g) for g in gradients]
    add_clipped(to, gradients, torch.ones(1, 1), torch.ones(1, 1))
    reached = float(sum(b.double().square().sum() for b in to).sqrt())
    assert abs(reached - 1) < 1e-6


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_records_with_many_features_in_float32_are_clipped_to_the_clip(path, outputs):
    loss = losses.logistic if outputs == 1 else losses.cross_entropy
    layer = nn.Linear(200_000, outputs).float()
    with torch.no_grad():
        layer.weight.zero_(), layer.bias.zero_()
    for value in (0.3, 1.7):
        given = Task(layer, loss, [(torch.full((1, 200_000), value), torch.tensor([1]))])
        gradients = PATHS[path](given, torch.float32)
        blocks = [b.expand(1, 1, 1, *b.shape).clone() for b in gradients.initial()]
        to = [torch.zeros_like(b) for b in blocks]
        one = torch.ones(1, 1)
        gradients.add_records(to, blocks, Batch(torch.tensor([[0]]), 1.0), slice(0, 1), one, one)
        assert abs(float(lengths(gradients.state(to))) - 1) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("path", ["auto", "generic"])
def test_a_clip_whose_square_is_below_the_smallest_number_is_kept_or_refused(path, dtype):
    layer = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(layer.weight)
    given = Task(layer, losses.logistic, [(torch.full((2, 3), 1e-23), torch.tensor([1, 1]))] * 3)
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(clip=1e-25, steps=1), decor.Adversary.eavesdropper(), 0.0, 0.0
    )
    try:
        run = decor.train(
            given, plan, learning_rate=1.0, engine=decor.Vectorised(path=path, dtype=dtype)
        )
    except decor.InputError as problem:
        assert "clip" in str(problem)
    else:
        assert float(run.average_model["weight"].double().norm()) <= 1e-25 * (1 + 1e-6)


def test_clipping_turns_nothing():
    generator = torch.Generator().manual_seed(2)
    parts = [
        torch.randn(3, 2, 2, *shape, generator=generator, dtype=F64) for shape in ((4, 2), (3,))
    ]
    clip, alpha = (
        torch.tensor([[1e-9, 0.5], [1e9, 2.0]], dtype=F64),
        torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=F64),
    )
    to = [torch.zeros_like(g) for g in parts]
    add_clipped(to, parts, clip, alpha)
    joint = torch.cat([g.flatten(3) for g in parts], -1)
    factor = (clip / joint.norm(dim=-1)).clamp(max=1) * alpha
    assert torch.allclose(
        torch.cat([b.flatten(3) for b in to], -1), joint * factor.unsqueeze(-1), rtol=1e-12, atol=0
    )
    one = [torch.zeros_like(joint)]
    add_clipped(one, [joint.contiguous()], clip, alpha)
    assert torch.allclose(one[0], joint * factor.unsqueeze(-1), rtol=1e-12, atol=0)


def embedded():
    return nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(12, 2))


def words(m, generator):
    return torch.randint(6, (m, 4), generator=generator)


def convolutional():
    parts = [
        nn.Conv2d(1, 2, 2),
        nn.GroupNorm(1, 2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(2, 3),
    ]
    return nn.Sequential(*parts)


class Frozen(nn.Module):
    """A frozen layer, a buffer, and one layer that is learnt."""

    def __init__(self):
        super().__init__()
        self.still, self.last = nn.Linear(5, 4), nn.Linear(4, 3)
        self.still.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, x):
        return self.last(torch.tanh(self.still(x))) * self.scale


def dropping():
    return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3)).eval()


def tied():
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
    model[2].weight = model[0].weight
    return model


def seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return build()


OTHERS = {
    "convolution and group norm": lambda: task(
        seeded(convolutional), losses.cross_entropy, (1, 4, 4)
    ),
    "embedding": lambda: task(seeded(embedded), nn.CrossEntropyLoss(), classes=2, X=words),
    "frozen layer and buffer": lambda: task(seeded(Frozen), losses.cross_entropy),
    "dropout in eval": lambda: task(seeded(dropping), losses.cross_entropy),
    "layer norm": lambda: task(
        nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)), losses.cross_entropy
    ),
    "own loss": lambda: task(
        mlp(5, 4, 3),
        lambda output, y: functional.nll_loss(functional.log_softmax(output / 2, 1), y),
    ),
    "smoothed labels": lambda: task(mlp(5, 4, 3), nn.CrossEntropyLoss(label_smoothing=0.1)),
    "hook": lambda: task(hooked(), losses.cross_entropy),
    "tied": lambda: task(seeded(tied), losses.cross_entropy),
    "a parameter that is not used": lambda: task(seeded(Unused), losses.cross_entropy),
}


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.spare = nn.Linear(5, 3), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.layer(x)


def hooked():
    model = mlp(5, 4, 3)
    model[0].register_forward_hook(lambda module, given, output: 2 * output)
    return model


@pytest.mark.parametrize("kind", ["poisson", "fixed", "all"])
@pytest.mark.parametrize("name", OTHERS)
def test_any_module_has_the_gradients_of_autograd(name, kind):
    given = OTHERS[name]()
    assert Stack.of(given.model, given.loss, given.shards[0][0].shape[1:]) is None
    gradients, batch = Modules(given, F64), batches_of(given, kind)
    blocks = scattered(gradients, given.users, scale=0.1)
    state = gradients.state(blocks)
    for level, wanted in expected(given, state, batch, *clips()).items():
        assert_close(added_by(gradients, blocks, batch, level), wanted)


def test_training_leaves_a_module_and_torchs_random_state_as_they_were():
    given = OTHERS["frozen layer and buffer"]()
    before, random = copy.deepcopy(given.model.state_dict()), torch.get_rng_state()
    gradients = Modules(given, torch.float32)
    added_by(gradients, scattered(gradients, 3), batches_of(given, "poisson"), "example")
    assert all(torch.equal(value, before[name]) for name, value in given.model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["poisson", "fixed", "all"])
def test_dropout_drops_while_it_trains(kind):
    given = task(seeded(dropping).train(), losses.cross_entropy)
    gradients = Modules(given, F64)
    blocks = scattered(gradients, 3)
    for level in ("user", "example"):
        found = [added_by(gradients, blocks, batches_of(given, kind), level) for _ in range(2)]
        assert all(torch.isfinite(value).all() for value in found[0].values())
        assert not torch.equal(found[0]["3.weight"], found[1]["3.weight"])


def plainly(given, state):
    """Metrics of one model, by plain torch."""
    model = copy.deepcopy(given.model)
    model.load_state_dict({**model.state_dict(), **state})
    with torch.no_grad():
        found = {
            "loss": np.mean(
                [
                    np.mean([float(given.loss(model(X[[j]]), y[[j]])) for j in range(len(X))])
                    for X, y in given.shards
                ]
            )
        }
        if given.test is not None:
            X, y = given.test
            output = model(X)
            found["test_loss"] = float(given.loss(output, y))
            if not y.is_floating_point():
                said = (
                    output.argmax(1)
                    if output.shape[1] > 1 or given.loss is not losses.logistic
                    else output[:, 0] > 0
                )
                found["accuracy"] = float((said == y).double().mean())
    return found


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_metrics_of_many_models_are_those_of_each(monkeypatch, name, path, test):
    made = BUILT_IN[name]()
    X, y = made.shards[0][0], made.shards[0][1]
    given = Task(made.model, made.loss, made.shards, (X * 1.5, y.flip(0)) if test else None)
    gradients = PATHS[path](given)
    blocks = [b.flatten(0, 2) for b in scattered(gradients, 2, shape=(1, 2))]
    wanted = [
        plainly(given, {n: v[k] for n, v in gradients.state(blocks).items()})
        for k in range(len(blocks[0]))
    ]
    found = gradients.evaluate(blocks)
    # a piece of the data at a time is the same
    monkeypatch.setattr(
        records,
        "pieces",
        lambda count, each, room: [slice(k, min(k + 2, count)) for k in range(0, count, 2)],
    )
    for metrics in (found, gradients.evaluate(blocks)):
        for k, each in enumerate(wanted):
            assert metrics.keys() == each.keys()
            assert {n: float(v[k]) for n, v in metrics.items()} == pytest.approx(
                each, rel=1e-9, abs=1e-12
            )


def test_every_user_counts_the_same_in_the_loss_whatever_its_records():
    X = torch.ones(10, 1, dtype=F64)
    y = torch.zeros(10, 1, dtype=F64)
    layer = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    given = Task(layer, losses.squared, [(X[:9], y[:9]), (3 * X[9:], y[9:])])
    for gradients in (fast(given), Modules(given, F64), Quadratic(given, F64)):
        blocks = [b.unsqueeze(0) for b in gradients.initial()]
        assert float(gradients.evaluate(blocks)["loss"][0]) == pytest.approx(
            (0.5 + 4.5) / 2, rel=1e-12
        )


@pytest.mark.parametrize("name", ["linear", "linear without bias"])
def test_the_quadratic_path_is_the_generic_one(name):
    given = BUILT_IN[name]()
    assert Quadratic.takes(given, None) and not Quadratic.takes(given, 3)
    quick, generic, batch = Quadratic(given, F64), Modules(given, F64), batches_of(given, "all")
    blocks = scattered(quick, 3, shape=(2, 80))
    clip = torch.logspace(-6, 3, 160, dtype=F64).view(2, 80)
    one = added_by(quick, blocks, batch, "user", None, clip, clip.flip(1) - 3)
    same = same_models(generic, quick, blocks)
    assert_close(one, added_by(generic, same, batch, "user", None, clip, clip.flip(1) - 3))
    assert_close(
        added_by(quick, blocks, batch, "user", [slice(0, 1), slice(1, 3)], clip, clip.flip(1) - 3),
        one,
        1e-13,
    )
    assert_close(
        quick.state(quick.mean(blocks, batch, slice(1, 3))),
        generic.state(generic.mean(same, batch, slice(1, 3))),
    )
    means = [quick.evaluate([blocks[0][:, 0, 0]]), generic.evaluate([same[0][:, 0, 0]])]
    assert torch.allclose(means[0]["loss"], means[1]["loss"], rtol=1e-10)


def test_the_quadratic_path_measures_public_data_too():
    given = task(nn.Linear(5, 1), losses.squared, classes=1, test=True)
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(clip=1.0, steps=1), decor.Adversary.eavesdropper(), 0.1, 0.1
    )
    found = [
        decor.train(
            given, plan, learning_rate=0.1, engine=decor.Vectorised(path=p, dtype="float64")
        )
        for p in ("auto", "generic")
    ]
    assert found[0].metrics == pytest.approx(found[1].metrics, rel=1e-9)


def test_the_quadratic_path_takes_only_plain_layers():
    hooking = nn.Linear(5, 1)
    hooking.register_forward_hook(lambda module, given, output: 2 * output)
    assert not Quadratic.takes(task(hooking, losses.squared, classes=1), None)
    assert not Quadratic.takes(task(nn.Linear(5, 2), losses.squared, classes=2), None)
    assert not Quadratic.takes(task(nn.Linear(5, 1), losses.logistic, classes=2), None)
    frozen = nn.Linear(5, 1)
    frozen.bias.requires_grad_(False)
    assert not Quadratic.takes(task(frozen, losses.squared, classes=1), None)


class Louder(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def with_hook(register):
    model = mlp(5, 4, 3)
    getattr(model[0], register)(lambda *_: None)
    return model


def with_own_forward():
    model = mlp(5, 4, 3)
    model[0].forward = lambda x: 2 * functional.linear(x, model[0].weight)
    return model


def with_frozen():
    model = mlp(5, 4, 3)
    model[2].bias.requires_grad_(False)
    return model


def with_tied_biases():
    model = mlp(5, 3, 3)
    model[2].bias = model[0].bias
    return model


def with_same_layer_twice():
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer)


def with_spectral_norm():
    model = mlp(5, 4, 3)
    torch.nn.utils.parametrizations.spectral_norm(model[0])
    return model


CE = losses.cross_entropy
NOT_STACKS = {
    "tied weights": (seeded(tied), CE, (5,)),
    "tied biases": (with_tied_biases(), CE, (5,)),
    "the same layer twice": (with_same_layer_twice(), CE, (5,)),
    "forward hook": (with_hook("register_forward_hook"), CE, (5,)),
    "forward pre-hook": (with_hook("register_forward_pre_hook"), CE, (5,)),
    "backward hook": (with_hook("register_full_backward_hook"), CE, (5,)),
    "backward pre-hook": (with_hook("register_full_backward_pre_hook"), CE, (5,)),
    "own forward": (with_own_forward(), CE, (5,)),
    "spectral norm": (with_spectral_norm(), CE, (5,)),
    "frozen bias": (with_frozen(), CE, (5,)),
    "dropout": (nn.Sequential(nn.Linear(5, 4), nn.Dropout(), nn.Linear(4, 3)), CE, (5,)),
    "subclass of Linear": (nn.Sequential(Louder(5, 3)), CE, (5,)),
    "subclass of Linear alone": (Louder(5, 3), CE, (5,)),
    "batch norm": (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), CE, (5,)),
    "convolution": (nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU(), nn.Linear(5, 3)), CE, (1, 5)),
    "other activation": (nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)), CE, (5,)),
    "activation at the end": (nn.Sequential(nn.Linear(5, 4), nn.ReLU()), CE, (5,)),
    "activation at the start": (nn.Sequential(nn.ReLU(), nn.Linear(5, 4)), CE, (5,)),
    "no activation between": (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), CE, (5,)),
    "two activations": (
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 3)),
        CE,
        (5,),
    ),
    "records that are not flat": (mlp(5, 4, 3), CE, (2, 5)),
    "records without features": (mlp(1, 4, 3), CE, ()),
    "half flat": (nn.Sequential(nn.Flatten(2), nn.Linear(5, 3)), CE, (2, 5, 1)),
    "flat at the end": (nn.Sequential(nn.Linear(5, 3), nn.Flatten()), CE, (5,)),
    "nested": (nn.Sequential(nn.Sequential(nn.Linear(5, 3))), CE, (5,)),
    "nothing": (nn.Sequential(), CE, (5,)),
    "only flat": (nn.Sequential(nn.Flatten()), CE, (5,)),
    "unknown loss": (mlp(5, 4, 3), lambda output, y: CE(output, y), (5,)),
    "loss object": (mlp(5, 4, 3), nn.CrossEntropyLoss(), (5,)),
    "weighted loss": (mlp(5, 4, 3), nn.CrossEntropyLoss(weight=torch.ones(3)), (5,)),
    "torch's squared loss": (mlp(5, 4, 1), functional.mse_loss, (5,)),
    "logistic loss of two outputs": (mlp(5, 4, 2), losses.logistic, (5,)),
}


@pytest.mark.parametrize("name", NOT_STACKS)
def test_only_plain_dense_layers_are_a_stack(name):
    assert Stack.of(*NOT_STACKS[name]) is None


def test_plain_dense_layers_are_a_stack():
    assert Stack.of(nn.Linear(5, 3), losses.cross_entropy, (5,)).loss == "classes"
    assert Stack.of(nn.Linear(5, 1), losses.logistic, (5,)).loss == "logistic"
    found = Stack.of(mlp(6, 4, 2, flat=True), losses.squared, (2, 3))
    assert (found.loss, [name for name, _ in found.layers], found.activations) == (
        "squared",
        ["1", "3"],
        (nn.Tanh,),
    )
    assert Stack.of(mlp(5, 4, 3, bias=(True, False)), functional.cross_entropy, (5,)).bias == (
        True,
        False,
    )
    assert Stack.of(models.mlp(5, 4, 3).eval(), losses.cross_entropy, (5,)) is not None


@pytest.mark.parametrize("total", [1.0, 0.5])
def test_probabilities_as_targets_mean_the_same_on_both_paths(total):
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(6, 3, generator=generator, dtype=F64)
    y = y / y.sum(1, keepdim=True) * total
    X = torch.randn(6, 5, generator=generator, dtype=F64)
    given = Task(
        models.mlp(5, 4, 3, seed=1).double(), losses.cross_entropy, [(X[:4], y[:4]), (X[4:], y[4:])]
    )
    quick, generic = choose_gradients(given, "user", None, F64), Modules(given, F64)
    blocks, batch = scattered(quick, 2), batches_of(given, "all")
    same = same_models(generic, quick, blocks)
    for level in ("user", "example"):
        assert_close(added_by(quick, blocks, batch, level), added_by(generic, same, batch, level))
    each = [
        g.evaluate([b[0].flatten(0, 1) for b in held])["loss"]
        for g, held in ((quick, blocks), (generic, same))
    ]
    assert torch.allclose(*each, rtol=1e-10)


@pytest.mark.parametrize("odd", [None, 0.0, 255.0, 256.0, -1.0, 0.5, 1e10, 300.25, 511.0])
@pytest.mark.parametrize("bias", [True, False])
def test_features_kept_as_bytes_change_nothing(odd, bias):
    def whole(m, generator):
        X = torch.randint(256, (m, 5), generator=generator).double()
        if odd is not None and m == SIZES[1]:
            X[2, 3] = odd
        return X

    given = task(nn.Linear(5, 3, bias=bias), losses.cross_entropy, X=whole)
    quick, generic = fast(given), Modules(given, F64)
    assert (quick.data.X.dtype == torch.uint8) == (odd in (None, 0.0, 255.0))
    blocks = scattered(quick, 3, scale=0.01)
    same = same_models(generic, quick, blocks)
    batch = batches_of(given, "all")
    for level, wanted in expected(given, quick.state(blocks), batch, *clips()).items():
        assert_close(added_by(quick, blocks, batch, level), wanted, 1e-9)
        assert_close(added_by(generic, same, batch, level), wanted, 1e-9)
    found = [
        g.evaluate([b[:, 0, 0] for b in held])["loss"]
        for g, held in ((quick, blocks), (generic, same))
    ]
    assert torch.allclose(*found, rtol=1e-9)


@pytest.mark.parametrize("name", [*BUILT_IN, *OTHERS])
def test_models_pass_through_their_names_and_back(name):
    given = (BUILT_IN | OTHERS)[name]()
    every = [make(given) for make in PATHS.values()] if name in BUILT_IN else [Modules(given, F64)]
    every += [Quadratic(given, F64)] if Quadratic.takes(given, None) else []
    own = {n: p.detach() for n, p in given.model.named_parameters() if p.requires_grad}
    for gradients in every:
        started = gradients.state(gradients.initial())
        assert started.keys() == own.keys() and all(torch.equal(started[n], own[n]) for n in own)
        blocks = scattered(gradients, 3)
        for some in (blocks, [b[:, 0, 0] for b in blocks], [b[0, 0, 0] for b in blocks]):
            again = gradients.blocks(gradients.state(some))
            assert all(torch.equal(a, b) for a, b in zip(again, some, strict=True))


@pytest.mark.parametrize("path", ["auto", "generic"])
@pytest.mark.parametrize("name", ["logistic", "multinomial", "deep relu", "pictures", *OTHERS])
def test_the_average_model_loads_into_the_module_and_has_the_metrics_of_the_run(name, path):
    made = (BUILT_IN | OTHERS)[name]()
    given = Task(made.model, made.loss, made.shards, made.shards[1])
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(clip=1.0, steps=2), decor.Adversary.eavesdropper(), 0.1, 0.2
    )
    run = decor.train(
        given, plan, learning_rate=0.1, engine=decor.Vectorised(path=path, dtype="float64")
    )
    model = copy.deepcopy(given.model)
    model.load_state_dict(run.average_model)
    wanted = plainly(given, model.state_dict())
    assert {key: run.metrics[key] for key in wanted} == pytest.approx(wanted, rel=1e-9)


def test_records_too_small_to_square_are_clipped_too():
    """In single precision the square of 1e-23 is zero; the gradient is not."""
    for outputs in (1, 2):
        model = nn.Linear(2, outputs, bias=False)
        nn.init.zeros_(model.weight)
        shard = (torch.full((1, 2), 1e-23), torch.full((1, outputs), 1e18))
        task = Task(model, losses.squared, [shard])
        exposure = decor.Exposure(1e-7, 1, unit="example", batch_size=1, records=1)
        plan = decor.NoisePlan(
            decor.from_edges(1, []), exposure, decor.Adversary.eavesdropper(), 0.0, 0.0
        )
        sent = []
        engine = decor.Vectorised(
            on_messages=lambda step, messages, sent=sent: sent.append(messages.clone())
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", decor.DivergenceWarning)
            decor.train(task, plan, learning_rate=1.0, engine=engine)
        assert sent[0].double().norm() <= 1e-7 * (1 + 1e-6)


def test_a_parameter_without_dimensions_is_trained():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.scale = nn.Linear(3, 2), nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.scale * self.inside(x)

    shard = (torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))
    run = decor.train(
        Task(Scaled(), losses.cross_entropy, [shard] * 2),
        decor.NoisePlan(
            decor.complete(2), decor.Exposure(1.0, 2), decor.Adversary.eavesdropper(), 0.1, 0.1
        ),
        learning_rate=0.1,
    )
    assert run.average_model["scale"].shape == () and run.average_model["scale"] != 2.0


def test_a_task_never_shows_its_records():
    assert repr(decor.tasks.breast_cancer(users=4)) == (
        "Task('breast-cancer', 4 users, 456 records, 31 parameters)"
    )
