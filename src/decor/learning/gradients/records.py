"""All users' data in one table, and how models are measured on it: what the fast paths share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from decor.learning.batches import Batch
from decor.learning.task import Task

from .clip import Blocks, lengths
from .tiles import gather_columns

_ALIGNED = 8
"""Numbers that a row of records has a multiple of on a card: its products are slow where rows begin
anywhere.
"""
_ROOM, _CARD_ROOM = 1_000_000, 256_000_000
"""Numbers that are worked on together: a few megabytes of a processor's cache, or enough to fill a
card.
"""
Forward = Callable[[Blocks, Tensor], Tensor]
"""(blocks [count, inputs, outputs], rows) -> outputs [count, rows, outputs]."""


class Records:
    """Records as rows [features, 1] (the one only if the first layer has a bias), with a null
    record after the last.
    """

    def __init__(
        self,
        task: Task,
        loss: str,
        outputs: int,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.loss, self.outputs, self.bias, self.dtype, self.device = (
            loss,
            outputs,
            bias,
            dtype,
            device,
        )
        self.room = _CARD_ROOM if device.type == "cuda" else _ROOM
        X = self._rows(torch.cat([X.flatten(1) for X, _ in task.shards]))
        X = torch.cat([X, torch.zeros_like(X[:1])]).to(device)
        self.null = len(X) - 1
        self.size = lengths(X)
        # a record beyond float32's range is infinitely long: it adds nothing, and is told from all
        # others by its length alone
        self.fits = bool(torch.isfinite(self.size).all())
        # small whole numbers, such as indicators, are kept as bytes: most of a step on little
        # models is fetching its records
        small = X.to(torch.uint8)
        self.columns = X.shape[1]
        self.X = small if bool((small == X).all()) else X
        if device.type == "cuda":
            self.X = functional.pad(self.X, (0, -self.columns % _ALIGNED))
        y = self._targets(torch.cat([y for _, y in task.shards]))
        self.y = torch.cat([y, y[:1]]).to(device)
        self.test = None
        if task.test is not None:
            self.test = (
                self._rows(task.test[0].flatten(1)).to(device),
                self._targets(task.test[1]).to(device),
            )
        # every user counts the same, as in the objective, whatever the size of its shard
        share = torch.tensor([1 / (m * task.users) for m in task.counts], dtype=torch.float64)
        self.share = share.repeat_interleave(torch.tensor(task.counts)).to(device)

    def taken(self, batch: Batch, block: Tensor, users: slice) -> tuple[Tensor, float | Tensor]:
        """Rows and weights of some users' batches, [B, b]: B is those users, or those users times
        the seeds.
        """
        per = len(batch.rows) // len(block)
        inside = slice(users.start * per, users.stop * per)
        rows, weights = batch.rows[inside], batch.weights
        if isinstance(weights, float):
            return rows, weights
        weights = weights[inside]
        if rows.is_cuda:  # to look would be to wait for the card
            return rows, weights
        used = (weights > 0).any(0).nonzero()  # some users need less padding than all
        wide = int(used[-1]) + 1 if len(used) else 1
        return rows[:, :wide], weights[:, :wide]

    def gathered(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Records [B, b, columns] and targets [B, b, outputs]."""
        flat = rows.reshape(-1)
        X, y = (
            table.index_select(0, flat).to(self.dtype).view(*rows.shape, -1)
            for table in (self.X, self.y)
        )
        return X[..., : self.columns], y

    def gathered_columns(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Records [B, columns, b] and targets [B, outputs, b]: records side by side."""
        A = gather_columns(self.X, rows, self.columns, self.dtype)
        return A, gather_columns(self.y, rows, self.y.shape[1], self.dtype)

    def derivative(self, output: Tensor, target: Tensor, classes: int = -1) -> Tensor:
        """Of every record's loss by the last layer's output, whose dimension `classes` is;
        overwrites the output.
        """
        if self.loss == "logistic":
            output.sigmoid_()
        elif self.loss == "classes":
            # three times as fast as torch's softmax, which is made for many classes
            output = output.sub_(output.amax(classes, keepdim=True)).exp_()
            output.div_(output.sum(classes, keepdim=True))
        return output.sub_(target)

    def metrics(self, blocks: Blocks, forward: Forward, loss: bool = True) -> dict[str, Tensor]:
        """Training loss of `count` models, unless `loss` is False, and on test data test loss and
        accuracy.
        """
        count, wide = len(blocks[0]), max(block.shape[-1] + block.shape[-2] for block in blocks)
        zero = torch.zeros(count, dtype=torch.float64, device=self.device)
        found = {"loss": zero.clone()} if loss else {}
        for part in pieces(len(self.share), count * wide, self.room) if loss else ():
            each = self._losses(
                forward(blocks, self.X[:-1][part, : self.columns].to(self.dtype)), self.y[:-1][part]
            )
            found["loss"] += each.double() @ self.share[part]
        if self.test is not None:
            X, target = self.test
            found["test_loss"], right = zero.clone(), zero.clone()
            for part in pieces(len(X), count * wide, self.room):
                output = forward(blocks, X[part])
                found["test_loss"] += self._losses(output, target[part]).double().sum(1) / len(X)
                right += self._right(output, target[part]).double().sum(1) / len(X)
            if self.loss != "squared":
                found["accuracy"] = right
        return found

    def _losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Every record's loss, [count, records]."""
        if self.loss == "logistic":
            return (functional.softplus(output) - output * target).squeeze(-1)
        if self.loss == "classes":
            return torch.logsumexp(output, -1) - (output * target).sum(-1)
        return (output - target).square().sum(-1) / 2

    def _right(self, output: Tensor, target: Tensor) -> Tensor:
        if self.loss == "logistic":
            return ((output > 0) == (target > 0.5)).squeeze(-1)
        return output.argmax(-1) == target.argmax(-1)

    def _targets(self, y: Tensor) -> Tensor:
        """What the loss compares with: one number a record, or one for every output."""
        if self.loss == "classes" and not y.is_floating_point():
            y = functional.one_hot(y.long(), self.outputs)
        return y.to(self.dtype).reshape(len(y), -1)

    def _rows(self, X: Tensor) -> Tensor:
        X = X.to(self.dtype)
        return torch.cat([X, X.new_ones((len(X), 1))], 1) if self.bias else X


def pieces(records: int, each: int, room: int) -> list[slice]:
    """Parts of the data so small that what is computed of them has no more numbers than there is
    room for.
    """
    size = max(1, min(records, room // each))
    return [slice(k, min(k + size, records)) for k in range(0, records, size)]
