"""What all seeds say together: means, spreads and the rows of the results table, in numbers that
people read.

A spread is the standard error of the mean over seeds (the sample's deviation by the root of the
number of seeds). Seeds without a value are left out of both, and every text then says how many
there were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from decor.text import rounded_up

from .report_data import Data, check, number

SPREAD = "mean ± standard error over seeds"
_DIGITS = 6
"""Of a mean, at most: a spread beyond them is the arithmetic's, and shown as 0."""


@dataclass(frozen=True)
class Spread:
    """Mean, standard error (None for fewer than two values) and range of the seeds that have a
    value.
    """

    mean: float
    error: float | None
    low: float
    high: float
    seeds: int
    of: int

    @staticmethod
    def of_seeds(values: Sequence[float | None], scale: float = 1.0) -> Spread | None:
        """None where no seed has a value."""
        known = [scale * value for value in values if value is not None]
        if not known:
            return None
        mean = math.fsum(known) / len(known)
        error = None
        if len(known) > 1:
            error = math.sqrt(
                math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1) / len(known)
            )
        return Spread(mean, error, min(known), max(known), len(known), len(values))


def scale(metric: Data) -> float:
    """What a value is multiplied with to be shown."""
    return 100.0 if metric.get("percent") else 1.0


def heading(metric: Data) -> str:
    """A metric's name at the head of a column or beside an axis."""
    return f"{metric['label']}, %" if metric.get("percent") else str(metric["label"])


def spreads(data: Data, metric: Data) -> list[Spread | None]:
    """The final spread of a metric for every outcome, in shown units."""
    return [
        Spread.of_seeds(outcome["final"][metric["name"]], scale(metric))
        for outcome in data["outcomes"]
    ]


def decimals(found: Sequence[Spread | None], percent: bool) -> int:
    """Digits after the point for one column: down to the first digit of its middle spread."""
    errors = sorted(s.error for s in found if s is not None and s.error)
    if not errors:
        return 2 if percent else 4
    first = -math.floor(math.log10(errors[len(errors) // 2]))
    return min(max(first, 1 if percent else 2), 4)


def value_text(value: float, digits: int) -> str:
    """One value; what the column's digits would hide or swell has three of its own.

    `shown` in page/format.js says the same.
    """
    return f"{value:.{digits}f}" if 10.0 ** (1 - digits) <= abs(value) < 1e5 else f"{value:.3g}"


def pair_text(mean: float, error: float | None, digits: int) -> tuple[str, str]:
    """A mean and its spread ("" for none), down to the same digit: the column's, or a smaller
    spread's own first one.

    Very small and very large ones share an exponent. `pair` in page/format.js says the same.
    """
    if not error:
        return value_text(mean, digits), "" if error is None else "0"
    power = math.floor(math.log10(max(abs(mean), error)))
    shift = 0 if -4 <= power < 5 else power
    unit, tail = 10.0**shift, f"e{shift:+03d}" if shift else ""
    own = min(
        max(1 if shift else digits, -math.floor(math.log10(error / unit))),
        _DIGITS - 1 - power + shift,
    )
    spread = f"{error / unit:.{own}f}"
    return (
        (value_text(mean, digits), "0")
        if float(spread) == 0
        else (f"{mean / unit:.{own}f}{tail}", f"{spread}{tail}")
    )


def spread_text(spread: Spread | None, digits: int, unit: str = "") -> str:
    """`mean ± spread`, and how many seeds it speaks for where some have no value."""
    if spread is None:
        return "no value"
    mean, error = pair_text(spread.mean, spread.error, digits)
    text = (f"{mean} ± {error}" if error else mean) + (f" {unit}" if unit else "")
    return text if spread.seeds == spread.of else f"{text} ({spread.seeds} of {spread.of} seeds)"


def epsilon_text(epsilon: float | str | None) -> str:
    """An epsilon rounded up; "none" where there is no privacy at all."""
    if epsilon is None:
        return "none"
    return "∞" if number(epsilon) == math.inf else rounded_up(number(epsilon))


def plain(value: float | dict[str, float] | None) -> str:
    """A setting with four digits; a range where it differs between edges."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        return f"{value['low']:.4g} to {value['high']:.4g}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def summary_header(data: Data) -> list[str]:
    """The heads of the columns of `summary_rows`."""
    return ["method", "epsilon", *(heading(metric) for metric in data["metrics"])]


def summary_rows(data: Data) -> list[list[str]]:
    """One row per outcome: method, epsilon (rounded up), then `mean ± spread` of every metric.

    The page shows the same text.
    """
    check(data)
    columns = []
    for metric in data["metrics"]:
        found = spreads(data, metric)
        digits = decimals(found, bool(metric.get("percent")))
        columns.append([spread_text(spread, digits) for spread in found])
    return [
        [outcome["method"], epsilon_text(outcome["epsilon"]), *(column[k] for column in columns)]
        for k, outcome in enumerate(data["outcomes"])
    ]
