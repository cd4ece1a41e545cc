"""Colours and marks: one look for a method on the page, in the figures and in every scheme."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .report_data import Data


@dataclass(frozen=True)
class Style:
    """How one method is drawn: its colour on white and on black, the mark of a point, and whether
    its line is dashed.
    """

    light: str
    dark: str
    mark: str
    dashed: bool


# told apart by people with any kind of colour vision, and by their marks without colour; 3:1 or
# more against their background
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
MARKS: dict[str, tuple[str, ...]] = {
    "decor": ("circle", "square", "diamond", "triangle", "circle", "square"),
    "central": ("diamond", "triangle"),
    "local": ("triangle", "square"),
    "none": ("circle", "square"),
}
RAMP = (
    "#fde725",
    "#c2df23",
    "#86d549",
    "#52c569",
    "#2ab07f",
    "#1e9b8a",
    "#25858e",
    "#2d708e",
    "#38588c",
    "#433e85",
    "#482173",
    "#440154",
)
"""Colours for a small to a large epsilon: matplotlib's viridis_r, as in the other pictures of
graphs.
"""


def styles(data: Data) -> list[Style]:
    """The style of every method, in order: the hue says its kind, and methods of one kind go
    through that kind's hues.
    """
    met: Counter[str] = Counter()
    found = []
    for method in data["methods"]:
        kind = method["kind"]
        turn = met[kind]
        met[kind] += 1
        light, dark = HUES[kind][turn % len(HUES[kind])]
        found.append(Style(light, dark, MARKS[kind][turn % len(MARKS[kind])], kind == "none"))
    return found
