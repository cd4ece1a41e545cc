"""All users' examples in one table, and metrics of models on it: what the fast paths share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from decor.learning.batches import Batch
from decor.learning.task import Task

from .clip import Blocks, lengths
from .tiles import select_columns

_ALIGNED = 8
"""On a GPU rows are padded to a multiple of this: products of unaligned rows are slow."""
_CPU_CHUNK, _GPU_CHUNK = 1_000_000, 256_000_000
"""Values computed together: a few megabytes of a CPU's cache, or enough to occupy a GPU."""
Forward = Callable[[Blocks, Tensor], Tensor]
"""(blocks [count, inputs, outputs], rows) -> outputs [count, rows, outputs]."""


class ExampleTable:
    """Examples as rows [features, 1], the 1 only if the first layer has a bias.

    The row after the last is the null example, all zeros, which pads batches.

    Args:
        task: The data.
        loss: "logistic", "classes" or "squared".
        outputs: Of the last layer.
        bias: Whether the first layer has one.
        dtype: The type of models and gradients.
        device: Where the table is kept.
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
        self.loss, self.outputs, self.bias = loss, outputs, bias
        self.dtype, self.device = dtype, device
        self.chunk = _GPU_CHUNK if device.type == "cuda" else _CPU_CHUNK
        # filled in place: large features fit into memory once, and not several times
        X = self._zeros(sum(task.counts) + 1, task.shards[0][0])
        self.null = len(X) - 1
        first = 0
        for shard, _ in task.shards:
            self._fill(X[first : first + len(shard)], shard)
            first += len(shard)
        X = X.to(device)
        self.size = lengths(X)
        # an example beyond float32's range has infinite length, which alone marks it: it adds
        # nothing
        self.fits = bool(torch.isfinite(self.size).all())
        # small integers, such as indicators, are kept as bytes: on small models most of a step is
        # reading examples from memory
        small = X.to(torch.uint8)
        self.columns = X.shape[1]
        self.X = small if bool((small == X).all()) else X
        if device.type == "cuda":
            self.X = functional.pad(self.X, (0, -self.columns % _ALIGNED))
        y = self._targets(torch.cat([y for _, y in task.shards]))
        self.y = torch.cat([y, y[:1]]).to(device)
        self.test = None
        if task.test is not None:
            X, y = self._zeros(len(task.test[0]), task.test[0]), self._targets(task.test[1])
            self._fill(X, task.test[0])
            self.test = X.to(device), y.to(device)
        # the objective weighs users equally, whatever the size of their shards
        share = torch.tensor([1 / (m * task.users) for m in task.counts], dtype=torch.float64)
        self.share = share.repeat_interleave(torch.tensor(task.counts)).to(device)

    def select(self, batch: Batch, block: Tensor, users: slice) -> tuple[Tensor, float | Tensor]:
        """Rows and weights [B, b] of some users' batches; B is users, or users times seeds."""
        per = len(batch.rows) // len(block)
        rows, weights = batch.part(slice(users.start * per, users.stop * per))
        if isinstance(weights, float):
            return rows, weights
        if rows.is_cuda:  # reading the weights would wait for the GPU
            return rows, weights
        used = (weights > 0).any(0).nonzero()  # some users need less padding than all
        width = int(used[-1]) + 1 if len(used) else 1
        return rows[:, :width], weights[:, :width]

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Examples [B, b, columns] and targets [B, b, outputs]."""
        flat = rows.reshape(-1)
        X, y = (
            table.index_select(0, flat).to(self.dtype).view(*rows.shape, -1)
            for table in (self.X, self.y)
        )
        return X[..., : self.columns], y

    def gather_columns(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Examples [B, columns, b] and targets [B, outputs, b]: examples side by side."""
        A = select_columns(self.X, rows, self.columns, self.dtype)
        return A, select_columns(self.y, rows, self.y.shape[1], self.dtype)

    def sizes(self, rows: Tensor) -> Tensor:
        """The lengths of the examples at these rows."""
        return self.size.index_select(0, rows.reshape(-1)).view(rows.shape)

    def derivative(self, output: Tensor, target: Tensor, classes: int = -1) -> Tensor:
        """Of each example's loss by the last layer's output; overwrites the output.

        Args:
            output: Of the last layer.
            target: As of `gather` or `gather_columns`.
            classes: The dimension of the outputs.
        """
        if self.loss == "logistic":
            output.sigmoid_()
        elif self.loss == "classes":
            # three times as fast as torch's softmax, which is made for many classes
            output = output.sub_(output.amax(classes, keepdim=True)).exp_()
            output.div_(output.sum(classes, keepdim=True))
        return output.sub_(target)

    def metrics(self, blocks: Blocks, forward: Forward, loss: bool = True) -> dict[str, Tensor]:
        """Training loss of `count` models if `loss`; test loss and accuracy if there is test data.

        Args:
            blocks: The models, [count, ...].
            forward: Computes their outputs.
            loss: Whether to compute the training loss.
        """
        count, wide = len(blocks[0]), max(block.shape[-1] + block.shape[-2] for block in blocks)
        zero = torch.zeros(count, dtype=torch.float64, device=self.device)
        metrics = {"loss": zero.clone()} if loss else {}
        for part in chunks(len(self.share), count * wide, self.chunk) if loss else ():
            X = self.X[:-1][part, : self.columns].to(self.dtype)
            each = self._losses(forward(blocks, X), self.y[:-1][part])
            metrics["loss"] += each.double() @ self.share[part]
        if self.test is not None:
            X, target = self.test
            metrics["test_loss"], right = zero.clone(), zero.clone()
            for part in chunks(len(X), count * wide, self.chunk):
                output = forward(blocks, X[part])
                metrics["test_loss"] += self._losses(output, target[part]).double().sum(1) / len(X)
                right += self._is_right(output, target[part]).double().sum(1) / len(X)
            if self.loss != "squared":
                metrics["accuracy"] = right
        return metrics

    def _losses(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of each example, [count, examples]."""
        if self.loss == "logistic":
            # softplus does not overflow for large outputs
            return (functional.softplus(output) - output * target).squeeze(-1)
        if self.loss == "classes":
            return torch.logsumexp(output, -1) - (output * target).sum(-1)
        return (output - target).square().sum(-1) / 2

    def _is_right(self, output: Tensor, target: Tensor) -> Tensor:
        if self.loss == "logistic":
            return ((output > 0) == (target > 0.5)).squeeze(-1)
        return output.argmax(-1) == target.argmax(-1)

    def _targets(self, y: Tensor) -> Tensor:
        """One value per example, or one per output."""
        # one-hot, so that derivative and loss are the same code for all targets
        if self.loss == "classes" and not y.is_floating_point():
            y = functional.one_hot(y.long(), self.outputs)
        return y.to(self.dtype).reshape(len(y), -1)

    def _zeros(self, count: int, like: Tensor) -> Tensor:
        """Rows for examples such as these."""
        return torch.zeros(count, like[0].numel() + self.bias, dtype=self.dtype)

    def _fill(self, rows: Tensor, X: Tensor) -> None:
        flat = X.flatten(1)
        rows[:, : flat.shape[1]] = flat
        if self.bias:
            rows[:, -1] = 1.0


def chunks(examples: int, each: int, most: int) -> list[slice]:
    """Parts of the data, each small enough that its results have at most `most` values.

    Args:
        examples: How many there are.
        each: Values computed per example.
        most: The limit.
    """
    size = max(1, min(examples, most // each))
    return [slice(k, min(k + size, examples)) for k in range(0, examples, size)]
