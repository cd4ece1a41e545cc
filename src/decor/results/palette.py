"""Colours and marks: one look for each method, in every figure and in both colour schemes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .report_data import Method, MethodKind

Mark = Literal["circle", "square", "diamond", "triangle"]


@dataclass(frozen=True)
class Style:
    """How one method is drawn: its colours on white and on black, its mark, and its line."""

    light: str
    dark: str
    mark: Mark
    dashed: bool


# Distinct for every kind of colour vision, and by their marks without colour; contrast of at least
# 3:1 with the background (tests/results/test_figures.py measures both).
HUES: dict[str, tuple[tuple[str, str], ...]] = {
    "decor": (
        ("#2b62ad", "#4f94ec"),
        ("#129a6a", "#45d68f"),
        ("#a55288", "#f0a6e2"),
        ("#1d3f78", "#a9c4f5"),
        ("#4b8ac9", "#3f83c9"),
        ("#5d7a1f", "#b6d16a"),
    ),
    "central": (("#343b4b", "#e6eaf2"), ("#6b7488", "#98a2b5")),
    "local": (("#c76a12", "#f09a3e"), ("#a04a1c", "#d9783f")),
    "none": (("#6b7488", "#98a2b5"), ("#8a7f73", "#b3a898")),
}
MARKS: dict[str, tuple[Mark, ...]] = {
    "decor": ("circle", "square", "diamond", "triangle", "circle", "square"),
    "central": ("diamond", "triangle"),
    "local": ("triangle", "square"),
    "none": ("circle", "square"),
}


def styles(methods: Sequence[Method]) -> list[Style]:
    """The style of each method: the hue shows its kind, and methods of one kind take turns."""
    seen: Counter[MethodKind] = Counter()
    chosen = []
    for method in methods:
        kind, turn = method.kind, seen[method.kind]
        seen[kind] += 1
        # more methods than hues: colours repeat, and the legend still names each line
        light, dark = HUES[kind][turn % len(HUES[kind])]
        chosen.append(Style(light, dark, MARKS[kind][turn % len(MARKS[kind])], kind == "none"))
    return chosen
