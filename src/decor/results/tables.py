"""Means and standard errors over seeds, and the rows of the results table.

The standard error of the mean is the sample's standard deviation divided by the square root of the
number of seeds. Seeds without a value are left out, and the text then says how many are left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from decor.text import epsilon_text, mean_and_error_texts, rounded_up, rounded_up_range

from .report_data import Curve, Metric, Outcome, Report, SigmaRange

BASE_RATE = "always the same guess"
"""The name of the base rate: the accuracy of always guessing the most frequent class."""
SPREAD = "mean ± standard error over seeds"


@dataclass(frozen=True)
class Spread:
    """Mean, standard error and range over the `seeds` of `of` seeds that have a value.

    The error is None for fewer than two values.
    """

    mean: float
    error: float | None
    low: float
    high: float
    seeds: int
    of: int

    @staticmethod
    def of_seeds(values: Sequence[float | None], scale: float = 1.0) -> Spread | None:
        """The spread of `values` times `scale`; None where no seed has a value."""
        known = [scale * value for value in values if value is not None]
        if not known:
            return None
        # exact sums: the table must not depend on the order of the seeds
        mean = math.fsum(known) / len(known)
        error = None
        if len(known) > 1:
            variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
            error = math.sqrt(variance / len(known))
        return Spread(mean, error, min(known), max(known), len(known), len(values))


def spreads(report: Report, metric: Metric) -> list[Spread | None]:
    """The final spread of a metric for every outcome, in the units that are shown."""
    return [Spread.of_seeds(o.final[metric.name], metric.scale) for o in report.outcomes]


def difference_of(one: Outcome, other: Outcome, metric: Metric) -> Spread:
    """One outcome's final mean minus another's, with the standard error of this difference.

    Where both have the same seeds, each seed has one difference, in which what the seed decides
    for both (the start and the batches) cancels; otherwise the errors of both means add as squares.

    Args:
        one: An outcome that has a value.
        other: Another one.
        metric: The metric.
    """
    values, others = one.final[metric.name], other.final[metric.name]
    if one.seeds == other.seeds and None not in (*values, *others):
        pairs = zip(values, others, strict=True)
        paired = [a - b for a, b in pairs if a is not None and b is not None]
        spread = Spread.of_seeds(paired, metric.scale)
        assert spread is not None
        return spread
    a, b = Spread.of_seeds(values, metric.scale), Spread.of_seeds(others, metric.scale)
    assert a is not None and b is not None
    known = a.error is not None and b.error is not None
    error = math.hypot(a.error or 0.0, b.error or 0.0) if known else None
    low, high = a.low - b.high, a.high - b.low
    return Spread(a.mean - b.mean, error, low, high, min(a.seeds, b.seeds), max(a.of, b.of))


def curve_spreads(curve: Curve, metric: Metric, points: int) -> list[tuple[float, Spread | None]]:
    """(step, spread) at no more than `points` steps, the first and the last among them."""
    last = len(curve.steps) - 1
    count = min(last + 1, points)
    # rounded places of an even grid; the set drops places that round to the same step
    chosen = sorted({round(last * k / max(1, count - 1)) for k in range(count)})
    rows = curve.rows[metric.name]
    return [
        (curve.steps[k], Spread.of_seeds([row[k] for row in rows], metric.scale)) for k in chosen
    ]


def decimals(column: Sequence[Spread | None], metric: Metric) -> int:
    """Digits after the point for a column: down to the first digit of its median error."""
    # the median: one noisy outcome must not cost all rows their digits
    errors = sorted(s.error for s in column if s is not None and s.error)
    if not errors:
        return 2 if metric.percent else 4
    # the place of the first digit that the seeds disagree in
    first = -math.floor(math.log10(errors[len(errors) // 2]))
    return min(max(first, 1 if metric.percent else 2), 4)


def spread_text(spread: Spread | None, digits: int, unit: str = "") -> str:
    """`mean ± error`, with the number of seeds where some have no value."""
    if spread is None:
        return "no value"
    mean, error = mean_and_error_texts(spread.mean, spread.error, digits)
    text = (f"{mean} ± {error}" if error else mean) + (f" {unit}" if unit else "")
    return text if spread.seeds == spread.of else f"{text} ({spread.seeds} of {spread.of} seeds)"


def sigma_text(sigma: float | SigmaRange | None) -> str:
    """Noise rounded up: a person who copies it must not get less noise than was used."""
    if isinstance(sigma, SigmaRange):
        return rounded_up_range(sigma.low, sigma.high)
    return "–" if sigma is None else rounded_up(sigma)


def summary_header(report: Report) -> list[str]:
    """The names of the columns of `summary_rows`."""
    return ["method", "epsilon", *(metric.heading for metric in report.metrics)]


def base_rate_row(report: Report) -> list[str] | None:
    """The accuracy of always guessing the most frequent class, as a row; None where unknown."""
    if report.base_rate is None or not any(metric.name == "accuracy" for metric in report.metrics):
        return None
    values = [
        f"{100 * report.base_rate:.1f}" if metric.name == "accuracy" else "–"
        for metric in report.metrics
    ]
    return [BASE_RATE, "–", *values]


def summary_rows(report: Report) -> list[list[str]]:
    """One row per outcome: method, epsilon (rounded up), then `mean ± error` of every metric.

    Terminal and page show the same text.
    """
    columns = []
    for metric in report.metrics:
        column = spreads(report, metric)
        # one number of digits for a column, so that its values line up
        digits = decimals(column, metric)
        columns.append([spread_text(spread, digits) for spread in column])
    names = [[outcome.method, epsilon_text(outcome.epsilon)] for outcome in report.outcomes]
    return [
        [*name, *values] for name, values in zip(names, zip(*columns, strict=True), strict=True)
    ]
