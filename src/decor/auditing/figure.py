"""What was claimed and what was measured, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from decor.results import plots
from decor.results.audit_section import down
from decor.text import rounded_up

_LONGEST = 3.0
"""Shares of the claim beyond which bars are cut."""


def drawn(data: dict[str, Any], path: str | Path) -> None:
    """From `Audit.to_json`: one bar for every adversary, how much of the claimed mu its best attack
    proves.
    """
    rows, shown = data["adversaries"], "measured" if data["unit"] == "example" else "proven"
    figure = Figure(figsize=(9.5, 1.7 + 0.55 * len(rows)), layout="constrained")
    axis = figure.subplots()
    shares = [min(float(row["reached"]), _LONGEST) for row in rows]
    for k, (row, share) in enumerate(zip(rows, shares, strict=True)):
        axis.barh(k, share, color=plots.BLUE if row["passed"] else plots.ORANGE, height=0.62)
        said = (
            f"epsilon {rounded_up(float(row['claimed_epsilon']))} claimed, "
            f"{down(float(row['measured_epsilon']))} {shown}"
        )
        axis.text(0.02, k, said, ha="left", va="center", color="white", fontsize=9.5, weight="bold")
    axis.axvline(1.0, color=plots.INK, linewidth=1.8)
    axis.set_yticks(
        range(len(rows)), [f"{row['adversary']}\n{row['engine']}" for row in rows], fontsize=9
    )
    axis.invert_yaxis()
    axis.set_xlim(0, max([1.1, *(1.05 * share for share in shares)]))
    verdict = "the claim holds" if data["passed"] else "the claim is false"
    plots.dress(
        axis,
        f"{data['topology']}: {verdict}",
        "of the claimed mu (the line) an attack proves this share",
        "",
    )
    plots.save(figure, path)
