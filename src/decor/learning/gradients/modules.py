"""The generic path: any torch module and loss, for all users, seeds and settings together, through
torch.func.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from decor.errors import InputError
from decor.learning.batches import Batch
from decor.learning.task import Task, evaluating

from .clip import CPU, Blocks, add_clipped, factors, lengths, limits
from .tiles import add_into, alike, expected_sizes, fixed_tile, light_sizes, sum_slack

_ROOM = 64_000_000
"""Numbers that gradients of single records may take at a time."""


class Modules:
    """Gradients and metrics of any module: one flat block [users, seeds, settings, parameters].

    `exact`: as in `Layers`.
    """

    def __init__(
        self, task: Task, dtype: torch.dtype, device: torch.device = CPU, exact: bool = False
    ) -> None:
        self.task, self.dtype, self.device, self.exact = task, dtype, device, exact
        self.tiles: dict[object, tuple[int, bool]] = {}
        self.model = task.model
        self.trained = {name: p for name, p in task.model.named_parameters() if p.requires_grad}
        self.shapes = {name: p.shape for name, p in self.trained.items()}
        # tied weights have several names; the module loads them all
        first = {id(p): name for name, p in self.trained.items()}
        every = task.model.state_dict(keep_vars=True)
        self.tied = {
            name: first[id(p)]
            for name, p in every.items()
            if id(p) in first and name not in self.trained
        }
        frozen = {
            name: p.detach() for name, p in task.model.named_parameters() if not p.requires_grad
        }
        self.fixed = {
            name: self._real(value)
            for name, value in (frozen | dict(task.model.named_buffers())).items()
        }
        self.X = self._real(torch.cat([X for X, _ in task.shards]))
        self.y = self._real(torch.cat([y for _, y in task.shards]))
        self.starts = torch.tensor([0, *task.counts]).cumsum(0).to(device)
        self.test = None if task.test is None else tuple(self._real(part) for part in task.test)
        self._check_mean()
        self._user: Callable[..., Any] = _over(_over(grad(self._cost), (0, None, None)), 0)
        self._weighted: Callable[..., Any] = _over(
            _over(grad(self._weighted_cost), (0, None, None, None)), 0
        )
        self._records, self._apart = self._over_records(False), self._over_records(True)
        _load()

    def initial(self) -> Blocks:
        return [
            torch.cat([p.detach().flatten() for p in self.trained.values()]).to(
                self.device, self.dtype
            )
        ]

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        return {name: part.contiguous() for name, part in self._named(blocks[0]).items()}

    def blocks(self, state: dict[str, Tensor]) -> Blocks:
        first, shape = next(iter(self.shapes.items()))
        around = state[first].dim() - len(shape)
        return [
            torch.cat([state[name].flatten(around) for name in self.shapes], -1).to(
                self.device, self.dtype
            )
        ]

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        """Everybody's weighted mean gradient, in the shape of `models[users]`."""
        x, rows, weights = self._part(models[0], batch, users)
        X, y = self._records_at(rows)
        G = (
            self._user(x, X, y)
            if isinstance(weights, float)
            else self._weighted(x, X, y, weights.to(self.dtype))
        )
        return [G.view(models[0][users].shape)]

    def add_means(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * clipped mean gradient."""
        add_clipped([to[0][users]], self.mean(models, batch, users), clip, alpha)

    def add_records(
        self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor
    ) -> None:
        """to[users] += alpha * sum of weighted gradients of single records, each clipped first.

        Guarantee: as `Layers.add_records`. A module that draws numbers itself draws them for every
        record anew.
        """
        x, rows, weights = self._part(models[0], batch, users)
        out = to[0][users]
        target = out.view(x.shape)
        if isinstance(weights, float):
            weights = torch.full(rows.shape, weights, dtype=torch.float64, device=rows.device)
        cap, rate = (
            v.reshape(1, -1) if len(x) == len(out) else v.repeat(len(out), 1) for v in (clip, alpha)
        )
        sums, heavy, apart = target, [], False
        slack = torch.zeros(1, dtype=torch.float64, device=rows.device)
        wide = max(1, _ROOM // max(1, len(x) * x.shape[1] * x.shape[-1]))
        if self.exact:
            sizes = expected_sizes(weights)
            slack = sum_slack(sizes, self.dtype, out.dtype)
            if self.dtype is torch.float32:
                heavy = ((weights > 0).sum(1) > light_sizes(sizes)).nonzero().flatten().tolist()
            if not (out.dtype is torch.float64 and target.is_contiguous()):
                sums = torch.zeros_like(target, dtype=torch.float64)
            wide, apart = self._tile(x, wide, float(sizes.max()))
        limit = limits(cap, self.dtype, x.shape[-1], slack.unsqueeze(1)).unsqueeze(-1)
        for k in range(0, rows.shape[1], wide):
            part, shares = rows[:, k : k + wide], weights[:, None, k : k + wide]
            if self.exact and part.shape[1] < wide:  # the user's own first again, for nothing
                missing = wide - part.shape[1]
                part = torch.cat([part, rows[:, :1].expand(-1, missing)], 1)
                shares = torch.nn.functional.pad(shares, (0, missing))
            models_of = x.unsqueeze(2).expand(-1, -1, wide, -1) if apart else x
            # [B, count, records, parameters]
            G = (self._apart if apart else self._records)(models_of, *self._records_at(part))
            factor = factors(lengths(G), limit).mul_(rate.unsqueeze(-1)) * shares
            factor = torch.where(
                factor.abs() < torch.finfo(self.dtype).smallest_normal, 0.0, factor
            )
            # what counts for nothing does so even where its gradient is not a number
            if G.is_cuda or not bool(factor.all()):
                G.masked_fill_((factor == 0).unsqueeze(-1), 0.0)
            if not self.exact:
                target += _weighted_sum(factor.to(self.dtype), G)
                continue
            for user in heavy:
                sums[user] += _weighted_sum(factor[user : user + 1], G[user : user + 1].double())[0]
                factor[user] = 0.0
            if len(heavy) < len(G):
                add_into(sums, _weighted_sum(factor.to(self.dtype), G))
        if sums is not target:
            target += sums.to(target.dtype)

    def _tile(self, x: Tensor, room: int, expected: float) -> tuple[int, bool]:
        """Records of a tile, and whether each has a copy of the model to itself: so that all get
        the same bits.
        """
        key = (tuple(x.shape), room, expected)
        if key not in self.tiles:
            self.tiles[key] = fixed_tile(
                expected, lambda width, apart: self._same(x, width, apart), room
            )
        return self.tiles[key]

    def _same(self, x: Tensor, width: int, apart: bool) -> bool:
        """Whether equal records in all places have gradients of the same bits; numbers that a
        module draws are the same here.
        """
        # a record that a module cannot take would end all work on the card
        if self.device.type == "cuda":
            return False
        gradients, generator = self._over_records(apart, "same"), torch.Generator().manual_seed(0)

        def anything(like: Tensor) -> Tensor:
            """A record of no one's, from 0 to 1; whole numbers are classes or words, of which there
            is a first.
            """
            shape = (len(x), 1, *like.shape[1:])
            drawn = (
                torch.rand(shape, generator=generator, dtype=self.dtype)
                if like.is_floating_point()
                else torch.zeros(shape)
            )
            return drawn.to(like.dtype).expand(len(x), width, *like.shape[1:]).contiguous()

        with torch.random.fork_rng(devices=[]):
            for _ in range(3):
                model = self.initial()[0] + 0.1 * torch.randn(
                    x.shape, generator=generator, dtype=self.dtype
                )
                model = model.unsqueeze(2).expand(-1, -1, width, -1) if apart else model
                try:
                    found = gradients(model, anything(self.X), anything(self.y))
                # other people's code, which takes other records than these: then one at a time
                except Exception:
                    return False
                if not alike(found, -2):
                    return False
        return True

    def _over_records(self, apart: bool, randomness: str = "different") -> Callable[..., Any]:
        """Gradients of single records for models [B, settings, parameters] (`apart`: [B, settings,
        records, parameters]).
        """
        each = _over(grad(self._record_cost), (0 if apart else None, 0, 0), randomness)
        return _over(_over(each, (0, None, None), randomness), 0, randomness)

    def evaluate(self, blocks: Blocks, loss: bool = True) -> dict[str, Tensor]:
        """Metrics of models [count, parameters]: training loss, unless `loss` is False; on test
        data its loss and accuracy.
        """
        rows = [self._evaluated(flat, loss) for flat in blocks[0]]
        return {
            name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]
        }

    def _evaluated(self, flat: Tensor, loss: bool) -> dict[str, float]:
        found, start = {"loss": 0.0} if loss else {}, 0
        with torch.no_grad(), evaluating(self.model):
            for m in self.task.counts if loss else ():
                found["loss"] += (
                    float(self._cost(flat, self.X[start : start + m], self.y[start : start + m]))
                    / self.task.users
                )
                start += m
            if self.test is not None:
                X, y = self.test
                output = self._output(flat, X)
                found["test_loss"] = float(self.task.loss(output, y))
                if not y.is_floating_point() and y.dim() == 1:
                    said = (
                        output.argmax(-1)
                        if output.dim() > 1 and output.shape[-1] > 1
                        else output.reshape(len(y)) > 0
                    )
                    found["accuracy"] = float((said == y).double().mean())
        return found

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [shape.numel() for shape in self.shapes.values()], dim=-1)
        around = flat.shape[:-1]
        return {
            name: part.reshape((*around, *shape))
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def _output(self, flat: Tensor, X: Tensor) -> Tensor:
        output: Tensor = functional_call(self.model, {**self._named(flat), **self.fixed}, (X,))
        return output

    def _cost(self, flat: Tensor, X: Tensor, y: Tensor) -> Tensor:
        return self.task.loss(self._output(flat, X), y)

    def _record_cost(self, flat: Tensor, X: Tensor, y: Tensor) -> Tensor:
        return self._cost(flat, X.unsqueeze(0), y.unsqueeze(0))

    def _weighted_cost(self, flat: Tensor, X: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        each: Tensor = _over(self._record_cost, (None, 0, 0))(flat, X, y)
        return (each * weights).sum()

    def _part(
        self, block: Tensor, batch: Batch, users: slice
    ) -> tuple[Tensor, Tensor, float | Tensor]:
        per = len(batch.rows) // len(block)
        inside = slice(users.start * per, users.stop * per)
        weights = batch.weights if isinstance(batch.weights, float) else batch.weights[inside]
        rows = batch.rows[inside]
        if isinstance(weights, Tensor):
            # padding is a record of the same user: nobody's record is ever looked at for somebody
            # else's message
            own = self.starts[users].repeat_interleave(per).unsqueeze(1)
            rows = torch.where(rows == self.starts[-1], own, rows)
        return block[users].view(len(rows), -1, block.shape[-1]), rows, weights

    def _records_at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        X, y = (part.index_select(0, rows.reshape(-1)) for part in (self.X, self.y))
        return X.view(*rows.shape, *X.shape[1:]), y.view(*rows.shape, *y.shape[1:])

    def _real(self, part: Tensor) -> Tensor:
        return (
            part.to(self.device, self.dtype) if part.is_floating_point() else part.to(self.device)
        )

    def _check_mean(self) -> None:
        """Padded and sampled batches weigh records, which is right for a loss that is the mean over
        them.
        """
        few = self._different()
        if len(few) < 2:
            return
        X, y = self.X[few], self.y[few]
        with torch.no_grad(), evaluating(self.model):
            flat = self.initial()[0]
            both, each = (
                float(self._cost(flat, X, y)),
                [float(self._record_cost(flat, X[k], y[k])) for k in range(len(few))],
            )
        mean = sum(each) / len(each)
        if abs(both - mean) > 1e-3 * (abs(both) + max(map(abs, each))):
            raise InputError(
                f"the loss of {len(each)} records is not the mean of their losses; give a loss "
                "that averages over records "
                '(reduction="mean"), without weights of classes'
            )

    def _different(self) -> list[int]:
        """A few records, of different classes where there are classes."""
        if self.y.is_floating_point() or self.y.dim() > 1:
            return list(range(min(4, len(self.y))))
        seen: dict[int, int] = {}
        for k, label in enumerate(self.y[:1000].tolist()):
            seen.setdefault(label, k)
        return (
            list(seen.values()) + [k for k in range(len(self.y)) if k not in seen.values()][:4]
        )[:4]


def _load() -> None:
    """What torch loads, for seconds, when it first differentiates: here, so that processes that
    part from this one have it.

    Nothing is differentiated: on a machine with a card that starts threads, without which no
    process that parts can do so.
    """
    import_module("torch._dynamo")
    _over(torch.sin, 0)(torch.zeros(1))


def _over(
    function: Callable[..., Any], dims: Any, randomness: str = "different"
) -> Callable[..., Any]:
    """`function` for a whole batch; what is random in it is drawn anew for everybody, or once with
    "same".
    """
    return vmap(function, in_dims=dims, randomness=randomness)


def _weighted_sum(factor: Tensor, G: Tensor) -> Tensor:
    """Over records: [B, count, records] and [B, count, records, parameters]."""
    return torch.einsum("bcr,bcrp->bcp", factor, G)
