"""What a study leaves behind says what was found, and nothing else."""

import csv
import io
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from decor.reproductions import catalogue, writing
from decor.reproductions.study import OURS, PAPER, PUBLISHED, Cell, Study, by_graph, row

ROWS = [
    row(OURS, "central", "central DP", None, [1.0, 3.0], epsilon=1.0, clip=0.5),
    row(OURS, "decor", "DECOR ring", "ring", [2.0, 2.5], epsilon=1.0),
    row(OURS, "decor", "DECOR torus", "torus", [2.0, 2.5], epsilon=1.0),
    row(PAPER, "decor", "DECOR ring", "ring", [1 / 3], epsilon=10.0),
    row(PUBLISHED, "local", "local DP ring", "ring", [7.0], epsilon=3.0),
]


def study(**more):
    return Study(
        "s",
        "A <title>",
        "Why?",
        (Cell("c", print),),
        "epsilon",
        "epsilon",
        "loss",
        by_graph,
        notes=("a & b",),
        **more,
    )


def test_the_csv_holds_every_row_with_all_its_digits():
    found = list(csv.DictReader(io.StringIO(writing.as_csv(ROWS))))
    assert len(found) == len(ROWS) and list(found[0])[-1] == "values"
    for text, r in zip(found, ROWS, strict=True):
        assert [float(v) for v in text["values"].split()] == r["values"] and float(
            text["value"]
        ) == r["value"]
        assert text["clip"] == ("0.5" if "clip" in r else "") and text["variant"] == r["variant"]


def test_the_table_has_a_line_for_every_method_and_variant_and_a_column_for_every_x():
    header, body = writing.table(study(), ROWS)
    assert header == ["method", "variant", "epsilon 1", "3", "10"]
    assert body[0] == ["central DP", OURS, "2", "", ""] and body[3] == [
        "DECOR ring",
        PAPER,
        "",
        "",
        "0.3333",
    ]
    assert writing.table(study(percent=True), ROWS)[1][3][-1] == "33.33"


def test_the_files_are_whole_and_the_page_needs_nothing_else(tmp_path):
    written = writing.write(study(), ROWS[:4], tmp_path, {"command": "decor reproduce <s>"})
    assert {path.split("/")[-1] for path in written.values()} == set(writing.FILES)
    assert all((tmp_path / name).stat().st_size > 100 for name in writing.FILES)
    page = (tmp_path / "report.html").read_text()
    assert (
        "A &lt;title&gt;" in page
        and "a &amp; b" in page
        and "decor reproduce &lt;s&gt;" in page
        and "<svg" in page
    )
    assert "<script" not in page and "src=" not in page and "@import" not in page
    ElementTree.parse(tmp_path / "figure.svg")
    before = (tmp_path / "figure.svg").read_bytes()
    writing.write(study(), ROWS[:4], tmp_path, {"command": "decor reproduce <s>"})
    assert (tmp_path / "figure.svg").read_bytes() == before


@pytest.mark.parametrize("name", catalogue.MODULES)
def test_a_study_interrupted_after_its_first_cell_can_be_written(name, tmp_path):
    """With the rows that its last full run gave for that cell, which may be nothing but a
    baseline's.
    """
    full = catalogue.study(name)
    sys.path.insert(0, str(Path(__file__).parent.parent.parent / "reproductions"))
    import committed

    rows = [r for r in committed.rows(name) if r["variant"] != PUBLISHED]
    kind, method = rows[0]["kind"], rows[0]["method"]
    writing.write(
        full, [r for r in rows if (r["kind"], r["method"]) == (kind, method)], tmp_path, {}
    )
    assert (tmp_path / "report.html").stat().st_size > 1000
