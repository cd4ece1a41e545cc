"""Recorded layers: each kind has the clipped gradients of autograd, example by example."""

import gc
import warnings
import zlib
from fractions import Fraction

import pytest
import torch
from gradient_oracle import F64, added_by, assert_close, clips, expected, scattered, seeded, task
from hypothesis import HealthCheck, given, settings
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
from decor.learning.gradients.recording import Unsupported

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


def adapted(own, x):
    return (
        own.layer(x)
        + x @ own.A.T @ own.B.T
        + torch.mm(x.flatten(0, 1), own.B.t().T).matmul(own.A).view_as(x)
    )


def by_keyword(own, x):
    h = functional.linear(input=x, weight=own.linear.weight, bias=own.linear.bias)
    h = functional.conv1d(
        input=h.transpose(1, 2), weight=own.conv.weight, bias=own.conv.bias
    ).transpose(1, 2)
    ids = torch.zeros(x.shape[:2], dtype=torch.long)
    return (
        h
        + functional.embedding(input=ids, weight=own.words.weight)
        + torch.matmul(x, other=own.linear.weight)
    )


def without_gradients(own, x):
    with torch.no_grad():
        fixed = own.other(x)
    return own.layer(x) + fixed + torch.tanh(own.other(x))


def shared_keys(own, x):
    q, (k, v) = own.q(x).unflatten(2, (4, 2)), own.kv(x).unflatten(2, (2, 2, 2)).unbind(2)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    found = functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    return own.out(found.transpose(1, 2).flatten(2))


