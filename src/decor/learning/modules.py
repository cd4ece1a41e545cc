"""The generic path: any torch module and loss, for all users, seeds and settings together, through torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from decor.errors import InputError

from .batches import Batch
from .clip import Blocks, add_clipped
from .task import Task

_ROOM = 64_000_000
"""Numbers that gradients of single records may take at a time."""


class Modules:
    """Gradients and metrics of any module: one flat block [users, seeds, settings, parameters]."""

    def __init__(self, task: Task, dtype: torch.dtype) -> None:
        _refuse(task.model)
        self.task, self.dtype = task, dtype
        self.model = task.model
        self.trained = {name: p for name, p in task.model.named_parameters() if p.requires_grad}
        self.shapes = {name: p.shape for name, p in self.trained.items()}
        frozen = {name: p.detach() for name, p in task.model.named_parameters() if not p.requires_grad}
        self.fixed = {name: self._real(value) for name, value in (frozen | dict(task.model.named_buffers())).items()}
        self.X = self._data(torch.cat([X for X, _ in task.shards]))
        self.y = self._data(torch.cat([y for _, y in task.shards]))
        self.test = None if task.test is None else tuple(self._real(part) for part in task.test)
        self.share = torch.cat([torch.full((m,), 1 / (m * task.users), dtype=torch.float64) for m in task.records])
        self._check_mean()
        self._user: Callable[..., Any] = vmap(vmap(grad(self._cost), in_dims=(0, None, None)), randomness="different")
        self._weighted: Callable[..., Any] = vmap(
            vmap(grad(self._weighted_cost), in_dims=(0, None, None, None)), randomness="different"
        )
        record = vmap(grad(self._record_cost), in_dims=(None, 0, 0), randomness="different")
        self._records: Callable[..., Any] = vmap(vmap(record, in_dims=(0, None, None)), randomness="different")

    def initial(self) -> Blocks:
        return [torch.cat([p.detach().flatten() for p in self.trained.values()]).to(self.dtype)]

    def state(self, blocks: Blocks) -> dict[str, Tensor]:
        return {name: part.contiguous() for name, part in self._named(blocks[0]).items()}

    def blocks(self, state: dict[str, Tensor]) -> Blocks:
        around = next(iter(state.values())).dim() - len(next(iter(self.shapes.values())))
        return [torch.cat([state[name].flatten(around) for name in self.shapes], -1).to(self.dtype)]

    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks:
        """Everybody's weighted mean gradient, in the shape of `models[users]`."""
        x, rows, weights = self._part(models[0], batch, users)
        X, y = self.X[rows], self.y[rows]
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
            G = self._records(x, self.X[part], self.y[part])  # [B, count, records, parameters]
            factor = (limit.unsqueeze(-1) / G.norm(dim=-1)).clamp_(max=1.0).mul_(rate.unsqueeze(-1))
            factor = factor * (weights if isinstance(weights, float) else weights[:, None, k : k + wide])
            target += torch.einsum("bcr,bcrp->bcp", factor, G)

    def evaluate(self, blocks: Blocks) -> dict[str, Tensor]:
        """Metrics of models [count, parameters]: training loss, and on public data test loss and accuracy."""
        rows = [self._evaluated(flat) for flat in blocks[0]]
        return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}

    def _evaluated(self, flat: Tensor) -> dict[str, float]:
        found, start = {"loss": 0.0}, 0
        with torch.no_grad():
            for m in self.task.records:
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
        return {name: part.reshape(*around, *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def _output(self, flat: Tensor, X: Tensor) -> Tensor:
        output: Tensor = functional_call(self.model, {**self._named(flat), **self.fixed}, (X,))
        return output

    def _cost(self, flat: Tensor, X: Tensor, y: Tensor) -> Tensor:
        return self.task.loss(self._output(flat, X), y)

    def _record_cost(self, flat: Tensor, X: Tensor, y: Tensor) -> Tensor:
        return self._cost(flat, X.unsqueeze(0), y.unsqueeze(0))

    def _weighted_cost(self, flat: Tensor, X: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        each: Tensor = vmap(self._record_cost, in_dims=(None, 0, 0), randomness="different")(flat, X, y)
        return (each * weights).sum()

    def _part(self, block: Tensor, batch: Batch, users: slice) -> tuple[Tensor, Tensor, float | Tensor]:
        per = len(batch.rows) // len(block)
        inside = slice(users.start * per, users.stop * per)
        weights = batch.weights if isinstance(batch.weights, float) else batch.weights[inside].to(self.dtype)
        rows = batch.rows[inside]
        return block[users].view(len(rows), -1, block.shape[-1]), rows, weights

    def _real(self, part: Tensor) -> Tensor:
        return part.to(self.dtype) if part.is_floating_point() else part

    def _data(self, part: Tensor) -> Tensor:
        """With a null record at the end, which padded batches point to."""
        return torch.cat([self._real(part), self._real(part)[:1]])

    def _check_mean(self) -> None:
        """Padded and sampled batches weigh records, which is right for a loss that is the mean over them."""
        X, y = self.X[:2], self.y[:2]
        if len(self.X) < 3 or self.model.training and any(isinstance(m, nn.Dropout) for m in self.model.modules()):
            return
        with torch.no_grad():
            flat = self.initial()[0]
            both, each = float(self._cost(flat, X, y)), [float(self._record_cost(flat, X[k], y[k])) for k in range(2)]
        if abs(both - sum(each) / 2) > 1e-3 * (abs(both) + abs(each[0]) + abs(each[1])):
            raise InputError(
                f"the loss of two records is {both:.6g}, but the mean of their losses is {sum(each) / 2:.6g}; "
                'give a loss that averages over records (reduction="mean")'
            )


def _refuse(model: nn.Module) -> None:
    """What would carry private data past the noise, or fail deep inside torch.func."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"the layer {name or 'itself'!r} is {type(module).__name__}, which mixes records and keeps statistics of them "
                "that no noise covers; use nn.GroupNorm or nn.LayerNorm"
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("the model has no parameter that requires a gradient, so there is nothing to train")
