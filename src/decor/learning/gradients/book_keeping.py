"""Any module, without gradients of single examples: one backward pass for all models at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from decor.choices import Unit
from decor.learning.batches import Batch
from decor.learning.task import Task, evaluating

from .clip import CPU, Blocks, factors, limits
from .contributions import Contribution, Convolution, Outer, scaling_error
from .layer_rules import RULES
from .module_randomness import random_states
from .modules import Modules
from .recording import Recording, Unsupported, size_in_memory
from .tiles import cheapest_widths, choose_tile, nominal_sizes, same_bits, sum_slack

_CPU_CHUNK, _GPU_CHUNK = 64_000_000, 4_000_000_000
"""Most values of layers' inputs and outputs in memory at a time."""
_SIZE_OVER_LENGTH = 8.0
"""Typical ratio of a contribution's `size` and length, which balances the two costs of exact sums;
only how much the clip is shortened depends on it.
"""
_TRIED = 4
"""Artificial examples on which recorded gradients are compared with autograd's."""

_DEAR = 1_000
"""Values of copied parameters, of each example, that may take long."""


class BookKeeping(Modules):
    """Gradients and metrics of any module, through recordings of its layers.

    Args:
        task: Model, loss and data.
        dtype: The type of models and gradients.
        device: Where they are kept.
        exact: As of `Layers`.
        unit: What will be clipped.
        bf16: As of `Modules`.

    Raises:
        Exception: Of any kind, if the module cannot be recorded.
    """

    def __init__(
        self,
        task: Task,
        dtype: torch.dtype,
        device: torch.device = CPU,
        exact: bool = False,
        unit: Unit = "example",
        bf16: bool = False,
    ) -> None:
        super().__init__(task, dtype, device, exact, bf16)
        start, generator = self.initial()[0].unsqueeze(0), torch.Generator().manual_seed(0)
        # artificial ones: which path is taken must not depend on private data, because paths round
        # differently
        X, y = (
            self._artificial(like, _TRIED, 1, generator).flatten(0, 1).to(device)
            for like in (self.X, self.y)
        )
        # weights that begin at zero would hide the gradients of others
        noise = torch.randn(start.shape, generator=generator, dtype=dtype).to(device)
        # a trial must not move on the random numbers that training draws
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            before = random_states(device)
            trial = self._recording(start)
            contributions = self._run(trial, X, y, True)
            draws = random_states(device) != before
            if bf16:
                trial = self._recording(start)
                with self.short_products():
                    contributions = self._run(trial, X, y, True)
            if unit == "example":
                self._check_precision(contributions)
            # a whole batch as one example: a module that takes single ones may refuse it
            if unit == "user":
                self._run(self._recording(start), X.unsqueeze(0), y.unsqueeze(0), False)
            # or from its own weights, if others overflow
            models = (start + 0.03 * noise, start)
            if not any(self._compare_with_autograd(model, X, y) for model in models):
                raise Unsupported("no gradient of an artificial example is finite")
        # a replay would repeat what the module draws; exact sums look at values
        self.recordable = device.type == "cuda" and not draws and not exact
        self.values = max(1, trial.values // len(X))
        # a parameter that is added to what it meets is as large as that, and a copy as good as it
        met = trial.values + size_in_memory(X) - trial.copied_values
        dear = trial.copied_values > max(_DEAR * len(X), met)
        self.copied = trial.copied if dear else {}
        self.terms = max((each.terms for each in contributions.values()), default=1)

    def _compare_with_autograd(self, model: Tensor, X: Tensor, y: Tensor) -> int:
        """Refuses a module whose recording misses a part of a gradient.

        Args:
            model: One for all examples, [1, parameters].
            X: Some examples.
            y: Their targets.

        Returns:
            How many examples have a finite gradient, which can be compared.
        """
        # without dropout, which would drop other values each time
        with evaluating(self.model):
            contributions = self._run(self._recording(model), X, y, True)
            # where large values cancel, both ways are uncertain by a share of these
            sizes = _join(contributions)[1] if contributions else torch.zeros(len(X))
            compared = 0
            for k in range(len(X)):
                weights = torch.zeros(len(X), dtype=torch.float64, device=X.device)
                weights[k] = 1.0
                found = torch.zeros_like(model)
                self._add(found, contributions, weights)
                flat = model[0].clone().requires_grad_()
                with torch.enable_grad():
                    cost = self._example_cost(flat, X[k], y[k])
                    (wanted,) = torch.autograd.grad(cost, [flat])
                # says nothing if both overflow
                if not any(bool(torch.isfinite(each).all()) for each in (found, wanted)):
                    continue
                compared += 1
                # by parameter: a large gradient would hide what a small one lacks
                pairs = zip(
                    self._by_name(found[0]).items(), self._by_name(wanted).values(), strict=True
                )
                for (name, one), other in pairs:
                    gap = float((one - other).norm())
                    # not equal to the bit: the two ways add up in different orders
                    most = 1e-3 * float(other.norm()) + 1e-5 * float(sizes[k]) + 1e-12
                    # whatever is not a number is refused too
                    if not gap <= most:
                        raise Unsupported(
                            f"a recorded gradient of {name!r} differs from autograd's by {gap:.3g}"
                        )
            return compared

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        x, rows, weights = self._part(models[0], batch, users)
        flat, count = x.reshape(-1, x.shape[-1]), x.shape[1]
        out = torch.zeros_like(flat)
        if isinstance(weights, Tensor):
            for part, shares in _chunks(rows, weights, self._width(flat)):
                every = _by_model(shares.unsqueeze(1), count).reshape(-1).double()
                self._add(out, self._record(flat, part, count), every)
        else:
            # each model's batch is one example, or several where memory would not hold it: their
            # number follows from shapes alone
            width = self._width(flat)
            for first in range(0, rows.shape[1], width):
                part = rows[:, first : first + width]
                X, y = (_by_model(each.unsqueeze(1), count) for each in self._examples(part))
                with self.short_products():
                    recorded = self._run(
                        self._recording(flat), X.flatten(0, 1), y.flatten(0, 1), False
                    )
                share = part.shape[1] / rows.shape[1]
                shares = torch.full((len(flat),), share, dtype=torch.float64, device=flat.device)
                self._add(out, recorded, None if share == 1 else shares)
        return [out.view(models[0][users].shape)]

    def add_clipped_examples(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * weighted sum of the gradients of examples, each clipped first.

        Guarantee: as `Layers.add_clipped_examples`. A module that draws random numbers draws them
        anew for each example.
        """
        if self.exact and self.device.type == "cuda":
            super().add_clipped_examples(to, models, batch, users, clip, alpha)
            return
        x, rows, weights = self._part(models[0], batch, users)
        out = to[0][users]
        target, count = out.view(x.shape), x.shape[1]
        if isinstance(weights, float):
            weights = torch.full(rows.shape, weights, dtype=torch.float64, device=rows.device)
        cap, rate = (
            v.reshape(1, -1) if len(x) == len(out) else v.repeat(len(out), 1) for v in (clip, alpha)
        )
        flat, sums = x.reshape(-1, x.shape[-1]), target.view(-1, x.shape[-1])
        # what roundings may add to a length, as a share of the size
        roundings = 4 * torch.finfo(self.dtype).eps + scaling_error(flat, self.bf16)
        share = torch.full((len(flat), 1), roundings, dtype=torch.float64, device=rows.device)
        slack = torch.zeros(1, dtype=torch.float64, device=rows.device)
        width = self._width(flat)
        if self.exact:
            sizes = nominal_sizes(weights, batch.planned)
            width = self._tile_width(flat, width, float(sizes.max()), batch.fixed)
            more, slack = self._exact_sums(sizes, width, out.dtype)
            share += more.repeat_interleave(len(flat) // len(more)).unsqueeze(1)
            # rounded to the model's type once, after the last tile, as the slack assumes
            sums = torch.zeros_like(sums, dtype=torch.float64)
        limit = limits(cap, self.dtype, x.shape[-1], slack.unsqueeze(1))
        limit, rate = (v.expand(len(x), count).reshape(-1, 1) for v in (limit, rate))
        for part, shares in _chunks(rows, weights, width, self.exact):
            contributions = self._record(flat, part, count)
            if not contributions:
                return
            self._check_precision(contributions)
            contributions = _settle(contributions, self.exact)
            length, size = _join(contributions)
            length, size = (v.view(len(flat), -1) for v in (length, size))
            bound = length + share * size
            factor = (
                factors(bound, limit) * rate * _by_model(shares.unsqueeze(1), count).flatten(0, 1)
            )
            self._add(sums, contributions, factor.reshape(-1), self.exact)
        if self.exact:
            target += sums.view(target.shape).to(target.dtype)

    def clip_artificial_examples(self, users: int, width: int) -> None:
        flat, X, y = self._artificial_batch(users, width)
        contributions = self._run(self._recording(flat), X.flatten(0, 1), y.flatten(0, 1), True)
        if contributions:
            length, _ = _join(contributions)
            self._add(torch.zeros_like(flat), contributions, factors(length, length / 2))

    def _exact_sums(self, sizes: Tensor, width: int, to: torch.dtype) -> tuple[Tensor, Tensor]:
        """What exact sums over batches cost: (share of an example's size, share of the clip), [B].

        All sums are in float64. Their error is at most `errors` times the largest size of an
        example after clipping, which is at most its limit over the first share.
        """
        # from the planned size: a clip that depended on the realised one would leak it
        most = 4 * sizes + 256
        # additions within a tile, and one per tile
        errors = 2 * most * (width * self.terms + 2 + most / width) * 2.0**-53
        share = (errors / _SIZE_OVER_LENGTH).sqrt()
        return share, sum_slack(sizes, self.dtype, to) + errors / share

    def _width(self, flat: Tensor) -> int:
        """Examples of each model in memory at a time."""
        most = _GPU_CHUNK if flat.is_cuda else _CPU_CHUNK
        return max(1, most // (len(flat) * self.values))

    def _tile_width(self, flat: Tensor, widest: int, expected: float, fixed: bool) -> int:
        """`choose_tile`: the examples of each model in a tile."""
        key = (tuple(flat.shape), widest, expected, fixed)
        if key not in self.tiles:
            self.tiles[key] = choose_tile(
                expected,
                lambda width, columns: not columns and self._same_places(flat, width),
                widest,
                cheapest_widths(expected, fixed),
            )
        return self.tiles[key][0]

    def _same_places(self, flat: Tensor, width: int) -> bool:
        """Whether equal examples in all places have layers' values with the same bits."""
        # the same trial every time, so that a resumed run tries the same numbers
        generator = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            for _ in range(3):
                noise = torch.randn(flat.shape, generator=generator, dtype=self.dtype)
                # unlike models, as users have after the first step
                models = self.initial()[0] + 0.1 * noise
                # what the module draws must not differ between places here
                recording = self._recording(models, "same")
                X, y = (
                    self._artificial(like, len(flat), width, generator).flatten(0, 1)
                    for like in (self.X, self.y)
                )
                try:
                    contributions = self._run(recording, X, y, True)
                except Exception:  # a user's module may refuse artificial examples: one at a time
                    return False
                settled = _settle(contributions, True)
                seen = [values for each in settled.values() for values in each.tensors()]
                for values in (*seen, *_join(settled)):
                    if not same_bits(values.reshape(len(flat), width, -1), 1):
                        return False
        return True

    def _record(self, flat: Tensor, rows: Tensor, count: int) -> dict[str, Contribution]:
        """Contributions of examples [B, width] to models [B * count, parameters]."""
        every = _by_model(rows.unsqueeze(1), count).reshape(-1)
        X, y = self.X.index_select(0, every), self.y.index_select(0, every)
        with self.short_products():
            return self._run(self._recording(flat), X, y, True)

    def _recording(self, flat: Tensor, randomness: str = "different") -> Recording:
        parameters = self._by_name(flat)
        return Recording(self.model, parameters, self.fixed, self.tied, RULES, randomness)

    def _run(
        self, recording: Recording, X: Tensor, y: Tensor, single: bool
    ) -> dict[str, Contribution]:
        """Contributions of examples; if `single`, each is a batch of one."""
        if single:
            X, y = X.unsqueeze(1), y.unsqueeze(1)
        return recording.run(self.task.loss, X, y)

    def _check_precision(self, contributions: dict[str, Contribution]) -> None:
        """Refuses operands whose roundings the clip does not allow for.

        A module may have a precision of its own, such as autocast in its forward.
        """
        for name, each in contributions.items():
            for values in each.tensors():
                kind = values.dtype
                if not kind.is_floating_point or (self.bf16 and kind is torch.bfloat16):
                    continue
                if torch.finfo(kind).eps > torch.finfo(self.dtype).eps:
                    kinds = f"{str(kind).removeprefix('torch.')} within a model of {self.dtype}"
                    raise Unsupported(f"the gradient of {name!r} is made of {kinds}")

    def _add(
        self,
        to: Tensor,
        contributions: dict[str, Contribution],
        factor: Tensor | None,
        wide: bool = False,
    ) -> None:
        """to [n, parameters] += the sums weighted by factors [n * examples]."""
        for (name, shape), part in zip(
            self.shapes.items(),
            torch.split(to, [math.prod(shape) for shape in self.shapes.values()], dim=1),
            strict=True,
        ):
            if name in contributions:
                contributions[name].add(part.view(len(to), *shape), factor, wide)


def _chunks(
    rows: Tensor, weights: Tensor, width: int, padded: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and weights [B, width] of examples that are computed together.

    Args:
        rows: Of all examples, [B, b].
        weights: Theirs.
        width: Examples of each user at a time.
        padded: Whether the last chunk has this width too.
    """
    for k in range(0, rows.shape[1], width):
        part, shares = rows[:, k : k + width], weights[:, k : k + width]
        missing = width - part.shape[1]
        if padded and missing:
            # the user's own first example, at weight zero
            part = torch.cat([part, rows[:, :1].expand(-1, missing)], 1)
            shares = pad(shares, (0, missing))
        yield part, shares


def _settle(contributions: dict[str, Contribution], exact: bool) -> dict[str, Contribution]:
    """With the gradients of examples themselves where they are small.

    Args:
        contributions: By parameter.
        exact: Whether sums are in float64, in which convolutions are slow.
    """
    found: dict[str, Contribution] = {}
    for name, each in contributions.items():
        if isinstance(each, Outer):
            found[name] = each.settle()
        elif exact and isinstance(each, Convolution):
            found[name] = each.keep_gradients()
        else:
            found[name] = each
    return found


def _join(contributions: dict[str, Contribution]) -> tuple[Tensor, Tensor]:
    """Bounds of the lengths and sizes of whole gradients."""
    bounds = [contribution.bound() for contribution in contributions.values()]
    length, size = bounds[0].length, bounds[0].size
    # hypot does not overflow
    for bound in bounds[1:]:
        length, size = torch.hypot(length, bound.length), torch.hypot(size, bound.size)
    return length, size


def _by_model(part: Tensor, count: int) -> Tensor:
    """[B, 1, ...] as [B, count, ...]: models that share examples."""
    return part.expand(-1, count, *part.shape[2:])
