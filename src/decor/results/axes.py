"""What all figures share: colours, axes, the picture of a graph, and how a figure is written."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from decor.array_types import Floats
from decor.errors import InputError
from decor.text import rounded_up

INK, QUIET, GREY, GRID, PAPER = "#1f2430", "#566073", "#9aa3b2", "#e6e9ef", "#ffffff"
BLUE, ORANGE = "#2f6db5", "#d9822b"
OUTLINE = "#fefefe"
"""Around the dots of users; the page has another value for it in the dark."""
_ON_DARK, _ON_LIGHT = "#fdfdfd", "#10131a"
"""Names inside dots: the dots have the same colours on the page in light and dark."""
COLOURS = "viridis_r"
"""From a small (light) to a large (dark) epsilon."""

_LONGEST, _SHORT = 30, 12
"""Letters of a name in a picture, of few users and of many; a longer one ends with an ellipsis."""
_FEW = 16
"""Users among whom there is space for long names."""
_SHADES = 32
"""Steps of the colour scale: each is a shape of the SVG, and 32 look continuous."""
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def style_axes(axis: Any, title: str, x: str, y: str) -> None:
    """Sets title and labels, and draws a quiet grid."""
    axis.set_title(title, color=INK, fontsize=11)
    axis.set_xlabel(x, color=INK)
    axis.set_ylabel(y, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, which="major", color=GRID, linewidth=0.8)
    # the grid must not cross bars and marks
    axis.set_axisbelow(True)


def set_logarithmic(axis: Any, x: bool = True) -> None:
    """Makes the y axis (and the x axis) logarithmic, with plain numbers at 1, 2 and 5."""
    plain = FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:g}")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    # over more than four powers of ten, 2 and 5 would be too crowded
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 1e4 * low else (1.0, 2.0, 5.0)))
    # minor ticks stay as marks; their numbers would overlap
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axis.yaxis.set_major_formatter(plain)
    if x:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(plain)


def literal(text: str) -> str:
    """Text for matplotlib: no mathematics, no hidden label, no character that XML forbids."""
    text = NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text).replace("$", r"\$")
    # matplotlib hides labels that begin with an underscore
    return " " + text if text.startswith("_") else text


def are_alike(values: Floats) -> bool:
    """Whether all values are the same but for rounding."""
    low, high = float(np.min(values)), float(np.max(values))
    return low == high or bool(np.isfinite(high) and high - low <= 1e-9 * high)


def draw_histogram(axis: Any, values: Floats) -> None:
    """The distribution of the finite values."""
    axis.hist(values[np.isfinite(values)], bins=40, color=BLUE)


def draw_graph(
    figure: Figure,
    axis: Any,
    places: Floats,
    edges: Any,
    values: Floats,
    names: Sequence[str],
    label: str,
) -> None:
    """A graph whose users are coloured by `values`; users with an infinite value are orange.

    Args:
        figure: The figure, which gets the colour bar.
        axis: The axes to draw on.
        places: One row (x, y) for each user.
        edges: One row of two users for each edge.
        values: One value for each user, such as an epsilon.
        names: The names of the users; drawn for up to 64 users.
        label: What the values are.
    """
    users, finite = len(values), np.isfinite(values)
    # lines and dots shrink with the number of users, within what can be seen
    width = max(0.3, min(1.2, 60 / users))
    size = float(np.clip(6000 / users, 14, 420))
    outline = {"s": size, "edgecolors": OUTLINE, "linewidths": 1, "zorder": 2, "clip_on": False}
    # one line with gaps, which is one shape of the SVG for all edges
    lines = np.full((len(edges), 3, 2), np.nan)
    lines[:, :2] = places[edges]
    x, y = lines.reshape(-1, 2).T
    axis.plot(x, y, color=GREY, linewidth=width, zorder=1, clip_on=False)
    axis.scatter(*places[~finite].T, color=ORANGE, label="infinite", **outline)
    # the place of each user on the colour scale; infinite users count as darkest
    fractions = np.ones(users)
    if finite.any():
        low, high = float(values[finite].min()), float(values[finite].max())
        alike = are_alike(values[finite])
        # a linear scale would show all but the largest of widely spread values alike
        norm: Any = LogNorm(low, high) if high > 5 * low > 0 else Normalize(low, high)
        # one value has no range: it takes the middle of the scale
        norm = Normalize(0, 2 * high) if alike else norm
        fractions[finite] = norm(values[finite])
        shades = colormaps[COLOURS].resampled(_SHADES)
        look = {"cmap": shades, "norm": norm, **outline}
        dots = axis.scatter(*places[finite].T, c=values[finite], **look)
        if alike and finite.all():
            _annotate_below(axis, f"every user: {rounded_up(high)}")
        elif not alike:
            _draw_colour_bar(figure, axis, dots, low, high, label)
    else:
        _annotate_below(axis, "infinite for every user")
    if finite.any() and not finite.all():
        axis.legend(frameon=False, labelcolor=INK)
    # a circle of users must look like a circle
    axis.set_aspect("equal")
    axis.autoscale_view()
    axis.margins(0.08)
    axis.set_axis_off()
    if users <= 64:
        _draw_names(figure, axis, places, fractions, names, (size / np.pi) ** 0.5)


def _annotate_below(axis: Any, text: str) -> None:
    axis.annotate(
        text, (0.5, 0), xycoords="axes fraction", ha="center", va="top", color=INK, fontsize=12
    )


def _draw_colour_bar(
    figure: Figure, axis: Any, dots: Any, low: float, high: float, label: str
) -> None:
    bar: Any = figure.colorbar(dots, ax=axis, shrink=0.8)
    bar.set_label(label, color=INK)
    bar.outline.set_visible(False)
    bar.solids.set_edgecolor("face")  # no gaps between the shades
    # the two ends are what a reader asks for: the least and the most exposed user
    bar.ax.yaxis.set_major_locator(FixedLocator([low, high]))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rounded_up(value)))
    bar.ax.tick_params(labelcolor=INK, color=GREY)


def _draw_names(
    figure: Figure,
    axis: Any,
    places: Floats,
    fractions: Floats,
    names: Sequence[str],
    radius: float,
) -> None:
    """Names inside the dots if all are short, readable on every shade; else beside the dots."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    longest = _LONGEST if len(names) <= _FEW else _SHORT
    if max(map(len, names)) > longest:
        names = distinct_parts(names)
    if max(map(len, names)) <= 3:
        for name, place, fraction in zip(names, places, fractions, strict=True):
            shade = _ON_DARK if fraction > 0.45 else _ON_LIGHT
            axis.annotate(literal(name), place, color=shade, **style)
        return
    shown = [name if len(name) <= longest else f"{name[: longest - 1]}…" for name in names]
    beside = {"xytext": (0, -radius - 5), "textcoords": "offset points", "color": INK}
    notes = [
        axis.annotate(literal(name), place, **beside, **style)
        for name, place in zip(shown, places, strict=True)
    ]
    # scale and widths are known only when the picture has been laid out
    figure.draw_without_rendering()
    to_points = 72 / figure.dpi
    at = axis.transData.transform(places) * to_points
    widths = np.array([note.get_window_extent().width * to_points for note in notes])
    for note, offset in zip(notes, name_offsets(at, widths, radius), strict=True):
        note.set_position(tuple(offset))


