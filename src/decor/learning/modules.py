"""The generic path: any torch module and loss, for all users, seeds and settings together, through torch.func."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from decor.errors import InputError

from .batches import Batch
from .clip import CPU, Blocks, add_clipped
from .task import Task, evaluating

_ROOM = 64_000_000
"""Numbers that gradients of single records may take at a time."""


class Modules:
    """Gradients and metrics of any module: one flat block [users, seeds, settings, parameters]."""

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device = CPU) -> None:
        self.task, self.dtype, self.device = task, dtype, device
        self.model = task.model
        self.trained = {name: p for name, p in task.model.named_parameters() if p.requires_grad}
        self.shapes = {name: p.shape for name, p in self.trained.items()}
        # tied weights have several names; the module loads them all
        first = {id(p): name for name, p in self.trained.items()}
        every = task.model.state_dict(keep_vars=True)
        self.tied = {name: first[id(p)] for name, p in every.items() if id(p) in first and name not in self.trained}
        frozen = {name: p.detach() for name, p in task.model.named_parameters() if not p.requires_grad}
        self.fixed = {name: self._real(value) for name, value in (frozen | dict(task.model.named_buffers())).items()}
        self.X = self._real(torch.cat([X for X, _ in task.shards]))
        self.y = self._real(torch.cat([y for _, y in task.shards]))
        self.starts = torch.tensor([0, *task.counts]).cumsum(0).to(device)
        self.test = None if task.test is None else tuple(self._real(part) for part in task.test)
        self._check_mean()
        self._user: Callable[..., Any] = _over(_over(grad(self._cost), (0, None, None)), 0)
        self._weighted: Callable[..., Any] = _over(_over(grad(self._weighted_cost), (0, None, None, None)), 0)
        record = _over(grad(self._record_cost), (None, 0, 0))
        self._records: Callable[..., Any] = _over(_over(record, (0, None, None)), 0)
        _load()

    def initial(self) -> Blocks:
        return [torch.cat([p.detach().flatten() for p in self.trained.values()]).to(self.device, self.dtype)]

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        return {name: part.contiguous() for name, part in self._named(blocks[0]).items()}

    def blocks(self, state: dict[str, Tensor]) -> Blocks:
        first, shape = next(iter(self.shapes.items()))
        around = state[first].dim() - len(shape)
        return [torch.cat([state[name].flatten(around) for name in self.shapes], -1).to(self.device, self.dtype)]

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        """Everybody's weighted mean gradient, in the shape of `models[users]`."""
        x, rows, weights = self._part(models[0], batch, users)
        X, y = self._records_at(rows)
        G = self._user(x, X, y) if isinstance(weights, float) else self._weighted(x, X, y, weights)
        return [G.view(models[0][users].shape)]

    def add_means(self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor) -> None:
        """to[users] += alpha * clipped mean gradient."""
        add_clipped([to[0][users]], self.mean(models, batch, users), clip, alpha)

    def add_records(self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor) -> None:
        """to[users] += alpha * sum of weighted gradients of single records, each clipped first."""
        x, rows, weights = self._part(models[0], batch, users)
        count, out = x.shape[1], to[0][users]
        limit, rate = (v.reshape(1, -1) if len(x) == len(out) else v.repeat(len(out), 1) for v in (clip, alpha))
        target = out.view(x.shape)
        wide = max(1, _ROOM // max(1, len(x) * count * x.shape[-1]))
        for k in range(0, rows.shape[1], wide):
            part = rows[:, k : k + wide]
            G = self._records(x, *self._records_at(part))  # [B, count, records, parameters]
            if isinstance(weights, Tensor):
                # a record that was not taken counts for nothing, even where its gradient is not a number
                G.masked_fill_((weights[:, None, k : k + wide] == 0).unsqueeze(-1), 0.0)
            norm = torch.linalg.vector_norm(G, dim=-1, dtype=torch.float64)
            factor = (limit.unsqueeze(-1) / norm).clamp_(max=1.0).to(self.dtype).mul_(rate.unsqueeze(-1))
            factor = factor * (weights if isinstance(weights, float) else weights[:, None, k : k + wide])
            target += torch.einsum("bcr,bcrp->bcp", factor, G)

    def evaluate(self, blocks: Blocks) -> dict[str, Tensor]:
        """Metrics of models [count, parameters]: training loss, and on public data test loss and accuracy."""
        rows = [self._evaluated(flat) for flat in blocks[0]]
        return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}

    def _evaluated(self, flat: Tensor) -> dict[str, float]:
        found, start = {"loss": 0.0}, 0
        with torch.no_grad(), evaluating(self.model):
            for m in self.task.counts:
                found["loss"] += float(self._cost(flat, self.X[start : start + m], self.y[start : start + m])) / self.task.users
                start += m
            if self.test is not None:
                X, y = self.test
                output = self._output(flat, X)
                found["test_loss"] = float(self.task.loss(output, y))
                if not y.is_floating_point() and y.dim() == 1:
                    said = output.argmax(-1) if output.dim() > 1 and output.shape[-1] > 1 else output.reshape(len(y)) > 0
                    found["accuracy"] = float((said == y).double().mean())
        return found

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [shape.numel() for shape in self.shapes.values()], dim=-1)
        around = flat.shape[:-1]
        return {name: part.reshape((*around, *shape)) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

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

    def _part(self, block: Tensor, batch: Batch, users: slice) -> tuple[Tensor, Tensor, float | Tensor]:
        per = len(batch.rows) // len(block)
        inside = slice(users.start * per, users.stop * per)
        weights = batch.weights if isinstance(batch.weights, float) else batch.weights[inside].to(self.dtype)
        rows = batch.rows[inside]
        if isinstance(weights, Tensor):
            # padding is a record of the same user: nobody's record is ever looked at for somebody else's message
            own = self.starts[users].repeat_interleave(per).unsqueeze(1)
            rows = torch.where(rows == self.starts[-1], own, rows)
        return block[users].view(len(rows), -1, block.shape[-1]), rows, weights

    def _records_at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        X, y = (part.index_select(0, rows.reshape(-1)) for part in (self.X, self.y))
        return X.view(*rows.shape, *X.shape[1:]), y.view(*rows.shape, *y.shape[1:])

    def _real(self, part: Tensor) -> Tensor:
        return part.to(self.device, self.dtype) if part.is_floating_point() else part.to(self.device)

    def _check_mean(self) -> None:
        """Padded and sampled batches weigh records, which is right for a loss that is the mean over them."""
        few = self._different()
        if len(few) < 2:
            return
        X, y = self.X[few], self.y[few]
        with torch.no_grad(), evaluating(self.model):
            flat = self.initial()[0]
            both, each = float(self._cost(flat, X, y)), [float(self._record_cost(flat, X[k], y[k])) for k in range(len(few))]
        mean = sum(each) / len(each)
        if abs(both - mean) > 1e-3 * (abs(both) + max(map(abs, each))):
            raise InputError(
                f"the loss of {len(each)} records is {both:.6g}, but the mean of their losses is {mean:.6g}; "
                'give a loss that averages over records (reduction="mean"), without weights of classes'
            )

    def _different(self) -> list[int]:
        """A few records, of different classes where there are classes."""
        if self.y.is_floating_point() or self.y.dim() > 1:
            return list(range(min(4, len(self.y))))
        seen: dict[int, int] = {}
        for k, label in enumerate(self.y[:1000].tolist()):
            seen.setdefault(label, k)
        return (list(seen.values()) + [k for k in range(len(self.y)) if k not in seen.values()][:4])[:4]


def _load() -> None:
    """What torch loads, for seconds, when it first differentiates: here, so that processes that part from this one have it.

    Nothing is differentiated: on a machine with a card that starts threads, without which no process that parts can do so.
    """
    import_module("torch._dynamo")
    _over(torch.sin, 0)(torch.zeros(1))


def _over(function: Callable[..., Any], dims: Any) -> Callable[..., Any]:
    """`function` for a whole batch; what is random in it is drawn anew for everybody."""
    return vmap(function, in_dims=dims, randomness="different")
