"""What per-example privacy costs on models that people have: milliseconds of one step's gradients
for 16 users of 64 examples, each user with a model of its own. One JSON row each.

    python benchmarks/models.py [--gpu] [--profile] [NAME or PRECISION ...]

NAMEs are cnn, transformer, sequences and adapters, or with --gpu cnn, large, lora and lora-qv;
PRECISIONs float32, tf32 and bf16. Without any, all are measured. A row that fails says why, and the
others follow.

Each row compares, in one process and in turns, the median of some repetitions: `plain`, the
gradient of one model on the same examples; `decor`, all users' examples clipped one by one, with
one model for each user; `general`, the same by torch.func; `opacus` and `opacus ghost`, one model
on these examples (pip install opacus). `one user` is one of the users alone, and `node` the same
user's step as its node takes it: in tiles that are summed in float64. In `node, poisson` the tiles
are those for a batch of random size, here of the expected one. Without --gpu it is CPU time of one
thread. Noise and gossip are not part of it. On a GPU `decor.train` is a whole step,
whose kernels are recorded and replayed. With --profile the kernels that take longest follow, of
`plain` and `decor`. All in the same precision.
"""

from __future__ import annotations

import copy
import json
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor, nn
from torch.nn import functional

import decor
from decor.learning.batches import Batch
from decor.learning.gradients.book_keeping import BookKeeping
from decor.learning.gradients.modules import Modules
from decor.training.cuda.steps import matmul_precision

