"""Recorded layers: each kind has the clipped gradients of autograd, example by example."""

import gc
import warnings

import pytest
import torch
from gradient_oracle import F64, added_by, assert_close, clips, expected, scattered, seeded, task
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from decor.learning import losses
from decor.learning.batches import Batch, Batches
from decor.learning.gradients import book_keeping, contributions
from decor.learning.gradients.book_keeping import BookKeeping
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.contributions import (
    Convolution,
    Geometry,
    Given,
    Lookup,
    Outer,
    join,
)
from decor.learning.gradients.modules import Modules

F32 = torch.float32
VOCABULARY = 7


def tokens(length):
    return lambda m, generator: torch.randint(VOCABULARY, (m, length), generator=generator)


class Through(nn.Module):
    """A function of the input and of this module's own parameters."""

    def __init__(self, function, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if torch.is_tensor(part) else part)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def pooled(*parts, outputs):
    """Layers, the mean over all but examples and channels, and a linear layer."""
    return nn.Sequential(
        *parts, Through(lambda own, x: x.flatten(2).mean(2)), nn.Linear(outputs, 3)
    )


def sequence(*parts, width=4):
    """Layers of tokens [.., tokens, width], their mean, and a linear layer."""
    return nn.Sequential(*parts, Through(lambda own, x: x.mean(1)), nn.Linear(width, 3))


def hidden_tokens(own, x):
    return own.layer(x, x, x, key_padding_mask=x[..., 0] > 0.8)[0]


def causal(own, x):
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
    return own.layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]


def scores(own, x):
    q, k, v = own.layer(x).chunk(3, -1)
    return functional.scaled_dot_product_attention(q, k, v, x[..., :1] > -0.5)


