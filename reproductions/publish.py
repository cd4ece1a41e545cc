"""Takes finished studies into the repository: their CSV files, their figures, and their tables in
docs/reproduction.md.

python reproductions/publish.py FOLDER...        # folders that `decor reproduce` wrote, named like
the studies python reproductions/publish.py                  # the tables alone, from the committed
CSV files
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from committed import RESULTS, rows

from decor.reproductions import catalogue, running, writing
from decor.results.axes import save_figure

PAGE = RESULTS.parent.parent / "docs" / "reproduction.md"
FIGURES = PAGE.parent / "figures"


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


if __name__ == "__main__":
    main()
