"""The figure of an audit: what was claimed, and what was measured."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from decor.results.audit_summary import AuditSummary
from decor.results.axes import BLUE, INK, ORANGE, save_figure, style_axes
from decor.text import rounded_down, rounded_up

_LONGEST = 3.0
"""Bars end at this multiple of the claim."""


def draw(audit: AuditSummary, path: str | Path) -> None:
    """Draws one bar for each adversary: the share of the claimed mu that its best attack proves.

    Args:
        audit: From `Audit.to_json`, by `AuditSummary.from_json`.
        path: Where to save; the suffix decides the format.
    """
    rows, verb = audit.adversaries, "measured" if audit.unit == "example" else "proven"
    figure = Figure(figsize=(9.5, 1.7 + 0.55 * len(rows)), layout="constrained")
    axis = figure.subplots()
    shares = [min(row.reached, _LONGEST) for row in rows]
    for k, (row, share) in enumerate(zip(rows, shares, strict=True)):
        axis.barh(k, share, color=BLUE if row.passed else ORANGE, height=0.62)
        # a claim is rounded up and a measurement down, so that neither looks better than it is
        claimed, measured = rounded_up(row.claimed_epsilon), rounded_down(row.measured_epsilon)
        text = f"epsilon {claimed} claimed, {measured} {verb}"
        axis.text(0.02, k, text, ha="left", va="center", color="white", fontsize=9.5, weight="bold")
    axis.axvline(1.0, color=INK, linewidth=1.8)
    axis.set_yticks(range(len(rows)), [f"{r.adversary}\n{r.engine}" for r in rows], fontsize=9)
    axis.invert_yaxis()
    axis.set_xlim(0, max([1.1, *(1.05 * share for share in shares)]))
    verdict = "the claim holds" if audit.passed else "the claim is false"
    label = "of the claimed mu (the line) an attack proves this share"
    style_axes(axis, f"{audit.topology}: {verdict}", label, "")
    save_figure(figure, path)
