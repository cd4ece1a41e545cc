"""Support: the last bits of messages whose gradient and noise are whole steps of a grid.

Noise that hides the first digits of a gradient may still show its last ones: floating-point noise
has gaps, and a message that no noise could have made of the one gradient was made of the other. On
a grid every integer can be had from every gradient, so that there is nothing to see: each message
is a possible one, to the last bit, and the low bits of its integer are uniform whatever the data
are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from decor.arrays import Array

from .noise_law import Check

_RESIDUES = 32
"""Low bits are looked at as an integer's remainder by this."""
_FINE = 0.25
"""Of a step of the grid: where numbers of a message lie closer than this, its integer can be told,
and a message off the grid is taken for one on it in a quarter of the cases at most.
"""
_ENOUGH = 1_000
"""Numbers from which something is said."""


@dataclass(frozen=True)
class Integers:
    """Messages in steps of the grid."""

    steps: Array
    told: Array
    """Whether the step can be told from the number: not where numbers lie further apart
    than steps.
    """
    possible: Array
    """Whether the engine can have sent this number, with these last bits."""


def integers(
    before: Array, messages: Array, unit: float, sent: Callable[[Array], Array]
) -> Integers:
    """What messages [users, columns] say in steps of a grid, to whoever knows the models `before`
    them, to the last bit.

    `sent(steps)` is what an engine makes of these integers: the very bits of a message, if this
    engine can have sent it.
    """
    # with a step size of one a message is the model less what is on the grid
    steps = np.rint((before.astype(np.float64) - messages) / unit)
    own = np.maximum(
        np.spacing(np.abs(messages)), np.spacing((unit * np.abs(steps)).astype(messages.dtype))
    )
    return Integers(steps.astype(np.int64), own <= _FINE * unit, sent(steps) == messages)


class Support:
    """Looks at the integers of all messages, each with the sign of the canary in it."""

    def __init__(self) -> None:
        self.told = self.impossible = 0
        self.counts = np.zeros((2, _RESIDUES))

    def see(self, found: Integers, signs: Array) -> None:
        """`signs`: whether a canary is the one or the other, like the integers."""
        self.told += int(found.told.sum())
        self.impossible += int((found.told & ~found.possible).sum())
        residues = found.steps % _RESIDUES
        for kind in (0, 1):
            some = found.told & (signs == bool(kind))
            self.counts[kind] += np.bincount(residues[some], minlength=_RESIDUES)

    @property
    def is_enough(self) -> bool:
        return bool(self.counts.sum(1).min() >= _ENOUGH)

    def checks(self, least: float) -> list[Check]:
        if not self.is_enough:
            return []
        expected = self.counts.sum(1, keepdims=True) / _RESIDUES
        uniform = stats.chi2(_RESIDUES - 1).sf(
            (np.square(self.counts - expected) / expected).sum(1)
        )
        # whichever law the low bits have, it must be the same under both hypotheses: else they tell
        # them apart
        both = self.counts.sum(0)
        of_each = np.outer(self.counts.sum(1), both) / both.sum()
        alike = stats.chi2(_RESIDUES - 1).sf(
            (np.square(self.counts - of_each) / np.maximum(of_each, 1)).sum()
        )
        said = "every message is a possible one, to the last bit"
        return [
            Check(
                "support",
                said if not self.impossible else f"{said} ({self.impossible:,} are not)",
                float(not self.impossible),
                0.5,
            ),
            Check.of(
                "low bits",
                "the last bits of messages are uniform, whatever the data",
                3 * min(*uniform, alike),
                least,
            ),
        ]
