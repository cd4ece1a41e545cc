"""How many threads a run takes: as many as help, found by trying, because a second core that is
busy elsewhere only hurts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from decor.machine import cores

_WORTH = 300_000
"""Parameters of all models together from which a second core can help; below, waiting for it costs
more.
"""
_TRIALS = 3
"""Steps by which a number of threads is judged, after one that does not count."""


class Threads:
    """Counts to try, one after the other; then the one whose best step was fastest."""

    def __init__(self, asked: int | None, parameters: int) -> None:
        most = cores()
        many = (1, most) if parameters >= _WORTH and most > 1 else (1,)
        self.counts = (asked,) if asked is not None else many
        self.now = self.counts[0]
        self.best = dict.fromkeys(self.counts, float("inf"))
        self.steps = 0

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Within this block torch takes as many threads as are being tried or have won."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.now)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def step(self) -> Iterator[int]:
        """One step of a run, with the number of threads it is to take."""
        trying = self.steps < len(self.counts) * (_TRIALS + 1) and len(self.counts) > 1
        start = time.perf_counter()
        yield self.now
        if not trying:
            return
        if self.steps % (_TRIALS + 1):
            self.best[self.now] = min(self.best[self.now], time.perf_counter() - start)
        self.steps += 1
        turn = self.steps // (_TRIALS + 1)
        wanted = (
            self.counts[turn]
            if turn < len(self.counts)
            else min(self.best, key=lambda count: self.best[count])
        )
        if wanted != self.now:
            self.now = wanted
            torch.set_num_threads(wanted)
