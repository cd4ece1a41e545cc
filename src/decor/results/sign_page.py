"""A page to sign: what a plan, a federation or a ledger promises, as one file that prints.

Guarantee: no text of the data can become markup or code. All of it is escaped when it enters the
page, which has no script.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from .html_page import fill_template, page_file, write_page
from .json_dataclass import JsonRecord
from .signing import Facts, Signing, render_facts, render_signing

FORMAT = "decor-sign-page-1"
PageKind = Literal["plan", "federation", "ledger"]

_NUMBER = re.compile(r"(≤ )?[\d.,]+(e[+-]?\d+)?|∞|–")


@dataclass(frozen=True, kw_only=True)
class SignTable(JsonRecord):
    """A table of the page; its first column names the rows."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class SignPage(JsonRecord):
    """All that the page says.

    Attributes:
        kind: What it is about.
        title: The heading.
        subtitle: A line below it.
        promise: The guarantee, as sentences.
        warnings: What a reader must not miss, beside the promise.
        figures: The promise in figures: epsilon, delta, unit, adversary, and what it is of.
        tables: Adversaries, users or runs.
        training: What is public about the training.
        not_protected: What the promise does not cover.
        signing: Digests, owner and date.
    """

    kind: PageKind
    title: str
    subtitle: str
    promise: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    figures: Facts
    tables: tuple[SignTable, ...]
    training: Facts
    not_protected: tuple[str, ...]
    signing: Signing

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **super().to_json()}


def write(content: SignPage, path: str | Path) -> None:
    """Writes the page to a file, which is never left half-written.

    Raises:
        InputError: If the file cannot be written.
    """
    write_page(render(content), path)


def render(content: SignPage) -> str:
    """The page as text; the same content always makes the same page."""
    parts = {
        "title": escape(content.title),
        "subtitle": escape(content.subtitle),
        "date": escape(content.signing.date),
        "style": page_file("report.css"),
        "promise": "".join(f'<p class="guarantee">{escape(each)}</p>' for each in content.promise),
        "warnings": "".join(f'<p class="notice">{escape(each)}</p>' for each in content.warnings),
        "figures": render_facts(content.figures),
        "tables": "".join(_section(table, k) for k, table in enumerate(content.tables)),
        "training": render_facts(content.training),
        "not_protected": "".join(f"<p>{escape(each)}</p>" for each in content.not_protected),
        "signing": render_signing(content.signing),
    }
    return fill_template("sign.html", parts)


def _section(table: SignTable, number: int) -> str:
    note = f'<p class="quiet note">{escape(table.note)}</p>' if table.note else ""
    title = f"table-{number}"
    return (
        f'<section class="card" aria-labelledby="{title}">'
        f'<h2 id="{title}">{escape(table.title)}</h2>{note}'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{title}">'
        f"{_table(table, title)}</div></section>"
    )


def _table(table: SignTable, title: str) -> str:
    columns = zip(*table.rows, strict=True)
    # a column of numbers lines up at the right; the first column names the rows
    right = [k > 0 and all(map(_NUMBER.fullmatch, cells)) for k, cells in enumerate(columns)]
    kinds = [' class="number"' if number else "" for number in right]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>'
        for name, kind in zip(table.header, kinds, strict=True)
    )
    body = ""
    for first, *cells in table.rows:
        row = "".join(
            f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(cells, kinds[1:], strict=True)
        )
        body += f'<tr><th scope="row">{escape(first)}</th>{row}</tr>'
    return (
        f'<table aria-labelledby="{title}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
