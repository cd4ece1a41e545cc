"""The clip holds in exact arithmetic, for any data: lengths are compared as fractions."""

import math
import os
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import decor
from decor.federation.local_gradient import LocalGradient
from decor.learning import losses, models
from decor.learning.batches import Batch
from decor.learning.gradients import choose, linear
from decor.learning.gradients.book_keeping import BookKeeping
from decor.learning.gradients.clip import (
    add_clipped,
    factors,
    lengths,
    lengths_by_torch,
    limits,
    scale,
)
from decor.learning.gradients.dense_layers import Layers
from decor.learning.gradients.dense_stack import Stack
from decor.learning.gradients.linear import Linear
from decor.learning.gradients.modules import Modules
from decor.learning.gradients.quadratic import Quadratic
from decor.learning.gradients.recording import Unsupported
from decor.learning.recipe import Recipe
from decor.learning.task import Task

torch.set_num_threads(1)
F32, F64 = torch.float32, torch.float64
EXTREME = [
    0.0,
    1e-45,
    1.2e-38,
    1e-30,
    1e-23,
    1e-5,
    0.3,
    1.0,
    1.0000001,
    60.0,
    1e10,
    1e18,
    1e30,
    3.4e38,
]
BEYOND = [5e-324, 1e-320, 1e-200, 1e-165, 1e-155, 1e150, 1e160, 1e200, 1.7e308]
CLIPS = [1e-12, 1e-6, 0.1, 1.0, 7.3, 1e6, 1e30]


def extremes(dtype):
    values = st.sampled_from(EXTREME + (BEYOND if dtype is F64 else []))
    wide = st.floats(-10.0, 10.0, width=32)
    return st.one_of(values, values.map(lambda value: -value), wide)


def square(blocks):
    """Of the length, exactly."""
    return sum(Fraction(value) ** 2 for block in blocks for value in block.flatten().tolist())


def assert_within(blocks, limit):
    assert all(bool(torch.isfinite(block).all()) for block in blocks)
    assert square(blocks) <= Fraction(limit) ** 2, (
        f"{math.sqrt(float(square(blocks) / Fraction(limit) ** 2)):.12g} clips"
    )


def clipped(parts, clip, dtype, noncontiguous=False):
    """What add_clipped adds to zeros, for parts of one model; or through the GPU's branch."""
    gradients = [part.to(dtype).view(1, 1, 1, -1) for part in parts]
    to = [torch.zeros_like(g) for g in gradients]
    if noncontiguous:
        gradients = [torch.stack([g, g], -1)[..., 0] for g in gradients]
        assert not any(g.is_contiguous() for g in gradients if g.numel() > 1)
    add_clipped(to, gradients, torch.tensor([[clip]], dtype=dtype), torch.ones(1, 1, dtype=dtype))
    return to


