"""Threads: tries how many threads help a run; a core that is busy elsewhere only hurts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from decor.cpu_cores import cores

_LARGE = 300_000
"""Parameters of all models from which a second core can help; below, waiting for it costs more."""
_TRIALS = 3
"""Steps that are timed for each number of threads, after one that does not count."""


class Threads:
    """Tries each number of threads for some steps, then keeps the one with the fastest step.

    Args:
        requested: The number, if it is not to be tried.
        parameters: Of all models together.
        timed: Whether time may decide. In a private run it may not: how long a step takes depends
            on the data, and the number of threads may decide the last bits of a product.
    """

    def __init__(self, requested: int | None, parameters: int, timed: bool = True) -> None:
        most = cores() if parameters >= _LARGE else 1
        candidates = (1, most) if timed and most > 1 else (most,)
        self.counts = (requested,) if requested is not None else candidates
        self.now = self.counts[0]
        # the fastest step counts, not the mean: other processes only ever slow a step down
        self.best = dict.fromkeys(self.counts, float("inf"))
        self.steps = 0

    @contextmanager
    def limit_torch(self) -> Iterator[None]:
        """Within this block torch uses the current number of threads."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.now)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def step(self) -> Iterator[int]:
        """Times one step of a run; gives the number of threads it is to use."""
        trying = self.steps < len(self.counts) * (_TRIALS + 1) and len(self.counts) > 1
        start = time.perf_counter()
        yield self.now
        if not trying:
            return
        # the first step of a trial starts threads and fills caches: it does not count
        if self.steps % (_TRIALS + 1):
            self.best[self.now] = min(self.best[self.now], time.perf_counter() - start)
        self.steps += 1
        turn = self.steps // (_TRIALS + 1)
        if turn < len(self.counts):
            wanted = self.counts[turn]
        else:
            wanted = min(self.best, key=lambda count: self.best[count])
        if wanted != self.now:
            self.now = wanted
            torch.set_num_threads(wanted)
