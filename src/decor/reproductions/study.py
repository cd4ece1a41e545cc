"""A study: cells that are computed apart, the rows they give, and how the rows are looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
"""One point of a figure: `variant`, `kind`, `method`, `graph`, the x, `values` (one a seed) and the
settings behind them.
"""

OURS, PAPER, PUBLISHED = "ours", "as in the paper", "published"


@dataclass(frozen=True)
class Cell:
    """A part of a study that is computed at once and kept: `work(**arguments)` gives its rows, in
    any process.
    """

    name: str
    work: Callable[..., list[Row]]
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """A line of a figure: rows of one variant and method.

    The colour follows `kind` and `turn`, the dashes `variant`.
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


@dataclass(frozen=True)
class Study:
    """What `decor reproduce NAME` computes and draws.

    `x` is the column that the figure's horizontal axis and the table's columns show; `line` names
    those that tell the table's lines apart. `panels` arranges all rows into pictures.
    """

    name: str
    title: str
    question: str
    cells: tuple[Cell, ...]
    x: str
    x_label: str
    value_label: str
    panels: Callable[[Sequence[Row]], list[Panel]]
    line: tuple[str, ...] = ("method", "variant")
    better: str = "lower"
    percent: bool = False
    x_logarithmic: bool = True
    logarithmic: bool = True
    published: tuple[Row, ...] = ()
    prepare: Callable[[], object] | None = None
    """Raises where something is missing, such as data, before anything is begun or replaced."""
    notes: tuple[str, ...] = ()


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
    mean = math.fsum(known) / len(known)
    spread = math.fsum((v - mean) ** 2 for v in known)
    error = math.sqrt(spread / (len(known) - 1) / len(known)) if len(known) > 1 else None
    found = {
        "variant": variant,
        "kind": kind,
        "method": method,
        "graph": graph,
        "value": mean,
        "error": error,
    }
    return found | settings | {"seeds": len(known), "values": known}


def one_panel(title: str) -> Callable[[Sequence[Row]], list[Panel]]:
    """Everything in one picture, a line for every variant and method."""
    return lambda rows: [Panel(title, lines(rows))]


def by_graph(rows: Sequence[Row]) -> list[Panel]:
    """A picture for every graph that DECOR ran on, each with central and local DP beside it."""
    graphs = list(dict.fromkeys(r["graph"] for r in rows if r["kind"] == "decor"))
    if not graphs:  # an interrupted study may have come no further than its baselines
        return [Panel("", lines(rows))]
    short = [r | {"method": r["method"].removesuffix(f" {r['graph']}")} for r in rows]
    return [
        Panel(g, lines([r for r in short if r["kind"] != "decor" or r["graph"] == g]))
        for g in graphs
    ]


def lines(rows: Sequence[Row]) -> tuple[Series, ...]:
    """A series for every (variant, method), in their order; methods of one kind and variant take
    turns in colour.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        found.setdefault((r["variant"], r["method"]), []).append(r)
    turns: dict[tuple[str, str], int] = {}
    series = []
    for (variant, method), own in found.items():
        kind = own[0]["kind"]
        turn = turns.get((variant, kind), 0)
        turns[variant, kind] = turn + 1
        several = len({v for v, m in found if m == method}) > 1
        label = f"{method}, {variant}" if several or variant != OURS else method
        series.append(Series(label, kind, variant, tuple(own), turn))
    return tuple(series)
