"""Optimizers: what a step makes of a gradient that is clipped and noised already.

They act on messages' noised gradients, so they cost no privacy. But noise of an edge cancels in the
average only if both of its users take the same multiple of it: docs/training.md has what was
measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decor import checks
from decor.errors import InputError

if TYPE_CHECKING:  # a recipe is read by commands that load no torch
    from torch import Tensor

    Blocks = list[Tensor]


@dataclass(frozen=True)
class Adam:
    """Adam of each user, on its own noised gradients.

    Noise dominates the squares, and a mean of few squares differs much from user to user: what two
    neighbours divide by differently is left of the noise that they share. SGD leaves none.

    Attributes:
        beta1: Decay of the mean of gradients, from 0 to less than 1.
        beta2: The same of their squares.
        epsilon: Added to the root of the mean square.

    Raises:
        InputError: If a value is out of its range.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            value = checks.as_float(getattr(self, name))
            if not 0 <= value < 1:
                raise InputError(f"{name} must be from 0 to less than 1, not {value!r}")
        checks.positive("epsilon", self.epsilon)

    def start(self, models: Blocks) -> Blocks:
        """Means of gradients, then of their squares, before the first step.

        Args:
            models: In whose shapes.
        """
        return [block.new_zeros(block.shape) for block in (*models, *models)]

    def direction(self, noised: Blocks, state: Blocks, step: int) -> Blocks:
        """What is subtracted from the models, times the step size; changes the state in place.

        Args:
            noised: The noised gradients.
            state: As of `start`.
            step: The number of the step, from 0.
        """
        means, squares = state[: len(noised)], state[len(noised) :]
        # both begin at zero, and are too small by these factors
        shares = [1 - beta ** (step + 1) for beta in (self.beta1, self.beta2)]
        directions = []
        for g, m, s in zip(noised, means, squares, strict=True):
            m.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
            s.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            root = (s / shares[1]).sqrt_().add_(self.epsilon)
            directions.append(m / shares[0] / root)
        return directions


def optimizer_of(value: object) -> Adam | None:
    """The optimizer that a recipe's field describes; None is SGD.

    Args:
        value: "sgd", "adam" or an `Adam`.

    Raises:
        InputError: If it is none of these.
    """
    if isinstance(value, Adam):
        return value
    if value == "sgd":
        return None
    if value == "adam":
        return Adam()
    raise InputError(
        f'optimizer must be "sgd", "adam" or decor.optimizer.Adam(...), not {value!r}; any other '
        "is possible in an own loop (decor.simulate)"
    )
