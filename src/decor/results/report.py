"""report.html: one file that opens from disk, needs no network, and is useful without its script
too.

Guarantee: no text of the data can become markup or code. It enters the page escaped, or as JSON
without `<`, `>` and `&`, which the script sets as text only; and the page's own policy lets no
script run but the one whose digest it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.text import rounded_up

from .audit_section import section
from .palette import styles
from .report_data import Data, by_peers, check
from .report_view import view
from .tables import SPREAD, epsilon_text, plain, spreads, summary_header, summary_rows

SCRIPTS = ("dom", "format", "axes", "privacy", "curves", "graph", "panels", "report")


def write(data: Data, path: str | Path) -> None:
    """Write the report data as one self-contained page; nothing is left half-written."""
    text = page(data)
    partial = Path(f"{path}.partial")
    try:
        partial.write_bytes(text.encode("utf-8", "replace"))
        os.replace(partial, path)
    except OSError as problem:
        partial.unlink(missing_ok=True)
        raise InputError(
            f"the report {str(path)!r} cannot be written: {problem.strerror or problem}"
        ) from None


def page(data: Data) -> str:
    """The page as text; the same data always makes the same page."""
    check(data)
    script = (
        "(function () {\n'use strict';\n"
        + "\n".join(_file(f"{name}.js") for name in SCRIPTS)
        + "\n})();\n"
    )
    parts = {
        "title": escape(data["title"]),
        "subtitle": escape(data.get("subtitle") or ""),
        "made": escape(_when(data.get("made") or "")),
        "style": _colours(data) + _file("report.css"),
        "script": script,
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": embedded(view(data)),
        "spread": "of one run each, by real peers" if by_peers(data) else SPREAD,
        "first_guarantee": escape(_first_guarantee(data)),
        "table": _results(data),
        "early": _early(data),
        "audit": section(data["audits"]) if data.get("audits") else "",
        "repeat": _repeat(data),
        "notes": _notes(data),
    }
    # one pass, so that a text of the data which looks like a place is not filled
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("report.html"))


def embedded(value: Any) -> str:
    """JSON that no parser of HTML can leave: everything outside ASCII, and `<`, `>` and `&`, as
    escapes.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (resources.files("decor.results") / "page" / name).read_text("utf-8")


def _when(made: str) -> str:
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d).*$", r"\1 \2", made)


def _colours(data: Data) -> str:
    """Every method's colour as a variable of the style sheet, one value for each scheme."""
    found = styles(data)
    light = "".join(f"--method-{k}:{style.light};" for k, style in enumerate(found))
    dark = "".join(f"--method-{k}:{style.dark};" for k, style in enumerate(found))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def _first_guarantee(data: Data) -> str:
    kinds = {method["name"]: method["kind"] for method in data["methods"]}
    promised = [o for o in data["outcomes"] if o.get("guarantee")]
    ours = [o for o in promised if kinds[o["method"]] == "decor"] or promised
    return (
        str(ours[0]["guarantee"])
        if ours
        else "Nothing is promised: no outcome in this report has privacy."
    )


