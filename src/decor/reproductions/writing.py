"""The files of a study: all rows as CSV, a figure, and a report with everything in one file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from decor.errors import InputError
from decor.results.axes import save_figure, style_axes
from decor.results.palette import HUES, MARKS
from decor.results.safe_files import replace_text

from .study import OURS, PAPER, PUBLISHED, Panel, Row, Series, Study

FILES = ("results.csv", "figure.svg", "figure.png", "report.html")
# solid lines are ours, dashed ones the paper's settings, dotted ones published
_DASHES = {OURS: "-", PAPER: (0, (5, 2)), PUBLISHED: (0, (1, 1.5))}
_SHAPES = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^"}


def write(
    study: Study, rows: Sequence[Row], folder: Path, repeat: dict[str, str]
) -> dict[str, str]:
    """Writes all files of a study, and returns their paths.

    Args:
        study: The study.
        rows: Its rows.
        folder: Where to write.
        repeat: For the report: the command, the versions, and the time it took.
    """
    everything = [*rows, *study.published]
    figure = draw(study, everything)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / "results.csv", as_csv(everything))
        for suffix in ("svg", "png"):
            save_figure(figure, folder / f"figure.{suffix}")
        picture = (folder / "figure.svg").read_text(encoding="utf-8")
        replace_text(folder / "report.html", page(study, everything, picture, repeat))
    except OSError as problem:
        raise InputError(f"the study cannot be written to {str(folder)!r}: {problem}") from None
    return {
        Path(name).stem if name != "figure.png" else "figure_png": str(folder / name)
        for name in FILES
    }


def as_csv(rows: Sequence[Row]) -> str:
    """A line for each row, with all digits; the values of seeds are separated by spaces."""
    columns = list(dict.fromkeys(key for r in rows for key in r))
    # the long column of single values comes last
    columns.sort(key=lambda name: name == "values")
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for r in rows:
        writer.writerow({name: _digits(value) for name, value in r.items()})
    return text.getvalue()


def table(study: Study, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """A line for each method and variant (or for `study.line`), and a column for each x."""
    # rows of the paper may have other x than ours
    xs = sorted({r[study.x] for r in rows})
    texts: dict[tuple[str, ...], dict[Any, str]] = {}
    for r in rows:
        line = texts.setdefault(tuple(str(r[name]) for name in study.line), {})
        assert r[study.x] not in line, f"two rows of {study.name} would be one cell of its table"
        line[r[study.x]] = f"{100 * r['value']:.2f}" if study.percent else f"{r['value']:.4g}"
    header = [*study.line, *(f"{study.x} {x:g}" if k == 0 else f"{x:g}" for k, x in enumerate(xs))]
    return header, [[*names, *(line.get(x, "") for x in xs)] for names, line in texts.items()]


def draw(study: Study, rows: Sequence[Row]) -> Figure:
    """The panels beside each other, with one legend below."""
    panels = study.panels(rows)
    wide = min(len(panels), 3)
    tall = math.ceil(len(panels) / wide)
    names = list(dict.fromkeys(s.label for panel in panels for s in panel.series))
    size = max(4.6 * wide, 7.0), 4.0 * tall + 0.22 * math.ceil(len(names) / 3)
    figure = Figure(figsize=size, layout="constrained")
    # one scale per row, so that panels can be compared
    axes = figure.subplots(tall, wide, squeeze=False, sharey="row")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for k, (axis, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        _draw_panel(axis, study, panel)
        if k % wide:
            axis.set_ylabel("")
    handles = {
        label: h
        for axis in axes.flat
        for h, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    names = [name for name in names if name in handles]
    figure.legend(
        [handles[name] for name in names],
        names,
        loc="outside lower center",
        ncols=min(len(names), 3 if wide > 1 else 2),
        frameon=False,
        fontsize=9,
    )
    return figure


def _draw_panel(axis: Any, study: Study, panel: Panel) -> None:
    if study.x_logarithmic:
        axis.set_xscale("log")
    if study.logarithmic:
        axis.set_yscale("log")
        values = [r["value"] for s in panel.series for r in s.rows]
        # over more powers of ten, 2 and 5 would be too crowded
        few = max(values) < 300 * min(values)
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    for series in panel.series:
        _draw_line(axis, study, series)
    # ticks at our points; published ones may lie in between
    ticks = sorted({r[study.x] for s in panel.series if s.variant != PUBLISHED for r in s.rows})
    # more labels would overlap
    if ticks and len(ticks) <= 12:
        axis.set_xticks(ticks)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.tick_params(axis="x", labelsize=8)
    if study.percent:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
    style_axes(axis, panel.title, study.x_label, f"{study.value_label} ({study.better} is better)")


def _draw_line(axis: Any, study: Study, series: Series) -> None:
    hues, marks = HUES[series.kind], MARKS[series.kind]
    rows = sorted(series.rows, key=lambda r: r[study.x])
    ours, central = series.variant == OURS, series.kind == "central"
    axis.errorbar(
        [r[study.x] for r in rows],
        [r["value"] for r in rows],
        yerr=[r["error"] or 0.0 for r in rows],
        label=series.label,
        color=hues[series.turn % len(hues)][0],
        linestyle=_DASHES.get(series.variant, "-"),
        linewidth=1.8 if ours else 1.2,
        marker=_SHAPES[marks[series.turn % len(marks)]],
        markersize=3.5 if not ours else 8 if central else 5,
        # DECOR often lies on central DP, whose larger open marker stays visible around it
        markerfacecolor="none" if central else None if ours else "white",
        alpha=1.0 if ours else 0.75,
        elinewidth=1,
    )


def page(study: Study, rows: Sequence[Row], picture: str, repeat: dict[str, str]) -> str:
    """The report, in one file: question, figure, table, what was done, and how to repeat it."""
    picture = picture[picture.index("<svg") :]  # without the XML declaration
    notes = "".join(f"<li>{escape(note)}</li>" for note in study.notes)
    again = "".join(
        f"<dt>{escape(k)}</dt><dd><code>{escape(v)}</code></dd>" for k, v in repeat.items()
    )
    # all texts are escaped: a note is text, not markup
    header, lines = table(study, rows)
    # single values are in the CSV file; a kind only chooses colours
    columns = list(dict.fromkeys(k for r in rows for k in r if k not in ("values", "kind")))
    settings = [[_short(r.get(c)) for c in columns] for r in rows]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(study.title)}</title><style>{_CSS}</style></head><body><main>
<h1>{escape(study.title)}</h1><p class="question">{escape(study.question)}</p>
<figure role="img" aria-label="{escape(study.value_label)} against {escape(study.x_label)}">
{picture}</figure>
<h2>Results</h2>
<p>{escape(study.value_label)}{", %" if study.percent else ""}; {study.better} is better;
means over seeds. Bars in the figure are standard errors of those means.</p>
{_html_table(header, lines, study.title)}
<h2>What was done</h2><ul>{notes}</ul>
<h2>Every point</h2><details><summary>Values, spreads and settings</summary>
{_html_table(columns, settings, "every point")}</details>
<h2>Again</h2><dl>{again}</dl>
</main></body></html>
"""


def _html_table(header: Sequence[str], lines: Sequence[Sequence[str]], caption: str) -> str:
    head = "".join(f'<th scope="col">{escape(str(h))}</th>' for h in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines
    )
    rows = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table><caption>{escape(caption)}</caption>{rows}</table></div>'


def _digits(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_digits, value))
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


_CSS = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem; }
.question { font-size: 1.15rem; }
figure { margin: 1rem 0; background: #fff; border-radius: 6px; padding: .5rem; }
figure svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .2rem .7rem; text-align: left; white-space: nowrap; }
th, td { border-bottom: 1px solid #8884; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; }
code { overflow-wrap: anywhere; }
"""
