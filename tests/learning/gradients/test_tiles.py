"""What an example adds has the same bits in every place and company, for all users."""

import os
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from decor.learning import losses
from decor.learning.batches import Batch, Batches, secret_batch
from decor.learning.gradients.book_keeping import BookKeeping
from decor.learning.gradients.dense_layers import Layers
from decor.learning.gradients.dense_stack import Stack
from decor.learning.gradients.modules import Modules
from decor.learning.gradients.tiles import (
    WIDEST,
    cheapest_widths,
    choose_tile,
    float32_limits,
    memory_layout,
    nominal_sizes,
    random_like,
    same_bits,
    sum_slack,
)
from decor.learning.task import Task

torch.set_num_threads(1)
F32, F64 = torch.float32, torch.float64
WEIGHT = 1 / 64


def stack(*sizes, activation=nn.ReLU):
    parts = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        parts += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*parts[:-1]) if len(parts) > 2 else parts[0]


class Tokens(nn.Module):
    """Four values as tokens of one, through attention and normalisation."""

    def __init__(self):
        super().__init__()
        self.into, self.last = nn.Linear(1, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.last(self.layer(self.into(x.unsqueeze(2))).mean(1))


def pictures():
    return nn.Sequential(
        nn.Unflatten(1, (1, 5, 5)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(100, 3),
    )


KINDS = {
    "logistic": (lambda: stack(5, 1), losses.logistic),
    "linear": (lambda: stack(7, 1), losses.squared),
    "multinomial": (lambda: stack(17, 10), losses.cross_entropy),
    "relu": (lambda: stack(5, 33, 10), losses.cross_entropy),
    "tanh": (lambda: stack(13, 7, 31, 1, activation=nn.Tanh), losses.logistic),
    "deep": (lambda: stack(3, 5, 3, 10, 3, 5), losses.cross_entropy),
    "pictures": (pictures, losses.cross_entropy),
    "tokens": (Tokens, losses.cross_entropy),
    "mnist": (lambda: stack(784, 128, 10), losses.cross_entropy),
}


def task_of(kind, records=(150, 7, 20)):
    build, loss = KINDS[kind]
    generator = torch.Generator().manual_seed(5)
    model = build().double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(
                torch.randn(p.shape, generator=generator, dtype=F64) / max(1, p.shape[-1]) ** 0.5
            )
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    inputs = {"pictures": 25, "tokens": 4}.get(kind, layers[0].in_features)
    outputs = 3 if kind == "tokens" else layers[-1].out_features

    def shard(m):
        X = torch.randn(m, inputs, generator=generator, dtype=F64)
        if loss is losses.squared:
            return X, torch.randn(m, outputs, generator=generator, dtype=F64)
        return X, torch.randint(max(2, outputs), (m,), generator=generator)

    return Task(model, loss, [shard(m) for m in records])


def made(kind, path, dtype):
    task = task_of(kind)
    if path in ("modules", "book-keeping"):
        return task, (Modules if path == "modules" else BookKeeping)(task, dtype, exact=True)
    return task, Layers(
        task, Stack.of(task.model, task.loss, task.shards[0][0].shape[1:]), dtype, exact=True
    )


def added(gradients, batch, to_type, users=slice(0, 3), clip=0.1):
    blocks = [b.expand(3, 1, 1, *b.shape).clone() for b in gradients.initial()]
    to = [torch.zeros_like(b, dtype=to_type) for b in blocks]
    one = torch.ones(1, 1, dtype=blocks[0].dtype)
    with torch.no_grad():
        gradients.add_clipped_examples(to, blocks, batch, users, clip * one, one)
    return torch.cat([block.flatten(3) for block in to], -1)[:, 0, 0]


def batch_of(null, *users):
    """Every user's records and weights, padded with the null record."""
    wide = max(len(rows) for rows, _ in users)
    rows = [list(rows) + [null] * (wide - len(rows)) for rows, _ in users]
    weights = [list(shares) + [0.0] * (wide - len(shares)) for _, shares in users]
    return Batch(torch.tensor(rows), torch.tensor(weights, dtype=F64))


@pytest.mark.parametrize("to_type", [F32, F64])
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(
    ("kind", "path"),
    [(kind, "layers") for kind in KINDS if kind not in ("pictures", "tokens")]
    + [(kind, "modules") for kind in ("logistic", "relu", "tanh")]
    + [(kind, "book-keeping") for kind in ("relu", "pictures", "tokens")],
)
def test_an_examples_contribution_has_the_same_bits_beside_anybody_at_any_place(
    kind, path, dtype, to_type
):
    """All others weigh nothing, so that what is added is one example's alone."""
    if dtype is F64 and to_type is F32:
        pytest.skip("no engine sums in less precision than it computes in")
    task, gradients = made(kind, path, dtype)
    null, generator = sum(task.records), torch.Generator().manual_seed(1)
    others = ([150, 151], [WEIGHT, WEIGHT]), ([157], [WEIGHT])
    for example in (0, 42):
        alone = added(gradients, batch_of(null, ([example], [WEIGHT]), *others), to_type)
        assert alone[0].any()
        for count in (2, 13, 48, 95, 96, 97, 130):
            company = [
                r for r in torch.randperm(150, generator=generator).tolist() if r != example
            ][: count - 1]
            for at in {0, count - 1, int(torch.randint(count, (), generator=generator))}:
                rows = [*company[:at], example, *company[at:]]
                shares = [0.0] * at + [WEIGHT] + [0.0] * (count - 1 - at)
                found = added(gradients, batch_of(null, (rows, shares), *others), to_type)
                assert torch.equal(found, alone), f"place {at} of {count}"


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("relu", "layers"),
        ("mnist", "layers"),
        ("logistic", "layers"),
        ("tanh", "modules"),
        ("pictures", "book-keeping"),
        ("tokens", "book-keeping"),
    ],
)
def test_a_users_sum_has_the_same_bits_whatever_the_others_take(kind, path, dtype):
    task, gradients = made(kind, path, dtype)
    null = sum(task.records)
    own = (range(150, 157), [WEIGHT] * 7)
    for to_type in {dtype, F64}:
        wanted = added(gradients, batch_of(null, ([0], [WEIGHT]), own, ([157], [WEIGHT])), to_type)[
            1
        ]
        for count in (0, 7, 96, 97, 120, 150):  # 120 is more than float32 products are taken of
            first = (range(max(1, count)), [WEIGHT if count else 0.0] * max(1, count))
            found = added(gradients, batch_of(null, first, own, ([158], [WEIGHT])), to_type)
            assert torch.equal(found[1], wanted)
        apart = added(
            gradients, batch_of(null, ([0], [WEIGHT]), own, ([157], [WEIGHT])), to_type, slice(1, 2)
        )
        assert apart[1].any() and not apart[0].any() and not apart[2].any()


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("relu", "layers"),
        ("logistic", "layers"),
        ("relu", "modules"),
        ("pictures", "book-keeping"),
        ("tokens", "book-keeping"),
    ],
)
def test_tiles_sum_up_to_what_single_examples_add(kind, path, dtype):
    task, gradients = made(kind, path, dtype)
    null, others = sum(task.records), (([150], [WEIGHT]), ([157], [WEIGHT]))
    each = [added(gradients, batch_of(null, ([r], [WEIGHT]), *others), F64)[0] for r in range(130)]
    for count in (3, 96, 97, 130):
        found = added(gradients, batch_of(null, (range(count), [WEIGHT] * count), *others), F64)[0]
        total = torch.stack(each[:count]).sum(0)
        assert float((found - total).norm()) <= count * 100 * torch.finfo(dtype).eps * 0.1 * WEIGHT


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_path_that_knows_places_is_taken_one_example_at_a_time(dtype, monkeypatch):
    """As a library might whose kernels add in another order at the end of a tile."""
    task, gradients = made("relu", "layers", dtype)
    plain = Layers._passes, Layers._column_passes

    def place_dependent(passes, places):
        def changed(self, W, A, y):
            into, back = passes(self, W, A, y)
            for part in back:
                part.narrow(places, part.shape[places] - 1, 1).mul_(
                    1 if part.shape[places] == 1 else 1.0001
                )
            return into, back

        return changed

    monkeypatch.setattr(Layers, "_passes", place_dependent(plain[0], 1))
    monkeypatch.setattr(Layers, "_column_passes", place_dependent(plain[1], 2))
    null, others = sum(task.records), (([150], [WEIGHT]), ([157], [WEIGHT]))
    alone = added(gradients, batch_of(null, ([5], [WEIGHT]), *others), F64)
    assert set(gradients.tiles.values()) == {(1, True)}
    beside = added(gradients, batch_of(null, ([3, 5, 9], [0.0, WEIGHT, 0.0]), *others), F64)
    assert torch.equal(alone, beside)


