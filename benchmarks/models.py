"""What per-example privacy costs on models that people have: milliseconds of one step's gradients
for 16 users of 64 examples, each user with a model of its own. One JSON row each.

    python benchmarks/models.py [--gpu] [cnn] [transformer] [large]

Each row compares, in one process and in turns, the median of some repetitions: `plain`, the
gradient of one model on the same examples; `decor`, all users' examples clipped one by one, with
one model for each user; `general`, the same by torch.func; `opacus` and `opacus ghost`, one model
on these examples (pip install opacus). `one user` is one of the users alone, and `node` the same
user's step as its node takes it: in float64, in tiles that are summed exactly. Without --gpu it is
CPU time of one thread. Noise and gossip are not part of it. On a GPU `decor.train` is a whole step,
whose kernels are recorded and replayed.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

import decor
from decor.learning.batches import Batch
from decor.learning.gradients.book_keeping import BookKeeping
from decor.learning.gradients.modules import Modules
from decor.training.cuda.steps import matmul_precision

USERS, EXAMPLES = 16, 64
GPU = "--gpu" in sys.argv[1:]
DEVICE = torch.device("cuda" if GPU else "cpu")


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2, padding=2),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 49, 10),
    )


def wide_cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if outputs < 128 else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(128, 10))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        found = functional.scaled_dot_product_attention(q, k, v)
        return self.out(found.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first(x))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Recurrent(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layer = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.words(x))[0].mean(1))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.out = nn.Linear(width, 4)
        self.register_buffer("order", torch.arange(tokens))

    def forward(self, x: Tensor) -> Tensor:
        # one row of places for each sequence, because Opacus takes no other
        x = self.words(x) + self.places(self.order.repeat(len(x), 1))
        return self.out(self.blocks(x).mean(1))


def pictures(channels: int, size: int, count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, channels, size, size), torch.randint(10, (count,))


def sentences(vocabulary: int, tokens: int, count: int) -> tuple[Tensor, Tensor]:
    return torch.randint(vocabulary, (count, tokens)), torch.randint(4, (count,))


MODELS: dict[
    str, tuple[str, Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]], int]
] = {
    "cnn": ("CNN, two 5x5 convolutions, 28 x 28", cnn, lambda n: pictures(1, 28, n), 1024),
    "transformer": (
        "transformer, 2 layers, 80 sequences of 16 tokens",
        lambda: Transformer(300, 48, 2, 16),
        lambda n: sentences(300, 16, n),
        80,
    ),
    "sequences": (
        "transformer, 2 layers, 1,024 sequences of 16 tokens",
        lambda: Transformer(300, 48, 2, 16),
        lambda n: sentences(300, 16, n),
        1024,
    ),
    "lstm": (
        "LSTM of width 32, 1,024 sequences of 16 tokens",
        lambda: Recurrent(300, 32),
        lambda n: sentences(300, 16, n),
        1024,
    ),
}
ON_GPU = {
    "cnn": ("CNN, three 3x3 convolutions, 32 x 32", wide_cnn, lambda n: pictures(3, 32, n), 1024),
    "large": (
        "transformer, 4 layers of width 256, 1,024 sequences of 64 tokens",
        lambda: Transformer(5000, 256, 4, 64),
        lambda n: sentences(5000, 64, n),
        1024,
    ),
}


def ours(
    path: type[Modules],
    model: nn.Module,
    X: Tensor,
    y: Tensor,
    node: bool = False,
    alone: bool = False,
) -> Callable[[], object]:
    """Clipped gradients of all users, as a simulation takes them at example level.

    Args:
        path: The gradient code.
        model: All users' own begin near it.
        X: All users' examples.
        y: Their targets.
        node: As nodes and private runs do: in float64, summed exactly.
        alone: Of the first user alone.
    """
    users = USERS if len(X) % (USERS * 2) == 0 and len(X) > 80 else 5
    each = len(X) // users
    if alone:
        users, X, y = 1, X[:each], y[:each]
    dtype = torch.float64 if node else torch.float32
    shards = list(zip(X.cpu().split(each), y.cpu().split(each), strict=True))
    task = decor.Task(copy.deepcopy(model).cpu(), functional.cross_entropy, shards)
    gradients = path(task, dtype, DEVICE, node)
    start = gradients.initial()[0]
    models = [start + 0.01 * torch.randn(users, 1, 1, len(start), device=DEVICE, dtype=dtype)]
    to = [torch.zeros_like(models[0])]
    rows = torch.arange(len(X), device=DEVICE).view(users, each)
    batch, one = Batch(rows, 1 / each), torch.ones(1, 1, device=DEVICE, dtype=dtype)

    def step() -> None:
        with torch.no_grad():
            gradients.add_clipped_examples(to, models, batch, slice(0, users), one, one)

    return step


def opacus(model: nn.Module, X: Tensor, y: Tensor, mode: str) -> Callable[[], object]:
    """One model's clipped gradients by Opacus, without noise."""
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator
    from torch.utils.data import DataLoader, TensorDataset

    # with layers of its own in place of an LSTM
    model = ModuleValidator.fix(copy.deepcopy(model))
    criterion = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=DataLoader(TensorDataset(X, y), batch_size=len(X)),
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
        **({"criterion": criterion} if mode == "ghost" else {}),
    )
    module, optimizer = made[0], made[1]
    loss = made[2] if mode == "ghost" else criterion

    def step() -> None:
        optimizer.zero_grad()
        loss(module(X), y).backward()
        optimizer.step()

    return step


