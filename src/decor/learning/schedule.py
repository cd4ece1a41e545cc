"""How the step size changes over a run.

A schedule is a function of the step alone, so it costs no privacy. It is one of the classes below,
the name of one, or any function. The constant c of the paper's Theorem `summary` is an argument
where it appears.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from decor import checks
from decor.array_types import Floats
from decor.errors import InputError

_HASHED_STEPS = 1000
"""Values of a function that tell it from others: enough, and quickly computed."""


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
        # max, because a run of one step would divide by zero
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


@dataclass(frozen=True, repr=False)
class Function:
    """learning_rate * function(t), for any function of the step.

    Attributes:
        function: Gives a share of the learning rate, at least 0, for each step from 0. It must
            not look at private data: step sizes are public.
    """

    function: Callable[[int], float]

    def __repr__(self) -> str:
        return f"Function({self.facts['function']}, {self.facts['values_sha256'][:16]})"

    def rates(self, learning_rate: float, steps: int) -> Floats:
        """`learning_rate` times the function of each of `steps` steps.

        Raises:
            InputError: If the function gives something else than a number of at least 0.
        """
        return learning_rate * np.array([self._share(step) for step in range(steps)], dtype=float)

    @property
    def facts(self) -> dict[str, str]:
        """What a run records: the function's name, and a hash of its first values.

        A run is resumed with the same values only, whatever the function is called by then.
        """
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        digest = hashlib.sha256()
        for step in range(_HASHED_STEPS):
            try:
                # bytes, and not digits: a resumed run needs the same values to the last bit
                digest.update(np.float64(self._share(step)).tobytes())
            # a table may end after the run's last step
            except (InputError, ArithmeticError, LookupError):
                break
        return {"function": name, "values_sha256": digest.hexdigest()}

    def _share(self, step: int) -> float:
        value = self.function(step)
        try:
            share = float(value)
        except (TypeError, ValueError):
            share = math.nan
        # NaN fails this comparison too
        if not 0 <= share < math.inf:
            raise InputError(
                f"the schedule gives {value!r} at step {step}; a share of the learning rate is a "
                "number of at least 0"
            )
        return share


def schedule_of(value: object) -> Schedule:
    """The schedule that a recipe's field describes.

    Args:
        value: A schedule; "constant", "cosine", "cosine:FINAL" or "inverse-time:HORIZON"; or a
            function of the step that gives a share of the learning rate.

    Raises:
        InputError: If it is none of these.
    """
    if isinstance(value, str):
        found = parse_name(value)
        if found is not None:
            return found
    # a class such as Cosine without brackets has rates too, and can be called: it is refused
    elif not isinstance(value, type):
        if hasattr(value, "rates"):
            return value
        if callable(value):
            return Function(value)
    raise InputError(
        "schedule must be one of decor.schedule, such as Cosine(), a name such as "
        f'"inverse-time:5000", or a function of the step, not {value!r}'
    )


def parse_name(text: str) -> Schedule | None:
    """The schedule of a name with its numbers, such as "inverse-time:5000"; None if unknown.

    Args:
        text: As typed in a command.

    Raises:
        InputError: If a number is out of its range.
    """
    name, *numbers = text.strip().lower().replace("_", "-").split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        return None
    match name, values:
        case "constant", []:
            return Constant()
        case "cosine", [] | [_]:
            return Cosine(*values)
        case "inverse-time", [horizon]:
            return InverseTime(horizon)
    return None


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
