"""Steps on a GPU: a step's kernels are recorded once and replayed, while the CPU draws batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from decor.learning.batches import Batch, Batches

Step = Callable[[Tensor, Tensor, list[Batch]], None]
"""step(number, rates, batches): kernels that change the models in place."""
BATCH_MULTIPLE = 16
"""Sampled batches are padded to a multiple of this, so that few recorded graphs serve all steps."""


class StepRunner:
    """Takes the steps of a run in order; every step needs `count` batches.

    The first step of every shape runs as it is, which compiles its kernels. The next one is
    recorded as a CUDA graph, and from then on a step is one call, however many kernels it has.
    """

    def __init__(
        self, step: Step, batches: Batches, count: int, rates: Tensor, record: bool
    ) -> None:
        self.step, self.batches, self.count = step, batches, count
        self.rates, self.record = rates, record
        # a graph reads its inputs from fixed addresses: each step is copied into these
        self.number = torch.zeros((), dtype=torch.int64, device=rates.device)
        self.rate = torch.zeros_like(rates[0])
        self.held: dict[tuple[int, ...], list[Batch]] = {}
        self.graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self.drawing = ThreadPoolExecutor(1, thread_name_prefix="decor-batches")
        self.next: tuple[int, Future[list[Batch]]] | None = None

    def take(self, k: int, last: int) -> None:
        """Takes step k and starts to draw the next batches, unless k is the last step."""
        ahead = self.next
        drawn = ahead[1].result() if ahead is not None and ahead[0] == k else self._draw(k)
        self.next = (k + 1, self.drawing.submit(self._draw, k + 1)) if k < last else None
        key = tuple(batch.rows.shape[1] for batch in drawn)
        is_new = key not in self.held
        if is_new:
            self.held[key] = [batch.to(self.rates.device) for batch in drawn]
        elif self.batches.size is not None:  # full batches never change
            for held, batch in zip(self.held[key], drawn, strict=True):
                held.rows.copy_(batch.rows, non_blocking=True)
                if isinstance(held.weights, Tensor) and isinstance(batch.weights, Tensor):
                    held.weights.copy_(batch.weights, non_blocking=True)
        self.number.fill_(k)
        self.rate.copy_(self.rates[k])
        # compiling and choosing algorithms must not happen while a graph is recorded
        if is_new or not self.record:
            self.step(self.number, self.rate, self.held[key])
            return
        if key not in self.graphs:
            self.graphs[key] = torch.cuda.CUDAGraph()
            # thread_local: the thread that draws batches may call CUDA during the recording
            with torch.cuda.graph(self.graphs[key], capture_error_mode="thread_local"):
                self.step(self.number, self.rate, self.held[key])
        self.graphs[key].replay()

    def close(self) -> None:
        self.drawing.shutdown(cancel_futures=True)

    def _draw(self, k: int) -> list[Batch]:
        return [self._pin(self.batches.draw(k * self.count + j)) for j in range(self.count)]

    def _pin(self, batch: Batch) -> Batch:
        """A copy in pinned memory, which the GPU reads while the CPU goes on."""
        if self.batches.size is None:
            return batch
        weights = batch.weights if isinstance(batch.weights, float) else batch.weights.pin_memory()
        return replace(batch, rows=batch.rows.pin_memory(), weights=weights)


@contextmanager
def matmul_precision(tf32: bool) -> Iterator[None]:
    """Within this block float32 products are exact to rounding, or on a GPU use operands of eleven
    bits if `tf32`, whatever the program has chosen for its own.
    """
    backends: Any = torch.backends
    of_gpu = [backends.cuda.matmul, backends.cudnn.conv]
    # a CPU with matrix units would take operands of eight bits
    kinds = [*of_gpu, backends.mkldnn.matmul, backends.mkldnn.conv]
    before = [each.fp32_precision for each in kinds]
    try:
        for each in kinds:
            each.fp32_precision = "tf32" if tf32 and each in of_gpu else "ieee"
        yield
    finally:
        for each, precision in zip(kinds, before, strict=True):
            each.fp32_precision = precision
