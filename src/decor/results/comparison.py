"""ComparisonResult: what privacy costs, as a table, a picture and a folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.text import html_table, table

from . import figures
from . import report as page
from .report_data import Report
from .safe_files import replace_text
from .tables import base_rate_row, summary_header, summary_rows

_OWNER = "Simulations, for the owner of the data only: no epsilon counts them."


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonResult:
    """What privacy costs: DECOR beside central DP, local DP and training without privacy.

    Guarantee: none. The runs are simulations with known seeds, and their settings were chosen by
    looking at the data: neither the models nor the numbers are for publication.

    Attributes:
        report: All numbers.
        folder: Where the runs are.
    """

    report: Report
    folder: Path

    def __repr__(self) -> str:
        report = self.report
        budgets = ", ".join(f"{epsilon:g}" for epsilon in report.epsilons)
        return f"Comparison({report.title!r}, {len(report.methods)} methods, epsilon {budgets})"

    def __str__(self) -> str:
        rows = summary_rows(self.report)
        base = base_rate_row(self.report)
        text = table(summary_header(self.report), [*rows, *([base] if base else [])])
        return f"{self.report.title}\n{text}\n{_OWNER}"

    def _repr_html_(self) -> str:
        """The table and the picture, as a notebook shows them."""
        metric = self.report.metrics[0]
        base = base_rate_row(self.report)
        rows = [*summary_rows(self.report), *([base] if base else [])]
        return (
            f"<h4>{escape(self.report.title)}</h4>{html_table(summary_header(self.report), rows)}"
            f"{figures.comparison_image(self.report, metric.name)}<p>{_OWNER}</p>"
        )

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Any:
        """The metric against epsilon, for every method.

        Args:
            path: A file that ends in .png or .svg to write; None writes none.
            metric: The metric; by default test accuracy, where there is one.

        Returns:
            The matplotlib figure, which notebooks show.
        """
        chosen = metric or self.report.metrics[0].name
        if path is not None:
            figures.comparison_figure(self.report, chosen, path)
        return figures.comparison_plot(self.report, chosen)

    def save(self, folder: str | Path) -> Path:
        """Writes the page report.html, the figures, all numbers, and one run of each setting.

        Args:
            folder: A folder that does not exist yet, or is empty.

        Returns:
            The page.

        Raises:
            InputError: If the folder holds something, or cannot be written.
        """
        target = Path(folder)
        # a comparison that was made here has nothing to copy, and its folder is not empty
        if target.resolve() != self.folder.resolve():
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise InputError(f"{str(target)!r} is not empty; name another folder")
            try:
                shutil.copytree(self.folder, target, dirs_exist_ok=True)
            except OSError as problem:
                raise InputError(f"{str(target)!r} cannot be written: {problem}") from None
        write_comparison(self.report, target)
        return target / "report.html"


def write_comparison(report: Report, folder: Path) -> dict[str, Any]:
    """Writes the page, the figures and the data of a comparison.

    Args:
        report: The data.
        folder: The comparison's folder.

    Returns:
        The paths: "report", "figures" and "data".
    """
    page.write(report, folder / "report.html")
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        # NaN is no JSON, and other readers would refuse the whole file
        text = json.dumps(report.to_json(), allow_nan=False)
        replace_text(folder / "report.json", text + "\n")
    except OSError as problem:
        raise InputError(f"the report cannot be written to {str(folder)!r}: {problem}") from None
    metric = report.metrics[0].name
    # the epsilon of each user is drawn for the first graph
    private = next((each.name for each in report.methods if each.kind == "decor"), None)
    names, drawn = ("privacy-utility", "curves", "users"), []
    for suffix in ("png", "svg"):
        utility, curves, users = (folder / "figures" / f"{name}.{suffix}" for name in names)
        figures.comparison_figure(report, metric, utility)
        figures.curves_figure(report, metric, curves)
        if private is not None:
            figures.users_figure(report, private, users)
        drawn += [str(path) for path in (utility, curves, users) if path.exists()]
    return {
        "report": str(folder / "report.html"),
        "figures": drawn,
        "data": str(folder / "report.json"),
    }
