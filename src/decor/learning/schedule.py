"""How the step size changes over a run.

A schedule is a function of the step alone, so it costs no privacy. The constant c of the paper's
Theorem `summary` is an argument where it appears.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from decor import checks
from decor.array_types import Floats
from decor.errors import InputError


class Schedule(Protocol):
    """Gives the step size of every step of a run."""

    def rates(self, learning_rate: float, steps: int) -> Floats:
        """The step sizes.

        Args:
            learning_rate: The largest step size, as given to `decor.train`.
            steps: The length of the run.
        """
        ...


@dataclass(frozen=True)
class Constant:
    """The same step size throughout."""

    def rates(self, learning_rate: float, steps: int) -> Floats:
        """`learning_rate`, `steps` times."""
        return np.full(steps, learning_rate)


@dataclass(frozen=True)
class InverseTime:
    """learning_rate / (1 + t / horizon).

    Attributes:
        horizon: Steps after which the step size is half; the paper's experiments use 5000.
    """

    horizon: float

    def __post_init__(self) -> None:
        checks.positive("horizon", self.horizon)

    def rates(self, learning_rate: float, steps: int) -> Floats:
        """From `learning_rate` down, for `steps` steps."""
        return np.asarray(learning_rate / (1 + np.arange(steps) / self.horizon))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine, from the learning rate down to a share of it.

    Attributes:
        final: That share, from 0 to 1; 0 by default, so that the last steps add little noise.
    """

    final: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= checks.as_float(self.final) <= 1:
            raise InputError(
                f"final must be a share of the learning rate from 0 to 1, not {self.final!r}"
            )

    def rates(self, learning_rate: float, steps: int) -> Floats:
        """From `learning_rate` in the first of `steps` steps to its share `final` in the last."""
        # reaches 1 in the first step and 0 in the last
        share = (1 + np.cos(np.pi * np.arange(steps) / max(steps - 1, 1))) / 2
        return np.asarray(learning_rate * (self.final + (1 - self.final) * share))


@dataclass(frozen=True)
class PolyakLojasiewicz:
    """16 / (mu (t + 16 c L / (mu p))): Theorem `summary`, for mu-PL and L-smooth losses.

    The paper starts sixteen times higher, which its own proof does not allow: a noiseless quadratic
    breaks the bound there. The first step size is p / (c L).

    Attributes:
        mu: The Polyak-Lojasiewicz constant of the loss.
        smoothness: L, the Lipschitz constant of its gradient.
        consensus_rate: p of the graph.
        constant: The theorem's c.
    """

    mu: float
    smoothness: float
    consensus_rate: float
    constant: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            checks.positive(name, value)

    def rates(self, learning_rate: float, steps: int) -> Floats:
        """The theorem's step sizes for `steps` steps, each at most `learning_rate`."""
        # the offset at which the first step size is p / (c L)
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
    """Theorem `summary`'s constant step size for any smooth loss.

    Args:
        smoothness: L, the Lipschitz constant of the gradient.
        consensus_rate: p of the graph.
        gap: The loss at the start minus the least loss.
        users: n, the number of users.
        steps: T, the length of the run.
        variance: sigma_*^2 + d sigma_cdp^2.
        constant: The theorem's c.

    Returns:
        min(p / (2 c L), 2 sqrt(gap n / (L T variance))).
    """
    checks.positive("smoothness", smoothness)
    checks.positive("consensus_rate", consensus_rate)
    checks.positive("gap", gap)
    checks.positive("users", users)
    checks.positive("steps", steps)
    checks.positive("variance", variance)
    checks.positive("constant", constant)
    # the first is the largest step that is stable, the second balances noise and progress
    return min(
        consensus_rate / (2 * constant * smoothness),
        2 * math.sqrt(gap * users / (smoothness * steps * variance)),
    )
