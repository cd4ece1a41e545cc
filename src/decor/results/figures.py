"""The report's figures as PNG or SVG: the same numbers, colours and marks as on the page, and the
same file every time.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from decor.errors import InputError
from decor.text import rounded_up

from .palette import Style, styles
from .plots import BLUE, COLOURS, GREY, INK, ORANGE, dress, save
from .report_data import DRAWN_USERS, Data, check, number
from .tables import SPREAD, Spread, epsilon_text, heading, scale, spreads

MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^"}
SUFFIXES = (".png", ".svg")
QUIET = "#566073"
_WIDE = 50


def comparison_figure(data: Data, metric: str, path: str | Path) -> None:
    """A final metric of every method against epsilon: means with standard errors over seeds, no
    privacy as a band.

    A hollow mark speaks for fewer seeds than were run, a cross for none.
    """
    chosen = _metric(data, metric)
    figure, axis = _canvas()
    found = spreads(data, chosen)
    _logarithmic_epsilon(axis, data)
    for method, style in zip(data["methods"], styles(data), strict=True):
        own = [
            (o, s)
            for o, s in zip(data["outcomes"], found, strict=True)
            if o["method"] == method["name"]
        ]
        _levels(
            axis,
            [s for o, s in own if o["epsilon"] is None and s is not None],
            style,
            method["name"],
        )
        _levels(
            axis,
            [s for o, s in own if o["epsilon"] == "inf" and s is not None],
            style,
            f"{method['name']}, epsilon ∞",
        )
        finite = sorted(
            (p for p in own if p[0]["epsilon"] not in (None, "inf")),
            key=lambda p: number(p[0]["epsilon"]),
        )
        _points(axis, finite, style, method["name"], chosen)
    _value_axis(axis, chosen, [v for s in found if s is not None for v in (s.low, s.high)])
    _dressed(axis, data["title"], "privacy budget epsilon (smaller is more private)", chosen)
    _finish(figure, axis, data, path)


def curves_figure(
    data: Data, metric: str, path: str | Path, epsilon: float | str | None = None
) -> None:
    """A metric over the steps at one epsilon (the middle one if none is given) and without privacy,
    with bands over seeds.
    """
    chosen = _metric(data, metric)
    asked = _epsilon(data, epsilon)
    figure, axis = _canvas()
    values: list[float] = []
    kept = {m["name"]: style for m, style in zip(data["methods"], styles(data), strict=True)}
    for name, style in kept.items():
        for outcome in data["outcomes"]:
            curve = outcome.get("curve") or {}
            if (
                outcome["method"] == name
                and outcome["epsilon"] in (asked, None)
                and metric in curve
            ):
                values += _curve(axis, curve, chosen, style, name)
    if not values:
        raise InputError(f"no outcome at epsilon {epsilon_text(asked)} has a curve of {metric!r}.")
    _value_axis(axis, chosen, values)
    at = "" if asked is None else f", epsilon {epsilon_text(asked)}"
    _dressed(axis, f"{data['title']}{at}", "steps", chosen)
    _finish(figure, axis, data, path)


def users_figure(
    data: Data, method: str, path: str | Path, epsilon: float | str | None = None
) -> None:
    """Everybody's epsilon under one method: the graph in colours, or a histogram where it is too
    large to draw.
    """
    check(data)
    asked = _epsilon(data, epsilon)
    outcome = next(
        (o for o in data["outcomes"] if o["method"] == method and o["epsilon"] == asked), None
    )
    if outcome is None or outcome.get("per_user_epsilon") is None:
        raise InputError(
            f"nobody's own epsilon is known for {method!r} at epsilon {epsilon_text(asked)}."
        )
    values = np.array([number(value) for value in outcome["per_user_epsilon"]])
    wanted = next(m.get("graph") for m in data["methods"] if m["name"] == method)
    graph: Data = next((g for g in data.get("graphs") or [] if g["name"] == wanted), {})
    figure, axis = _canvas((7, 6))
    if graph.get("places") and len(values) <= DRAWN_USERS:
        _network(figure, axis, graph, values)
        axis.set_title(_literal(f"{method}, epsilon {epsilon_text(asked)}"), color=INK, fontsize=11)
    else:
        finite = values[np.isfinite(values)]
        axis.hist(finite, bins=40, color=BLUE)
        absent = (
            f" (infinite for {len(values) - len(finite):,})" if len(finite) < len(values) else ""
        )
        dress(
            axis,
            _literal(f"{method}, epsilon {epsilon_text(asked)}"),
            f"epsilon of each user{absent}",
            "users",
        )
    _save(figure, path)


def _metric(data: Data, name: str) -> Data:
    check(data)
    for metric in data["metrics"]:
        if metric["name"] == name:
            return dict(metric)
    raise InputError(
        f"there is no metric {name!r}: choose from {', '.join(m['name'] for m in data['metrics'])}."
    )


def _epsilon(data: Data, asked: float | str | None) -> float | str | None:
    known = sorted({o["epsilon"] for o in data["outcomes"] if o["epsilon"] is not None}, key=number)
    if asked is None:
        return known[(len(known) - 1) // 2] if known else None
    if asked not in known:
        raise InputError(
            f"there is no outcome with epsilon {asked!r}: choose from "
            f"{', '.join(map(epsilon_text, known))}."
        )
    return asked


def _canvas(size: tuple[float, float] = (7.5, 4.8)) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def _logarithmic_epsilon(axis: Any, data: Data) -> None:
    known = sorted(
        {number(o["epsilon"]) for o in data["outcomes"] if o["epsilon"] not in (None, "inf")}
    )
    axis.set_xscale("log")
    if known:
        axis.set_xlim(known[0] / 1.4, known[-1] * 1.4)
        axis.xaxis.set_major_locator(FixedLocator(known))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: rounded_up(value)))
    axis.xaxis.set_minor_locator(NullLocator())


def _levels(axis: Any, found: list[Spread], style: Style, name: str) -> None:
    for spread in found:
        error = spread.error or 0.0
        axis.axhspan(
            spread.mean - error, spread.mean + error, color=style.light, alpha=0.15, linewidth=0
        )
        axis.axhline(
            spread.mean, color=style.light, linestyle="--", linewidth=1.8, label=_literal(name)
        )


def _points(
    axis: Any, own: list[tuple[Data, Spread | None]], style: Style, name: str, metric: Data
) -> None:
    known = [(number(o["epsilon"]), s) for o, s in own if s is not None]
    if known:
        x, y = [e for e, _ in known], [s.mean for _, s in known]
        error = [s.error or 0.0 for _, s in known]
        look: dict[str, Any] = {
            "color": style.light,
            "marker": MARKERS[style.mark],
            "markersize": 6,
            "linewidth": 2,
            "capsize": 3,
        }
        axis.errorbar(x, y, yerr=error, label=_literal(name), **look)
    for epsilon, some in known:
        if some.seeds < some.of:
            axis.plot(
                [epsilon],
                [some.mean],
                MARKERS[style.mark],
                color=style.light,
                markerfacecolor="white",
                zorder=5,
            )
    edge = 0.03 if metric["better"] == "higher" else 0.97
    for outcome, spread in own:
        if spread is None:
            place = axis.get_xaxis_transform()
            axis.plot(
                [number(outcome["epsilon"])],
                [edge],
                "x",
                color=style.light,
                transform=place,
                markeredgewidth=2,
            )


def _curve(axis: Any, curve: Data, metric: Data, style: Style, name: str) -> list[float]:
    over = [
        Spread.of_seeds([row[k] for row in curve[metric["name"]]], scale(metric))
        for k in range(len(curve["step"]))
    ]
    mean = np.array([np.nan if s is None else s.mean for s in over])
    error = np.array([0.0 if s is None or s.error is None else s.error for s in over])
    line = "--" if style.dashed else "-"
    axis.plot(
        curve["step"], mean, color=style.light, linestyle=line, linewidth=2, label=_literal(name)
    )
    if np.any(error > 0):
        axis.fill_between(
            curve["step"], mean - error, mean + error, color=style.light, alpha=0.17, linewidth=0
        )
    return [float(v) for v in mean[np.isfinite(mean)]]


def _value_axis(axis: Any, metric: Data, values: list[float]) -> None:
    """Logarithmic where values spread widely, as on the page."""
    if (
        values
        and min(values) > 0
        and max(values) > _WIDE * min(values)
        and not metric.get("percent")
    ):
        axis.set_yscale("log")
    elif metric.get("percent") and values:
        axis.set_ylim(top=min(100.5, axis.get_ylim()[1]))


def _network(figure: Figure, axis: Any, graph: Data, values: np.ndarray[Any, Any]) -> None:
    places = np.array(graph["places"], dtype=float)
    edges = np.array(graph.get("edges") or np.empty((0, 2)), dtype=int)
    width = max(0.3, min(1.2, 60 / len(values)))
    axis.add_collection(
        LineCollection(list(places[edges]), colors=GREY, linewidths=width, zorder=1)
    )
    size = float(np.clip(6000 / len(values), 14, 420))
    finite = np.isfinite(values)
    axis.scatter(
        *places[~finite].T, s=size, color=ORANGE, edgecolors="white", zorder=2, label="infinite"
    )
    if finite.any():
        low, high = float(values[finite].min()), float(values[finite].max())
        alike = high - low <= 1e-9 * high
        norm = (
            Normalize(0, 2 * high)
            if alike
            else (LogNorm(low, high) if high > 5 * low > 0 else Normalize(low, high))
        )
        dots = axis.scatter(
            *places[finite].T,
            c=values[finite],
            s=size,
            cmap=COLOURS,
            norm=norm,
            edgecolors="white",
            zorder=2,
        )
        if alike:
            axis.annotate(
                f"everybody: {rounded_up(high)}",
                (0.5, 0.5),
                xycoords="axes fraction",
                ha="center",
                color=INK,
            )
        else:
            figure.colorbar(dots, ax=axis, label="epsilon of each user", shrink=0.8)
    if not finite.all():
        axis.legend(frameon=False)
    axis.set_aspect("equal")
    axis.margins(0.08)
    axis.set_axis_off()


def _literal(text: str) -> str:
    """Text that matplotlib does not read as mathematics, nor a label as one to hide."""
    return " " + text.replace("$", r"\$") if text.startswith("_") else text.replace("$", r"\$")


def _dressed(axis: Any, title: str, x: str, metric: Data) -> None:
    dress(axis, "", x, _literal(f"{heading(metric)} ({metric['better']} is better)"))
    axis.set_title(
        _literal(fill(title, 72)), loc="left", color=INK, fontsize=12, weight="bold", pad=22
    )
    style: dict[str, Any] = {
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "color": QUIET,
        "fontsize": 9,
    }
    axis.annotate(SPREAD, (0, 1), xytext=(0, 8), **style)


def _finish(figure: Figure, axis: Any, data: Data, path: str | Path) -> None:
    """The legend, in the order of the methods, and the file."""
    order = [_literal(method["name"]) for method in data["methods"]]
    entries = sorted(
        zip(*axis.get_legend_handles_labels(), strict=True),
        key=lambda e: order.index(e[1]) if e[1] in order else -1,
    )
    if len(entries) > 1:
        handles, names = zip(*entries, strict=True)
        figure.legend(
            handles,
            names,
            loc="outside lower center",
            ncols=min(len(names), 5),
            frameon=False,
            fontsize=9,
        )
    _save(figure, path)


def _save(figure: Figure, path: str | Path) -> None:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"the figure {str(path)!r} must end in {' or '.join(SUFFIXES)}.")
    save(figure, path)