class Particular(nn.Module):
    """Takes records of 5 alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, X):
        return self.layer(X * torch.tensor([0.0, 1.0])[(X[:, :1] * 0.2).long()])


def test_a_module_that_cannot_take_any_record_is_taken_one_example_at_a_time():
    generator = torch.Generator().manual_seed(2)
    X = torch.cat([torch.full((6, 1), 5.0), torch.randn(6, 2, generator=generator)], 1).double()

    class Refusing(Particular):
        def forward(self, X):
            return super().forward(X - 100 * (X[:, :1] < 1))

    for module, widths in (
        (Particular(), {(cheapest_widths(6.0, False)[0], False)}),
        (Refusing(), {(1, True)}),
    ):
        task = Task(module.double(), losses.cross_entropy, [(X, torch.arange(6) % 2)])
        gradients = Modules(task, F64, exact=True)
        blocks = [b.expand(1, 1, 1, *b.shape).clone() for b in gradients.initial()]
        to, one = [torch.zeros_like(b) for b in blocks], torch.ones(1, 1, dtype=F64)
        gradients.add_clipped_examples(
            to, blocks, Batch(torch.arange(6).unsqueeze(0), 1 / 6), slice(0, 1), one, one
        )
        assert to[0].any() and set(gradients.tiles.values()) <= widths


def test_the_first_shape_that_passes_is_taken():
    tried = []

    def same(width, columns):
        tried.append((width, columns))
        return (width, columns) == (24, True)

    assert choose_tile(64.0, same) == (24, True)
    assert tried[:3] == [(96, False), (96, True), (48, False)]
    assert choose_tile(16.0, lambda *_: True) == (48, False)
    assert choose_tile(64.0, lambda *_: True, widest=20) == (16, False)
    assert choose_tile(64.0, lambda *_: False) == (1, True)
    assert (
        same_bits(torch.ones(2, 3))
        and not same_bits(torch.tensor([[1.0, 1.0, 2.0]]))
        and same_bits(torch.tensor([[1.0], [1.0]]), 0)
    )


def test_a_stand_in_lies_as_the_block_does():
    held = torch.zeros(1000)
    for start in (0, 1, 5):
        block = held[start : start + 60].view(3, 4, 5)[:, :, :4]
        found = random_like(block, torch.Generator().manual_seed(0))
        assert memory_layout(found) == memory_layout(block) and found.std() > 0


def test_the_allowance_for_sums_covers_what_they_can_be_rounded_by():
    """Against the bound of docs/noise.md in fractions, for float32 and float64 products."""
    for size in (1, 2, 7, 64, 100, 512, 513, 4000, 100_000):
        sizes = torch.tensor([float(size)], dtype=F64)
        light = int(float32_limits(sizes))
        assert light == 0 if size > 512 else light >= size
        for dtype, to in ((F32, F32), (F32, F64), (F64, F64)):
            allowed = Fraction(float(sum_slack(sizes, dtype, to)))
            assert allowed < Fraction(1, 100) or (to is F32 and size > 4000)
            for count in sorted({1, light // 2, light, light + 1, 2 * size + 32, 4 * size + 256}):
                if to is F32 and size > 512 and count > 2 * size + 32:
                    continue  # so many are never drawn of more than 512
                unit = Fraction(1, 2**24) if dtype is F32 and count <= light else Fraction(1, 2**53)
                for width in (1, 2, 8, 48, WIDEST):
                    depth = width * unit / (1 - width * unit) + Fraction(-(-count // width), 2**53)
                    depth += Fraction(1, 2**24) if to is F32 else 0
                    most = 2 * count * depth * (1 + depth)
                    assert most <= allowed, (size, dtype, to, count, width)


@pytest.mark.parametrize(("size", "most"), [(8, 16), (16, 24), (64, 80), (80, 96)])
def test_a_tile_has_a_batch_and_little_more(size, most):
    """All of a tile is computed: 96 places for 64 examples took half as long again."""
    assert cheapest_widths(size, True)[0] == size
    assert size < cheapest_widths(size, False)[0] <= most
    for fixed in (True, False):
        widths = cheapest_widths(size, fixed)
        assert len(set(widths)) == len(widths) and max(widths) == WIDEST


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_only_batches_of_a_fixed_size_say_so(sampling):
    """Otherwise the width of a tile would follow from who was drawn."""
    exact = sampling == "fixed"
    assert secret_batch(50, 8, sampling, os.urandom).fixed == exact
    for words in (None, lambda step, n: np.frombuffer(os.urandom(4 * n), "<u4")):
        assert Batches([50, 50], 8, sampling, [0], words=words).draw(0).fixed == exact


def test_expected_sizes_come_from_weights_alone():
    weights = torch.tensor([[0.25, 0.25, 0.0], [0.0, 0.0, 0.0], [0.01, 0.0, 0.0]], dtype=F64)
    assert nominal_sizes(weights).tolist() == pytest.approx([4.0, 1.0, 100.0])
