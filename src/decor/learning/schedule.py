"""How the step size changes over a run.

A schedule is a function of the step alone, so it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from decor import checks
from decor.arrays import Floats
from decor.errors import InputError


class Schedule(Protocol):
    """Gives the step size of every step of a run."""

    def rates(self, learning_rate: float, steps: int) -> Floats: ...


@dataclass(frozen=True)
class Constant:
    """The same step size throughout."""

    def rates(self, learning_rate: float, steps: int) -> Floats:
        return np.full(steps, learning_rate)


@dataclass(frozen=True)
class InverseTime:
    """learning_rate / (1 + t / horizon): what the paper's experiments use, with a horizon of 5000
    steps.
    """

    horizon: float

    def __post_init__(self) -> None:
        checks.positive("horizon", self.horizon)

    def rates(self, learning_rate: float, steps: int) -> Floats:
        return np.asarray(learning_rate / (1 + np.arange(steps) / self.horizon))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine, from the learning rate down to `final` of it."""

    final: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= checks.as_float(self.final) <= 1:
            raise InputError(
                f"final must be a share of the learning rate from 0 to 1, not {self.final!r}"
            )

    def rates(self, learning_rate: float, steps: int) -> Floats:
        share = (1 + np.cos(np.pi * np.arange(steps) / max(steps - 1, 1))) / 2
        return np.asarray(learning_rate * (self.final + (1 - self.final) * share))


@dataclass(frozen=True)
class PolyakLojasiewicz:
    """16 / (mu (t + 16 c L / (mu p))), Theorem summary's schedule for losses that are mu-PL and
    L-smooth, on a graph of rate p.

    The paper starts sixteen times higher, which its own proof does not allow: a noiseless quadratic
    breaks the bound there. `constant` is the theorem's c. The first step size is p / (c L); a
    learning rate, if given, caps all of them.
    """

    mu: float
    smoothness: float
    consensus_rate: float
    constant: float = 1.0

    def __post_init__(self) -> None:
        for name in ("mu", "smoothness", "consensus_rate", "constant"):
            checks.positive(name, getattr(self, name))

    def rates(self, learning_rate: float, steps: int) -> Floats:
        late = 16 * self.constant * self.smoothness / (self.mu * self.consensus_rate)
        return np.minimum(learning_rate, 16 / (self.mu * (np.arange(steps) + late)))


def non_convex_rate(
    smoothness: float,
    consensus_rate: float,
    gap: float,
    users: int,
    steps: int,
    variance: float,
    constant: float = 1.0,
) -> float:
    """Theorem summary's constant step size for any smooth loss: min(p / (2 c L), 2 sqrt(gap n / (L
    T variance))).

    `gap` is the loss at the start less the least, `variance` is sigma_*^2 + d sigma_cdp^2.
    """
    given = {
        "smoothness": smoothness,
        "consensus_rate": consensus_rate,
        "gap": gap,
        "users": users,
        "steps": steps,
    }
    for name, value in (given | {"variance": variance, "constant": constant}).items():
        checks.positive(name, value)
    return min(
        consensus_rate / (2 * constant * smoothness),
        2 * math.sqrt(gap * users / (smoothness * steps * variance)),
    )
