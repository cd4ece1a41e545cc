"""Gradients and metrics by plain autograd, and the tasks they are compared on."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from decor.learning import losses
from decor.learning.batches import Batches
from decor.learning.gradients.book_keeping import BookKeeping
from decor.learning.gradients.dense_layers import Layers
from decor.learning.gradients.dense_stack import Stack
from decor.learning.gradients.linear import Linear
from decor.learning.gradients.modules import Modules
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
        targets = torch.randint(classes, (m,), generator=generator)
        if m > 1:  # labels of one class are refused
            targets[-1] = (targets[0] + 1) % classes
        return features, targets

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


PATHS = {
    "fast": fast,
    "book-keeping": lambda given, dtype=F64: BookKeeping(given, dtype, unit="user"),
    "generic": lambda given, dtype=F64: Modules(given, dtype),
}


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
    """Gradients of the loss of some examples, by parameter name; `model` is a working copy."""
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
            clip_factor = limit / norm(total) if level == "user" and norm(total) > limit else 1.0
            for name, g in total.items():
                added[level][name][u, s, k] = rate * clip_factor * g
    return added


def added_by(gradients, blocks, batch, level, parts=None, clip=None, alpha=None):
    clip, alpha = clips() if clip is None else (clip, alpha)
    dtype = blocks[0].dtype
    before = [torch.full_like(b, 0.25) for b in blocks]
    to, held = [b.clone() for b in before], [b.clone() for b in blocks]
    add = gradients.add_clipped_examples if level == "example" else gradients.add_clipped_means
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
