"""Numbers and tables as text: rounding up for print, columns, and JSON without infinities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any


def rounded_up(value: float) -> str:
    """Four digits, rounded up in the last: a printed epsilon is not below the truth either."""
    # zero has no logarithm, and the unit of the tiniest numbers is no normal number
    if abs(value) < 1e-290 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    # what exceeds a printed number by rounding alone (one part in 10^9) is that number
    return f"{math.ceil(value / unit * (1 - 1e-9)) * unit:.4g}"


def rounded_up_range(low: float, high: float) -> str:
    """`low to high`, both rounded up; one number where they print the same."""
    texts = rounded_up(low), rounded_up(high)
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def rounded_down(value: float) -> str:
    """Three digits, rounded down in the last: a printed measurement does not exceed the truth."""
    if value < 1e-290 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    # a value that falls short of a printed number by rounding alone is that number
    return f"{math.floor(value / unit * (1 + 1e-12)) * unit:.3g}"


def epsilon_text(epsilon: float | None) -> str:
    """An epsilon rounded up; "none" where there is no privacy at all."""
    if epsilon is None:
        return "none"
    return "∞" if epsilon == math.inf else rounded_up(epsilon)


def setting_text(value: float | None) -> str:
    """A setting such as a learning rate, with four digits; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def amount(count: int, noun: str) -> str:
    """ "1 user", "1,000 users": a number with a noun whose plural ends with an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def value_text(value: float, digits: int) -> str:
    """A value with `digits` after the point, or with three digits where those would say nothing."""
    return f"{value:.{digits}f}" if 10.0 ** (1 - digits) <= abs(value) < 1e5 else f"{value:.3g}"


def mean_and_error_texts(mean: float, error: float | None, digits: int) -> tuple[str, str]:
    """A mean and its standard error, cut at the same digit; "" for no error.

    The last digit is the column's (`digits`), or the first digit of a smaller error. Very small
    and very large values share an exponent. At most six digits of the mean are shown: an error
    below them comes from floating-point arithmetic, and is shown as 0.
    """
    if not error:
        return value_text(mean, digits), "" if error is None else "0"
    # the larger of the two decides, because an error may exceed its mean
    power = math.floor(math.log10(max(abs(mean), error)))
    shift = 0 if -4 <= power < 5 else power
    unit, exponent = 10.0**shift, f"e{shift:+03d}" if shift else ""
    first = -math.floor(math.log10(error / unit))
    shown = min(max(1 if shift else digits, first), 5 - power + shift)
    text = f"{error / unit:.{shown}f}"
    if float(text) == 0:
        return value_text(mean, digits), "0"
    return f"{mean / unit:.{shown}f}{exponent}", f"{text}{exponent}"


def json_safe(value: Any) -> Any:
    """`value` for JSON: infinities become the strings "inf" and "-inf", and NaN becomes null."""
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    # Python would write NaN and Infinity, which are not JSON: other readers refuse them
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


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same columns as a `<table>`, for notebooks."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table>{line(header, 'th') if header else ''}{body}</table>"


def _is_number(cell: str) -> bool:
    try:
        # numbers are printed with commas between thousands
        float(cell.replace(",", ""))
    except ValueError:
        return False
    return True
