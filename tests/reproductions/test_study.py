"""Rows, series and panels of a study."""

import pytest

from decor.reproductions.study import OURS, PAPER, PUBLISHED, by_graph, lines, panels_by, row

ROWS = [
    row(OURS, "central", "central DP", None, [1.0, 3.0], epsilon=1.0, clip=0.5),
    row(OURS, "decor", "DECOR ring", "ring", [2.0, 2.5], epsilon=1.0),
    row(OURS, "decor", "DECOR torus", "torus", [2.0, 2.5], epsilon=1.0),
    row(PAPER, "decor", "DECOR ring", "ring", [1 / 3], epsilon=10.0),
    row(PUBLISHED, "local", "local DP ring", "ring", [7.0], epsilon=3.0),
]


def test_every_graph_has_its_panel_with_the_baselines_beside_it():
    ring, torus = by_graph(ROWS)
    assert (ring.title, torus.title) == ("ring", "torus")
    assert [s.label for s in ring.series] == [
        "central DP",
        "DECOR, ours",
        "DECOR, as in the paper",
        "local DP, published",
    ]
    assert all(len(s.rows) == 1 for s in ring.series) and len(torus.series) == 3
    # two graphs of one kind and variant differ in colour
    assert {s.turn for s in lines(ROWS)} == {0, 1}


def test_a_row_is_the_mean_over_seeds_with_its_standard_error():
    r = row(OURS, "decor", "m", None, [1.0, 2.0, 6.0])
    assert r["value"] == 3.0 and r["seeds"] == 3 and r["error"] == pytest.approx((7 / 3) ** 0.5)
    assert row(OURS, "decor", "m", None, [1.0])["error"] is None


def test_panels_by_columns_have_the_rows_of_one_combination_each():
    rows = [row(OURS, "decor", "m", g, [1.0], c=c) for g in ("ring", "torus") for c in "ab"]
    panels = panels_by("graph", "c")(rows)
    assert [panel.title for panel in panels] == ["ring, a", "ring, b", "torus, a", "torus, b"]
    assert all(len(series.rows) == 1 for panel in panels for series in panel.series)