KINDS = {
    # name: (module, shape of one example or a function that draws examples)
    "linear over tokens": (lambda: sequence(nn.Linear(5, 4)), (6, 5)),
    "linear over many tokens": (lambda: sequence(nn.Linear(3, 4)), (40, 3)),
    "linear without bias": (lambda: sequence(nn.Linear(5, 4, bias=False)), (6, 5)),
    "linear over one token": (lambda: nn.Sequential(nn.Linear(5, 3)), (5,)),
    "linear over a grid": (lambda: nn.Sequential(nn.Linear(5, 2), nn.Flatten(), nn.Linear(12, 3)), (2, 3, 5)),
    "a product": (lambda: sequence(Through(lambda own, x: x @ own.w, w=torch.ones(5, 4))), (6, 5)),
    "convolution 1d": (lambda: pooled(nn.Conv1d(3, 4, 3, stride=2, padding=1), outputs=4), (3, 9)),
    "convolution 2d": (lambda: pooled(nn.Conv2d(2, 4, (3, 2), stride=(2, 1)), outputs=4), (2, 6, 5)),
    "convolution 3d": (lambda: pooled(nn.Conv3d(2, 3, 2), outputs=3), (2, 3, 4, 3)),
    "convolution, dilated": (lambda: pooled(nn.Conv2d(2, 4, 2, dilation=(2, 1), padding=1), outputs=4), (2, 6, 5)),
    "convolution, grouped": (lambda: pooled(nn.Conv2d(4, 6, 3, groups=2, padding=1), outputs=6), (4, 5, 4)),
    "convolution, depthwise": (lambda: pooled(nn.Conv2d(4, 4, 3, groups=4, bias=False), outputs=4), (4, 5, 4)),
    "convolution, few places": (lambda: pooled(nn.Conv2d(8, 6, 3), outputs=6), (8, 3, 4)),
    "convolution, padded to the same size": (lambda: pooled(nn.Conv2d(2, 4, 3, padding="same"), outputs=4), (2, 4, 5)),
    "convolution, padded unequally": (lambda: pooled(nn.Conv2d(2, 4, 2, padding="same"), outputs=4), (2, 4, 5)),
    "convolution, padded by reflection": (lambda: pooled(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), outputs=4), (2, 4, 5)),
    "convolution, transposed": (lambda: pooled(nn.ConvTranspose2d(2, 4, 2), outputs=4), (2, 3, 4)),
    "embedding": (lambda: sequence(nn.Embedding(VOCABULARY, 4)), tokens(9)),
    "embedding with padding": (lambda: sequence(nn.Embedding(VOCABULARY, 4, padding_idx=2)), tokens(9)),
    "layer norm": (lambda: sequence(nn.Linear(5, 4), nn.LayerNorm(4)), (6, 5)),
    "layer norm over two dimensions": (lambda: sequence(nn.LayerNorm((3, 4))), (3, 4)),
    "layer norm without bias": (lambda: sequence(nn.LayerNorm(4, bias=False)), (3, 4)),
    "RMS norm": (lambda: sequence(nn.Linear(5, 4), nn.RMSNorm(4)), (6, 5)),
    "group norm": (lambda: pooled(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), outputs=4), (2, 4, 5)),
    "instance norm": (lambda: pooled(nn.Conv2d(2, 4, 2), nn.InstanceNorm2d(4, affine=True), outputs=4), (2, 4, 5)),
    "PReLU": (lambda: sequence(nn.Linear(5, 4), nn.PReLU(4)), (4, 5)),
    "attention": (lambda: sequence(Through(lambda own, x: own.layer(x, x, x)[0], layer=nn.MultiheadAttention(4, 2, batch_first=True))), (5, 4)),
    "attention without weights": (lambda: sequence(Through(lambda own, x: own.layer(x, x, x, need_weights=False)[0], layer=nn.MultiheadAttention(4, 2, bias=False, batch_first=True))), (5, 4)),
    "attention, causal": (lambda: sequence(Through(causal, layer=nn.MultiheadAttention(4, 2, batch_first=True))), (5, 4)),
    "attention with padding": (lambda: sequence(Through(hidden_tokens, layer=nn.MultiheadAttention(4, 2, batch_first=True))), (5, 4)),
    "attention to other tokens": (lambda: sequence(Through(lambda own, x: own.layer(x, 2 * x, x + 1)[0], layer=nn.MultiheadAttention(4, 2, batch_first=True))), (5, 4)),
    "attention to wider tokens": (lambda: sequence(Through(lambda own, x: own.layer(x[..., :4], x, x)[0], layer=nn.MultiheadAttention(4, 2, kdim=5, vdim=5, batch_first=True))), (5, 5)),
    "scaled dot product, masked": (lambda: sequence(Through(scores, layer=nn.Linear(4, 12))), (5, 4)),
    "transformer layer": (lambda: sequence(nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)), (5, 4)),
    "transformer layer, norm first": (lambda: sequence(nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")), (5, 4)),
    "LSTM": (lambda: sequence(Through(lambda own, x: own.layer(x)[0], layer=nn.LSTM(5, 4, 2, batch_first=True))), (6, 5)),
    "LSTM in both directions": (lambda: sequence(Through(lambda own, x: own.layer(x)[0], layer=nn.LSTM(5, 2, bidirectional=True, batch_first=True))), (6, 5)),
    "LSTM's last state": (lambda: nn.Sequential(Through(lambda own, x: own.layer(x)[1][1][-1], layer=nn.LSTM(5, 4, batch_first=True)), nn.Linear(4, 3)), (6, 5)),
    "GRU": (lambda: sequence(Through(lambda own, x: own.layer(x)[0], layer=nn.GRU(5, 4, bias=False, batch_first=True))), (6, 5)),
    "RNN": (lambda: sequence(Through(lambda own, x: own.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=nn.RNN(5, 4))), (6, 5)),
    "a layer used twice": (lambda: sequence(Through(lambda own, x: own.layer(own.layer(x).tanh()), layer=nn.Linear(4, 4))), (3, 4)),
    "an embedding that is also the output": (lambda: Through(lambda own, x: functional.linear(own.layer(x).mean(1), own.layer.weight)[..., :3], layer=nn.Embedding(VOCABULARY, 4)), tokens(5)),
    "a parameter that is added": (lambda: sequence(Through(lambda own, x: x + own.p, p=torch.ones(6, 4))), (6, 4)),
    "a parameter of which a part is added": (lambda: sequence(Through(lambda own, x: x + own.p[: x.shape[1]], p=torch.ones(9, 4))), (6, 4)),
    "a parameter that multiplies": (lambda: sequence(nn.Linear(5, 4), Through(lambda own, x: own.p * x, p=torch.ones(4))), (6, 5)),
    "a parameter that is a token": (lambda: sequence(Through(lambda own, x: torch.cat([own.p.expand(len(x), 1, 4), x], 1), p=torch.ones(1, 1, 4))), (6, 4)),
    "a bilinear form": (lambda: nn.Sequential(Through(lambda own, x: own.layer(x, x), layer=nn.Bilinear(4, 4, 3))), (4,)),
    "a frozen weight": (lambda: frozen(sequence(nn.Linear(5, 4), nn.Tanh()), "0.weight"), (6, 5)),
    "a frozen bias": (lambda: frozen(sequence(nn.Linear(5, 4), nn.Tanh()), "0.bias"), (6, 5)),
    "in place": (lambda: sequence(nn.Linear(5, 4), Through(lambda own, x: x.add_(1.0)), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU(inplace=True)), (6, 5)),
}  # fmt: skip


def frozen(model, name):
    model.get_parameter(name).requires_grad_(False)
    return model


def made(name, seed=0, sizes=(4, 7, 3)):
    make, shape = KINDS[name]
    torch.manual_seed(seed)
    options = {"shape": shape} if isinstance(shape, tuple) else {"X": shape}
    return task(seeded(make), losses.cross_entropy, sizes=sizes, seed=seed, **options)


def batch_of(kind, sizes=(4, 7, 3)):
    names = (11, 12)
    size, sampling = (None, "fixed") if kind == "all" else (3, kind)
    return Batches(sizes, size, sampling, names).draw(3)


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")  # of torch
@pytest.mark.parametrize("kind", ["poisson", "all"])
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_layer_has_the_gradients_of_autograd(name, kind):
    trained = made(name)
    gradients, batch = BookKeeping(trained, F64, unit="user"), batch_of(kind)
    blocks = scattered(gradients, trained.users, scale=0.1)
    state = gradients.state(blocks)
    for level, wanted in expected(trained, state, batch, *clips()).items():
        assert_close(added_by(gradients, blocks, batch, level), wanted, 1e-9)


def test_chunks_of_examples_add_up_to_the_batch(monkeypatch):
    trained = made("transformer layer")
    gradients, batch = BookKeeping(trained, F64), batch_of("poisson")
    blocks = scattered(gradients, trained.users, scale=0.1)
    wanted = added_by(gradients, blocks, batch, "example")
    monkeypatch.setattr(book_keeping, "_CPU_CHUNK", 1)
    assert_close(added_by(gradients, blocks, batch, "example"), wanted, 1e-13)


# Bounds of lengths: never below the exact length, whatever cancels, vanishes or overflows.


def exact_length(gradient):
    """Of float32 products added up in float64, whose own rounding is far below what is tested."""
    return gradient.double().flatten(1).square().sum(1).sqrt()


def hostile(generator, *shape, scale=1.0):
    """Tokens that nearly cancel: each is one direction, with signs and a little noise."""
    one = torch.randn(shape[0], 1, shape[2], generator=generator)
    signs = torch.randint(2, (shape[0], shape[1], 1), generator=generator) * 2.0 - 1.0
    noise = 1e-4 * torch.randn(shape, generator=generator)
    return scale * (signs * one + noise)


SCALES = st.sampled_from([1e-30, 1e-14, 1e-3, 1.0, 1e6, 1e18])


@given(
    st.integers(0, 10**6), st.sampled_from([(2, 3, 50), (16, 8, 8), (64, 40, 3)]), SCALES, SCALES
)
@settings(max_examples=60, deadline=None)
def test_no_length_of_a_product_is_too_short(seed, sizes, left, right):
    generator = torch.Generator().manual_seed(seed)
    tokens, outputs, inputs = sizes
    g = hostile(generator, 6, tokens, outputs, scale=left)
    a = torch.randn(6, tokens, inputs, generator=generator) * right
    a[:3] = hostile(generator, 3, tokens, inputs, scale=right)
    a[5] = 0.0
    exact = exact_length(torch.bmm(g.double().transpose(1, 2), a.double()))
    bound = Outer(g, a).bound()
    within = torch.isfinite(bound.length)
    assert (bound.length[within] >= exact[within]).all()
    assert (bound.size[within] >= bound.length[within] * (1 - 1e-12)).all()
    assert bool(within[5]) and bound.length[5] == 0


@given(st.integers(0, 10**6), SCALES)
@settings(max_examples=30, deadline=None)
def test_no_length_of_a_lookup_is_too_short(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    g = hostile(generator, 5, 12, 7, scale=scale)
    lookup = Lookup(g, torch.randint(4, (5, 12), generator=generator), 4)
    exact = exact_length(Lookup(g.double(), lookup.ids, 4).gradients(slice(None)))
    assert (lookup.bound().length >= exact).all()


@given(st.integers(0, 10**6), st.sampled_from([1, 2]), SCALES)
@settings(max_examples=30, deadline=None)
def test_no_length_of_a_convolution_is_too_short(seed, groups, scale):
    generator = torch.Generator().manual_seed(seed)
    geometry = Geometry((3,), (1,), ((1, 1),), (1,), groups)
    shape = (4, 4 // groups, 3)
    g = hostile(generator, 5, 4, 9, scale=scale).unsqueeze(1)
    x = torch.randn(5, 1, 4, 9, generator=generator)
    used = Convolution(g, x, shape, geometry, None)
    precise = Convolution(g.double(), x.double(), shape, geometry, None)
    exact = exact_length(precise.gradients(slice(None)))
    assert (used.bound().length >= exact).all()


@pytest.mark.parametrize("groups", [1, 2])
def test_lengths_whose_squares_vanish_are_not_zero(groups):
    """A clip may be smaller than the root of the smallest number."""
    geometry = Geometry((3,), (1,), ((1, 1),), (1,), groups)
    g, x = torch.full((2, 1, 4, 9), 1e-170, dtype=F64), torch.ones(2, 1, 4, 9, dtype=F64)
    bound = Convolution(g, x, (4, 4 // groups, 3), geometry, None).bound()
    # 4 outputs, 4 / groups inputs, a kernel of 3; at least 8 of 9 places count
    assert (bound.length >= 8e-170 * (16 / groups * 3) ** 0.5).all()


@pytest.mark.parametrize("uses", [1, 2])
def test_products_of_cut_operands_are_part_of_every_length(monkeypatch, uses):
    """As with TF32: what is added may be longer than exact arithmetic says."""
    generator = torch.Generator().manual_seed(0)
    g, a = torch.randn(4, 3, 5, generator=generator), torch.randn(4, 3, 2, generator=generator)
    product = Outer(g, a)
    used = join([product, Given(product.gradients(slice(None)))][:uses])
    exact = uses * exact_length(product.gradients(slice(None)))
    monkeypatch.setattr(contributions, "product_error", lambda like: 0.01)
    bound = used.bound()
    assert (bound.length >= torch.minimum(exact + 0.01 * bound.size, bound.size)).all()


BF16 = torch.bfloat16


def cut(values):
    """As TF32 cuts a float32 value: to eleven bits, towards zero."""
    return (values.view(torch.int32) & -(1 << 13)).view(F32)


@pytest.mark.parametrize("sizes", [(3, 8, 9), (9, 3, 2), (1, 4, 5)])
def test_the_length_of_what_tf32_cuts_is_not_too_short(monkeypatch, sizes):
    """All operands lose as much as they can, which shortens the product that is computed."""
    tokens, outputs, inputs = sizes
    largest = 1 + 2.0**-10 - 2.0**-23
    g, a = (torch.full((2, tokens, width), largest) for width in (outputs, inputs))
    assert float(cut(g)[0, 0, 0]) == 1.0
    exact = exact_length(torch.bmm(g.double().transpose(1, 2), a.double()))
    monkeypatch.setattr(contributions, "product_error", lambda like: contributions._CUT)
    monkeypatch.setattr(
        contributions, "multiply", lambda left, right: torch.bmm(cut(left), cut(right))
    )
    bound = Outer(g, a).bound()
    assert (bound.length >= exact).all() and (bound.length <= exact * 1.01).all()


@given(st.integers(0, 10**6), st.sampled_from([(30, 5), (3, 40)]), SCALES)
@settings(max_examples=40, deadline=None)
def test_no_length_on_the_diagonal_of_products_is_too_short(seed, sizes, scale):
    """A GPU takes the lengths of all tokens from products that it has, of operands that it cut."""
    generator = torch.Generator().manual_seed(seed)
    tokens, width = sizes
    rows = torch.randn(4, tokens, width, generator=generator) * scale
    rows[3] = 0.0
    products = torch.bmm(cut(rows), cut(rows).transpose(1, 2))
    found = contributions.diagonal_lengths(products, width, 2.0**-24, contributions._CUT)
    exact = rows.double().flatten(1).norm(dim=1)
    within = torch.isfinite(found)
    assert (found >= exact)[within].all()
    if 1e-14 < scale < 1e18:
        assert within.all() and (found <= exact * 1.01 + 1e-12).all()


@given(
    st.integers(0, 10**6),
    st.sampled_from([(2, 3, 50), (16, 8, 8), (64, 40, 3), (1, 5, 7), (4, 30, 20)]),
    SCALES,
)
@settings(max_examples=40, deadline=None)
def test_no_length_of_a_product_of_short_operands_is_too_short(seed, sizes, scale):
    generator = torch.Generator().manual_seed(seed)
    tokens, outputs, inputs = sizes
    g = hostile(generator, 6, tokens, outputs, scale=scale).to(BF16)
    a = torch.randn(6, tokens, inputs, generator=generator).to(BF16)
    exact = exact_length(torch.bmm(g.double().transpose(1, 2), a.double()))
    used = Outer(g, a)
    bound = used.bound()
    within = torch.isfinite(bound.length)
    # one token's length has roundings of float64, which the clip allows for
    assert (bound.length * (1 + 1e-13) >= exact)[within].all()
    assert used.gradients(slice(None)).dtype is F32 and used.settle().bound().length.dtype is F64


def with_bf16(given):
    return BookKeeping(given, F32, bf16=True)


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")  # of torch
# PReLU is no function that torch's autocast takes on a CPU
@pytest.mark.parametrize("name", sorted({*KINDS} - {"PReLU"}))
def test_with_short_operands_no_example_adds_more_than_its_clip(name):
    """Rounding to eight bits comes after the length is known, and is part of it."""
    generator = torch.Generator().manual_seed(0)
    gradients = with_bf16(made(name, sizes=(1,) * 40))
    start, clip = gradients.initial()[0], torch.full((1, 1), 1e-3)
    # forty users with a model and an example each
    noise = torch.randn(40, 1, 1, len(start), generator=generator)
    models, to = [start + 0.3 * noise], [torch.zeros_like(noise)]
    batch = Batch(torch.arange(40).view(40, 1), 1.0)
    gradients.add_clipped_examples(to, models, batch, slice(0, 40), clip, torch.ones(1, 1))
    lengths = to[0].double().flatten(1).norm(dim=1)
    assert 0.9 * float(clip) < float(lengths.max()) <= float(clip)


@pytest.mark.parametrize("path", ["recorded", "generic", "user"])
def test_gradients_of_short_operands_are_those_of_full_ones_but_for_eight_bits(path):
    given_ = made("transformer layer, norm first")
    level = "user" if path == "user" else "example"
    full = BookKeeping(given_, F32)
    short = Modules(given_, F32, bf16=True) if path == "generic" else with_bf16(given_)
    blocks, batch = scattered(full, given_.users, scale=0.1), batch_of("all")
    wanted, found = (added_by(each, blocks, batch, level) for each in (full, short))
    gaps = [float((found[name] - wanted[name]).norm() / wanted[name].norm()) for name in wanted]
    # other values, which are near
    assert 1e-5 < max(gaps) < 0.1


def test_a_sum_with_short_and_full_operands_has_those_of_the_full_ones():
    generator = torch.Generator().manual_seed(0)
    g, a = torch.randn(4, 3, 5, generator=generator), torch.randn(4, 3, 2, generator=generator)
    mixed = Outer(g.to(BF16), a)
    assert mixed.g.dtype is F32
    both = join([Outer(g.to(BF16), a.to(BF16)), Given(torch.zeros(4, 5, 2))])
    exact = exact_length(Outer(g.to(BF16), a.to(BF16)).gradients(slice(None)))
    assert (both.bound().length >= exact).all() and (both.bound().length <= 1.001 * exact).all()


def test_small_gradients_of_many_tokens_are_kept_and_add_up_alike():
    generator = torch.Generator().manual_seed(0)
    g, a = torch.randn(4, 30, 3, generator=generator), torch.randn(4, 30, 2, generator=generator)
    settled, factor = Outer(g, a).settle(), torch.tensor([1.0, 0.5, 0.0, 2.0], dtype=F64)
    assert type(settled) is Given and type(Outer(g[:, :1], a[:, :1]).settle()) is Outer
    assert type(Outer(g[:, :2], a[:, :2]).settle()) is Outer
    sums = [torch.zeros(2, 3, 2) for _ in range(2)]
    settled.add(sums[0], factor)
    Outer(g, a).add(sums[1], factor)
    assert torch.allclose(*sums, atol=1e-5)


def test_a_parameter_with_two_uses_has_the_length_of_their_sum():
    generator = torch.Generator().manual_seed(0)
    g, a = torch.randn(4, 3, 5, generator=generator), torch.randn(4, 3, 2, generator=generator)
    twice = (
        join([Outer(g, a), Outer(-g, a)]),
        join([Outer(g, a), Given(-Outer(g, a).gradients(slice(None)))]),
    )
    for none in twice:
        assert (none.bound().length <= 1e-4 * Outer(g, a).bound().length).all()
    double = join([Outer(g, a), Given(Outer(g, a).gradients(slice(None)))])
    assert torch.allclose(double.bound().length, 2 * Outer(g, a).bound().length, rtol=1e-4)


def test_what_is_not_finite_adds_nothing():
    g, a = torch.ones(4, 3, 5), torch.ones(4, 3, 2)
    g[1, 0, 0], a[2, 1, 1] = torch.inf, torch.nan
    product = Outer(g, a)
    assert torch.isfinite(product.bound().length).tolist() == [True, False, False, True]
    to = torch.zeros(2, 5, 2)
    product.add(to, torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=F64))
    assert torch.equal(to, torch.full((2, 5, 2), 3.0))


# Which path is taken, and what happens to a module that cannot be recorded.


class Crossing(nn.Module):
    """Writes through `.data`, past everything that could see it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return functional.linear(
            x, self.layer.weight.data * 1.0 + self.layer.weight, self.layer.bias
        )


@pytest.mark.parametrize("name", ["transformer layer", "convolution 2d", "LSTM"])
@pytest.mark.parametrize("unit", ["user", "example"])
def test_modules_of_common_layers_are_recorded_without_a_word(name, unit):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = choose_gradients(made(name), unit, 3, F32)
    assert type(chosen) is BookKeeping


def test_a_module_that_cannot_be_recorded_is_trained_one_example_at_a_time():
    trained = task(seeded(Crossing), losses.cross_entropy)
    with pytest.warns(UserWarning, match="cannot be recorded, so gradients of its examples are"):
        chosen = choose_gradients(trained, "example", 3, F64)
    assert type(chosen) is Modules


def test_every_parameter_of_common_layers_has_a_rule():
    """A copy for each example would give the same numbers, but be slow."""
    without = {
        "PReLU",
        "instance norm",
        "attention to wider tokens",  # its bias, which is of three layers
        "a bilinear form",
        "convolution, transposed",
        "convolution, padded unequally",
    }
    for name in KINDS:
        if name.startswith("a parameter") or name in without:
            continue
        gradients = BookKeeping(made(name), F32)
        recording = gradients._recording(gradients.initial()[0].unsqueeze(0))
        recording.copy = lambda parameter: pytest.fail(f"{parameter.known_as} was copied")
        gradients._run(recording, gradients.X[:2], gradients.y[:2], True)


def test_a_step_leaves_nothing_in_memory_for_the_collector():
    trained = made("transformer layer")
    gradients, batch = BookKeeping(trained, F64), batch_of("poisson")
    blocks = scattered(gradients, trained.users, scale=0.1)

    def held():
        added_by(gradients, blocks, batch, "example")
        return sum(type(each) is torch.Tensor for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        assert held() == held() == held()
    finally:
        gc.enable()
