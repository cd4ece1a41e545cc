"""Takes finished studies into the repository: their CSV files, their figures, their tables in
docs/reproduction.md, and the table of records in README.md and docs/index.md.

python reproductions/publish.py FOLDER...        # folders that `decor reproduce` wrote, named like
the studies python reproductions/publish.py                  # the tables alone, from the committed
CSV files
"""

from __future__ import annotations

import re
import shutil
import statistics
import sys
from pathlib import Path

from committed import RESULTS, rows

from decor.reproductions import catalogue, records, running, writing
from decor.results.axes import save_figure

PAGE = RESULTS.parent.parent / "docs" / "reproduction.md"
FIGURES = PAGE.parent / "figures"
FIRST_PAGES = (PAGE.parent / "index.md", PAGE.parent.parent / "README.md")


def table(name: str) -> str:
    """A study's table in Markdown, from its committed results."""
    header, lines = writing.table(catalogue.study(name), rows(name))
    written = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in written)


def with_tables(text: str) -> str:
    """The page with every table, between its two marks, made anew."""
    return re.sub(
        r"(<!-- table: ([a-z0-9-]+) -->\n).*?(\n<!-- end "
        r"-->)",
        lambda m: m[1] + table(m[2]) + m[3],
        text,
        flags=re.DOTALL,
    )


def records_table() -> str:
    """Accuracies of the study of records, with the deviation over seeds, beside the paper's."""
    epsilons = records.EPSILONS
    every = rows("records")
    # the paper's network on pixels, which the study of the paper's figure has
    papers = {
        r["epsilon"]: r | {"dataset": "MNIST", "method": "paper"}
        for r in rows("mnist")
        if (r["variant"], r["method"]) == ("as in the paper", "DECOR ring")
    }
    every += [papers[epsilon] for epsilon in epsilons if epsilon in papers]
    methods = {
        "DECOR ring": "DECOR, ring of 16, no server",
        "central DP": "central DP, a trusted server",
        "local DP ring": "local DP, ring of 16",
        "paper": "DECOR as in the paper: network on pixels, one gossip round",
    }
    header = [
        "test accuracy, %",
        *(f"epsilon {e:g}" if not k else f"{e:g}" for k, e in enumerate(epsilons)),
    ]
    lines = [header, ["---"] * len(header)]
    for dataset in ("MNIST", "Fashion-MNIST"):
        for method, name in methods.items():
            found = {
                r["epsilon"]: r["values"]
                for r in every
                if (r["dataset"], r["method"]) == (dataset, method)
            }
            if found:
                cells = [_cell(found.get(epsilon)) for epsilon in epsilons]
                lines.append([f"{dataset}: {name}", *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(values: list[float] | None) -> str:
    if values is None:
        return ""
    return f"{100 * statistics.fmean(values):.2f} ± {100 * statistics.stdev(values):.2f}"


def with_records(text: str) -> str:
    """A first page with the table of records, between its two marks, made anew."""
    return re.sub(
        r"(<!-- records -->\n).*?(\n<!-- end -->)",
        lambda m: m[1] + records_table() + m[2],
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        if folder.name not in catalogue.MODULES:
            raise SystemExit(
                f"{folder.name} is no study; name the folder like one of "
                f"{', '.join(catalogue.MODULES)}"
            )
        if not running.is_whole(catalogue.study(folder.name), folder):
            raise SystemExit(
                f"{folder} is a quick or unfinished run, or one of other settings; "
                "publish whole ones"
            )
        shutil.copy(folder / "results.csv", RESULTS / f"{folder.name}.csv")
        save_figure(
            writing.draw(catalogue.study(folder.name), rows(folder.name)),
            FIGURES / f"reproduction-{folder.name}.svg",
        )
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for page in FIRST_PAGES:
        page.write_text(with_records(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
