"""The parts of a report's page that follow its controls: metric, budget and method.

Everything is drawn here once for each choice. The page shows the panels of the current choice and
hides the others; its script computes nothing. Guarantee: all text of the data is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape

import numpy as np

from decor.text import epsilon_text

from .figures import comparison_svg, curves_svg, users_svg
from .key_figures import render_key_figures
from .report_data import MAX_DRAWN_USERS, GraphDrawing, Method, Metric, Outcome, Report
from .tables import SPREAD, curve_spreads, decimals, spread_text, spreads

_TABLE_STEPS = 11
"""Rows of the table of a curve: enough to read it without the figure."""
_NO_PRIVACY = "Nothing is promised: this method has no privacy."
_NO_OUTCOME = "This method has no outcome with this budget."


@dataclass(frozen=True)
class Choice:
    """A metric, a budget and a method by their numbers; None: the panel is the same for all."""

    metric: int | None = None
    epsilon: int | None = None
    method: int | None = None

    @classmethod
    def first(cls, report: Report) -> Choice:
        """What the page shows first: DECOR, where there is one, at the middle of its budgets."""
        kinds = [method.kind for method in report.methods]
        method = kinds.index("decor") if "decor" in kinds else 0
        own = {o.epsilon for o in report.outcomes if o.method == report.methods[method].name}
        budgets = [k for k, epsilon in enumerate(report.epsilons) if epsilon in own]
        # DECOR may have been left out of an interrupted comparison
        budgets = budgets or list(range(len(report.epsilons)))
        return cls(0, budgets[(len(budgets) - 1) // 2] if budgets else None, method)

    def includes(self, other: Choice) -> bool:
        """Whether a panel for `self` is shown under the choice `other`."""
        return all(own in (None, vars(other)[name]) for name, own in vars(self).items())


@dataclass(frozen=True)
class Panels:
    """Writes the panels of one report."""

    report: Report
    shown: Choice

    def controls(self) -> str:
        """Budget, method and metric; hidden without the script, which they need."""
        # radio buttons and not a menu: all budgets are seen at once
        budgets = ""
        for k, epsilon in enumerate(self.report.epsilons):
            text, checked = epsilon_text(epsilon), " checked" if k == self.shown.epsilon else ""
            budgets += (
                f'<label><input type="radio" name="epsilon" value="{k}" '
                f'aria-label="epsilon {text}"{checked}><span>{text}</span></label>'
            )
        if budgets:
            budgets = (
                "<fieldset><legend>Budget ε</legend>"
                f'<div class="segments" id="epsilon">{budgets}</div></fieldset>'
            )
        methods = [method.name for method in self.report.methods]
        metrics = [metric.label for metric in self.report.metrics]
        return (
            budgets
            + _select("method", "Method", methods, self.shown.method)
            + _select("metric", "Metric", metrics, self.shown.metric)
        )

    def guarantees(self) -> str:
        """What each method guarantees with each budget."""
        parts = []
        for choice, method, outcome in self._outcomes():
            nothing = _NO_PRIVACY if method.kind == "none" else _NO_OUTCOME
            text = (outcome.guarantee if outcome else None) or nothing
            sentence = f"{method.name}: {method.sentence}" if method.sentence else method.name
            # beside the guarantee, because a run that stopped early keeps the whole plan's
            stopped = outcome.stopped if outcome else None
            notice = f'<p class="notice">{escape(stopped)}</p>' if stopped else ""
            body = f'<p class="guarantee">{escape(text)}</p>'
            body += f'<p class="quiet">{escape(sentence)}</p>{notice}'
            parts.append(self._panel(choice, body))
        return "".join(parts)

    def key_figures(self) -> str:
        """Up to four large numbers for each outcome and metric."""
        parts = []
        for k, metric in enumerate(self.report.metrics):
            column = spreads(self.report, metric)
            for choice, _, outcome in self._outcomes():
                if outcome is not None:
                    figures = render_key_figures(self.report, outcome, metric, column)
                    full = replace(choice, metric=k)
                    parts.append(self._panel(full, figures, "dl", "figures-line"))
        return "".join(parts)

    def comparison(self) -> str:
        """Final values against epsilon, for each metric; nothing for a single outcome."""
        # one outcome is no comparison
        if len(self.report.outcomes) < 2:
            return ""
        parts = []
        for k, metric in enumerate(self.report.metrics):
            note = _note(f"Final {metric.label}, {_spread_note(self.report, metric)}.")
            svg = comparison_svg(self.report, metric, f"c{k}")
            parts.append(self._panel(Choice(k), note + _plot(svg)))
        return _card("comparison", "Privacy against utility", "".join(parts))

    def curves(self) -> str:
        """Each metric over the steps, for each budget, with a table of values.

        Nothing where no run was measured more than once, as by peers.
        """
        curves = [outcome.curve for outcome in self.report.outcomes if outcome.curve is not None]
        if all(len(curve.steps) < 2 for curve in curves):
            return ""
        drawings, tables = [], []
        budgets: Sequence[float | None] = self.report.epsilons or [None]
        for k, metric in enumerate(self.report.metrics):
            for j, epsilon in enumerate(budgets):
                at = "without privacy" if epsilon is None else f"at ε = {epsilon_text(epsilon)}"
                choice = Choice(k, None if epsilon is None else j)
                svg = curves_svg(self.report, metric, epsilon, f"s{k}-{j}")
                if svg is None:
                    body = _empty(f"No curve of {metric.label} was kept {at}.")
                    drawings.append(self._panel(choice, body))
                    continue
                # not capitalize(), which would put the rest of the label in lower case
                title = f"{metric.label[:1].upper()}{metric.label[1:]} {at}"
                note = _note(f"{title}: {_spread_note(self.report, metric)}.")
                drawings.append(self._panel(choice, note + _plot(svg)))
                table = _curve_table(self.report, metric, epsilon)
                body = _details(f"Values of the curves: {metric.label} {at}", table)
                # beside its figure and not inside, because tables are shown without the script
                tables.append(self._panel(choice, body, "div", "always"))
        return _card("curves", "Over the steps", "".join(drawings + tables))

    def users(self) -> str:
        """The epsilon of each user: a figure where users differ, otherwise a sentence.

        Nothing where no figure would be shown: the sentence is then in `adversaries`.
        """
        # figures are drawn once, for this card and for `adversaries`
        drawn = self._user_figures
        if not any(drawn.values()):
            return ""
        parts = []
        for choice, method, outcome in self._outcomes():
            svg = drawn.get(choice)
            note = _note(_graph_note(self.report, method, outcome))
            sentence = _empty(_alike_sentence(outcome) or "No epsilon of single users is known.")
            parts.append(self._panel(choice, note + (_plot(svg) if svg else sentence)))
        for k, method in enumerate(self.report.methods):
            if table := _user_table(self.report, method):
                body = _details(f"ε of each user: {method.name}", table)
                parts.append(self._panel(Choice(method=k), body, "div", "always"))
        return _card("users", "ε of each user", "".join(parts))

    def adversaries(self) -> str:
        """Epsilon against each adversary, for each outcome; nothing where none was computed."""
        if not any(outcome.adversaries for outcome in self.report.outcomes):
            return ""
        alone = not any(self._user_figures.values())
        parts = []
        for choice, method, outcome in self._outcomes():
            if outcome is None or outcome.epsilon is None:
                text = _NO_OUTCOME if outcome is None else _NO_PRIVACY
                parts.append(self._panel(choice, _empty(text)))
                continue
            note = _adversary_note(outcome)
            if alone:
                note += f" {_alike_sentence(outcome, self.report.graph(method.name))}"
            # central DP has no adversary among the users
            kind = "always" if outcome.adversaries else ""
            table = _adversary_table(self.report, outcome)
            parts.append(self._panel(choice, _note(note) + table, "div", kind))
        return _card("adversaries", "Who learns what", "".join(parts))

    @cached_property
    def _user_figures(self) -> dict[Choice, str | None]:
        figures = {}
        for choice, _, outcome in self._outcomes():
            if outcome is not None:
                name = f"u{choice.method}-{choice.epsilon}"
                figures[choice] = users_svg(self.report, outcome, name)
        return figures

    def _outcomes(self) -> Iterator[tuple[Choice, Method, Outcome | None]]:
        """Each method with each budget; an outcome without a budget is shown at every one."""
        for k, method in enumerate(self.report.methods):
            own = [outcome for outcome in self.report.outcomes if outcome.method == method.name]
            if own and all(outcome.epsilon is None for outcome in own):
                yield Choice(method=k), method, own[0]
                continue
            for j, epsilon in enumerate(self.report.epsilons):
                outcome = self.report.outcome(method.name, epsilon)
                yield Choice(epsilon=j, method=k), method, outcome

    def _panel(self, choice: Choice, body: str, tag: str = "div", kind: str = "") -> str:
        # the script compares these attributes with the controls
        chosen = {name: value for name, value in vars(choice).items() if value is not None}
        attributes = "".join(f' data-{name}="{value}"' for name, value in chosen.items())
        # "always": a table, which the style sheet shows without the script too
        attributes += f' class="{kind}"' if kind else ""
        attributes += "" if choice.includes(self.shown) else " hidden"
        return f"<{tag}{attributes}>{body}</{tag}>"


def row_name(report: Report, outcome: Outcome) -> str:
    """`method budget` by number, as the script knows the chosen row of the results."""
    method = [m.name for m in report.methods].index(outcome.method)
    # without privacy a row belongs to every budget
    budget = "" if outcome.epsilon is None else report.epsilons.index(outcome.epsilon)
    return f"{method} {budget}"


def _select(name: str, label: str, options: Sequence[str], chosen: int | None) -> str:
    entries = ""
    for k, option in enumerate(options):
        selected = " selected" if k == chosen else ""
        entries += f'<option value="{k}"{selected}>{escape(option)}</option>'
    return (
        f'<div class="control"><label for="{name}">{label}</label>'
        f'<select id="{name}">{entries}</select></div>'
    )


def _card(name: str, title: str, body: str) -> str:
    return (
        f'<section class="card" id="{name}" aria-labelledby="{name}-title">'
        f'<h2 id="{name}-title">{title}</h2>{body}</section>'
    )


def _plot(svg: str) -> str:
    # on a narrow screen a figure scrolls, so that its text stays readable
    return f'<div class="figure" tabindex="0" role="region" aria-label="Figure">{svg}</div>'


def _note(text: str) -> str:
    return f'<p class="quiet note">{escape(text)}</p>'


def _empty(text: str) -> str:
    return f'<p class="empty">{escape(text)}</p>'


def _details(summary: str, table: str) -> str:
    label = escape(summary)
    return (
        f'<details><summary>{label}</summary><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{label}">{table}</div></details>'
    )


def _table(header: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(
        f'<th scope="col"{" class=number" if k else ""}>{escape(cell)}</th>'
        for k, cell in enumerate(header)
    )
    body = ""
    for first, *cells in rows:
        numbers = "".join(f"<td class=number>{escape(cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{escape(first)}</th>{numbers}</tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _spread_note(report: Report, metric: Metric) -> str:
    """What error bars are, and whether some are missing."""
    errors = [spread.error for spread in spreads(report, metric) if spread is not None]
    if all(error is None for error in errors):
        return "one run of real peers" if report.only_peers else "a single seed"
    return f"{SPREAD} (no bar for a single seed)" if None in errors else SPREAD


def _curve_table(report: Report, metric: Metric, epsilon: float | None) -> str:
    """Values at a few steps, for the methods that have this curve."""
    columns, texts = ["step"], []
    digits = decimals(spreads(report, metric), metric)
    for method in report.methods:
        outcome = report.outcome(method.name, epsilon)
        if outcome is not None and outcome.curve and outcome.curve.rows.get(metric.name):
            columns.append(method.name)
            points = curve_spreads(outcome.curve, metric, _TABLE_STEPS)
            texts.append({step: spread_text(spread, digits) for step, spread in points})
    # methods that stopped early have other steps than the rest
    steps = sorted({step for text in texts for step in text})
    rows = [[f"{step:,}", *(text.get(step, "–") for text in texts)] for step in steps]
    return _table(columns, rows)


def _graph_note(report: Report, method: Method, outcome: Outcome | None) -> str:
    graph = report.graph(method.name)
    drawing = f"; {graph.description or f'{graph.name}, {graph.size:,} users'}" if graph else ""
    if outcome is None:
        return f"{method.name}: no outcome with this budget."
    users = outcome.per_user_epsilon
    span = f"; users from {epsilon_text(min(users))} to {epsilon_text(max(users))}" if users else ""
    return f"{method.name}, ε = {epsilon_text(outcome.epsilon)}{drawing}{span}."


def _alike_sentence(outcome: Outcome | None, graph: GraphDrawing | None = None) -> str:
    """One sentence where all users have the same epsilon, as printed; otherwise nothing."""
    if outcome is None or not outcome.per_user_epsilon:
        return ""
    low, high = min(outcome.per_user_epsilon), max(outcome.per_user_epsilon)
    if epsilon_text(low) != epsilon_text(high):
        return ""
    of = f" ({graph.description})" if graph and graph.description else ""
    return f"Every user{of}: ε = {epsilon_text(high)}."


def _user_table(report: Report, method: Method) -> str:
    """One row for each user and one column for each budget, where users differ."""
    graph = report.graph(method.name)
    own = [o for o in report.outcomes if o.method == method.name and o.per_user_epsilon]
    # one table for all budgets: readers compare users within a row
    columns = {f"ε at budget {epsilon_text(o.epsilon)}": o.per_user_epsilon or () for o in own}
    if not own or all(_alike_sentence(outcome) for outcome in own):
        return ""
    users = len(next(iter(columns.values())))
    if users > MAX_DRAWN_USERS:
        rows = []
        for name, share in (("least", 0), ("median", 50), ("largest", 100)):
            # "higher": an interpolated median would be NaN between infinities, and never too low
            values = [float(np.percentile(c, share, method="higher")) for c in columns.values()]
            rows.append([name, *map(epsilon_text, values)])
        return _table(["over users", *columns], rows)
    table = []
    for user in range(users):
        name = graph.label(user) if graph else str(user)
        table.append([name, *(epsilon_text(column[user]) for column in columns.values())])
    return _table(["user", *columns], table)


def _adversary_note(outcome: Outcome) -> str:
    delta = f", δ = {outcome.delta:.4g}" if outcome.delta else ""
    return (
        f"ε of the most exposed user against each adversary: {outcome.method} with budget "
        f"ε = {epsilon_text(outcome.epsilon)}{delta}."
    )


def _adversary_table(report: Report, outcome: Outcome) -> str:
    """One row for each adversary, with a bar as long as its epsilon."""
    if not outcome.adversaries:
        return _empty("No adversary among the users was computed for this method and budget.")
    graph = report.graph(outcome.method)
    # 1e-300: epsilons may all be 0
    longest = max([a.epsilon for a in outcome.adversaries if a.epsilon < np.inf] + [1e-300])
    body = ""
    for row in outcome.adversaries:
        infinite = row.epsilon == np.inf
        kind = "meter endless" if infinite else "meter"
        width = 100.0 if infinite else 100 * row.epsilon / longest
        # an infinite bound is no better than infinity itself
        bound = "" if row.exact or infinite else "≤ "
        user = "–" if row.worst_user is None else str(row.worst_user)
        if row.worst_user is not None and graph is not None:
            user = graph.label(row.worst_user)
        body += (
            f'<tr><th scope="row">{escape(row.adversary)}'
            f'<span aria-hidden="true" class="{kind}" style="width:{width:.1f}%"></span></th>'
            f'<td class="number">{bound}{epsilon_text(row.epsilon)}</td>'
            f'<td class="number name">{escape(user)}</td></tr>'
        )
    head = (
        '<th scope="col">adversary</th><th scope="col" class="number">ε</th>'
        '<th scope="col" class="number">most exposed</th>'
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