USERS = 16
PRECISIONS = ("float32", "tf32", "bf16")
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
    def __init__(
        self, vocabulary: int, width: int, layers: int, tokens: int, heads: int = 4
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
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


@dataclass(frozen=True)
class Row:
    """A model, and the examples of its step.

    Attributes:
        what: It is.
        make: The model.
        draw: So many examples.
        examples: Of a step, of all users.
        precisions: On a GPU.
    """

    what: str
    make: Callable[[], nn.Module]
    draw: Callable[[int], tuple[Tensor, Tensor]]
    examples: int
    precisions: tuple[str, ...] = ("float32",)


def body() -> nn.Module:
    """Twelve layers of width 768: 85 million parameters beside embeddings."""
    return Transformer(1000, 768, 12, 128, heads=12)


MODELS = {
    "cnn": Row("CNN, two 5x5 convolutions, 28 x 28", cnn, lambda n: pictures(1, 28, n), 1024),
    "transformer": Row(
        "transformer, 2 layers, 80 sequences of 16 tokens",
        lambda: Transformer(300, 48, 2, 16),
        lambda n: sentences(300, 16, n),
        80,
    ),
    "sequences": Row(
        "transformer, 2 layers, 1,024 sequences of 16 tokens",
        lambda: Transformer(300, 48, 2, 16),
        lambda n: sentences(300, 16, n),
        1024,
    ),
    "lstm": Row(
        "LSTM of width 32, 1,024 sequences of 16 tokens",
        lambda: Recurrent(300, 32),
        lambda n: sentences(300, 16, n),
        1024,
    ),
    "adapters": Row(
        "LoRA of rank 4 on a frozen transformer, 4 layers of width 128, 128 sequences of 32 tokens",
        lambda: decor.models.lora(Transformer(300, 128, 4, 32), rank=4),
        lambda n: sentences(300, 32, n),
        128,
    ),
}
ON_GPU = {
    "cnn": Row(
        "CNN, three 3x3 convolutions, 32 x 32",
        wide_cnn,
        lambda n: pictures(3, 32, n),
        1024,
        ("float32", "tf32"),
    ),
    "large": Row(
        "transformer, 4 layers of width 256, 1,024 sequences of 64 tokens",
        lambda: Transformer(5000, 256, 4, 64),
        lambda n: sentences(5000, 64, n),
        1024,
        PRECISIONS,
    ),
    "lora": Row(
        "LoRA of rank 8 on all linear layers of a frozen transformer, 85 M parameters, 128 "
        "sequences of 128 tokens",
        lambda: decor.models.lora(body(), rank=8),
        lambda n: sentences(1000, 128, n),
        128,
        ("bf16", "tf32"),
    ),
    "lora-qv": Row(
        "LoRA of rank 8 on queries and values of a frozen transformer, 85 M parameters, 128 "
        "sequences of 128 tokens",
        lambda: decor.models.lora(body(), rank=8, targets=("query", "value")),
        lambda n: sentences(1000, 128, n),
        128,
        ("bf16",),
    ),
}


def ours(
    path: type[Modules],
    model: nn.Module,
    X: Tensor,
    y: Tensor,
    node: bool = False,
    poisson: bool = False,
    alone: bool = False,
    bf16: bool = False,
) -> Callable[[], object]:
    """Clipped gradients of all users, as a simulation takes them at example level.

    Args:
        path: The gradient code.
        model: All users' own begin near it.
        X: All users' examples.
        y: Their targets.
        node: As nodes and private runs do: in tiles that are summed in float64.
        poisson: In tiles for batches of random size.
        alone: Of the first user alone.
        bf16: With short operands.
    """
    users = USERS if len(X) % (USERS * 2) == 0 and len(X) > 80 else 5
    each = len(X) // users
    if alone:
        users, X, y = 1, X[:each], y[:each]
    shards = list(zip(X.cpu().split(each), y.cpu().split(each), strict=True))
    task = decor.Task(copy.deepcopy(model).cpu(), functional.cross_entropy, shards)
    gradients = path(task, torch.float32, DEVICE, node, bf16=bf16)
    start = gradients.initial()[0]
    models = [start + 0.01 * torch.randn(users, 1, 1, len(start), device=DEVICE)]
    to = [torch.zeros_like(models[0], dtype=torch.float64 if node else torch.float32)]
    rows = torch.arange(len(X), device=DEVICE).view(users, each)
    batch = Batch(rows, 1 / each, fixed=not poisson)
    one = torch.ones(1, 1, device=DEVICE)

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


def training(model: nn.Module, row: Row, precision: str) -> dict[str, float]:
    """A whole step of `decor.train` on a ring: batches, clipping, noise and gossip."""
    size = row.examples // USERS
    held = 2 * size
    shards = [row.draw(held) for _ in range(USERS)]
    task = decor.Task(copy.deepcopy(model).cpu(), functional.cross_entropy, shards)
    exposure = {"unit": "example", "batch_size": size, "records": held, "sampling": "fixed"}
    engine = decor.Vectorised(
        device=str(DEVICE), tf32=precision == "tf32", bf16=precision == "bf16"
    )

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


def kernels(step: Callable[[], object], most: int = 15) -> list[list[object]]:
    """The kernels that take longest in a step: [name, milliseconds, calls]."""
    from torch.profiler import ProfilerActivity, profile

    count = 3
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    # entries of operators have the time of their kernels as well
    found = [each for each in seen.key_averages() if "CUDA" in str(each.device_type)]
    found.sort(key=lambda each: -each.self_device_time_total)
    return [
        [each.key[:90], round(each.self_device_time_total / count / 1e3, 3), each.count // count]
        for each in found[:most]
    ]


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


def versions() -> dict[str, str]:
    """Of what was measured, and the day."""
    found = {"decor_version": decor.__version__, "torch": torch.__version__}
    if GPU:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["driver"] = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    else:
        with suppress(PackageNotFoundError):
            found["opacus_version"] = version("opacus")
    return {**found, "date": datetime.now(UTC).date().isoformat()}


def with_precision(precision: str) -> AbstractContextManager[object]:
    """For a plain gradient; `decor` does what is right itself."""
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16")


def compare(row: Row, precision: str, with_kernels: bool) -> None:
    torch.manual_seed(0)
    model = row.make().to(DEVICE)
    X, y = (part.to(DEVICE) for part in row.draw(row.examples))
    trained = [p for p in model.parameters() if p.requires_grad]

    def plain() -> None:
        with with_precision(precision):
            loss = functional.cross_entropy(model(X).float(), y)
        torch.autograd.grad(loss, trained)

    ways: dict[str, Callable[[], object]] = {
        "plain": plain,
        "decor": ours(BookKeeping, model, X, y, bf16=precision == "bf16"),
    }
    if not GPU:
        ways["one user"] = ours(BookKeeping, model, X, y, alone=True)
        ways["node"] = ours(BookKeeping, model, X, y, node=True, alone=True)
        ways["node, poisson"] = ours(BookKeeping, model, X, y, node=True, poisson=True, alone=True)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    if precision == "float32" and not frozen:
        ways["general"] = ours(Modules, model, X, y)
        try:
            ways["opacus"] = opacus(model, X, y, "hooks")
            ways["opacus ghost"] = opacus(model, X, y, "ghost")
        except ModuleNotFoundError:
            pass
    head = {"benchmark": "models", "what": row.what, "precision": precision}
    head |= versions()
    if frozen:
        head |= {"trained": sum(p.numel() for p in trained), "frozen": frozen}
    if GPU:
        head["device"] = torch.cuda.get_device_name()
    with matmul_precision(precision == "tf32") if GPU else nullcontext():
        figures = medians(ways, 7)
        if GPU and with_kernels:
            for name in ("plain", "decor"):
                longest = kernels(ways[name])
                kind = f"kernels of {name}"
                print(json.dumps({**head, "benchmark": kind, "kernels": longest}), flush=True)
    # what gradients hold is not part of a training's memory
    ways.clear()
    if GPU:
        figures["decor.train"] = training(model, row, precision)
    print(json.dumps({**head, **figures}), flush=True)


def main(words: list[str]) -> None:
    if not GPU:
        torch.set_num_threads(1)
    with_kernels = "--profile" in words
    names = {word for word in words if not word.startswith("--")}
    rows = ON_GPU if GPU else MODELS
    precisions = names & {*PRECISIONS} or {*PRECISIONS}
    wanted = names - {*PRECISIONS} or {*rows}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus' hooks, and of torch.func
        for name, row in rows.items():
            for precision in row.precisions:
                if name not in wanted or precision not in precisions:
                    continue
                try:
                    compare(row, precision, with_kernels)
                except Exception as problem:  # the other rows are worth having
                    traceback.print_exc()
                    failed = f"{type(problem).__name__}: {problem}"
                    row_ = {"benchmark": "models", "what": row.what, "precision": precision}
                    print(json.dumps({**row_, "failed": failed[:2000]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
