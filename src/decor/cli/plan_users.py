"""Tables of all users of a plan: text, CSV or JSON."""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import Any

from decor.errors import write_errors
from decor.privacy.plan_answer import PlanAnswer
from decor.results.safe_files import replace_text
from decor.text import json_safe, rounded_up, table


def add_to(parser: argparse.ArgumentParser) -> None:
    help = "write a table of all users to this file: .csv, .json, or else text"
    parser.add_argument("--table", metavar="FILE", help=help)


def write(answer: PlanAnswer, path: str) -> None:
    """Writes one row per user: name, neighbours, number of examples where it is public, epsilon.

    Args:
        answer: The plan and its guarantee.
        path: The file; its ending selects the format.
    """
    rows = _rows(answer)
    kind = Path(path).suffix.lower()
    if kind == ".json":
        text = json.dumps(json_safe(rows), indent=1, allow_nan=False) + "\n"
    elif kind == ".csv":
        text = _csv(rows)
    else:
        # as in the other tables, epsilon is rounded up
        cells = [[_display_text(value) for value in row.values()] for row in rows]
        text = table(list(rows[0]), cells) + "\n"
    with write_errors(path):
        replace_text(Path(path), text)


def _rows(answer: PlanAnswer) -> list[dict[str, Any]]:
    degrees = answer.plan.topology.degrees.tolist()
    rows = []
    for degree, user in zip(degrees, answer.user_rows(), strict=True):
        records = {} if user.records is None else {"records": user.records}
        own = {"sigma_cdp": user.sigma_cdp} if isinstance(answer.plan.sigma_cdp, tuple) else {}
        row = {"user": user.name, "neighbours": degree, **records, **own, "epsilon": user.epsilon}
        rows.append(row)
    return rows


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _display_text(value: Any) -> str:
    if isinstance(value, float):
        return rounded_up(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
