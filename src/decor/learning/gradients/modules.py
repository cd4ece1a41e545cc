"""The generic path: any torch module and loss, through torch.func.

All users, seeds and settings are computed together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from decor.choices import Unit
from decor.errors import InputError
from decor.learning.batches import Batch
from decor.learning.frozen import convert
from decor.learning.task import Task, evaluating

from .clip import CPU, Blocks, add_clipped, factors, lengths, limits
from .module_memory import memory_dropped, remembers
from .recording import at_least_float32
from .tiles import (
    add_into,
    cheapest_widths,
    choose_tile,
    heavy_users,
    nominal_sizes,
    same_bits,
    sum_slack,
)

_CHUNK = 64_000_000
"""Most values of example gradients in memory at a time."""


class Modules:
    """Gradients and metrics of any module: one flat block [users, seeds, settings, parameters].

    Args:
        task: Model, loss and data.
        dtype: The type of models and gradients.
        device: Where they are kept.
        exact: As of `Layers`.
        bf16: Whether gradients are computed from operands of eight bits (autocast to bfloat16).
            They are float32, and so are their lengths and sums.
    """

    recordable = False
    """Whether a GPU may record a step and replay it."""

    def __init__(
        self,
        task: Task,
        dtype: torch.dtype,
        device: torch.device = CPU,
        exact: bool = False,
        bf16: bool = False,
    ) -> None:
        self.task, self.dtype, self.device, self.exact = task, dtype, device, exact
        self.bf16 = bf16
        self.tiles: dict[object, tuple[int, bool]] = {}
        self.model = task.model
        parameters = dict(task.model.named_parameters())
        self.trained = {name: p for name, p in parameters.items() if p.requires_grad}
        self.shapes = {name: p.shape for name, p in self.trained.items()}
        # tied weights have several names, and the module loads all of them
        first = {id(p): name for name, p in self.trained.items()}
        every = task.model.state_dict(keep_vars=True)
        self.tied = {
            name: first[id(p)]
            for name, p in every.items()
            if id(p) in first and name not in self.trained
        }
        frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
        self.fixed = {name: convert(p, device, dtype) for name, p in frozen.items()}
        self.fixed |= {name: self._cast(value) for name, value in task.model.named_buffers()}
        self.X = self._cast(torch.cat([X for X, _ in task.shards]))
        self.y = self._cast(torch.cat([y for _, y in task.shards]))
        with torch.random.fork_rng(devices=[]):
            self.ranges = _integer_ranges(task)
        self.starts = torch.tensor([0, *task.counts]).cumsum(0).to(device)
        self.test = None if task.test is None else tuple(self._cast(part) for part in task.test)
        self._check_mean()
        self._mean_gradient = _over(_over(grad(self._cost), (0, None, None)), 0)
        self._weighted_gradient = _over(_over(grad(self._total_cost), (0, None, None, None)), 0)
        self._by_example, self._by_copy = self._over_examples(False), self._over_examples(True)
        _load()

    def check(self, unit: Unit) -> None:
        """Refuses a module that torch cannot differentiate for many models at once.

        Args:
            unit: What will be clipped.
        """
        start, (X, y) = self.initial()[0].view(1, 1, -1), self._examples_to_try(1)
        on_gpu = self.device.type == "cuda"
        with torch.random.fork_rng(devices=[self.device] if on_gpu else []), self.short_products():
            self._differentiate(self._mean_gradient, start, X.unsqueeze(0), y.unsqueeze(0))
        flat = start.flatten().requires_grad_()
        with evaluating(self.model):
            try:
                with torch.enable_grad():
                    (wanted,) = torch.autograd.grad(self._example_cost(flat, X[0], y[0]), [flat])
            except Exception:  # a user's module may refuse artificial examples
                return
            one = torch.ones(1, 1, dtype=self.dtype, device=self.device)
            found = (
                self._differentiate(self._by_example, start, X[None], y[None])
                if unit == "example"
                else self._differentiate(self._weighted_gradient, start, X[None], y[None], one)
            )
        gap = float((found.flatten() - wanted).norm())
        # far above rounding; what is not finite cannot be compared
        if gap > 1e-2 * float(wanted.norm()):
            raise InputError(
                "torch.func gives another gradient than autograd for the model; leave out hooks on "
                "tensors"
            )

    def short_products(self) -> AbstractContextManager[object]:
        """Within this block products have operands of eight bits, where that was chosen.

        What is computed of examples may be rounded at will: contributions are what is clipped.
        """
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def initial(self) -> Blocks:
        flat = torch.cat([p.detach().flatten() for p in self.trained.values()])
        return [flat.to(self.device, self.dtype)]

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        return {name: part.contiguous() for name, part in self._by_name(blocks[0]).items()}

    def blocks(self, state: dict[str, Tensor]) -> Blocks:
        first, shape = next(iter(self.shapes.items()))
        # leading dimensions of users, seeds and settings
        around = state[first].dim() - len(shape)
        flat = torch.cat([state[name].flatten(around) for name in self.shapes], -1)
        return [flat.to(self.device, self.dtype)]

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        x, rows, weights = self._part(models[0], batch, users)
        X, y = self._examples(rows)
        with self.short_products():
            if isinstance(weights, float):
                G = self._differentiate(self._mean_gradient, x, X, y)
            else:
                G = self._differentiate(self._weighted_gradient, x, X, y, weights.to(self.dtype))
        return [G.view(models[0][users].shape)]

    def add_clipped_means(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * clipped mean gradient."""
        add_clipped([to[0][users]], self.mean(models, batch, users), clip, alpha)

    def add_clipped_examples(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * weighted sum of the gradients of examples, each clipped first.

        Guarantee: as `Layers.add_clipped_examples`. A module that draws random numbers draws them
        anew for each example.
        """
        x, rows, weights = self._part(models[0], batch, users)
        out = to[0][users]
        target = out.view(x.shape)
        if isinstance(weights, float):
            weights = torch.full(rows.shape, weights, dtype=torch.float64, device=rows.device)
        cap, rate = (
            v.reshape(1, -1) if len(x) == len(out) else v.repeat(len(out), 1) for v in (clip, alpha)
        )
        sums, heavy, copies = target, [], False
        slack = torch.zeros(1, dtype=torch.float64, device=rows.device)
        # all gradients of a chunk are in memory at once
        width = max(1, _CHUNK // max(1, len(x) * x.shape[1] * x.shape[-1]))
        if self.exact:
            sizes = nominal_sizes(weights, batch.planned)
            slack = sum_slack(sizes, self.dtype, out.dtype)
            heavy = heavy_users(weights, sizes, self.dtype)
            if not (out.dtype is torch.float64 and target.is_contiguous()):
                sums = torch.zeros_like(target, dtype=torch.float64)
            width, copies = self._tile(x, width, float(sizes.max()), batch.fixed)
        limit = limits(cap, self.dtype, x.shape[-1], slack.unsqueeze(1)).unsqueeze(-1)
        for k in range(0, rows.shape[1], width):
            part, shares = rows[:, k : k + width], weights[:, None, k : k + width]
            if self.exact and part.shape[1] < width:
                # padded with the user's own first example, at weight zero
                missing = width - part.shape[1]
                part = torch.cat([part, rows[:, :1].expand(-1, missing)], 1)
                shares = torch.nn.functional.pad(shares, (0, missing))
            gradients = self._by_copy if copies else self._by_example
            models_of = x.unsqueeze(2).expand(-1, -1, width, -1) if copies else x
            with self.short_products():
                # [B, count, examples, parameters]
                G = self._differentiate(gradients, models_of, *self._examples(part))
            factor = factors(lengths(G), limit).mul_(rate.unsqueeze(-1)) * shares
            tiny = factor.abs() < torch.finfo(self.dtype).smallest_normal
            factor = torch.where(tiny, 0.0, factor)
            # zero times what is not finite would not be zero; on a GPU a look at it would wait
            if G.is_cuda or not bool(factor.all()):
                G.masked_fill_((factor == 0).unsqueeze(-1), 0.0)
            if not self.exact:
                target += _sum_weighted(factor.to(self.dtype), G)
                continue
            for user in heavy:
                sums[user] += _sum_weighted(factor[user : user + 1], G[user : user + 1].double())[0]
                factor[user] = 0.0
            if len(heavy) < len(G):
                add_into(sums, _sum_weighted(factor.to(self.dtype), G))
        if sums is not target:
            target += sums.to(target.dtype)

    def clip_artificial_examples(self, users: int, width: int) -> None:
        """What `add_clipped_examples` computes, of public numbers: to be timed."""
        flat, X, y = self._artificial_batch(users, width)
        G = self._differentiate(self._by_example, flat.unsqueeze(1), X, y)
        norms = lengths(G)
        _sum_weighted(factors(norms, norms / 2).to(self.dtype), G)

    def _differentiate(self, function: Callable[..., Any], *arguments: Tensor) -> Tensor:
        """A gradient; where torch cannot compute it for many models at once, says why."""
        try:
            with memory_dropped(self.model):
                return function(*arguments)  # type: ignore[no-any-return]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:
            cause = str(problem).strip().partition("\n")[0]
            raise InputError(
                f"torch cannot differentiate the model for many users at once ({cause}); leave out "
                "branches on values, .item(), packed sequences, checkpointing and changes of "
                "tensors in place, or take another layer"
            ) from problem

    def _artificial_batch(self, users: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Models [users, parameters], examples and targets [users, width, ...]."""
        generator = torch.Generator().manual_seed(0)
        X, y = (
            self._artificial(like, users, width, generator).to(self.device)
            for like in (self.X, self.y)
        )
        return self.initial()[0].repeat(users, 1), X, y

    def _tile(self, x: Tensor, widest: int, expected: float, fixed: bool) -> tuple[int, bool]:
        """`choose_tile`: examples in a tile, and whether each has a copy of the model to itself."""
        key = (tuple(x.shape), widest, expected, fixed)
        if key not in self.tiles:
            self.tiles[key] = choose_tile(
                expected,
                lambda width, copies: self._same(x, width, copies),
                widest,
                cheapest_widths(expected, fixed),
            )
        return self.tiles[key]

    def _same(self, x: Tensor, width: int, copies: bool) -> bool:
        """Whether equal examples in all places give gradients with the same bits."""
        # an example that the module cannot take would end all work on a GPU
        if self.device.type == "cuda":
            return False
        # "same": what the module draws must not differ between places here
        gradients, generator = self._over_examples(copies, "same"), torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            for _ in range(3):
                noise = torch.randn(x.shape, generator=generator, dtype=self.dtype)
                model = self.initial()[0] + 0.1 * noise
                model = model.unsqueeze(2).expand(-1, -1, width, -1) if copies else model
                try:
                    artificial = (
                        self._artificial(like, len(x), width, generator)
                        for like in (self.X, self.y)
                    )
                    G = self._differentiate(gradients, model, *artificial)
                except Exception:  # a user's module may refuse artificial examples: one at a time
                    return False
                if not same_bits(G, -2):
                    return False
        return True

    def _artificial(self, like: Tensor, B: int, width: int, generator: torch.Generator) -> Tensor:
        """One example for each of B, in `width` places: of public numbers alone.

        Real numbers are from 0 to 1, integers tokens or classes that the model knows.
        """
        shape = (B, 1, *like.shape[1:])
        if like.is_floating_point():
            drawn = torch.rand(shape, generator=generator, dtype=self.dtype)
        else:
            known = self.ranges[1 if like is self.y else 0]
            # token 0 is often padding, on which no gradient depends
            least = 0 if like is self.y else min(1, known - 1)
            drawn = torch.randint(least, known, shape, generator=generator)
            drawn[..., 3::4] = 0
        return drawn.to(like.dtype).expand(B, width, *like.shape[1:]).contiguous()

    def _over_examples(self, copies: bool, randomness: str = "different") -> Callable[..., Any]:
        """Gradients of single examples.

        Args:
            copies: Whether models are [B, settings, examples, parameters], one for each example,
                or [B, settings, parameters].
            randomness: As of `_over`.
        """
        each = _over(grad(self._example_cost), (0 if copies else None, 0, 0), randomness)
        return _over(_over(each, (0, None, None), randomness), 0, randomness)

    def evaluate(self, blocks: Blocks, loss: bool = True) -> dict[str, Tensor]:
        # one model at a time: metrics are rare, and memory stays small
        rows = [self._metrics(flat, loss) for flat in blocks[0]]
        return {
            name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]
        }

    def _metrics(self, flat: Tensor, loss: bool) -> dict[str, float]:
        """Of one model."""
        metrics, start = {"loss": 0.0} if loss else {}, 0
        with torch.no_grad(), evaluating(self.model):
            for m in self.task.counts if loss else ():
                X, y = self.X[start : start + m], self.y[start : start + m]
                metrics["loss"] += float(self._cost(flat, X, y)) / self.task.users
                start += m
            if self.test is not None:
                X, y = self.test
                output = self._output(flat, X)
                metrics["test_loss"] = float(self.task.loss(output, y))
                if not y.is_floating_point() and y.dim() == 1:
                    several = output.dim() > 1 and output.shape[-1] > 1
                    label = output.argmax(-1) if several else output.reshape(len(y)) > 0
                    metrics["accuracy"] = float((label == y).double().mean())
        return metrics

    def _by_name(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [shape.numel() for shape in self.shapes.values()], dim=-1)
        around = flat.shape[:-1]
        return {
            name: part.reshape((*around, *shape))
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def _output(self, flat: Tensor, X: Tensor) -> Tensor:
        output: Tensor = functional_call(self.model, {**self._by_name(flat), **self.fixed}, (X,))
        return output

    def _cost(self, flat: Tensor, X: Tensor, y: Tensor) -> Tensor:
        return self.task.loss(at_least_float32(self._output(flat, X)), y)

    def _example_cost(self, flat: Tensor, X: Tensor, y: Tensor) -> Tensor:
        return self._cost(flat, X.unsqueeze(0), y.unsqueeze(0))

    def _total_cost(self, flat: Tensor, X: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        each: Tensor = _over(self._example_cost, (None, 0, 0))(flat, X, y)
        return (each * weights).sum()

    def _part(
        self, block: Tensor, batch: Batch, users: slice
    ) -> tuple[Tensor, Tensor, float | Tensor]:
        """Models [B, count, parameters], rows and weights of some users."""
        # 1, or the number of seeds, each with its own batch
        per = len(batch.rows) // len(block)
        rows, weights = batch.part(slice(users.start * per, users.stop * per))
        if isinstance(weights, Tensor):
            # padding is the user's own first example: no user's message may depend on the data of
            # another user
            own = self.starts[users].repeat_interleave(per).unsqueeze(1)
            rows = torch.where(rows == self.starts[-1], own, rows)
        return block[users].view(len(rows), -1, block.shape[-1]), rows, weights

    def _examples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        X, y = (part.index_select(0, rows.reshape(-1)) for part in (self.X, self.y))
        return X.view(*rows.shape, *X.shape[1:]), y.view(*rows.shape, *y.shape[1:])

    def _cast(self, part: Tensor) -> Tensor:
        """On the device; real numbers in the models' type."""
        return part.to(self.device, self.dtype if part.is_floating_point() else part.dtype)

    def _check_mean(self) -> None:
        """Refuses a model that mixes examples, and a loss that is no mean over examples: weights of
        examples rely on both.
        """
        try:
            X, y = self._examples_to_try(4)
            with torch.no_grad(), evaluating(self.model):
                flat = self.initial()[0]
                output = self._output(flat, X)
                alone = torch.cat([self._output(flat, x.unsqueeze(0)) for x in X])
                joint = float(self._cost(flat, X, y))
                each = [float(self._example_cost(flat, X[k], y[k])) for k in range(len(X))]
            with torch.no_grad():
                # in the mode in which it trains
                state = {**self._by_name(flat), **self.fixed}
                has_memory = len(X) > 2 and remembers(self.model, state, X)
        except Exception:
            if self.exact:  # a user's module may refuse artificial examples
                return
            raise
        if has_memory:
            raise InputError(
                "the model's output for an example depends on the examples that came before, "
                "which no noise covers; keep no values of examples in the module (states, running "
                "means) from one call to the next"
            )
        # far above rounding
        limit = 1e-3 * (output.abs().max() + alone.abs().max())
        if output.shape == alone.shape and bool(((output - alone).abs() > limit).any()):
            raise InputError(
                "the model's output for an example depends on the other examples of the batch; "
                "take layers that treat each alone, such as nn.LayerNorm or nn.GroupNorm"
            )
        mean = sum(each) / len(each)
        # far above rounding, far below the effect of a sum or of weights
        if abs(joint - mean) > 1e-3 * (abs(joint) + max(map(abs, each))):
            if y.is_floating_point() and output.shape != y.shape:
                raise InputError(
                    "the loss compares every output with every target, because outputs have shape "
                    f"{tuple(output.shape)} and targets {tuple(y.shape)}; give targets in the "
                    "shape of the outputs, such as y[:, None]"
                )
            raise InputError(
                f"the loss of {len(each)} examples is not the mean of their losses; give a loss "
                'that averages over examples (reduction="mean"), without weights of classes'
            )

    def _examples_to_try(self, count: int) -> tuple[Tensor, Tensor]:
        """At most `count` examples, of different classes if there are classes, and their targets.

        Guarantee: with `exact`, they are artificial. Neighbours see which user does not start, so
        no private example may decide it.
        """
        if self.exact:
            return self._artificial_examples(count)
        # equal classes would not reveal a loss that weighs classes
        if self.y.is_floating_point() or self.y.dim() > 1:
            return self.X[:count], self.y[:count]
        first_of: dict[int, int] = {}
        for k, label in enumerate(self.y[:1000].tolist()):
            first_of.setdefault(label, k)
        firsts = list(first_of.values())
        others = [k for k in range(len(self.y)) if k not in firsts]
        few = (firsts + others[:count])[:count]
        return self.X[few], self.y[few]

    def _artificial_examples(self, count: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        X, y = (
            self._artificial(like, count, 1, generator).flatten(0, 1).to(self.device)
            for like in (self.X, self.y)
        )
        if not y.is_floating_point() and y.dim() == 1:
            with torch.no_grad(), evaluating(self.model):
                output = self._output(self.initial()[0], X)
            classes = max(2, output.shape[1]) if output.dim() > 1 else 2
            y = torch.arange(count, device=self.device) % classes
        return X, y


def _load() -> None:
    """Imports what torch loads, for seconds, when it first differentiates.

    Processes that are forked from this one then have it.
    """
    # nothing is differentiated: on a machine with a GPU that starts threads, and forked processes
    # would have to do without them
    import_module("torch._dynamo")
    # a line for each layer and call about speed, such as of an LSTM: nothing a caller could change
    quiet = getattr(torch._C._functorch, "_set_vmap_fallback_warning_enabled", None)
    if quiet is not None:
        quiet(False)
    _over(torch.sin, 0)(torch.zeros(1))


def _integer_ranges(task: Task) -> tuple[int, int]:
    """Integers from zero to below these may stand in artificial examples, and in their targets.

    They follow from the model and the loss, never from the data.
    """
    (X, y), state = task.shards[0], dict(task.model.state_dict())
    tables = [m for m in task.model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    rows = sorted({table.num_embeddings for table in tables}, reverse=True)

    def largest(like: Tensor, candidates: list[int], takes: Callable[[Tensor], Any]) -> int:
        """The first range whose last integer is taken, in all places; zero must be."""
        for known in () if like.is_floating_point() else candidates:
            # on a CPU, where a token that no table has is an error and not the end of all work
            with suppress(Exception):
                takes(torch.full((1, *like.shape[1:]), known - 1, dtype=like.dtype))
                return known
        return 1

    of_X = largest(X, [*rows, 2], lambda X: task.output(state, X))
    if y.is_floating_point():
        return of_X, 1
    X = torch.full((1, *X.shape[1:]), of_X - 1, dtype=X.dtype)
    with suppress(Exception):  # a module may refuse artificial examples
        output = task.output(state, X)
        classes = [output.shape[1], 2] if output.dim() > 1 else [2]
        return of_X, largest(y, classes, lambda y: task.loss(output, y))
    return of_X, 1


def _over(
    function: Callable[..., Any], dims: Any, randomness: str = "different"
) -> Callable[..., Any]:
    """`function` for a whole batch.

    Args:
        function: Of one element.
        dims: The dimension of each argument to map over.
        randomness: Whether what is random is drawn anew for each element, or once with "same".
    """
    return vmap(function, in_dims=dims, randomness=randomness)


def _sum_weighted(factor: Tensor, G: Tensor) -> Tensor:
    """Over examples: [B, count, examples] and [B, count, examples, parameters]."""
    return torch.einsum("bcr,bcrp->bcp", factor, G)
