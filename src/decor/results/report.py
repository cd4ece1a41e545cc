"""report.html: one file that opens from disk, needs no network, and is readable without its script.

Guarantee: no text of the data can become markup or code. All of it is escaped when it enters the
page (figures: `inline_svg`), the script reads none of it, and the page's content security policy
runs no script but the one whose digest it names.
"""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from pathlib import Path

from decor.text import epsilon_text, setting_text

from .audit_summary import render_section
from .html_page import fill_template, page_file, write_page
from .json_dataclass import Settings
from .palette import styles
from .report_data import Outcome, Report, SigmaRange
from .report_panels import Choice, Panels, row_name
from .signing import render_signing
from .tables import SPREAD, base_rate_row, sigma_text, spreads, summary_header, summary_rows

_NO_PRIVACY, _INFINITE = 1e308, 1e307
"""Sort keys of rows without privacy and with an infinite epsilon: after every finite epsilon."""


def write(report: Report, path: str | Path) -> None:
    """Writes the page to a file, which is never left half-written.

    Raises:
        InputError: If the file cannot be written.
    """
    write_page(page(report), path)


def page(report: Report) -> str:
    """The page as text; the same data always makes the same page."""
    # a function of its own keeps names out of the page
    script = f"(function () {{\n'use strict';\n{page_file('report.js')}}})();\n"
    panels = Panels(report, Choice.first(report))
    parts = {
        "title": escape(report.title),
        "subtitle": escape(report.subtitle),
        "made": escape(re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d).*$", r"\1 \2", report.made)),
        "style": _method_colours(report) + page_file("report.css"),
        "script": script,
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "controls": panels.controls(),
        "guarantees": panels.guarantees(),
        "key_figures": panels.key_figures(),
        "figures": _pair(panels.comparison(), panels.curves()),
        "privacy": _pair(panels.users(), panels.adversaries()),
        "spread": "of one run each, by real peers" if report.only_peers else SPREAD,
        "table": _results_table(report, panels.shown),
        "stopped": _list_of_stops(report),
        "audit": render_section(report.audits) if report.audits else "",
        # only a command makes the same again
        "how": "Repeat this" if report.repeat and report.repeat.command else "How it was made",
        "repeat": _repeat_section(report),
        "signing": render_signing(report.signing) if report.signing else "",
        "notes": _notes_section(report),
    }
    return fill_template("report.html", parts)


def _method_colours(report: Report) -> str:
    """The colour of each method as a CSS variable, with a value for light and for dark."""
    # on paper the light values hold, whatever the scheme of the screen
    chosen = styles(report.methods)
    light = "".join(f"--method-{k}:{style.light};" for k, style in enumerate(chosen))
    dark = "".join(f"--method-{k}:{style.dark};" for k, style in enumerate(chosen))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def _pair(*cards: str) -> str:
    """Two cards side by side; one alone takes the whole width."""
    shown = [card for card in cards if card]
    kind = "pair" if len(shown) == 2 else "pair single"
    return f'<div class="{kind}">{"".join(shown)}</div>' if shown else ""


def _results_table(report: Report, shown: Choice) -> str:
    """The results table; the script only sorts it."""
    settings = {
        "learning_rate": "learning rate",
        "clip": "clip",
        "sigma_cdp": "σ cdp",
        "sigma_cor": "σ cor",
        "steps": "steps",
    }
    # a column that repeats the budget says nothing
    if any(outcome.spent not in (None, outcome.epsilon) for outcome in report.outcomes):
        settings = {"spent": "ε spent"} | settings
    names = ["ε" if name == "epsilon" else name for name in summary_header(report)]
    names += [*settings.values(), *([] if report.only_peers else ["seeds"])]
    columns = [spreads(report, metric) for metric in report.metrics]
    rows = []
    for k, (outcome, texts) in enumerate(zip(report.outcomes, summary_rows(report), strict=True)):
        budget = _NO_PRIVACY if outcome.epsilon is None else min(outcome.epsilon, _INFINITE)
        cells = [_method_cell(outcome), _number_cell(texts[1], budget)]
        for column, text in zip(columns, texts[2:], strict=True):
            spread = column[k]
            cells.append(_number_cell(text, None if spread is None else spread.mean))
        cells += [_number_cell(*_setting(outcome, key)) for key in settings]
        if not report.only_peers:
            cells.append(_number_cell(_seeds_text(outcome), len(outcome.seeds)))
        # the script finds the row of the current choice by this name
        name = row_name(report, outcome)
        chosen = ' class="chosen"' if name in _rows_of_choice(shown) else ""
        rows.append(f'<tr data-row="{name}" data-number="{k}"{chosen}>{"".join(cells)}</tr>')
    head = '<th scope="col">method</th>'
    head += "".join(f'<th scope="col" class="number">{escape(name)}</th>' for name in names[1:])
    body = "".join(rows)
    return (
        f'<table id="results"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        f"{_base_rate_foot(report, len(names))}</table>"
    )