def cells(own, x):
    state, h, z = None, None, None
    for token in x.unbind(1):
        state, h, z = own.lstm(token, state), own.gru(token, h), own.rnn(token, z)
    return state[0] * state[1] + h * z


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
    "embedding bag": (lambda: nn.Sequential(nn.EmbeddingBag(VOCABULARY, 4), nn.Linear(4, 3)), tokens(9)),
    "embedding bag with padding": (lambda: nn.Sequential(nn.EmbeddingBag(VOCABULARY, 4, padding_idx=2), nn.Linear(4, 3)), tokens(4)),
    "embedding bag, weighted sum": (lambda: nn.Sequential(Through(lambda own, x: own.bag(x, per_sample_weights=own.p[x]), bag=nn.EmbeddingBag(VOCABULARY, 4, mode="sum", padding_idx=-1), p=torch.ones(VOCABULARY)), nn.Linear(4, 3)), tokens(6)),
    "embedding bag, largest": (lambda: nn.Sequential(nn.EmbeddingBag(VOCABULARY, 4, mode="max"), nn.Linear(4, 3)), tokens(6)),
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
    "an embedding of two texts": (lambda: nn.Sequential(Through(lambda own, x: own.layer(x[:, :3]).mean(1) * own.layer(x[:, 3:]).mean(1), layer=nn.Embedding(VOCABULARY, 4, padding_idx=1)), nn.Linear(4, 3)), tokens(7)),
    "a parameter that is added": (lambda: sequence(Through(lambda own, x: x + own.p, p=torch.ones(6, 4))), (6, 4)),
    "a parameter of which a part is added": (lambda: sequence(Through(lambda own, x: x + own.p[: x.shape[1]], p=torch.ones(9, 4))), (6, 4)),
    "a parameter that multiplies": (lambda: sequence(nn.Linear(5, 4), Through(lambda own, x: own.p * x, p=torch.ones(4))), (6, 5)),
    "a parameter that is a token": (lambda: sequence(Through(lambda own, x: torch.cat([own.p.expand(len(x), 1, 4), x], 1), p=torch.ones(1, 1, 4))), (6, 4)),
    "a bilinear form": (lambda: nn.Sequential(Through(lambda own, x: own.layer(x, x), layer=nn.Bilinear(4, 4, 3))), (4,)),
    "products with transposed matrices": (lambda: sequence(Through(adapted, layer=nn.Linear(4, 4), A=torch.ones(2, 4), B=torch.ones(4, 2))), (6, 4)),
    "a transposed matrix in other functions": (lambda: sequence(Through(lambda own, x: functional.linear(x * own.A.T.sum(1), own.A.t()) @ own.A.mT, A=torch.ones(4, 4))), (6, 4)),
    "a layer norm with a transposed weight": (lambda: sequence(Through(lambda own, x: functional.layer_norm(x, (3, 4), own.w.T), w=torch.ones(4, 3))), (3, 4)),
    "calls by keyword": (lambda: sequence(Through(by_keyword, linear=nn.Linear(4, 4), conv=nn.Conv1d(4, 4, 1), words=nn.Embedding(VOCABULARY, 4))), (6, 4)),
    "weight norm": (lambda: sequence(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4, bias=False))), (6, 5)),
    "weight norm of a convolution": (lambda: pooled(nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 4, 2)), nn.ReLU(), outputs=4), (2, 4, 5)),
    "a function of a layer's parameters": (lambda: sequence(Through(lambda own, x: torch.func.functional_call(own.layer, {"weight": 2 * own.layer.weight}, (x,)) + own.layer(x), layer=nn.Linear(4, 4))), (6, 4)),
    "a layer without gradients": (lambda: sequence(Through(without_gradients, layer=nn.Linear(4, 4), other=nn.Linear(4, 4))), (6, 4)),
    "a parameter's data": (lambda: sequence(Through(lambda own, x: x @ own.layer.weight.data + own.layer(x) * own.layer.bias.detach(), layer=nn.Linear(4, 4))), (6, 4)),
    "a norm of a parameter": (lambda: sequence(Through(lambda own, x: x * own.rms(own.norm(own.p)) + own.layer(own.p), p=torch.ones(4), norm=nn.LayerNorm(4), rms=nn.RMSNorm(4), layer=nn.Linear(4, 4))), (6, 4)),
    "heads that share keys": (lambda: sequence(Through(shared_keys, q=nn.Linear(4, 8), kv=nn.Linear(4, 8), out=nn.Linear(8, 4))), (6, 4)),
    "LSTM with projections": (lambda: sequence(Through(lambda own, x: own.layer(x)[0], layer=nn.LSTM(5, 6, 2, proj_size=2, bidirectional=True, batch_first=True))), (6, 5)),
    "cells": (lambda: nn.Sequential(Through(cells, lstm=nn.LSTMCell(4, 4), gru=nn.GRUCell(4, 4, bias=False), rnn=nn.RNNCell(4, 4, nonlinearity="relu")), nn.Linear(4, 3)), (3, 4)),
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
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", ["poisson", "all"])
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_layer_has_the_gradients_of_autograd(name, kind):
    trained = made(name)
    gradients, batch = BookKeeping(trained, F64, unit="user"), batch_of(kind)
    blocks = scattered(gradients, trained.users, scale=0.1)
    state = gradients.state(blocks)
    for level, wanted in expected(trained, state, batch, *clips()).items():
        assert_close(added_by(gradients, blocks, batch, level), wanted, 1e-9)


def own_mean(layer, take=lambda out: out):
    """A layer, the mean over all its tokens, and a linear layer that waits for their width."""
    return lambda width: nn.Sequential(
        Through(lambda own, x: take(own.layer(x)), layer=layer),
        Through(lambda own, x: x.flatten(1, -2).mean(1)),
        nn.Linear(width, 3),
    )


def channels_last(out):
    return out.movedim(1, -1)


def convolution(draw, dimensions):
    groups, inputs, outputs, kernel = draw(1, 2), draw(1, 2), draw(1, 2), draw(1, 3)
    stride, padding, dilation = draw(1, 2), draw(0, 2), draw(1, 2)
    size = tuple(draw(dilation * (kernel - 1) + 1, 7) for _ in range(dimensions))
    kind = getattr(nn, f"Conv{dimensions}d")
    layer = kind(
        *(groups * inputs, groups * outputs, kernel, stride, padding, dilation, groups),
        bias=bool(draw(0, 1)),
    )
    return own_mean(layer, channels_last)(groups * outputs), (groups * inputs, *size)


def recurrent(draw, kind):
    inputs, width, both = draw(1, 4), draw(1, 4), bool(draw(0, 1))
    options = {"bias": bool(draw(0, 1)), "bidirectional": both, "batch_first": True}
    layer = kind(inputs, width, draw(1, 2), **options)
    return own_mean(layer, lambda out: out[0])(width * (1 + both)), (draw(1, 5), inputs)


