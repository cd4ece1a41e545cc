"""Every path of gradients against plain autograd: one user, seed, setting and example at a time."""

import copy
import warnings

import pytest
import torch
from gradient_oracle import (
    BUILT_IN,
    F64,
    OTHERS,
    PATHS,
    SEEDS,
    added_by,
    assert_close,
    batches_of,
    clips,
    expected,
    fast,
    mlp,
    plainly,
    same_models,
    scattered,
    task,
)
from torch import nn

import decor
from decor.learning import losses, models
from decor.learning.batches import Batch
from decor.learning.gradients import dense_layers
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.clip import add_clipped
from decor.learning.gradients.modules import Modules
from decor.learning.gradients.quadratic import Quadratic
from decor.learning.task import Task


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
            assert not value[0].any() and not value[2].any(), "no other user is touched"
            assert torch.allclose(value[1], together[key][1], atol=1e-13)


@pytest.mark.parametrize("name", ["deep relu", "multinomial"])
@pytest.mark.parametrize("level", ["user", "example"])
def test_settings_of_large_first_layers_are_those_of_small_ones(monkeypatch, level, name):
    """One setting at a time, or at example level as further outputs of one layer."""
    given = BUILT_IN[name]()
    gradients = fast(given)
    blocks = scattered(gradients, given.users)
    together = {
        kind: added_by(gradients, blocks, batches_of(given, kind), level)
        for kind in ("poisson", "fixed", "all")
    }
    monkeypatch.setattr(dense_layers, "_REPEATED", 0)
    for kind, wanted in together.items():
        assert_close(added_by(gradients, blocks, batches_of(given, kind), level), wanted, 1e-13)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("level", ["user", "example"])
def test_a_gradient_of_exactly_zero_stays_zero(path, level):
    zeros = lambda m, generator: torch.zeros(m, 5, dtype=F64)  # noqa: E731
    dead = mlp(5, 4, 2, activation=nn.ReLU, bias=(False, False))
    cases = [
        task(nn.Linear(5, 1, bias=False), losses.logistic, classes=2, X=zeros),
        task(nn.Linear(5, 3, bias=False), losses.cross_entropy, X=zeros),
        task(dead, losses.cross_entropy, classes=2, X=zeros),
        # one class alone is for one user alone
        task(nn.Linear(5, 1), losses.cross_entropy, classes=1, sizes=(7,)),
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
    """If all users had the same data, a mix-up of rows would pass every test."""
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
            gradients.add_clipped_means(
                zero, blocks, batches_of(given, "all"), slice(0, 3), clip, alpha
            )
            reached = lengths(gradients.state(zero))
            assert torch.isfinite(reached).all() and (reached <= limit * (1 + 1e-6)).all()
            if isinstance(gradients, Quadratic):
                continue
            zero = [torch.zeros_like(b) for b in blocks]
            gradients.add_clipped_examples(
                zero, blocks, Batch(first, 1.0), slice(0, 3), clip, alpha
            )
            reached = lengths(gradients.state(zero))
            assert torch.isfinite(reached).all() and (reached <= limit * (1 + 1e-6)).all()


@pytest.mark.parametrize("value", [0.1, 0.3, 1.7])
@pytest.mark.parametrize("blocks", [1, 2])
def test_long_gradients_in_float32_are_clipped_to_the_clip(blocks, value):
    """A norm of a million values summed in float32 is too small by parts in a thousand."""
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
        gradients.add_clipped_examples(
            to, blocks, Batch(torch.tensor([[0]]), 1.0), slice(0, 1), one, one
        )
        assert abs(float(lengths(gradients.state(to))) - 1) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("path", ["auto", "generic"])
def test_a_clip_whose_square_is_below_the_smallest_number_is_kept_or_refused(path, dtype):
    layer = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(layer.weight)
    X, ones = torch.full((2, 3), 1e-23), torch.tensor([1, 1])
    given = Task(layer, losses.logistic, [(X, ones), (X, ones), (X, torch.tensor([0, 1]))])
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
