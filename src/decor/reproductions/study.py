"""A study: cells that are computed independently, their rows, and how rows are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
"""One point of a figure: `variant`, `kind`, `method`, `graph`, the x, `values` (one for each seed),
and the settings behind them.
"""

OURS, PAPER, PUBLISHED = "ours", "as in the paper", "published"


@dataclass(frozen=True)
class Cell:
    """A part of a study that is computed in one go and kept.

    Attributes:
        name: Also the name of its file.
        work: `work(**arguments)` gives the rows, in any process.
        arguments: Plain JSON values, so that a resumed study can compare them.
    """

    name: str
    work: Callable[..., list[Row]]
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """A line of a figure: the rows of one variant and method.

    `kind` and `turn` decide its colour, `variant` its dashes.
    """

    label: str
    kind: str
    variant: str
    rows: tuple[Row, ...]
    turn: int = 0


@dataclass(frozen=True)
class Panel:
    title: str
    series: tuple[Series, ...]


def row(
    variant: str,
    kind: str,
    method: str,
    graph: str | None,
    values: Iterable[float],
    **settings: Any,
) -> Row:
    """A row; `value` and `error` are the mean over seeds and its standard error."""
    known = [float(v) for v in values]
    # exact sums: the committed results must not depend on the order of addition
    mean = math.fsum(known) / len(known)
    spread = math.fsum((v - mean) ** 2 for v in known)
    # one seed has no spread
    error = math.sqrt(spread / (len(known) - 1) / len(known)) if len(known) > 1 else None
    head = {"variant": variant, "kind": kind, "method": method, "graph": graph}
    tail = {"seeds": len(known), "values": known}
    return head | {"value": mean, "error": error} | settings | tail


def one_panel(title: str) -> Callable[[Sequence[Row]], list[Panel]]:
    """All rows in one panel."""
    return lambda rows: [Panel(title, lines(rows))]


def panels_by(*columns: str) -> Callable[[Sequence[Row]], list[Panel]]:
    """A panel for each combination of values in these columns, which are its title."""

    def panels(rows: Sequence[Row]) -> list[Panel]:
        groups: dict[str, list[Row]] = {}
        for r in rows:
            groups.setdefault(", ".join(r[column] for column in columns), []).append(r)
        return [Panel(title, lines(group)) for title, group in groups.items()]

    return panels


def by_graph(rows: Sequence[Row]) -> list[Panel]:
    """A panel for each graph that DECOR ran on, each with central and local DP beside it."""
    graphs = list(dict.fromkeys(r["graph"] for r in rows if r["kind"] == "decor"))
    if not graphs:  # an interrupted study may have finished its baselines only
        return [Panel("", lines(rows))]
    # the panel has the graph in its title
    short = [r | {"method": r["method"].removesuffix(f" {r['graph']}")} for r in rows]
    return [
        Panel(g, lines([r for r in short if r["kind"] != "decor" or r["graph"] == g]))
        for g in graphs
    ]


def lines(rows: Sequence[Row]) -> tuple[Series, ...]:
    """A series for each (variant, method), in their order."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        groups.setdefault((r["variant"], r["method"]), []).append(r)
    turns: dict[tuple[str, str], int] = {}
    series = []
    for (variant, method), group in groups.items():
        kind = group[0]["kind"]
        # methods of one kind and variant take turns in colour
        turn = turns.get((variant, kind), 0)
        turns[variant, kind] = turn + 1
        # the variant is named where there is more than one, or it is not ours
        several = len({v for v, m in groups if m == method}) > 1
        label = f"{method}, {variant}" if several or variant != OURS else method
        series.append(Series(label, kind, variant, tuple(group), turn))
    return tuple(series)


@dataclass(frozen=True)
class Study:
    """What `decor reproduce NAME` computes and draws.

    Attributes:
        name: On the command line, and of the default folder.
        title: Of the report.
        question: What the study answers.
        cells: Its parts.
        x: The column on the horizontal axis of the figure, and across the table.
        x_label: Label of that axis.
        value_label: Label of the vertical axis.
        panels: Arranges all rows into panels of the figure.
        line: The columns that tell the lines of the table apart.
        better: "lower" or "higher".
        percent: Whether values are shown in percent.
        x_logarithmic: Whether the horizontal axis is logarithmic.
        logarithmic: Whether the vertical axis is.
        published: Rows of the paper, shown beside ours.
        prepare: Raises if something is missing, such as data, before anything is begun or replaced.
        notes: What was done, a sentence or two each.
    """

    name: str
    title: str
    question: str
    cells: tuple[Cell, ...]
    x: str = "epsilon"
    x_label: str = "epsilon (delta = 1e-5)"
    value_label: str = "squared distance to the optimum"
    panels: Callable[[Sequence[Row]], list[Panel]] = by_graph
    line: tuple[str, ...] = ("method", "variant")
    better: str = "lower"
    percent: bool = False
    x_logarithmic: bool = True
    logarithmic: bool = True
    published: tuple[Row, ...] = ()
    prepare: Callable[[], object] | None = None
    notes: tuple[str, ...] = ()