def _results(data: Data) -> str:
    """The results table, complete without the script, which only sorts it."""
    settings = {
        "learning_rate": "learning rate",
        "clip": "clip",
        "sigma_cdp": "σ cdp",
        "sigma_cor": "σ cor",
        "steps": "steps",
    }
    spent = any(o.get("spent") not in (None, o["epsilon"]) for o in data["outcomes"])
    settings = ({"spent": "ε spent"} if spent else {}) | settings
    seeds = [] if by_peers(data) else ["seeds"]
    names = [
        *(h if h != "epsilon" else "ε" for h in summary_header(data)),
        *settings.values(),
        *seeds,
    ]
    columns = [spreads(data, metric) for metric in data["metrics"]]
    lines = []
    for k, (outcome, texts) in enumerate(zip(data["outcomes"], summary_rows(data), strict=True)):
        # no privacy sorts after every epsilon
        order = "1e309" if outcome["epsilon"] is None else _order(outcome["epsilon"])
        cells = [_head_cell(outcome, texts[0]), _cell(texts[1], order)]
        for column, text in zip(columns, texts[2:], strict=True):
            spread = column[k]
            cells.append(_cell(text, "" if spread is None else repr(spread.mean)))
        cells += [_cell(_setting(outcome, key), _order(outcome.get(key))) for key in settings]
        cells += [_cell(_seeds(outcome), str(len(outcome["seeds"]))) for _ in seeds]
        lines.append(f'<tr data-outcome="{k}">{"".join(cells)}</tr>')
    head = "".join(
        f'<th scope="col"{_aside(k)}>{escape(name)}</th>' for k, name in enumerate(names)
    )
    return (
        f'<table id="results"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    )


def _aside(column: int) -> str:
    return "" if column == 0 else ' class="number"'


def _head_cell(outcome: Data, name: str) -> str:
    stopped = '<span class="stopped">stopped early</span>' if outcome.get("stopped") else ""
    return f'<th scope="row" data-sort="{escape(name)}">{escape(name)}{stopped}</th>'


def _early(data: Data) -> str:
    """Why outcomes stopped early, each reason with all it happened to."""
    reasons: dict[str, list[str]] = {}
    for outcome in data["outcomes"]:
        if outcome.get("stopped"):
            whose = outcome["method"] + (
                "" if outcome["epsilon"] is None else f" at ε = {epsilon_text(outcome['epsilon'])}"
            )
            reasons.setdefault(outcome["stopped"], []).append(whose)
    lines = "".join(
        f"<li><strong>{escape(', '.join(who))}:</strong> {escape(why)}</li>"
        for why, who in reasons.items()
    )
    return f'<ul class="early">{lines}</ul>' if lines else ""


def _cell(text: str, order: str) -> str:
    return f'<td class="number" data-sort="{escape(order)}">{escape(text)}</td>'


def _order(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return repr(float(value["low"]))
    return "1e307" if value == "inf" else repr(float(value))


def _setting(outcome: Data, key: str) -> str:
    value = outcome.get(key)
    if key == "spent":
        return "–" if value is None else epsilon_text(value)
    if key == "steps" and value is not None:
        planned = outcome.get("planned_steps")
        return f"{value:,}" if planned in (None, value) else f"{value:,} of {planned:,}"
    # somebody may use these figures: not less noise than was used
    if key.startswith("sigma") and value is not None:
        return " to ".join(
            rounded_up(v)
            for v in ((value["low"], value["high"]) if isinstance(value, dict) else (value,))
        )
    return plain(value)


def _seeds(outcome: Data) -> str:
    seeds, whence = outcome["seeds"], outcome.get("noise", "seed")
    if whence != "seed":
        return "none: real peers" if whence == "peers" else "secret"
    consecutive = len(seeds) > 2 and seeds == list(range(int(seeds[0]), int(seeds[0]) + len(seeds)))
    if consecutive:
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds[:6])) + (f", … ({len(seeds)})" if len(seeds) > 6 else "")


def _repeat(data: Data) -> str:
    repeat = data.get("repeat") or {}
    made = []
    if repeat.get("command"):
        made.append(
            '<div class="command"><pre tabindex="0"><code '
            f'id="command">{escape(repeat["command"])}</code></pre>'
            '<button type="button" id="copy" class="js">Copy</button></div>'
        )
    machine: dict[str, Any] = {"machine": repeat["machine"]} if repeat.get("machine") else {}
    if repeat.get("seconds") is not None:
        machine["time"] = f"{repeat['seconds']:,.1f} s"
    lists = (
        ("Versions", {**(repeat.get("versions") or {}), **machine}),
        ("Options", repeat.get("options") or {}),
    )
    for name, entries in (*lists, ("Files", repeat.get("files") or {})):
        if entries:
            made.append(f"<div><h3>{name}</h3>{_definitions(entries)}</div>")
    return "".join(made) or "<p>This report does not say how it was made.</p>"


def _definitions(entries: dict[str, Any]) -> str:
    def shown(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    rows = "".join(
        f"<div><dt>{escape(str(key))}</dt><dd>{escape(shown(value))}</dd></div>"
        for key, value in entries.items()
    )
    return f"<dl>{rows}</dl>"


def _notes(data: Data) -> str:
    tuning = data.get("tuning") or {}
    made = ""
    if tuning.get("warning"):
        by = f" Chosen by: {tuning['criterion']}." if tuning.get("criterion") else ""
        made += (
            '<div class="warning" role="note"><strong>Tuning.</strong> '
            f"{escape(str(tuning['warning']) + by)}"
        )
        made += (_definitions(tuning["grid"]) if tuning.get("grid") else "") + "</div>"
    if data.get("notes"):
        made += "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in data["notes"]) + "</ul>"
    return made or "<p>No notes.</p>"