@pytest.mark.parametrize("noncontiguous", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_clipped_gradient_is_never_longer_than_the_clip(dtype, noncontiguous, data):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    parts = [
        torch.tensor(data.draw(st.lists(extremes(dtype), min_size=n, max_size=n)), dtype=F64)
        for n in sizes
    ]
    clip = data.draw(st.sampled_from(CLIPS + [1e-40, 3.4e38]))
    added = clipped(parts, clip, dtype, noncontiguous)
    assert_within(added, clip)
    finite = all(bool(torch.isfinite(part.to(dtype)).all()) for part in parts)
    given_square = square([part.to(dtype) for part in parts]) if finite else 0
    if (
        finite
        and given_square <= (Fraction(clip) * Fraction(999_999, 1_000_000)) ** 2
        and clip > 1e-30
    ):
        assert all(
            torch.equal(a.flatten(), part.to(dtype)) for a, part in zip(added, parts, strict=True)
        ), "what is short stays"


@pytest.mark.parametrize("dtype", [F32, F64])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_clip_is_not_needlessly_short(dtype, data):
    moderate = st.floats(0.0009765625, 2.0**60, width=32)
    parts = [
        torch.tensor(data.draw(st.lists(moderate, min_size=1, max_size=8)), dtype=F64)
        for _ in range(2)
    ]
    clip = data.draw(st.sampled_from([1e-12, 1e-6, 0.1, 1.0, 7.3]))
    wanted = min(square([part.to(dtype) for part in parts]), Fraction(clip) ** 2)
    assert square(clipped(parts, clip, dtype)) >= wanted * Fraction(99_999, 100_000) ** 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("noncontiguous", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_gradient_that_is_not_finite_adds_nothing_and_touches_no_other(dtype, noncontiguous, bad):
    gradients = [torch.ones(3, 1, 2, 4, dtype=dtype), torch.ones(3, 1, 2, 2, dtype=dtype)]
    gradients[1][1, 0, 1, 0] = bad
    if noncontiguous:
        gradients = [torch.stack([g, g], -1)[..., 0] for g in gradients]
    to = [torch.full(g.shape, 0.5, dtype=dtype) for g in gradients]
    add_clipped(to, gradients, torch.ones(1, 2, dtype=dtype), torch.ones(1, 2, dtype=dtype))
    for block in to:
        assert torch.equal(block[1, 0, 1], torch.full_like(block[1, 0, 1], 0.5))
        others = torch.cat([block[0].flatten(), block[2].flatten(), block[1, 0, 0]])
        assert bool((others > 0.5).all()) and len(others.unique()) == 1


def test_rounding_alone_takes_no_gradient_beyond_its_clip():
    """Without the allowance for roundings about half of these are too long, by parts in 10^8."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (F32, F64):
        for clip in (0.1, 0.7, 1.0, 3.3):
            for size in (1, 2, 5, 40):
                assert_within(
                    clipped([10 * torch.randn(size, generator=generator, dtype=F64)], clip, dtype),
                    clip,
                )


@pytest.mark.parametrize("dtype", [F32, F64])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_lengths_neither_vanish_nor_overflow(dtype, data):
    values = torch.tensor(
        data.draw(st.lists(extremes(dtype), min_size=1, max_size=6)), dtype=F64
    ).to(dtype)
    found = float(data.draw(st.sampled_from([lengths, lengths_by_torch]))(values))
    if math.isinf(found):
        assert square([values]) > Fraction(2) ** 2047
        return
    if not square([values]):
        assert found == 0.0
        return
    ratio = Fraction(found) ** 2 / square([values])
    assert ratio >= 1 - Fraction(1, 10**14), "never shorter, so that nothing escapes its clip"
    assert ratio <= 1 + Fraction(1, 10**14) or found < 2.0**-1022


def test_a_factor_of_zero_makes_everything_zero_and_tiny_numbers_vanish():
    rows = torch.tensor([[math.nan, 1.0], [math.inf, -1.0], [2.0, 1e-38]])
    found = scale(rows.clone(), torch.tensor([0.0, 0.0, 0.5], dtype=F64))
    assert torch.equal(found, torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    # the branch that a GPU takes too
    found = scale(rows.t().contiguous().t(), torch.tensor([0.0, 0.0, 0.5], dtype=F64))
    assert torch.equal(found, torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    limit = limits(torch.tensor(math.inf), F32, 3)
    assert float(limit) <= torch.finfo(F32).max
    assert factors(
        torch.tensor([math.nan, math.inf, 0.0, 2.0], dtype=F64), torch.tensor(1.0, dtype=F64)
    ).tolist() == [
        0,
        0,
        1,
        0.5,
    ]


def stack(*sizes, activation=nn.ReLU):
    parts = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        parts += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*parts[:-1]) if len(parts) > 2 else parts[0]


KINDS = {
    "logistic": (lambda: stack(3, 1), losses.logistic, 2),
    "linear": (lambda: stack(3, 1), losses.squared, 0),
    "multinomial": (lambda: stack(3, 3), losses.cross_entropy, 3),
    "several outputs": (lambda: stack(3, 2), losses.squared, 0),
    "relu": (lambda: stack(3, 4, 3), losses.cross_entropy, 3),
    "tanh": (lambda: stack(3, 4, 1, activation=nn.Tanh), losses.logistic, 2),
    "deep": (lambda: stack(3, 2, 2, 2, 2, 2), losses.squared, 0),
}


def paths(task, dtype):
    """Every way to the gradients of a task, by name; with the level at which it is one."""
    shape = Stack.of(task.model, task.loss, task.shards[0][0].shape[1:])
    yield "layers", Layers(task, shape, dtype)
    yield "layers, exact", Layers(task, shape, dtype, exact=True)
    yield "modules", Modules(task, dtype)
    yield "modules, exact", Modules(task, dtype, exact=True)
    with suppress(Unsupported):  # by a model so extreme that two ways to its gradient differ
        yield "book-keeping", BookKeeping(task, dtype, unit="user")
        yield "book-keeping, exact", BookKeeping(task, dtype, exact=True, unit="user")
    if Linear.takes(shape):
        yield "linear", Linear(task, shape, dtype)
    if Quadratic.takes(task, None):
        yield "quadratic", Quadratic(task, dtype)


def extreme_task(kind, numbers, records=3):
    """Numbers of the model, features and targets as they come."""
    build, loss, classes = KINDS[kind]
    model = build().double()
    taken = iter(numbers)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.tensor([next(taken) for _ in range(p.numel())], dtype=F64).view(p.shape))
    X = torch.tensor([[next(taken) for _ in range(3)] for _ in range(records)], dtype=F64)
    outputs = model[-1].out_features if isinstance(model, nn.Sequential) else model.out_features
    if classes:
        y = torch.arange(records) % classes
    else:
        y = torch.tensor([[next(taken) for _ in range(outputs)] for _ in range(records)], dtype=F64)
    return Task(model, loss, [(X, y)])


def blocks_of(gradients):
    return [b.expand(1, 1, 1, *b.shape).clone() for b in gradients.initial()]


def added(gradients, level, clip, batch, kind=None):
    blocks = blocks_of(gradients)
    to = [torch.zeros_like(b, dtype=kind or b.dtype) for b in blocks]
    add = gradients.add_clipped_examples if level == "example" else gradients.add_clipped_means
    dtype = blocks[0].dtype
    add(
        to,
        blocks,
        batch,
        slice(0, 1),
        torch.tensor([[clip]], dtype=dtype),
        torch.ones(1, 1, dtype=dtype),
    )
    return to


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_no_record_model_or_target_makes_a_unit_longer_than_its_clip(kind, dtype, data):
    numbers = data.draw(st.lists(extremes(dtype), min_size=60, max_size=60))
    clip = data.draw(st.sampled_from(CLIPS))
    size = data.draw(st.sampled_from([1, 3, 64, 100]))
    task = extreme_task(kind, numbers)
    all_of_them = Batch(torch.tensor([[0, 1, 2]]), 1 / 3)
    for name, gradients in paths(task, dtype):
        with torch.no_grad():
            if "exact" not in name:
                assert_within(added(gradients, "user", clip, all_of_them), clip)
            if name == "quadratic":
                continue
            for record in range(3):
                to = added(gradients, "example", clip, Batch(torch.tensor([[record]]), 1 / size))
                assert_within(to, Fraction(clip) / size)


def test_a_clip_factor_below_the_normal_numbers_makes_nothing_longer():
    """1e-12 over 1.7e308 has eleven bits: found by the search above, and 1.0003 clips long."""
    numbers = [0.0] * 60
    numbers[13], numbers[17] = 1e-45, 1.7e308
    for _, gradients in paths(extreme_task("relu", numbers), F64):
        for record in range(3):
            assert_within(
                added(gradients, "example", 1e-12, Batch(torch.tensor([[record]]), 1.0)), 1e-12
            )


def gap_of_60(feature=1e30, gap=60.0):
    """A distant example of a sure class: what flows back is 1e-26, and its square vanishes."""
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([gap, 0.0, 0.0]))
    X = torch.zeros(1, 4)
    X[0, 0] = feature
    return Task(model, losses.cross_entropy, [(X, torch.tensor([0]))])


@pytest.mark.parametrize(("feature", "gap"), [(1e30, 60.0), (1e27, 55.0), (1e36, 80.0)])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_probabilities_whose_squares_vanish_are_clipped_all_the_same(dtype, feature, gap):
    """In float32 this record was 12,383 clips long."""
    for name, gradients in paths(gap_of_60(feature, gap), dtype):
        to = added(gradients, "example", 1.0, Batch(torch.tensor([[0]]), 1.0))
        assert_within(to, 1)
        if dtype is F64 and "modules" not in name:
            assert square(to) > Fraction(1, 2), "it is clipped, and not lost"


@pytest.mark.parametrize("dtype", [F32, F64])
def test_linear_models_clip_on_a_gpu_as_on_a_cpu(dtype):
    generator = torch.Generator().manual_seed(2)
    e = torch.randn(2, 5, 3, generator=generator, dtype=F64).to(dtype) * 10
    e[0, 1, 2], e[1, 2, 0], e[1, 3, 1], e[0, 0, 0] = (
        math.nan,
        math.inf,
        1e-38 if dtype is F32 else 1e-308,
        0.0,
    )
    size = torch.rand(2, 5, 1, generator=generator, dtype=F64)
    size[0, 3], size[1, 4] = math.inf, 0.0
    limit, rate = (
        torch.tensor([[[0.1, 1.0, 1e9]]], dtype=F64),
        torch.tensor([[[1.0, -2.0, 0.5]]], dtype=F64),
    )
    for weights in (
        torch.full((1, 1, 1), 0.25, dtype=F64),
        torch.rand(2, 5, 1, generator=generator, dtype=F64),
    ):
        there = linear._clip_by_torch(
            e, size, limit, rate, weights, torch.finfo(dtype).smallest_normal
        )
        here = linear._clip_examples(e.clone(), size, limit, rate, weights)
        assert (
            torch.equal(here, there)
            and torch.isfinite(here).all()
            and not here[0, 3].any()
            and here[1, 4].any()
        )


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_clipped_adds_all_of_its_clip(kind, dtype):
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(60, generator=generator, dtype=F64).mul(2).tolist()
    task = extreme_task(kind, numbers)
    for name, gradients in paths(task, dtype):
        if name == "quadratic":
            continue
        longest = max(
            square(added(gradients, "example", 1e6, Batch(torch.tensor([[r]]), 1.0)))
            for r in range(3)
        )
        clip = 0.5 * math.sqrt(float(longest))
        found = max(
            square(added(gradients, "example", clip, Batch(torch.tensor([[r]]), 1.0)))
            for r in range(3)
        )
        # one expected record of a batch: float32 tiles take a little more of the clip, for their
        # sums
        short = Fraction(1, 1000) if "exact" in name and dtype is F32 else Fraction(1, 100_000)
        if name == "book-keeping, exact":  # sums over tokens are rounded more often
            short = Fraction(1, 1000)
        assert (Fraction(clip) * (1 - short)) ** 2 <= found <= Fraction(clip) ** 2, name


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_whose_gradient_overflows_adds_nothing_and_leaves_the_others(kind, dtype):
    generator = torch.Generator().manual_seed(4)
    numbers = torch.randn(60, generator=generator, dtype=F64).tolist()
    plain = extreme_task(kind, numbers)
    X, y = plain.shards[0]
    huge = X.clone()
    huge[1] = torch.tensor(
        [1.5e308, -1.5e308, 1.5e308] if dtype is F64 else [3e38, -3e38, 1e300], dtype=F64
    )
    sizes = torch.tensor([[0.25, 0.25, 0.25]], dtype=F64)
    weights = torch.tensor([[0.25, 0.0, 0.25]], dtype=F64)
    rows = torch.tensor([[0, 1, 2]])
    # products of these weights overflow, or the record itself does in float32
    with torch.no_grad():
        for p in plain.model.parameters():
            p.mul_(4)
    tasks = [Task(plain.model, plain.loss, [(features, y)]) for features in (X, huge)]
    for (name, without), (_, overflowing) in zip(
        *(paths(task, dtype) for task in tasks), strict=True
    ):
        if name == "quadratic":
            assert not any(
                block.any() for block in added(overflowing, "user", 0.5, Batch(rows, 1 / 3))
            )
            continue
        alone = added(overflowing, "example", 0.5, Batch(torch.tensor([[1]]), 0.25))
        assert all(bool(torch.isfinite(block).all()) for block in alone)
        if any(block.any() for block in alone):
            continue  # a saturated unit has a gradient after all
        kept = added(without, "example", 0.5, Batch(rows, weights))
        found = added(overflowing, "example", 0.5, Batch(rows, sizes))
        assert any(block.any() for block in kept)
        assert all(torch.equal(a, b) for a, b in zip(kept, found, strict=True)), name


def local(task, unit="example", clip=1.0, dtype="float32", taken=None, size=None, **recipe):
    """One user's node; `taken` are the records that its sampling takes."""
    exposure = (
        decor.Exposure(
            clip, 1, unit="example", batch_size=size or len(taken), records=task.records[0]
        )
        if unit == "example"
        else decor.Exposure(clip, 1)
    )
    words = np.full(task.records[0], 2**32 - 1, dtype="<u4")
    words[list(taken or [])] = 0

    def random(count):
        return words.tobytes() if count == 4 * len(words) else bytes(count)

    return LocalGradient(task, exposure, Recipe(**{"gossip_rounds": 1} | recipe), dtype, random)


def tower(layers=17, largest=1e18):
    """Weights of 1e18: outputs overflow where feature 0 is above a half."""
    model = stack(2, *[1] * layers, 1).double()
    with torch.no_grad():
        for k, layer in enumerate(model[::2]):
            layer.weight.fill_(largest)
            layer.bias.zero_()
            if k == 0:
                layer.weight.copy_(torch.tensor([[largest, 0.0]]))
                layer.bias.fill_(-largest / 2)
    return model


def spark():
    """A CNN whose output is rounding alone, and only if a pixel is above 1.5."""
    model = models.cnn((1, 8, 8), (4,), 2).double()
    conv, last = model[1], model[-1]
    weights = torch.randn(64, generator=torch.Generator().manual_seed(3), dtype=F64)
    # what the first half of the inputs adds, the other half takes away
    row = 1e6 * torch.cat([weights[:32], -weights[:32]])
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        conv.weight[:, 0, 1, 1] = 1e9
        conv.bias.fill_(-1.5e9)
        last.weight.copy_(torch.stack([row, -row]))
    return model


@pytest.mark.parametrize("unit", ["example", "user"])
@pytest.mark.parametrize("position", [0, 7])
@pytest.mark.filterwarnings("ignore:the layers of this model cannot be recorded")
@pytest.mark.parametrize("path", ["layers", "modules", "recorded", "cnn"])
def test_no_model_tells_by_stopping_a_node_whether_one_record_is_there(
    path, position, unit, monkeypatch
):
    """Finding 4: the node of 50 records stopped if one had a feature above a half. And a check of
    the model was made on the first records.
    """
    generator = torch.Generator().manual_seed(0)
    if path != "layers":
        monkeypatch.setattr(Stack, "of", staticmethod(lambda *_: None))
    if path == "modules":
        monkeypatch.setattr(choose, "BookKeeping", unrecordable)
    model, loss, low, high = tower(), losses.squared, 0.4, 0.6
    X = 0.4 * torch.rand(50, 2, generator=generator, dtype=F64)
    y = torch.ones(50, 1, dtype=F64)
    if path == "cnn":
        model, loss, low, high = spark(), losses.cross_entropy, 0.3, 1.7
        X, y = torch.full((50, 64), low, dtype=F64), torch.arange(50) % 3 % 2
    sums = []
    for value in (low, high):
        X[position, : 64 if path == "cnn" else 1] = value
        task = Task(model, loss, [(X.clone(), y)])
        node = local(task, unit, taken=list(range(50)))
        gradient, factor = node.gradient(node.start().astype(np.float64), 0.1)
        assert np.isfinite(gradient).all() and factor * np.linalg.norm(gradient) <= 1
        if unit == "example":
            assert factor == 1.0 and square([torch.from_numpy(gradient)]) <= 1
        sums.append(gradient)
    assert np.abs(sums[0]).max() > 0
    if unit == "example":
        # a record of the tower that overflows adds nothing; one of the CNN is replaced
        most = Fraction(2 if path == "cnn" else 1, 50)
        assert square([torch.from_numpy(sums[0] - sums[1])]) <= most**2


def unrecordable(*_):
    raise Unsupported("nothing is recorded here")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_a_node_sends_of_its_gradient_is_never_longer_than_the_clip(dtype):
    """User level: factor times gradient, in exact arithmetic.

    Without an allowance for roundings half of them are longer.
    """
    generator = torch.Generator().manual_seed(1)
    for trial in range(40):
        X = torch.randn(5, 6, generator=generator, dtype=F64) * 10.0 ** (trial % 7)
        y = torch.randint(3, (5,), generator=generator)
        clip = [1.0, 0.1, 0.7, 1e-3][trial % 4]
        model = stack(6, 4, 3).double()
        node = local(Task(model, losses.cross_entropy, [(X, y)]), "user", clip, dtype)
        gradient, factor = node.gradient(node.start(), 0.1)
        exact = square([torch.from_numpy(gradient)]) * Fraction(factor) ** 2
        assert exact <= Fraction(clip) ** 2
        assert factor == 1.0 or exact >= (Fraction(clip) * (1 - Fraction(1, 10**9))) ** 2


@pytest.mark.parametrize("records", [1, 31, 32, 40])
def test_a_user_with_fewer_examples_than_a_batch_takes_all_of_them(records):
    """At user level their number is private: a node that stops, or reads beyond them, tells it."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(records, 3, generator=generator)
    task = decor.Task(decor.models.logistic(3), decor.losses.logistic, [(X, (X[:, 0] > 0).float())])
    exposure, at = decor.Exposure(1.0, 1), np.full(4, 0.3)
    (some, _), (everything, _) = (
        LocalGradient(
            task, exposure, Recipe(gossip_rounds=1, batch_size=size), "float64", os.urandom
        ).gradient(at, 0.1)
        for size in (32, None)
    )
    assert (some == everything).all() == (records <= 32)


@pytest.mark.parametrize("unit", ["example", "user"])
def test_what_a_module_draws_at_a_node_is_drawn_from_the_operating_system(unit):
    """With known dropout masks, removing an example would shift the masks of the others."""
    model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 2)).double().train()
    generator = torch.Generator().manual_seed(1)
    X, y = torch.randn(8, 6, generator=generator, dtype=F64), torch.arange(8) % 2
    exposure = (
        decor.Exposure(1.0, 1, unit="example", batch_size=8, records=8)
        if unit == "example"
        else decor.Exposure(1.0, 1)
    )
    asked = []

    def random(count):
        asked.append(count)
        return os.urandom(count)

    node = LocalGradient(
        Task(model, losses.cross_entropy, [(X, y)]),
        exposure,
        Recipe(gossip_rounds=1),
        "float64",
        random,
    )
    before = torch.get_rng_state()
    found = [node.gradient(node.start(), 0.1)[0] for _ in range(2)]
    assert not np.array_equal(*found) and sum(asked) >= 16
    assert torch.equal(before, torch.get_rng_state())


def test_a_node_whose_gradient_is_tiny_or_huge_sends_it_clipped():
    for feature, target in ((1e-170, 1e180), (1e160, 1.0), (1e-200, 1e-200)):
        model = nn.Linear(2, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        X = torch.full((1, 2), feature, dtype=F64)
        task = Task(model, losses.squared, [(X, torch.full((1, 1), target, dtype=F64))])
        node = local(task, "user", 1e-3, "float64", batch_size=1)
        gradient, factor = node.gradient(node.start(), 0.1)
        assert square([torch.from_numpy(gradient)]) * Fraction(factor) ** 2 <= Fraction(1e-3) ** 2
        if feature * target > 1:
            assert np.abs(gradient).max() * factor > 1e-4


def worst_step(sums, clip, size):
    """The farthest that one more record has moved a sum, in clips over the batch size, exactly."""
    steps = [square([b - a]) for a, b in zip(sums[:-1], sums[1:], strict=True)]
    return max(steps) / (Fraction(clip) / size) ** 2


def long_records(count, value=0.7, features=4):
    model = nn.Linear(features, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    X = torch.full((count, features), value, dtype=F64)
    return Task(model, losses.logistic, [(X, torch.ones(count, dtype=torch.long))])


@pytest.mark.parametrize(
    ("dtype", "least"), [("float64", Fraction(999_999, 1_000_000)), ("float32", Fraction(99, 100))]
)
@pytest.mark.parametrize("clip", [0.1, 0.3, 0.7])
def test_one_record_more_moves_a_nodes_sum_by_its_clip_at_most(clip, dtype, least):
    """All examples pull the same way, so that roundings add up: the 4 b^2 2^-53 of the proof."""
    task = long_records(200)
    sums = []
    for count in range(0, 200):
        node = local(task, taken=range(count), size=100, clip=clip, dtype=dtype)
        sums.append(torch.from_numpy(node.gradient(node.start(), 0.1)[0]))
    assert least**2 < worst_step(sums, clip, 100) <= 1


@pytest.mark.parametrize("unit", ["example", "user"])
def test_a_node_adds_up_its_examples_in_double_precision(unit):
    """And computes them in its models' type, as simulations do."""
    # of several tiles
    task = long_records(200)
    node = local(task, unit, taken=range(200))
    gradient, _ = node.gradient(node.start(), 0.1)
    assert node.start().dtype == np.float32
    assert gradient.dtype == (np.float64 if unit == "example" else np.float32)
    if unit == "example":
        # a float32 sum would have no more bits than this
        assert not np.array_equal(gradient, gradient.astype(np.float32))


@pytest.mark.parametrize("kind", [F32, F64])
@pytest.mark.parametrize(("size", "most"), [(3, 60), (64, 250)])
@pytest.mark.parametrize("path", [Layers, Modules, BookKeeping])
def test_one_record_more_moves_a_float32_sum_by_its_clip_at_most(path, size, most, kind):
    task = long_records(most, 0.3)
    shape = Stack.of(task.model, task.loss, (4,))
    gradients = (
        Layers(task, shape, F32, exact=True) if path is Layers else path(task, F32, exact=True)
    )
    sums = []
    for count in range(1, most + 1, 1 if size == 3 else 3):
        both = []
        for some in (count - 1, count):
            rows = torch.arange(max(1, some)).unsqueeze(0)
            both.append(
                added(
                    gradients,
                    "example",
                    0.1,
                    Batch(rows, 1 / size if some else torch.zeros(1, 1, dtype=F64)),
                    kind,
                )[0]
            )
        sums.append(worst_step([b.double() for b in both], 0.1, size))
    assert Fraction(99, 100) ** 2 < max(sums) <= 1


@example(torch.float32)
@given(st.sampled_from([F32, F64]))
@settings(max_examples=2, deadline=None)
def test_a_batch_beyond_the_bound_is_refused(dtype):
    task = long_records(2)
    gradients = Layers(task, Stack.of(task.model, task.loss, (4,)), dtype, exact=True)
    with pytest.raises(decor.InputError, match="too large to be summed"):
        added(gradients, "example", 0.1, Batch(torch.tensor([[0]]), 1e-6))


@pytest.mark.parametrize("count", [5, 2000])
def test_with_a_common_rate_one_record_moves_a_node_of_any_size_by_the_same_public_share(count):
    """5 or 2,000 records: the clip over the batch size that all share, rounding included."""
    exposure = decor.Exposure(0.3, 1, unit="example", rate=0.1, batch_size=3)
    task = long_records(count)
    sums = []
    # all of them in one batch, a hundred times its expected size, is as private
    for taken in (count - 1, count):
        words = np.where(np.arange(count) < taken, 0, 2**32 - 1).astype("<u4").tobytes()
        node = LocalGradient(
            task, exposure, Recipe(gossip_rounds=1), "float32", lambda _, words=words: words
        )
        sums.append(torch.from_numpy(node.gradient(node.start(), 0.1)[0]))
    # the allowance for sums is that of the largest batch
    assert Fraction(9_999, 10_000) ** 2 < worst_step(sums, 0.3, 3) <= 1


@given(
    st.lists(st.integers(1, 3000), min_size=2, max_size=4),
    # at rate one the record would be in every batch
    st.floats(0.001, 1.0, exclude_max=True),
    st.sampled_from(["add-remove", "replace"]),
)
@settings(max_examples=25, deadline=None)
def test_with_record_weights_one_record_moves_every_users_message_equally_far(
    counts, rate, relation
):
    """Whatever the counts, whose mean the batch size comes from; as far as is accounted."""
    exposure = decor.Exposure(
        0.3, 1, "example", rate=rate, weighting="records", records=counts, relation=relation
    )
    moved = []
    for count in counts:
        task, sums = long_records(count), []
        if relation == "replace":  # by one that pulls the other way as far
            task.shards[0][1][-1] = 0
        for word in (2**32 - 1, 0):  # without the last record, and with it
            taken = np.r_[np.zeros(count - 1), word].astype("<u4").tobytes()
            node = LocalGradient(
                task, exposure, Recipe(gossip_rounds=1), "float64", lambda _, taken=taken: taken
            )
            sums.append(torch.from_numpy(node.gradient(node.start(), 0.1)[0]))
        if relation == "replace":
            task.shards[0][1][-1] = 1
            node = LocalGradient(
                task, exposure, Recipe(gossip_rounds=1), "float64", lambda _, taken=taken: taken
            )
            sums[0] = torch.from_numpy(node.gradient(node.start(), 0.1)[0])
        moved.append(float(torch.linalg.vector_norm(sums[1] - sums[0])))
    # but for the allowance for sums, which is that of the largest batch
    assert moved == pytest.approx([exposure.shift] * len(counts), rel=1e-4)
    assert len(set(moved)) == 1 or max(moved) - min(moved) < 1e-9
    assert len(set(exposure.rates(decor.path(len(counts))))) == 1


@pytest.mark.parametrize("path", [Layers, Modules, BookKeeping])
def test_with_a_common_rate_bounds_on_rounding_cover_more_records_than_sums_are_divided_by(path):
    """What covers 600 records does not cover 60,000, whose sum is rounded to float32."""
    task = long_records(60_000, 0.3)
    shape = Stack.of(task.model, task.loss, (4,))
    gradients = (
        Layers(task, shape, F32, exact=True) if path is Layers else path(task, F32, exact=True)
    )
    rows = [torch.arange(some)[None] for some in range(59_998, 60_001)]
    sums = [
        added(gradients, "example", 0.1, Batch(row, 1 / 600, 60_000.0), F32)[0].double()
        for row in rows
    ]
    assert worst_step(sums, 0.1, 600) <= 1
    # without the public bound the allowance is that of the divisor
    short = [added(gradients, "example", 0.1, Batch(row, 1 / 600), F32)[0].double() for row in rows]
    assert worst_step(short, 0.1, 600) > 1
