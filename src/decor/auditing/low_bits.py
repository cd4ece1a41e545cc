"""The last bits of messages whose gradient and noise are whole steps of a grid.

Noise that hides the first digits of a gradient may still show its last ones. Floating-point noise
has gaps, so a message may be possible for one gradient and impossible for the other. On a grid each
integer is possible for each gradient: every message is possible, to the last bit, and the low bits
of its integer are uniform whatever the data are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from decor.array_types import Array

from .noise_law import Check

_RESIDUES = 32
"""Low bits are an integer's remainder by this."""
_FINE = 0.25
"""Largest spacing of floats, in grid steps, at which the integer of a value is known. A value off
the grid then passes for one on it in a quarter of the cases at most.
"""
_ENOUGH = 1_000
"""Known integers from which the low bits are tested."""


@dataclass(frozen=True)
class GridIntegers:
    """Messages in steps of the grid.

    Attributes:
        steps: The integers.
        known: Whether the integer follows from the value: not where floats are coarser than steps.
        possible: Whether the engine can have sent this value, with these last bits.
    """

    steps: Array
    known: Array
    possible: Array


def grid_integers(
    before: Array, messages: Array, unit: float, resend: Callable[[Array], Array]
) -> GridIntegers:
    """The integers in messages [users, columns], given the models `before` them to the last bit.

    Args:
        before: The models that the step began with.
        messages: As sent, in their own precision.
        unit: The value of one grid step.
        resend: Makes messages from integers as the engine does, with the same last bits.
    """
    # with a step size of one a message is the model minus a value on the grid
    steps = np.rint((before.astype(np.float64) - messages) / unit)
    size = (unit * np.abs(steps)).astype(messages.dtype)
    spacing = np.maximum(np.spacing(np.abs(messages)), np.spacing(size))
    return GridIntegers(steps.astype(np.int64), spacing <= _FINE * unit, resend(steps) == messages)


class LowBits:
    """Statistics of the integers in all messages, by the sign of the canary in each."""

    def __init__(self) -> None:
        self.impossible = 0
        self.counts = np.zeros((2, _RESIDUES))

    def add(self, integers: GridIntegers, signs: Array) -> None:
        """`signs`: for each integer, which of the two hypotheses is true."""
        self.impossible += int((integers.known & ~integers.possible).sum())
        # for negative integers too the remainder is the low bits (two's complement)
        residues = integers.steps % _RESIDUES
        for kind in (0, 1):
            selected = integers.known & (signs == bool(kind))
            self.counts[kind] += np.bincount(residues[selected], minlength=_RESIDUES)

    @property
    def is_enough(self) -> bool:
        return bool(self.counts.sum(1).min() >= _ENOUGH)

    def checks(self, least: float) -> list[Check]:
        if not self.is_enough:
            return []
        expected = self.counts.sum(1, keepdims=True) / _RESIDUES
        law = stats.chi2(_RESIDUES - 1)
        uniform = law.sf((np.square(self.counts - expected) / expected).sum(1))
        # low bits of any distribution tell the hypotheses apart if it differs between them
        both = self.counts.sum(0)
        pooled = np.outer(self.counts.sum(1), both) / both.sum()
        alike = law.sf((np.square(self.counts - pooled) / np.maximum(pooled, 1)).sum())
        failure = f"{self.impossible:,} values of messages are not possible on the grid"
        return [
            Check.exact("support", not self.impossible, f"{failure}, to the last bit"),
            # three tests share one p-value (Bonferroni)
            Check.of("low bits", 3 * min(*uniform, alike), least),
        ]
