"""Turn: one user's part in one step of an own loop, in simulations and federations alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from decor.errors import InputError, UnsharedWarning
from decor.learning.gradients.flat_model import FlatModel
from decor.privacy.budget import Exposure


class Turn:
    """A user's model at the start of a step, and its one chance to share what it makes of it.

    Attributes:
        step: The number of the step, from 0.
        learning_rate: The step size. A difference may be `learning_rate` times the plan's clip
            long, and is clipped to that; the noise is as much larger or smaller.
    """

    def __init__(
        self,
        flat: FlatModel,
        start: Tensor,
        step: int,
        learning_rate: float,
        owner: str,
        give: Callable[[Tensor | None], object],
    ) -> None:
        self.step, self.learning_rate = step, learning_rate
        self._flat, self._start, self._owner, self._give = flat, start, owner, give
        self._is_shared = self._is_over = False

    def __repr__(self) -> str:
        state = "shared" if self._is_shared else "over" if self._is_over else "open"
        return f"{type(self).__name__}({self._owner}step {self.step}, {state})"

    @cached_property
    def model(self) -> nn.Module:
        """The user's model: a copy, to train in any way. It is made of messages, so that it is
        covered by the guarantee. What training makes of it is private, and must not be published.
        """
        return self._flat.module(self._start)

    def share(self, model: nn.Module | Mapping[str, Tensor]) -> None:
        """Sends the difference to the model of the step: clipped, and under fresh noise.

        Args:
            model: The trained module, or its `state_dict()`; it is copied. A difference that is
                not finite counts as zero, with an `UnsharedWarning`.

        Raises:
            InputError: If the step is over, something was shared in it already, or names or shapes
                are not the model's. Nothing was sent then.

        Guarantee: whatever the model is, and whatever state has made it, a message differs by at
        most 2 clip * learning_rate from what any other data of this user would have given.
        """
        if self._is_shared:
            raise InputError(
                f"{self._owner}step {self.step} has its model already; share once in each step"
            )
        if self._is_over:
            raise InputError(
                f"{self._owner}step {self.step} is over, and a zero difference stands for it; "
                "share within its round"
            )
        shared = self._flat.read(model)
        self._is_shared = True
        self._give(shared)
        # last: where warnings are errors, what is sent must not depend on it
        if not bool(torch.isfinite(shared).all()):
            self._warn("a model that is not finite was shared, and counts as zero")

    def end(self, quietly: bool = False) -> bool:
        """Ends the turn; if nothing was shared, shares a zero difference and warns.

        Args:
            quietly: Do not warn.

        Returns:
            Whether nothing was shared.
        """
        self._is_over = True
        if self._is_shared:
            return False
        self._give(None)
        if not quietly:
            self._warn("nothing was shared, and a zero difference was sent")
        return True

    def _warn(self, what: str) -> None:
        text = f"{self._owner}step {self.step}: {what}"
        warnings.warn(text, UnsharedWarning, stacklevel=4)


def difference(before: Tensor, shared: Tensor | None, rate: float) -> Tensor:
    """What stands for a gradient: the difference over the step size, in float64.

    Args:
        before: The model of the step.
        shared: What training has made of it; None: nothing was shared.
        rate: The step size; zero can send nothing but the model itself.
    """
    if shared is None or rate == 0:
        return torch.zeros_like(before)
    return (before - shared) / rate


def check_unit(exposure: Exposure) -> None:
    """Refuses example level: how far one example moves what a loop trains is unknown."""
    if exposure.unit != "user":
        raise InputError(
            'an own loop protects whole users, and this plan has unit="example": how far one '
            'example moves what a loop trains is unknown; plan with unit="user", or train with '
            "decor.train or decor node"
        )
