"""The figures of a report: as PNG or SVG files, and as `<svg>` elements of its page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import offset_copy

from decor.errors import InputError
from decor.text import epsilon_text, rounded_up

from .axes import (
    GREY,
    INK,
    PAPER,
    QUIET,
    draw_graph,
    draw_histogram,
    literal,
    save_figure,
    set_logarithmic,
    style_axes,
)
from .inline_svg import inline_svg
from .palette import Mark, Style, styles
from .report_data import MAX_DRAWN_USERS, Metric, Outcome, Report
from .tables import BASE_RATE, SPREAD, Spread, curve_spreads, spreads

MARKERS: dict[Mark, str] = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^"}
SUFFIXES = (".png", ".svg")
_WIDE = 50
"""A ratio of values above which their axis is logarithmic."""
_FILE_POINTS, _PAGE_POINTS = 400, 120
"""Points of one curve, in a file and on the page (where it is about 500 pixels wide)."""
_BUDGET_LABEL = "privacy budget epsilon (smaller is more private)"

Point = tuple[Outcome, Spread | None]


def comparison_figure(report: Report, metric: str, path: str | Path) -> None:
    """Writes the final values of a metric against epsilon, for every method.

    Points are means with standard errors over seeds. Training without privacy is a band. A hollow
    mark stands for fewer seeds than were run, and a cross for none.

    Args:
        report: The report data.
        metric: The name of a metric.
        path: A file that ends in .png or .svg.
    """
    _save_file(comparison_plot(report, metric), path)


def comparison_plot(report: Report, metric: str) -> Figure:
    """`comparison_figure` as a figure of matplotlib.

    Args:
        report: The report data.
        metric: The name of a metric.
    """
    chosen = report.metric(metric)
    figure, axis = _make_file_figure()
    _draw_comparison(axis, report, chosen)
    _finish_file(figure, axis, report, chosen, report.title, _BUDGET_LABEL)
    return figure


def comparison_image(report: Report, metric: str) -> str:
    """`comparison_figure` as an `<img>` element.

    Args:
        report: The report data.
        metric: The name of a metric.
    """
    drawn = BytesIO()
    comparison_plot(report, metric).savefig(drawn, format="png", dpi=110)
    data = b64encode(drawn.getvalue()).decode("ascii")
    label = f"{report.metric(metric).label} against epsilon"
    return f'<img alt="{label}" src="data:image/png;base64,{data}">'


def curves_figure(
    report: Report, metric: str, path: str | Path, epsilon: float | None = None
) -> None:
    """Writes a metric over the steps at one epsilon and without privacy, with bands over seeds.

    Args:
        report: The report data.
        metric: The name of a metric.
        path: A file that ends in .png or .svg.
        epsilon: The budget; None: the middle one of the report.
    """
    chosen, budget = report.metric(metric), _choose_epsilon(report, epsilon)
    figure, axis = _make_file_figure()
    if not _draw_curves(axis, report, chosen, budget, _FILE_POINTS):
        text = epsilon_text(budget)
        raise InputError(f"no outcome at epsilon {text} has a curve of {metric!r}.")
    title = report.title if budget is None else f"{report.title}, epsilon {epsilon_text(budget)}"
    _finish_file(figure, axis, report, chosen, title, "steps")
    _save_file(figure, path)


def users_figure(
    report: Report, method: str, path: str | Path, epsilon: float | None = None
) -> None:
    """Writes the epsilon of each user: the coloured graph, or a histogram of a large one.

    Args:
        report: The report data.
        method: The name of a method.
        path: A file that ends in .png or .svg.
        epsilon: The budget; None: the middle one of the report.
    """
    budget = _choose_epsilon(report, epsilon)
    outcome = next((o for o in report.outcomes if o.method == method and o.epsilon == budget), None)
    text = epsilon_text(budget)
    if outcome is None or outcome.per_user_epsilon is None:
        raise InputError(f"no user's own epsilon is known for {method!r} at epsilon {text}.")
    figure, axis = _make_file_figure((7, 6))
    _draw_users(figure, axis, report, outcome)
    axis.set_title(literal(f"{method}, epsilon {text}"), color=INK, fontsize=11)
    _save_file(figure, path)


def comparison_svg(report: Report, metric: Metric, name: str) -> str:
    """`comparison_figure` as an `<svg>` element whose ids begin with `name`."""
    figure, axis = _make_page_figure()
    _draw_comparison(axis, report, metric)
    _finish_page(figure, axis, report, metric, _BUDGET_LABEL.replace("epsilon", "ε"))
    label = f"{metric.label} ({metric.better} is better) against epsilon, for {_names(report)}"
    return _inline(figure, report, name, f"{label}. The table of results has all values.")


def curves_svg(report: Report, metric: Metric, epsilon: float | None, name: str) -> str | None:
    """`curves_figure` as an `<svg>` element; None where no outcome has this curve."""
    figure, axis = _make_page_figure()
    if not _draw_curves(axis, report, metric, epsilon, _PAGE_POINTS):
        return None
    _finish_page(figure, axis, report, metric, "steps")
    at = "without privacy" if epsilon is None else f"at epsilon {epsilon_text(epsilon)}"
    label = f"{metric.label} ({metric.better} is better) over the steps {at}"
    return _inline(figure, report, name, f"{label}. The table below has values of the curves.")


def users_svg(report: Report, outcome: Outcome, name: str) -> str | None:
    """`users_figure` as an `<svg>` element; None where all epsilons print the same."""
    if outcome.per_user_epsilon is None:
        return None
    values = outcome.per_user_epsilon
    # compared as text: users that differ in the tenth digit only would look different
    low, high = epsilon_text(min(values)), epsilon_text(max(values))
    if low == high:
        return None
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    _draw_users(figure, figure.subplots(), report, outcome)
    budget = epsilon_text(outcome.epsilon)
    label = f"epsilon of each user for {outcome.method} at epsilon {budget}: from {low} to {high}"
    return _inline(figure, report, name, label)


def _draw_comparison(axis: Any, report: Report, metric: Metric) -> None:
    finals = spreads(report, metric)
    budgets = [epsilon for epsilon in report.epsilons if np.isfinite(epsilon)]
    # budgets are usually chosen as 1, 3, 10, 30: even steps on this axis
    axis.set_xscale("log")
    if budgets:
        axis.set_xlim(budgets[0] / 1.4, budgets[-1] * 1.4)
    # ticks at the budgets themselves, so that each point can be read off
    axis.xaxis.set_major_locator(FixedLocator(budgets))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: rounded_up(value)))
    axis.xaxis.set_minor_locator(NullLocator())
    for k, (method, style) in enumerate(zip(report.methods, styles(report.methods), strict=True)):
        own = [
            (o, s) for o, s in zip(report.outcomes, finals, strict=True) if o.method == method.name
        ]
        for outcome, spread in own:
            # without an epsilon there is no place on the axis: a level across it instead
            if outcome.epsilon is None and spread is not None:
                _draw_level(axis, spread, style, method.name)
            elif outcome.epsilon == np.inf and spread is not None:
                _draw_level(axis, spread, style, f"{method.name}, epsilon ∞")
        finite = [p for p in own if p[0].epsilon is not None and np.isfinite(p[0].epsilon)]
        # a line joins them in the order of epsilon, whatever the order of the file
        finite.sort(key=lambda point: point[0].epsilon or 0.0)
        # methods stand a few points apart, so that error bars do not hide each other
        aside = 3.0 * (k - (len(report.methods) - 1) / 2)
        _draw_points(axis, finite, style, method.name, metric, aside)
    shown = [spread for spread in finals if spread is not None]
    if metric.name == "accuracy" and report.base_rate is not None:
        base = metric.scale * report.base_rate
        axis.axhline(base, color=QUIET, ls=":", lw=1.4, label=BASE_RATE)
        shown.append(Spread(base, None, base, base, 1, 1))
    _set_value_axis(axis, metric, shown)


def _draw_level(axis: Any, spread: Spread, style: Style, name: str) -> None:
    # a band of one standard error, as the error bars of the points
    low, high = spread.mean - (spread.error or 0.0), spread.mean + (spread.error or 0.0)
    axis.axhspan(low, high, color=style.light, alpha=0.15, linewidth=0)
    axis.axhline(spread.mean, color=style.light, ls="--", lw=1.8, label=literal(name))


def _draw_points(
    axis: Any, points: Sequence[Point], style: Style, name: str, metric: Metric, aside: float
) -> None:
    known = [(outcome.epsilon, spread) for outcome, spread in points if spread is not None]
    moved = offset_copy(axis.transData, axis.figure, x=aside, units="points")
    look: dict[str, Any] = {"color": style.light, "marker": MARKERS[style.mark], "markersize": 6}
    if known:
        axis.errorbar(
            [epsilon for epsilon, _ in known],
            [spread.mean for _, spread in known],
            # a single seed has no error bar
            yerr=[spread.error or 0.0 for _, spread in known],
            linewidth=2,
            capsize=3,
            label=literal(name),
            transform=moved,
            **look,
        )
    partial = [(epsilon, spread) for epsilon, spread in known if spread.seeds < spread.of]
    for epsilon, spread in partial:
        hollow = {"markerfacecolor": PAPER, "zorder": 5, "transform": moved}
        axis.plot([epsilon], [spread.mean], **look, **hollow)
    # a cross at the worse end of the axis: no seed has a value
    edge = 0.03 if metric.better == "higher" else 0.97
    at_edge = offset_copy(axis.get_xaxis_transform(), axis.figure, x=aside, units="points")
    cross: dict[str, Any] = {"color": style.light, "transform": at_edge, "markeredgewidth": 2}
    missing = [outcome.epsilon for outcome, spread in points if spread is None]
    if missing:
        axis.plot(missing, [edge] * len(missing), "x", **cross)


def _draw_curves(
    axis: Any, report: Report, metric: Metric, epsilon: float | None, points: int
) -> bool:
    """Draws the curves of all methods; False where there is none."""
    values: list[Spread] = []
    for method, style in zip(report.methods, styles(report.methods), strict=True):
        for outcome in report.outcomes:
            # training without privacy is shown beside every budget
            shown = outcome.method == method.name and outcome.epsilon in (epsilon, None)
            if shown and outcome.curve is not None and outcome.curve.rows.get(metric.name):
                values += _draw_curve(axis, outcome, metric, style, points)
    _set_value_axis(axis, metric, values)
    return bool(values)


def _draw_curve(
    axis: Any, outcome: Outcome, metric: Metric, style: Style, points: int
) -> list[Spread]:
    assert outcome.curve is not None
    over = curve_spreads(outcome.curve, metric, points)
    # NaN leaves a gap in the line
    steps = np.array([step for step, _ in over])
    mean = np.array([np.nan if s is None else s.mean for _, s in over])
    # without an error the band has no width
    error = np.array([(s.error or 0.0) if s is not None else 0.0 for _, s in over])
    finite = np.isfinite(mean)
    look: dict[str, Any] = {"color": style.light, "linestyle": "--" if style.dashed else "-"}
    mark = MARKERS[style.mark] if finite.sum() == 1 else None  # one point has no line
    axis.plot(steps, mean, linewidth=2, marker=mark, label=literal(outcome.method), **look)
    if np.any(error > 0):
        low, high = mean - error, mean + error
        axis.fill_between(steps, low, high, color=style.light, alpha=0.17, linewidth=0)
    # a cross where the run ended early
    if outcome.stopped and finite.any():
        # after divergence the curve goes on as NaN: its last value is earlier
        last = np.flatnonzero(finite)[-1]
        axis.plot(steps[last], mean[last], "x", color=style.light, markersize=7, markeredgewidth=2)
    return [spread for _, spread in over if spread is not None]


def _draw_users(figure: Figure, axis: Any, report: Report, outcome: Outcome) -> None:
    values = np.array(outcome.per_user_epsilon, dtype=float)
    graph = report.graph(outcome.method)
    if graph is not None and graph.places and len(values) <= MAX_DRAWN_USERS:
        places = np.array(graph.places, dtype=float)
        edges = np.array(graph.edges or np.empty((0, 2)), dtype=int)
        names = [graph.label(user) for user in range(len(values))]
        draw_graph(figure, axis, places, edges, values, names, "epsilon of each user")
        return
    # too many users to draw, or a file without places
    draw_histogram(axis, values)
    infinite = int(np.sum(~np.isfinite(values)))
    absent = f" (infinite for {infinite:,})" if infinite else ""
    style_axes(axis, "", f"epsilon of each user{absent}", "users")


def _set_value_axis(axis: Any, metric: Metric, values: Sequence[Spread]) -> None:
    """The range of means and error bars; logarithmic where means spread widely.

    It is set here because matplotlib does not follow points that stand aside (`_draw_points`).
    """
    if not values:
        return
    least, most = min(s.mean for s in values), max(s.mean for s in values)
    low = min(s.mean - (s.error or 0.0) for s in values)
    high = max(s.mean + (s.error or 0.0) for s in values)
    if not metric.percent and least > 0 and most > _WIDE * least:
        # an error bar may reach below 0, which has no logarithm
        low = max(low, least / 2)
        margin = (high / low) ** 0.05
        axis.set_ylim(low / margin, high * margin)
        set_logarithmic(axis, x=False)
        return
    # equal values, and zeros, still need an axis with some height
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    # no axis below 0 for values that cannot be negative
    bottom = low - margin if low < 0 else max(0.0, low - margin)
    axis.set_ylim(bottom, min(100.5, high + margin) if metric.percent else high + margin)


def _choose_epsilon(report: Report, epsilon: float | None) -> float | None:
    known = report.epsilons
    if epsilon is None:
        # the middle budget: the extremes are often all noise or no noise
        return known[(len(known) - 1) // 2] if known else None
    if epsilon not in known:
        names = ", ".join(map(epsilon_text, known))
        raise InputError(f"there is no outcome with epsilon {epsilon!r}: choose from {names}.")
    return epsilon


def _names(report: Report) -> str:
    return ", ".join(method.name for method in report.methods)


def _legend(axis: Any, report: Report) -> tuple[list[Any], list[str]]:
    """Lines and names in the order of the methods."""
    order = [*(literal(method.name) for method in report.methods), BASE_RATE]
    handles, names = axis.get_legend_handles_labels()
    entries = sorted(
        zip(handles, names, strict=True),
        key=lambda entry: order.index(entry[1]) if entry[1] in order else -1,
    )
    # of points with error bars only the line is shown
    lines = [handle[0] if isinstance(handle, tuple) else handle for handle, _ in entries]
    return lines, [name for _, name in entries]


def _make_file_figure(size: tuple[float, float] = (7.5, 4.8)) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def _finish_file(
    figure: Figure, axis: Any, report: Report, metric: Metric, title: str, x: str
) -> None:
    """Title, labels and legend of a figure that stands alone."""
    style_axes(axis, "", x, literal(f"{metric.heading} ({metric.better} is better)"))
    heading: dict[str, Any] = {"loc": "left", "color": INK, "fontsize": 12, "weight": "bold"}
    # the pad leaves a line for the note below the title
    axis.set_title(literal(fill(title, 72)), pad=22, **heading)
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axis.annotate(SPREAD, (0, 1), xytext=(0, 8), color=QUIET, fontsize=9, **place)
    handles, names = _legend(axis, report)
    if len(names) > 1:
        # a row of the figure's width has about 70 letters
        columns = min(len(names), 5 if sum(map(len, names)) <= 70 else 3)
        look: dict[str, Any] = {"ncols": columns, "frameon": False, "fontsize": 9}
        figure.legend(handles, names, loc="outside lower center", **look)


def _save_file(figure: Figure, path: str | Path) -> None:
    if Path(path).suffix.lower() not in SUFFIXES:
        raise InputError(f"the figure {str(path)!r} must end in {' or '.join(SUFFIXES)}.")
    save_figure(figure, path)


def _make_page_figure() -> tuple[Figure, Any]:
    figure = Figure(figsize=(5.6, 3.75))
    return figure, figure.subplots()


def _finish_page(figure: Figure, axis: Any, report: Report, metric: Metric, x: str) -> None:
    """Labels, legend and margins of a figure below a heading of the page.

    Margins are set here: matplotlib's automatic layout would draw each figure twice, and a page
    has a figure for each metric and epsilon.
    """
    style_axes(axis, "", "", "")
    axis.set_xlabel(x, color=QUIET, fontsize=10)
    axis.tick_params(colors=QUIET, labelsize=10)
    axis.spines[:].set_color(GREY)
    width, height = (72 * side for side in figure.get_size_inches())
    handles, names = _legend(axis, report)
    # about 5.6 points for a letter and 40 for the line of an entry
    columns = max(1, min(len(names), int(width / (40 + 5.6 * max(map(len, names), default=1)))))
    rows = -(-len(names) // columns) if len(names) > 1 else 0
    if rows:
        # matplotlib fills columns, but people read rows
        rowwise = [k for column in range(columns) for k in range(column, len(names), columns)]
        handles, names = [handles[k] for k in rowwise], [names[k] for k in rowwise]
        look: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": INK}
        figure.legend(handles, names, loc="upper left", ncols=columns, borderaxespad=0.2, **look)
    # from the top: the legend (16 points a row), then the title of the axis
    top = height - 16 * rows - 28
    figure.subplots_adjust(bottom=44 / height, right=1 - 12 / width, top=top / height)
    # measured after the height is known, which decides the ticks
    labels = axis.yaxis.get_tightbbox()
    left = 8 + labels.width * 72 / figure.dpi if labels is not None else 40
    figure.subplots_adjust(left=left / width)
    # horizontal above the axis, which reads better than turned beside it
    title = literal(f"{metric.heading} ({metric.better} is better)")
    figure.text(2 / width, (top + 8) / height, title, color=QUIET, fontsize=10)


def _inline(figure: Figure, report: Report, name: str, label: str) -> str:
    # two methods of one colour in light mode have one colour in dark mode too (palette.HUES)
    colours = {style.light: f"var(--method-{k})" for k, style in enumerate(styles(report.methods))}
    return inline_svg(figure, name, label, colours)
