"""The committed results of the studies, `results/NAME.csv`, as rows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def rows(study: str) -> list[dict[str, Any]]:
    """As `decor reproduce` gave them: numbers are numbers, what is empty is None, values of seeds
    are a list.
    """
    with (RESULTS / f"{study}.csv").open(encoding="utf-8", newline="") as file:
        return [
            {name: _value(name, text) for name, text in line.items()}
            for line in csv.DictReader(file)
        ]


def chosen(study: str, method: str, epsilon: float) -> dict[str, Any]:
    """The row of a method in our variant."""
    found = [
        r
        for r in rows(study)
        if (r["variant"], r["method"], r["epsilon"]) == ("ours", method, epsilon)
    ]
    if not found:
        known = sorted({r["epsilon"] for r in rows(study) if r["variant"] == "ours"})
        raise SystemExit(
            f"{study} has no epsilon {epsilon:g}; there are {', '.join(f'{e:g}' for e in known)}"
        )
    return found[0]


def _value(name: str, text: str) -> Any:
    if name == "values":
        return [float(part) for part in text.split()]
    if text == "":
        return None
    try:
        return float(text)
    except ValueError:
        return text
