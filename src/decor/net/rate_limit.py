"""How often something may happen: a number at once, and a rate after that."""

from __future__ import annotations

import time
from collections.abc import Callable


class RateLimit:
    """A token bucket.

    Args:
        burst: How many may come at once.
        per_second: How many more each second.
        clock: Seconds that never go back.
        most: How many may come at once after a quiet time; None: as many as at first.
    """

    def __init__(
        self,
        burst: float,
        per_second: float,
        clock: Callable[[], float] = time.monotonic,
        most: float | None = None,
    ) -> None:
        self._most, self._rate, self._clock = burst if most is None else most, per_second, clock
        self._left, self._at = burst, clock()

    def allow(self) -> bool:
        """Counts one more; returns False if it is one too many."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def take(self, amount: float) -> float:
        """Counts so many in any case; returns the seconds until no more than allowed have come."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate) - amount
        self._at = now
        return max(0.0, -self._left / self._rate)