def distinct_parts(names: Sequence[str]) -> list[str]:
    """Names without the words that all of them begin or end with, such as "02" of "Branch 02".

    Args:
        names: Different names, two or more.
    """
    words = [name.split(" ") for name in names]
    # one word of each name is always left
    least = min(map(len, words)) - 1
    first = min(_common_words(words), least)
    last = min(_common_words([each[::-1] for each in words]), least - first)
    return [" ".join(each[first : len(each) - last]) for each in words]


def _common_words(names: Sequence[Sequence[str]]) -> int:
    """With how many words all names begin."""
    columns = [*zip(*names, strict=False)]  # as many as the shortest name has
    return next((k for k, column in enumerate(columns) if len({*column}) > 1), len(columns))


def name_offsets(at: Floats, widths: Floats, radius: float, height: float = 8.0) -> Floats:
    """Where to write each name, from its dot: the side on which it covers least, below first.

    Args:
        at: The middle of each dot, in points.
        widths: The width of each name, in points.
        radius: The radius of the dots, in points.
        height: The height of all names, in points.
    """
    n, sizes = len(at), np.stack([widths, np.full(len(at), height)], axis=1)
    aside, away = radius + 2 + widths / 2, radius + 1 + height / 2
    offsets = np.tile((0.0, -away), (n, 1))
    # boxes as middles and sizes: all dots, and all names but one
    dots = np.full((n, 2), 2 * radius)
    # a second round, because a name may have been moved from where another one avoided it
    for k in [*range(n), *range(n)]:
        others = np.arange(n) != k
        middles = np.vstack([at, (at + offsets)[others]])
        boxes = np.vstack([dots, sizes[others]])
        half, side = widths[k] / 2, aside[k]
        sides = [(0, -away), (0, away), (side, 0), (-side, 0)]
        sides += [(half, -away), (-half, -away), (half, away), (-half, away)]
        covered = [_overlap(at[k] + side, sizes[k], middles, boxes) for side in sides]
        offsets[k] = sides[int(np.argmin(np.round(covered, 3)))]
    return offsets


def _overlap(middle: Floats, size: Floats, middles: Floats, sizes: Floats) -> float:
    """The area that a box shares with others."""
    overlap = (size + sizes) / 2 - np.abs(middles - middle)
    shared = np.minimum(np.maximum(overlap, 0), np.minimum(size, sizes))
    return float(np.sum(np.prod(shared, axis=1)))


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes a figure; the same figure is always the same file: no date, no random ids.

    Raises:
        InputError: If the file cannot be written.
    """
    # only SVG files carry a date
    metadata = {"Date": None} if str(path).lower().endswith(".svg") else None
    try:
        render(figure, path, {"svg.hashsalt": "decor"}, dpi=150, metadata=metadata)
    except (OSError, ValueError) as problem:
        raise InputError(f"the picture {str(path)!r} cannot be written: {problem}") from None


def render(figure: Figure, target: Any, settings: dict[str, Any], **options: Any) -> None:
    """Draws a figure to a file or stream under matplotlib's `settings`."""
    with rc_context(settings), warnings.catch_warnings():
        # a missing glyph is drawn as a box, which is no reason to fail
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(target, **options)
