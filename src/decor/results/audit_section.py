"""What an audit found (`Audit.to_json`, audit.json), as rows and as a section of the report."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.privacy.adversary import Adversary
from decor.privacy.plan import NoisePlan
from decor.text import rounded_up

Data = dict[str, Any]

HEADER = ("engine", "adversary", "claimed epsilon", "measured", "reached", "")


def lines(audit: Data) -> list[list[str]]:
    """One row for every adversary; what is claimed is rounded up, and what is measured down.

    Of records the epsilon that was measured is a comparison, and no bound.
    """
    sign = "about" if audit.get("unit") == "example" else ">="
    return [
        [
            str(row["engine"]),
            str(row["adversary"]),
            rounded_up(float(row["claimed_epsilon"])),
            f"{sign} {down(float(row['measured_epsilon']))}",
            f"{math.floor(1000 * float(row['reached'])) / 10:g} %"
            if math.isfinite(float(row["reached"]))
            else "inf",
            "pass" if row["passed"] is True else "FAIL",
        ]
        for row in audit["adversaries"]
    ]


def down(value: float) -> str:
    """Three digits, none of them rounded up."""
    if not math.isfinite(value) or value <= 0:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit * (1 + 1e-12)) * unit:.3g}"


def fingerprint(plan: NoisePlan) -> str:
    """Of what an audit is about: graph, noise and what is exposed; whomever the plan is made
    against.
    """
    return sha256(
        replace(plan, adversary=Adversary.eavesdropper(), budget=None).to_json().encode()
    ).hexdigest()


def saved(folder: str | Path, plan: NoisePlan) -> Data | None:
    """The outcome of `decor audit FOLDER`, if there is one, and if it is this plan's: the run may
    be another since.
    """
    path = Path(folder) / "audit.json"
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        section([("", found)])
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as problem:
        raise InputError(
            f"{str(path)!r} cannot be read as an audit ({problem}); run decor audit again"
        ) from None
    if found.get("plan") == fingerprint(plan):
        return dict(found)
    warnings.warn(
        f"{str(path)!r} is the audit of another plan, and left out; run decor audit again",
        stacklevel=2,
    )
    return None


def section(audits: list[tuple[str, Data]]) -> str:
    """Markup of the report's section; nothing of the data is markup itself."""
    made = [_one(name if len(audits) > 1 else "", audit) for name, audit in audits]
    return (
        '<section class="card" aria-labelledby="audit-title"><h2 '
        f'id="audit-title">Audit</h2>{"".join(made)}</section>'
    )


def _one(name: str, audit: Data) -> str:
    head = "".join(f'<th scope="col">{escape(cell or "verdict")}</th>' for cell in HEADER)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in lines(audit)
    )
    right = sum(check["passed"] is True for check in audit["checks"])
    title = f"<h3>{escape(name)}</h3>" if name else ""
    wrong = "".join(f"<li>{escape(str(failure))}</li>" for failure in audit.get("failures", []))
    label = f"Audit {name}".strip()
    return (
        f"{title}<p>{escape(str(audit['statement']))}</p>{f'<ul>{wrong}</ul>' if wrong else ''}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="quiet">{right} of {len(audit["checks"])} checks of the noise’s law passed. '
        "Attacks prove a lower bound; the claim is an upper one.</p>"
    )