def attention(draw):
    heads, size, kinds = draw(1, 3), draw(1, 3), draw(0, 1)
    layer = nn.MultiheadAttention(heads * size, heads, bias=bool(draw(0, 1)), batch_first=True)
    attend = lambda own, x: own.layer(x, x, x, need_weights=bool(kinds))[0]  # noqa: E731
    return sequence(Through(attend, layer=layer), width=heads * size), (draw(1, 5), heads * size)


def of_tokens(draw, kind):
    width, padding = draw(1, 5), draw(-1, VOCABULARY - 1)
    options = {} if padding < 0 else {"padding_idx": padding}
    layer = kind(VOCABULARY, width, **options)
    rows = (lambda out: out[:, None]) if kind is nn.EmbeddingBag else lambda out: out
    return own_mean(layer, rows)(width), tokens(draw(1, 8))


def widths(draw):
    return draw(1, 6), draw(1, 6)


SHAPES = {
    "linear": lambda draw: (lambda i, o: (own_mean(nn.Linear(i, o, bool(draw(0, 1))))(o), (draw(1, 9), i)))(*widths(draw)),
    "product with a transposed matrix": lambda draw: (lambda i, o: (own_mean(Through(lambda own, x: x @ own.w.T, w=torch.ones(o, i)))(o), (draw(1, 9), i)))(*widths(draw)),
    "convolution 1d": lambda draw: convolution(draw, 1),
    "convolution 2d": lambda draw: convolution(draw, 2),
    "embedding": lambda draw: of_tokens(draw, nn.Embedding),
    "embedding bag": lambda draw: of_tokens(draw, nn.EmbeddingBag),
    "layer norm": lambda draw: (lambda i, o: (own_mean(nn.LayerNorm(i, bias=bool(draw(0, 1))))(i), (o, i)))(*widths(draw)),
    "RMS norm": lambda draw: (lambda i, o: (own_mean(nn.RMSNorm(i))(i), (o, i)))(*widths(draw)),
    "group norm": lambda draw: (lambda i, o: (own_mean(nn.GroupNorm(i, i * o), channels_last)(i * o), (i * o, draw(2, 5))))(*widths(draw)),
    "attention": attention,
    "LSTM": lambda draw: recurrent(draw, nn.LSTM),
    "GRU": lambda draw: recurrent(draw, nn.GRU),
    "RNN": lambda draw: recurrent(draw, nn.RNN),
    "a layer used twice": lambda draw: (lambda i, o: (own_mean(Through(lambda own, x: own.layer(own.layer(x).tanh()), layer=nn.Linear(i, i)))(i), (o, i)))(*widths(draw)),
    "an embedding that is also the output": lambda draw: (Through(lambda own, x: functional.linear(own.layer(x).mean(1), own.layer.weight)[..., :3], layer=nn.Embedding(VOCABULARY, draw(1, 6))), tokens(draw(1, 8))),
    "a parameter that is added": lambda draw: (lambda i, o: (own_mean(Through(lambda own, x: x + own.p, p=torch.ones(o, i)))(i), (o, i)))(*widths(draw)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_layers_of_any_shape_have_the_gradients_of_autograd(name, data):
    """One example at a time, in float64."""
    draw = lambda least, most: data.draw(st.integers(least, most))  # noqa: E731
    model, shape = SHAPES[name](draw)
    options = {"shape": shape} if isinstance(shape, tuple) else {"X": shape}
    trained = task(model, losses.cross_entropy, sizes=(2, 3), seed=draw(0, 99), **options)
    gradients, batch = BookKeeping(trained, F64), batch_of("all", (2, 3))
    blocks = scattered(gradients, 2, scale=0.1, shape=(1, 1))
    clip = torch.tensor([[0.3]], dtype=F64), torch.tensor([[1.5]], dtype=F64)
    wanted = expected(trained, gradients.state(blocks), batch, *clip, levels=("example",))
    found = added_by(gradients, blocks, batch, "example", None, *clip)
    assert_close(found, wanted["example"], 1e-9)


# not embeddings with padding, whose row Opacus trains, unlike torch
OF_OPACUS = (
    "linear over tokens", "linear over one token", "convolution 1d", "convolution 2d", "convolution 3d",
    "convolution, grouped", "embedding", "layer norm", "RMS norm", "group norm", "instance norm",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of Opacus' hooks
@pytest.mark.parametrize("name", OF_OPACUS)
def test_layers_have_the_example_gradients_of_opacus(name):
    opacus = pytest.importorskip("opacus", reason="pip install --no-deps opacus, to compare")
    trained = made(name)
    gradients = BookKeeping(trained, F64)
    X, y = gradients.X, gradients.y
    start = gradients.initial()[0].unsqueeze(0)
    own = gradients._run(gradients._recording(start), X, y, True)
    theirs = opacus.GradSampleModule(trained.model, loss_reduction="sum")
    functional.cross_entropy(theirs(X), y, reduction="sum").backward()
    for parameter, values in trained.model.named_parameters():
        found = own[parameter].gradients(slice(None))
        assert found.shape == values.grad_sample.shape
        assert torch.allclose(found, values.grad_sample, rtol=1e-9, atol=1e-11), parameter


def test_chunks_of_examples_add_up_to_the_batch(monkeypatch):
    trained = made("transformer layer")
    gradients, batch = BookKeeping(trained, F64), batch_of("poisson")
    blocks = scattered(gradients, trained.users, scale=0.1)
    wanted = added_by(gradients, blocks, batch, "example")
    monkeypatch.setattr(book_keeping, "_CPU_CHUNK", 1)
    assert_close(added_by(gradients, blocks, batch, "example"), wanted, 1e-13)


@pytest.mark.parametrize("most", [1, 2, 3, 7])
@pytest.mark.parametrize("sizes", [(7, 7, 7), (4, 7, 3)])
def test_parts_of_a_whole_batch_add_up_to_its_mean(monkeypatch, most, sizes):
    """Memory does not grow with the records of a user."""
    trained = made("transformer layer", sizes=sizes)
    gradients, batch = BookKeeping(trained, F64, unit="user"), batch_of("all", sizes)
    blocks = scattered(gradients, trained.users, scale=0.1)
    wanted = added_by(gradients, blocks, batch, "user")
    taken = []
    run = BookKeeping._run
    monkeypatch.setattr(gradients, "_width", lambda flat: most)

    def counted(own, recording, X, y, single):
        taken.append(len(X) if single else X.shape[1])
        return run(own, recording, X, y, single)

    monkeypatch.setattr(BookKeeping, "_run", counted)
    assert_close(added_by(gradients, blocks, batch, "user"), wanted, 1e-13)
    if sizes == (7, 7, 7):
        assert max(taken) == most and sum(taken) == 7


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


SCALES = st.sampled_from([1e-30, 1e-14, 3e-12, 1e-11, 1e-10, 1e-8, 1e-3, 1.0, 1e6, 1e12, 1e18])


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


@pytest.mark.parametrize("sizes", [(2, 30, 50), (3, 60, 60), (40, 500, 700), (6, 3, 4)])
def test_no_length_is_too_short_where_products_of_products_vanish(sizes):
    """Each of both may be a normal number where the product of their squares is none."""
    generator = torch.Generator().manual_seed(0)
    tokens, outputs, inputs = sizes
    for left in range(-36, 20, 3):
        for right in range(-36, 20, 3):
            g = torch.randn(2, tokens, outputs, generator=generator) * 10.0**left
            a = torch.randn(2, tokens, inputs, generator=generator) * 10.0**right
            bound = Outer(g, a).bound().length
            exact = exact_length(torch.bmm(g.double().transpose(1, 2), a.double()))
            # what overflows in float32 is not finite, and adds nothing
            assert (~torch.isfinite(bound) | (bound >= exact * (1 - 1e-12))).all(), (left, right)


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
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
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


@given(st.integers(0, 10**6), SCALES)
@settings(max_examples=20, deadline=None)
def test_a_table_that_is_looked_up_twice_has_the_length_of_the_sum(seed, scale):
    """As of two texts: without a gradient of the whole table for each example."""
    generator = torch.Generator().manual_seed(seed)
    uses = [
        Lookup(
            hostile(generator, 5, tokens, 7, scale=scale),
            torch.randint(4, (5, tokens), generator=generator),
            4,
        )
        for tokens in (12, 3)
    ]
    both = join(uses)
    assert type(both) is Lookup
    exact = exact_length(sum(Lookup(u.g.double(), u.ids, 4).gradients(slice(None)) for u in uses))
    assert (both.bound().length >= exact).all()
    if not 1e-8 <= scale <= 1e12:  # then the bound is the size
        return
    none = join([uses[0], Lookup(-uses[0].g, uses[0].ids, 4)])
    assert (none.bound().length <= 1e-2 * uses[0].bound().size).all()


def test_what_is_not_finite_adds_nothing():
    g, a = torch.ones(4, 3, 5), torch.ones(4, 3, 2)
    g[1, 0, 0], a[2, 1, 1] = torch.inf, torch.nan
    product = Outer(g, a)
    assert torch.isfinite(product.bound().length).tolist() == [True, False, False, True]
    to = torch.zeros(2, 5, 2)
    product.add(to, torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=F64))
    assert torch.equal(to, torch.full((2, 5, 2), 3.0))


# From data to what is added, on every kind of contribution.

FACTORS = [0.0, 1e-45, 1e-30, 1e-20, 1e-12, 3e-11, 1e-6, 1.0, 1.0, 1.0, 30.0, 1e6, 1e18, 1e38]
CLIPS = [1e-12, 1e-6, 0.1, 1.0, 1e3, 1e30]
END_TO_END = {
    **{name: KINDS[name] for name in ("linear over tokens", "linear over many tokens", "convolution, grouped", "embedding with padding", "an embedding that is also the output", "embedding bag with padding", "attention with padding", "LSTM", "group norm", "products with transposed matrices", "weight norm")},
    "products of few tokens": (lambda: sequence(nn.Linear(60, 60), width=60), (2, 60)),
    "a convolution used twice": (lambda: nn.Sequential(Through(lambda own, x: own.layer(torch.tanh(own.layer(x))).mean((2, 3)), layer=nn.Conv2d(4, 4, 3, padding=1, groups=2)), nn.Linear(4, 3)), (4, 3, 4)),
    "a weight that is added too": (lambda: sequence(Through(lambda own, x: own.layer(x) + x * own.layer.weight.sum(0), layer=nn.Linear(4, 4))), (6, 4)),
}  # fmt: skip


def longer_than(to, limit):
    """By exact arithmetic, which does not overflow either."""
    square = sum(Fraction(value) ** 2 for value in to.flatten().tolist())
    return square > Fraction(limit) ** 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", END_TO_END)
def test_no_data_or_weights_make_an_example_add_more_than_its_clip(name, exact):
    make, shape = END_TO_END[name]
    options = {"shape": shape} if isinstance(shape, tuple) else {"X": shape}
    trained = task(seeded(make), losses.cross_entropy, sizes=(3,), **options)
    gradients = BookKeeping(trained, F32, exact=exact)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    pick = lambda values: values[int(torch.randint(len(values), (1,), generator=generator))]  # noqa: E731
    X, one, clipped = gradients.X, torch.ones(1, 1), 0
    for trial in range(60):
        state = gradients.state([block[None, None, None] for block in gradients.initial()])
        # first as they are, so that something is clipped
        scale = {key: pick(FACTORS) if trial > 5 and trial % 2 else 1.0 for key in state}
        models = gradients.blocks({key: part * scale[key] for key, part in state.items()})
        gradients.X = X * (pick(FACTORS) if trial > 5 else 1.0) if X.is_floating_point() else X
        clip, size = (CLIPS[trial], 1) if trial < 6 else (pick(CLIPS), pick([1, 64]))
        to = [torch.zeros_like(block, dtype=F64 if exact else F32) for block in models]
        batch = Batch(torch.tensor([[trial % 3]]), 1 / size)
        with torch.no_grad():
            gradients.add_clipped_examples(
                to, models, batch, slice(0, 1), torch.tensor([[clip]]), one
            )
        assert bool(torch.isfinite(to[0]).all())
        limit = torch.tensor(clip).double().item() / size
        assert not longer_than(to[0], limit), (trial, scale, clip)
        clipped += longer_than(to[0], 0.98 * limit)
    assert clipped > 2


# Which path is taken, and what happens to a module that cannot be recorded.


class Crossing(nn.Module):
    """Maps over tokens itself, past everything that could see it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return torch.vmap(self.layer)(x)


@pytest.mark.parametrize("name", ["transformer layer", "convolution 2d", "LSTM"])
@pytest.mark.parametrize("unit", ["user", "example"])
def test_modules_of_common_layers_are_recorded_without_a_word(name, unit):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = choose_gradients(made(name), unit, 3, F32)
    assert type(chosen) is BookKeeping


class Padded(nn.Module):
    """A mean over the tokens that are not padding, which is token 0."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 4, padding_idx=0)
        self.layer, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        real = (x != 0).unsqueeze(-1).to(self.out.weight.dtype)
        # zero by zero where all is padding
        return self.out((torch.tanh(self.layer(self.words(x))) * real).sum(1) / real.sum(1))


class ShortInside(nn.Module):
    """Computes one layer of features from 0 and 1, whose products are exact, in eight bits."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(8, 40, bias=False), nn.Linear(40, 3)

    def forward(self, x):
        with torch.autocast("cpu", BF16):
            h = self.layer((x > 0.5).to(x.dtype))
        return self.out(h.to(x.dtype).tanh())


@pytest.mark.parametrize("exact", [False, True])
def test_a_module_with_a_precision_of_its_own_adds_no_more_than_the_clip(exact):
    """The clip allows for roundings to eight bits only where `bf16` asks for them."""
    trained = task(seeded(ShortInside), losses.cross_entropy, (8,), sizes=(1,) * 40)
    with pytest.warns(UserWarning, match="bfloat16 within a model of torch.float32"):
        gradients = choose_gradients(trained, "example", 3, F32, exact=exact)
    generator, clip = torch.Generator().manual_seed(0), torch.full((1, 1), 1e-3)
    start = gradients.initial()[0]
    models = [start + 0.3 * torch.randn(40, 1, 1, len(start), generator=generator)]
    to, batch = [torch.zeros_like(models[0])], Batch(torch.arange(40).view(40, 1), 1.0)
    gradients.add_clipped_examples(to, models, batch, slice(0, 40), clip, torch.ones(1, 1))
    lengths = to[0].double().flatten(1).norm(dim=1)
    assert 0.9 * float(clip) < float(lengths.max()) <= float(clip)


def wrong_by_three(monkeypatch):
    """A rule whose gradients are three times too long."""
    made = Outer.__init__
    monkeypatch.setattr(Outer, "__init__", lambda own, g, a, *rest: made(own, 3 * g, a, *rest))


@pytest.mark.parametrize(
    ("module", "X"),
    [
        (Padded, tokens(9)),
        (KINDS["embedding with padding"][0], tokens(2)),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), None),
    ],
)
def test_a_wrong_rule_is_noticed_before_training_whatever_the_data_pad(monkeypatch, module, X):
    trained = task(seeded(module), losses.cross_entropy, X=X)
    BookKeeping(trained, F32)
    wrong_by_three(monkeypatch)
    with pytest.raises(Unsupported, match="differs from autograd's"):
        BookKeeping(trained, F32)


def test_a_wrong_rule_is_noticed_where_a_layer_begins_at_zero(monkeypatch):
    """The gradients of layers before it are then zero at first."""
    trained = task(seeded(KINDS["linear over tokens"][0]), losses.cross_entropy, (6, 5))
    with torch.no_grad():
        trained.model[2].weight.zero_()
        trained.model[2].bias.zero_()
    made = Outer.__init__

    def wrong(own, g, a, *rest):
        # of the first layer alone, which has tokens
        made(own, 3 * g if g.shape[1] > 1 else g, a, *rest)

    monkeypatch.setattr(Outer, "__init__", wrong)
    with pytest.raises(Unsupported, match="gradient of '0.weight' differs"):
        BookKeeping(trained, F64)


def test_artificial_tokens_are_those_that_the_model_knows():
    class Two(nn.Module):
        """Tokens of one table choose rows of a smaller one too."""

        def __init__(self):
            super().__init__()
            self.words, self.few = nn.Embedding(50, 4), nn.Embedding(7, 4)
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            return self.out((self.words(x) + self.few(x)).mean(1))

    known = BookKeeping(task(seeded(Two), losses.cross_entropy, X=tokens(9)), F64)
    assert known.ranges == (7, 3)
    generator = torch.Generator().manual_seed(0)
    drawn = known._artificial(known.X, 2, 3, generator)
    assert drawn.shape == (2, 3, 9) and drawn.max() < 7 and (drawn != 0).any(-1).all()
    assert torch.equal(drawn, drawn[:, :1].expand_as(drawn)) and (drawn[0] != drawn[1]).any()
    # a model without a table may take any integers: ones at most
    one_hot = task(
        seeded(lambda: nn.Sequential(Through(lambda own, x: functional.one_hot(x, 7).double()), nn.Flatten(), nn.Linear(14, 3))),
        losses.cross_entropy, X=tokens(2),
    )  # fmt: skip
    assert BookKeeping(one_hot, F64).ranges == (2, 3)
    assert BookKeeping(made("convolution 1d"), F64).ranges == (1, 3)


def test_padded_texts_are_summed_exactly_in_wide_tiles():
    trained = task(seeded(Padded), losses.cross_entropy, X=lambda m, g: 1 + tokens(9)(m, g) % 6)
    gradients = BookKeeping(trained, F64, exact=True)
    blocks = scattered(gradients, 3, scale=0.1)
    added = added_by(gradients, blocks, batch_of("poisson"), "example")
    assert all(bool(torch.isfinite(value).all()) for value in added.values())
    assert all(width > 1 for width, _ in gradients.tiles.values())


def test_a_module_that_cannot_be_recorded_is_trained_one_example_at_a_time():
    trained = task(seeded(Crossing), losses.cross_entropy)
    with pytest.warns(UserWarning, match="cannot be recorded, so gradients of its examples are"):
        chosen = choose_gradients(trained, "example", 3, F64)
    assert type(chosen) is Modules


def test_parameters_that_examples_have_copies_of_are_named_once():
    table = lambda own, x: own.out(own.table[x].mean(1))  # noqa: E731
    trained = task(
        seeded(lambda: Through(table, table=torch.ones(300, 8), out=nn.Linear(8, 3))),
        losses.cross_entropy,
        X=tokens(5),
    )
    with pytest.warns(
        UserWarning, match=r"uses table \(__getitem__\), so gradients of its"
    ) as said:
        chosen = choose_gradients(trained, "example", 3, F64)
    assert len(said) == 1 and isinstance(chosen, Modules)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # a whole batch has one copy; and what is as large as its layer's input is no matter
        assert type(choose_gradients(trained, "user", 3, F64)) is BookKeeping
        added = made("a parameter that is added")
        assert type(choose_gradients(added, "example", 3, F64)) is BookKeeping


def test_torch_func_is_taken_where_copies_take_longer():
    """Of tables that differ between examples torch takes one bag after the other."""

    def bags(own, x):
        starts = torch.arange(len(x)) * x.shape[1]
        return own.out(functional.embedding_bag(x.flatten(), own.table, starts))

    bag = lambda: Through(bags, table=torch.ones(1000, 48), out=nn.Linear(48, 3))  # noqa: E731
    trained = task(seeded(bag), losses.cross_entropy, X=tokens(5))
    with pytest.warns(UserWarning, match=r"table \(embedding_bag\), .* computed one by one"):
        chosen = choose_gradients(trained, "example", 3, F64)
    assert type(chosen) is Modules
    blocks, batch = scattered(chosen, trained.users, scale=0.1), batch_of("poisson")
    recorded = BookKeeping(trained, F64)
    assert recorded.copied == {"table": "embedding_bag"}
    wanted = added_by(recorded, blocks, batch, "example")
    assert_close(added_by(chosen, blocks, batch, "example"), wanted, 1e-12)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_every_parameter_of_common_layers_has_a_rule():
    """A copy for each example would give the same numbers, but be slow."""
    without = {
        "PReLU",
        "instance norm",
        "attention to wider tokens",  # its bias, which is of three layers
        "a bilinear form",
        "convolution, transposed",
        "convolution, padded unequally",
        "a transposed matrix in other functions",
        "embedding bag, weighted sum",
        "embedding bag, largest",
        "a layer norm with a transposed weight",
        "a norm of a parameter",
        "a function of a layer's parameters",
        "weight norm",
        "weight norm of a convolution",
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
