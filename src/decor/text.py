"""Numbers and tables as text: rounding up for print, columns, and JSON without infinities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def rounded_up(value: float) -> str:
    """Four digits, rounded up in the last: a printed epsilon is not below the truth either."""
    if abs(value) < 1e-290 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    # what exceeds a printed number by rounding alone (one part in 10^9) is that number
    return f"{math.ceil(value / unit * (1 - 1e-9)) * unit:.4g}"


def json_safe(value: Any) -> Any:
    """`value` for JSON: infinities become the strings "inf" and "-inf", and NaN becomes null."""
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def table(header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Columns as wide as they need; numbers to the right, words to the left."""
    widths = [max(len(str(row[k])) for row in [header, *rows]) for k in range(len(header))]
    numeric = [all(_is_number(row[k]) for row in rows) for k in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        parts = [
            c.rjust(w) if right else c.ljust(w)
            for c, w, right in zip(cells, widths, numeric, strict=True)
        ]
        return (indent + "  ".join(parts)).rstrip()

    return "\n".join(
        [line(header), indent + "  ".join("-" * w for w in widths), *(line(row) for row in rows)]
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ""))
    except ValueError:
        return False
    return True
