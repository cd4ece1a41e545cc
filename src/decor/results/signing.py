"""The last section of every report: digests, owner, date, and a place for signatures."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from decor.errors import InputError

from .json_dataclass import JsonRecord

Facts = tuple[tuple[str, str], ...]
"""Names with their values, as text."""

_LINES = 3
"""Lines for signatures: two who agree, and one more."""


@dataclass(frozen=True, kw_only=True)
class Signing(JsonRecord):
    """What is signed, and by whom it is answered for.

    Attributes:
        digests: What the report is about, by digests that anyone can compare.
        check: The command that computes the promise and the digest again; empty: there is none.
        owner: Who answers for the data or the decision; empty: to be filled in by hand.
        date: The date of the report (ISO 8601).

    Raises:
        InputError: If the date is none.
    """

    digests: Facts
    check: str = ""
    owner: str = ""
    date: str

    def __post_init__(self) -> None:
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise InputError(
                f"the date of a report must be a day such as 2026-11-19, not {self.date!r}"
            ) from None


def today() -> str:
    """Today's date where the report is made."""
    return datetime.date.today().isoformat()


def render_facts(facts: Sequence[tuple[str, str]], kind: str = "facts") -> str:
    """Names and values as a list. Guarantee: all text is escaped."""
    rows = ""
    for name, value in facts:
        rows += f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    return f'<dl class="{kind}">{rows}</dl>' if rows else ""


def render_signing(signing: Signing) -> str:
    """The section as HTML. Guarantee: all text of the data is escaped."""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("name", "role", "date", "signature"))
    # the owner's line is begun; who else signs is for people to say
    body = f"<tr><td>{escape(signing.owner)}</td><td>owner</td><td></td><td></td></tr>"
    body += "<tr><td></td><td></td><td></td><td></td></tr>" * (_LINES - 1)
    check = ""
    if signing.check:
        check = f"<p>To check it: <code>{escape(signing.check)}</code></p>"
    digests = render_facts(signing.digests, "facts digests")
    owner = [("owner", signing.owner)] if signing.owner else []
    facts = [*owner, ("date of this report", signing.date)]
    return (
        '<section class="card signing" aria-labelledby="signing-title">'
        f'<h2 id="signing-title">Signatures</h2>{digests}{check}'
        f"{render_facts(facts)}"
        '<table class="signatures" aria-labelledby="signing-title">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"
    )
