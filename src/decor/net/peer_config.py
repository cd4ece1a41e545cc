"""What a peer is told: who its neighbours are, and how long the run is."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from .identity import Identity
from .neighbour import Neighbour


@dataclass(frozen=True)
class RunLength:
    """Steps of a run, gossip rounds of each, and rounds after the last (one more step here)."""

    steps: int
    rounds: int
    final_rounds: int

    def rounds_of(self, step: int) -> int:
        return self.rounds if step < self.steps else self.final_rounds


@dataclass(frozen=True)
class PeerConfig:
    """What all users of a federation know, and this user's part of it."""

    identity: Identity
    neighbours: tuple[Neighbour, ...]
    federation: bytes
    digests: tuple[tuple[str, bytes], ...]
    model_bytes: int
    length: RunLength
    timeout: float
    quorum: float
    number: int
    """This user's, in the order of the federation's file."""
    members: tuple[bytes, ...]
    """Public keys of all users, in the same order."""
    liars: int = 1
    """Users that may lie about how far they are."""
    random: Callable[[int], bytes] = os.urandom
    """Source of the keys that this user offers to its neighbours."""

    @property
    def quorum_count(self) -> int:
        """How many neighbours have to take part."""
        # 0.07 * 100 is a little above 7 in floating point, and means 7
        return max(1, math.ceil(self.quorum * len(self.neighbours) - 1e-9))