def training(
    model: nn.Module, draw: Callable[[int], tuple[Tensor, Tensor]], tf32: bool
) -> dict[str, float]:
    """A whole step of `decor.train` on a ring: batches, clipping, noise and gossip."""
    held = 2 * EXAMPLES
    shards = [draw(held) for _ in range(USERS)]
    task = decor.Task(copy.deepcopy(model).cpu(), functional.cross_entropy, shards)
    exposure = {"unit": "example", "batch_size": EXAMPLES, "records": held, "sampling": "fixed"}
    engine = decor.Vectorised(device="cuda", tf32=tf32)

    def seconds(steps: int) -> float:
        plan = decor.NoisePlan(
            decor.ring(USERS),
            decor.Exposure(clip=1.0, steps=steps, **exposure),
            decor.Adversary.eavesdropper(),
            0.05,
            0.3,
        )
        torch.cuda.synchronize()
        began = time.perf_counter()
        decor.train(task, plan, learning_rate=0.1, engine=engine, evaluate_every=10**6)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds(5)
    torch.cuda.reset_peak_memory_stats()
    # what both runs pay for starting cancels
    found = min((seconds(110) - seconds(10)) / 100 for _ in range(3))
    return {"ms": round(1e3 * found, 2), "mb": round(torch.cuda.max_memory_allocated() / 1e6)}


def medians(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds, and megabytes of memory on a GPU, of each way; the ways take turns."""
    found: dict[str, dict[str, float]] = {name: {} for name in ways}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for step in ways.values():
        step(), step()
    for _ in range(repeats):
        for name, step in ways.items():
            if GPU:
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(5):
                    step()
                torch.cuda.synchronize()
                milliseconds = (time.perf_counter() - began) * 200
                found[name]["mb"] = round((torch.cuda.max_memory_allocated() - held) / 1e6)
            else:
                began = time.process_time()
                step()
                milliseconds = (time.process_time() - began) * 1e3
            times[name].append(milliseconds)
    return {
        name: {"ms": round(statistics.median(times[name]), 2), **figures}
        for name, figures in found.items()
    }


def compare(name: str, precision: str) -> None:
    what, make, draw, examples = (ON_GPU if GPU else MODELS)[name]
    torch.manual_seed(0)
    model = make().to(DEVICE)
    X, y = (part.to(DEVICE) for part in draw(examples))

    def plain() -> None:
        torch.autograd.grad(functional.cross_entropy(model(X), y), list(model.parameters()))

    ways: dict[str, Callable[[], object]] = {
        "plain": plain,
        "decor": ours(BookKeeping, model, X, y),
    }
    if not GPU:
        ways["one user"] = ours(BookKeeping, model, X, y, alone=True)
        ways["node"] = ours(BookKeeping, model, X, y, node=True, alone=True)
    if precision == "float32":
        ways["general"] = ours(Modules, model, X, y)
        try:
            ways["opacus"] = opacus(model, X, y, "hooks")
            ways["opacus ghost"] = opacus(model, X, y, "ghost")
        except ModuleNotFoundError:
            pass
    row = {"benchmark": "models", "what": what, "precision": precision, "torch": torch.__version__}
    if GPU:
        row["device"] = torch.cuda.get_device_name()
    with matmul_precision(precision == "tf32") if GPU else nullcontext():
        figures = medians(ways, 7)
    if GPU:
        figures["decor.train"] = training(model, draw, precision == "tf32")
    print(json.dumps({**row, **figures}), flush=True)


def main(words: list[str]) -> None:
    if not GPU:
        torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus' hooks, and of torch.func
        for name in ON_GPU if GPU else MODELS:
            for precision in ("float32", "tf32") if GPU else ("float32",):
                if not words or name in words:
                    compare(name, precision)


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word != "--gpu"])
