"""Steps on a card: the kernels of a step are recorded once, and replayed; records are drawn while
the card is at work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from decor.learning.batches import Batch, Batches

Step = Callable[[Tensor, Tensor, list[Batch]], None]
"""step(its number, its rates, its batches): kernels that change the models where they are."""
UNIT = 16
"""Sampled batches have a multiple of this many records, so that few graphs serve all steps."""


class Steps:
    """Takes steps of a run one after the other; every step needs `count` batches.

    The first step of every shape is run as it is, which compiles what has to be compiled; the next
    is recorded as a CUDA graph, and from then on a step is one call, however many kernels it has.
    """

    def __init__(
        self, step: Step, batches: Batches, count: int, rates: Tensor, record: bool
    ) -> None:
        self.step, self.batches, self.count, self.rates, self.record = (
            step,
            batches,
            count,
            rates,
            record,
        )
        self.number = torch.zeros((), dtype=torch.int64, device=rates.device)
        self.rate = torch.zeros_like(rates[0])
        self.held: dict[tuple[int, ...], list[Batch]] = {}
        self.graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self.drawing = ThreadPoolExecutor(1, thread_name_prefix="decor-batches")
        self.next: tuple[int, Future[list[Batch]]] | None = None

    def take(self, k: int, last: int) -> None:
        """Step k; the batches of the next are drawn meanwhile, unless this is the last."""
        drawn = (
            self.next[1].result() if self.next is not None and self.next[0] == k else self._drawn(k)
        )
        self.next = (k + 1, self.drawing.submit(self._drawn, k + 1)) if k < last else None
        key = tuple(batch.rows.shape[1] for batch in drawn)
        is_new = key not in self.held
        if is_new:
            self.held[key] = [batch.to(self.rates.device) for batch in drawn]
        elif self.batches.size is not None:
            for held, batch in zip(self.held[key], drawn, strict=True):
                held.rows.copy_(batch.rows, non_blocking=True)
                if isinstance(held.weights, Tensor) and isinstance(batch.weights, Tensor):
                    held.weights.copy_(batch.weights, non_blocking=True)
        self.number.fill_(k)
        self.rate.copy_(self.rates[k])
        if is_new or not self.record:
            self.step(self.number, self.rate, self.held[key])
            return
        if key not in self.graphs:
            self.graphs[key] = torch.cuda.CUDAGraph()
            # batches are drawn in another thread meanwhile, which is none of the recording's
            # business
            with torch.cuda.graph(self.graphs[key], capture_error_mode="thread_local"):
                self.step(self.number, self.rate, self.held[key])
        self.graphs[key].replay()

    def close(self) -> None:
        self.drawing.shutdown(cancel_futures=True)

    def _drawn(self, k: int) -> list[Batch]:
        return [self._copied(self.batches.draw(k * self.count + j)) for j in range(self.count)]

    def _copied(self, batch: Batch) -> Batch:
        """In memory that the card fetches from by itself, and that nobody writes to before
        it has.
        """
        if self.batches.size is None:
            return batch
        weights = batch.weights if isinstance(batch.weights, float) else batch.weights.pin_memory()
        return Batch(batch.rows.pin_memory(), weights)


@contextmanager
def products(tf32: bool) -> Iterator[None]:
    """Within this block products of float32 are exact to their rounding, or take their operands to
    eleven bits.
    """
    kinds: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]  # type: ignore[attr-defined]
    before = [each.fp32_precision for each in kinds]
    try:
        for each in kinds:
            each.fp32_precision = "tf32" if tf32 else "ieee"
        yield
    finally:
        for each, precision in zip(kinds, before, strict=True):
            each.fp32_precision = precision
