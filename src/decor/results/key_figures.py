"""The key figures of a report's page: up to four large numbers for an outcome and a metric."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from decor.text import epsilon_text, mean_and_error_texts, value_text

from .report_data import MethodKind, Metric, Outcome, Report
from .tables import Spread, decimals, difference_of, sigma_text, spread_text, spreads

_BASELINES: dict[MethodKind, str] = {
    "none": "against no privacy",
    "local": "against local DP",
    "central": "against central DP",
}
_MOST = 4
"""Key figures that fit in one line of the page."""


def render_key_figures(
    report: Report, outcome: Outcome, metric: Metric, column: Sequence[Spread | None]
) -> str:
    """The metric, its difference to each baseline, and settings where there is space.

    Args:
        report: The report.
        outcome: One of its outcomes.
        metric: One of its metrics.
        column: The spread of the metric for every outcome, from `spreads`.
    """
    digits = decimals(column, metric)
    own = column[report.outcomes.index(outcome)]
    parts = [_metric_figure(f"{metric.label}, {outcome.method}", own, metric, digits, outcome)]
    for kind, name in _BASELINES.items():
        other = _best_of_kind(report, outcome, kind, column, metric)
        # a baseline is not compared with itself
        if own is not None and other is not None and report.kind(outcome.method) != kind:
            best, spread = other
            difference = difference_of(outcome, best, metric)
            text, error = mean_and_error_texts(difference.mean, difference.error, digits)
            text = ("+" if difference.mean > 0 else "") + text
            # a difference of two percentages is in percentage points
            points = "points" if metric.percent else ""
            small = f"± {error}; " if error else ""
            small += f"{best.method}: {spread_text(spread, digits, metric.unit)}"
            parts.append(_key_figure(text, points, name, small))
    # a report of one run has no baseline: its second metric takes the place
    if len(parts) == 1:
        parts += _second_metric(report, outcome, metric)
    if len(parts) < _MOST:
        delta = "" if not outcome.delta else f", with δ = {outcome.delta:.4g}"
        sigmas = f"σ cdp {sigma_text(outcome.sigma_cdp)}, σ cor {sigma_text(outcome.sigma_cor)}"
        parts.append(
            _key_figure(epsilon_text(outcome.epsilon), "", f"ε{delta}", f"noise: {sigmas}")
        )
    if len(parts) < _MOST and outcome.steps is not None:
        planned = outcome.planned_steps
        early = f"of {planned:,} planned" if planned not in (None, outcome.steps) else ""
        parts.append(_key_figure(f"{outcome.steps:,}", "", "steps", early))
    return "".join(parts)


def _second_metric(report: Report, outcome: Outcome, first: Metric) -> list[str]:
    for metric in report.metrics:
        spread = Spread.of_seeds(outcome.final[metric.name], metric.scale)
        if metric != first and spread is not None:
            digits = decimals(spreads(report, metric), metric)
            return [_metric_figure(metric.label, spread, metric, digits)]
    return []


def _metric_figure(
    name: str, spread: Spread | None, metric: Metric, digits: int, outcome: Outcome | None = None
) -> str:
    runs = [] if outcome is None else [_runs_text(outcome)]
    if spread is None:
        return _key_figure("–", metric.unit, name, *runs)
    if spread.seeds < spread.of:
        # some seeds diverged: the mean of the others must not look like the mean of all
        runs = [f"{spread.seeds} of {spread.of} seeds"]
    mean, error = mean_and_error_texts(spread.mean, spread.error, digits)
    if spread.seeds > 1:
        low, high = value_text(spread.low, digits), value_text(spread.high, digits)
        runs.append(f"from {low} to {high}")
    unit = metric.unit + (f" ± {error}" if error else "")
    return _key_figure(mean, unit, name, ", ".join(runs))


def _key_figure(big: str, unit: str, name: str, small: str = "") -> str:
    unit = f'<span class="unit">{escape(unit)}</span>' if unit else ""
    small = f'<dd class="small">{escape(small)}</dd>' if small else ""
    # a large hyphen would not look like a minus sign
    big = escape(big.replace("-", "−", 1) if big.startswith("-") else big)
    return f'<div><dt>{escape(name)}</dt><dd class="big"><b>{big}</b>{unit}</dd>{small}</div>'


def _best_of_kind(
    report: Report,
    outcome: Outcome,
    kind: MethodKind,
    column: Sequence[Spread | None],
    metric: Metric,
) -> tuple[Outcome, Spread] | None:
    """The best other method of a kind, with the same budget or without privacy."""
    others = []
    for other, spread in zip(report.outcomes, column, strict=True):
        # another budget would compare two privacy levels
        comparable = other.epsilon in (outcome.epsilon, None) and other is not outcome
        if report.kind(other.method) == kind and comparable and spread is not None:
            others.append((other, spread))
    # the strongest baseline: a comparison with a weak one would flatter the method
    sign = -1 if metric.better == "higher" else 1
    return min(others, key=lambda entry: sign * entry[1].mean, default=None)


def _runs_text(outcome: Outcome) -> str:
    count = len(outcome.seeds)
    if outcome.noise == "peers":
        return "one run of real peers" if count == 1 else f"{count} runs of real peers"
    noun = "private run" if outcome.noise == "secret" else "seed"
    return f"{count} {noun}{'' if count == 1 else 's'}"