def _base_rate_foot(report: Report, columns: int) -> str:
    """The row below the results that says what guessing reaches."""
    row = base_rate_row(report)
    if row is None:
        return ""
    cells = "".join(f'<td class="number">{escape(text)}</td>' for text in row[1:])
    cells += "<td></td>" * (columns - len(row))
    return f'<tfoot><tr><th scope="row">{escape(row[0])}</th>{cells}</tr></tfoot>'


def _rows_of_choice(shown: Choice) -> tuple[str, str]:
    return f"{shown.method} {shown.epsilon}", f"{shown.method} "


def _method_cell(outcome: Outcome) -> str:
    name = escape(outcome.method)
    stopped = '<span class="stopped">stopped early</span>' if outcome.stopped else ""
    return f'<th scope="row" data-sort="{name}">{name}{stopped}</th>'


def _number_cell(text: str, value: float | None) -> str:
    """A cell with its sort key: the number itself, and nothing where there is none."""
    # full precision: rows that print alike still sort by their values
    key = "" if value is None else repr(float(value))
    return f'<td class="number" data-sort="{key}">{escape(text)}</td>'


def _setting(outcome: Outcome, key: str) -> tuple[str, float | None]:
    """A setting as text, and its sort key."""
    value = getattr(outcome, key)
    if value is None:
        return "–", None
    if key == "spent":
        return epsilon_text(value), min(value, _INFINITE)
    if key == "steps":
        planned = outcome.planned_steps
        early = planned is not None and planned != value
        return f"{value:,} of {planned:,}" if early else f"{value:,}", value
    if key.startswith("sigma"):
        return sigma_text(value), value.low if isinstance(value, SigmaRange) else value
    return setting_text(value), value


def _seeds_text(outcome: Outcome) -> str:
    seeds = outcome.seeds
    if outcome.noise != "seed":
        return "none: real peers" if outcome.noise == "peers" else "secret"
    # seeds are usually 0, 1, 2, ...: a range is shorter
    if len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds[:6])) + (f", … ({len(seeds)})" if len(seeds) > 6 else "")


def _list_of_stops(report: Report) -> str:
    """Why runs stopped early: each reason once, with all outcomes it applies to."""
    reasons: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        if outcome.stopped:
            at = "" if outcome.epsilon is None else f" at ε = {epsilon_text(outcome.epsilon)}"
            # one learning rate that is too large stops many outcomes for the same reason
            reasons.setdefault(outcome.stopped, []).append(outcome.method + at)
    items = ""
    for reason, names in reasons.items():
        items += f"<li><strong>{escape(', '.join(names))}:</strong> {escape(reason)}</li>"
    return f'<ul class="early">{items}</ul>' if items else ""


def _repeat_section(report: Report) -> str:
    repeat = report.repeat
    parts = []
    if repeat is not None and repeat.command:
        parts.append(
            '<div class="command"><pre tabindex="0"><code id="command">'
            f"{escape(repeat.command)}</code></pre>"
            '<button type="button" id="copy" class="js">Copy</button></div>'
        )
    if repeat is not None:
        versions = dict(repeat.versions or {})
        if repeat.machine:
            versions["machine"] = repeat.machine
        if repeat.seconds is not None:
            versions["time"] = f"{repeat.seconds:,.1f} s"
        lists = {"Versions": versions, "Options": repeat.options, "Files": repeat.files}
        for name, entries in lists.items():
            if entries:
                parts.append(f"<div><h3>{name}</h3>{_definitions(entries)}</div>")
    return "".join(parts) or "<p>This report does not say how it was made.</p>"


def _definitions(entries: Settings) -> str:
    rows = ""
    for key, value in entries.items():
        name = str(key).replace("_", " ")
        rows += f"<div><dt>{escape(name)}</dt><dd>{escape(_words(value))}</dd></div>"
    return f"<dl>{rows}</dl>"


def _words(value: object) -> str:
    """A JSON value as people say it; what an option is made of follows its name."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return setting_text(value)
        case list() | tuple():
            return ", ".join(map(_words, value))
        case dict():
            named = [f"{key} {_words(item)}" for key, item in value.items() if key != "name"]
            return ", ".join([*([_words(value["name"])] if "name" in value else []), *named])
    return str(value)


def _notes_section(report: Report) -> str:
    tuning, html = report.tuning, ""
    if tuning is not None and tuning.warning:
        by = f" Chosen by: {tuning.criterion}." if tuning.criterion else ""
        grid = _definitions(tuning.grid) if tuning.grid else ""
        text = escape(tuning.warning + by)
        html = f'<div class="warning" role="note"><strong>Tuning.</strong> {text}{grid}</div>'
    if report.notes:
        html += f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in report.notes)}</ul>"
    return html or "<p>No notes.</p>"
