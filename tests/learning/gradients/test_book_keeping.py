"""Recorded layers: each kind has the clipped gradients of autograd, example by example."""

import math

import pytest
import torch
from gradient_oracle import F64, added_by, assert_close, clips, expected, scattered, seeded, task
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from decor.learning import losses
from decor.learning.batches import Batch
from decor.learning.gradients import book_keeping, contributions, recording
from decor.learning.gradients.book_keeping import BookKeeping
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.modules import Modules
from decor.learning.task import Task

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
    "PReLU": (lambda: sequence(nn.Linear(5, 4), nn.PReLU(4)), (5,)[:0] + (4, 5)),
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
    from decor.learning.batches import Batches

    names = (11, 12)
    size, sampling = (None, "fixed") if kind == "all" else (3, kind)
    return Batches(sizes, size, sampling, names).draw(3)


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")  # of torch
@pytest.mark.parametrize("kind", ["poisson", "all"])
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_layer_has_the_gradients_of_autograd(name, kind):
    given = made(name)
    gradients, batch = BookKeeping(given, F64, unit="user"), batch_of(kind)
    blocks = scattered(gradients, given.users, scale=0.1)
    state = gradients.state(blocks)
    for level, wanted in expected(given, state, batch, *clips()).items():
        assert_close(added_by(gradients, blocks, batch, level), wanted, 1e-9)
