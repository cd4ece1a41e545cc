"""What is committed is what the studies gave: the page's tables, and points redone by hand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from decor.reproductions import catalogue, published, records

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "reproductions"))

import committed  # noqa: E402
import publish  # noqa: E402

PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")


def value(study, variant, method, x):
    column = catalogue.study(study).x
    (found,) = [
        r["value"]
        for r in committed.rows(study)
        if (r["variant"], r["method"], r[column]) == (variant, method, x)
    ]
    return found


def test_the_tables_of_the_page_are_the_committed_results():
    assert publish.with_tables(PAGE) == PAGE
    assert len(re.findall("<!-- table: ", PAGE)) == 8 and len(PAGE.splitlines()) > 100


@pytest.mark.parametrize("page", publish.FIRST_PAGES, ids=lambda path: path.name)
def test_the_table_of_records_on_the_first_pages_is_the_committed_results(page):
    text = page.read_text(encoding="utf-8")
    assert publish.with_records(text) == text and publish.records_table() in text


@pytest.mark.parametrize("study", catalogue.MODULES)
def test_every_study_has_its_results_its_figure_and_its_command(study):
    assert len(committed.rows(study)) > 10
    assert (
        f"figures/reproduction-{study}.svg" in PAGE
        and (ROOT / "docs" / "figures" / f"reproduction-{study}.svg").exists()
    )
    assert (
        f"decor reproduce {study}\n"
        in (ROOT / "reproductions" / "results" / "README.md").read_text() + "\n"
    )


def test_no_guarantee_is_above_its_epsilon():
    for study in catalogue.MODULES:
        for r in committed.rows(study):
            if r.get("accounted_epsilon") is not None and r["variant"] in (
                "ours",
                "as in the paper",
            ):
                assert r["accounted_epsilon"] <= r["epsilon"] * (1 + 1e-9), (study, r)


@pytest.mark.parametrize("graph", ["ring", "torus", "complete"])
def test_least_squares_reaches_its_targets(graph):
    for epsilon in published.LEAST_SQUARES_EPSILONS:
        ours = value("least-squares", "ours", f"DECOR {graph}", epsilon)
        assert ours < value("least-squares", "published", "central DP", epsilon)
        assert ours < 1.05 * value("least-squares", "ours", "central DP", epsilon)


@pytest.mark.parametrize("graph", ["ring", "torus", "complete"])
def test_a9a_reaches_its_targets(graph):
    for epsilon in published.A9A_EPSILONS:
        ours, central = (
            value("a9a", "ours", method, epsilon) for method in (f"DECOR {graph}", "central DP")
        )
        assert ours < (1.1 if epsilon >= 10 else 1.2) * central and ours < value(
            "a9a", "published", "central DP", epsilon
        )


def test_mnist_reaches_its_targets():
    ring, central = (value("mnist", "ours", method, 1.0) for method in ("DECOR ring", "central DP"))
    assert ring >= 0.935 and abs(ring - central) <= 0.005


def test_mnist_ours_is_better_than_the_papers_settings_everywhere():
    for method in ("central DP", "DECOR ring", "DECOR torus", "DECOR complete", "local DP ring"):
        for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
            assert value("mnist", "ours", method, epsilon) > value(
                "mnist", "as in the paper", method, epsilon
            )
    central = [value("mnist", "ours", "central DP", epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0)]
    for graph in ("ring", "torus", "complete"):
        reached = [
            value("mnist", "ours", f"DECOR {graph}", epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0)
        ]
        assert all(abs(a - b) < 0.0034 for a, b in zip(reached, central, strict=True))


RECORDS = {(r["dataset"], r["method"], r["epsilon"]): r for r in committed.rows("records")}


@pytest.mark.parametrize(
    ("dataset", "targets"),
    [
        ("MNIST", {0.5: 0.974, 1.0: 0.979, 3.0: 0.983}),
        ("Fashion-MNIST", {1.0: 0.883, 3.0: 0.897}),
    ],
)
def test_records_reach_their_targets(dataset, targets):
    for epsilon, target in targets.items():
        assert RECORDS[dataset, "DECOR ring", epsilon]["value"] >= target
    for epsilon in records.EPSILONS:
        ring, central, local = (
            RECORDS[dataset, method, epsilon]
            for method in ("DECOR ring", "central DP", "local DP ring")
        )
        assert abs(ring["value"] - central["value"]) <= 0.002
        assert ring["value"] > local["value"] and ring["seeds"] == 4


@pytest.mark.parametrize("dataset", records.NAMES.values())
@pytest.mark.parametrize("method", ["DECOR ring", "central DP", "local DP ring"])
def test_settings_of_records_are_the_best_on_the_other_data_set(dataset, method):
    """The committed accuracies of the choice lead to the committed settings."""
    other = next(name for name in records.NAMES.values() if name != dataset)
    for epsilon in records.EPSILONS:
        row = RECORDS[dataset, method, epsilon]
        pairs = (map(float, pair.split()) for pair in row["tried"].split("; "))
        tried = dict(pairs)
        assert row["clip"] == records.best(tried) and len(tried) == 3
        # other seeds on the other data set, with the clips that were chosen here
        theirs = RECORDS[other, "central DP" if method == "DECOR ring" else method, epsilon]
        assert max(tried.values()) == pytest.approx(theirs["value"], abs=0.02)


def test_every_value_is_the_mean_over_its_seeds():
    for study in ("least-squares", "a9a"):  # of which two seeds are redone below
        for r in committed.rows(study):
            assert r["variant"] == "published" or r["value"] == pytest.approx(
                sum(r["values"]) / len(r["values"])
            )


def test_a_point_redone_by_hand_is_the_studys():
    done = subprocess.run(
        [sys.executable, "reproductions/least_squares.py", "10", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pairs = re.findall(r"epsilon 10: ([\d.e-]+), the study ([\d.e-]+)", done.stdout)
    assert len(pairs) == 3
    for by_hand, study in pairs:
        assert float(by_hand) == pytest.approx(float(study), rel=2e-3)


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("DECOR_DATA", ""), "a9a")),
    reason="needs a9a in DECOR_DATA",
)
def test_a9a_redone_by_hand_is_the_studys():
    done = subprocess.run(
        [sys.executable, "reproductions/a9a.py", "40", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pairs = re.findall(r": (-?[\d.]+) above central DP, in the study (-?[\d.]+)", done.stdout)
    assert len(pairs) == 3
    for by_hand, study in pairs:
        assert float(by_hand) == pytest.approx(float(study), rel=2e-3, abs=2e-5)


def test_an_epsilon_that_no_study_has_is_refused_with_those_it_has():
    done = subprocess.run(
        [sys.executable, "reproductions/least_squares.py", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "there are 1, 3, 5" in done.stderr


def over(study, ours, theirs, **where):
    """ours / theirs at every x, of rows that are where is said."""
    column = catalogue.study(study).x
    rows = [
        r for r in committed.rows(study) if all(r[name] == value for name, value in where.items())
    ]
    values = {
        method: {r[column]: r["value"] for r in rows if r["method"] == method}
        for method in (ours, theirs)
    }
    assert values[ours] and values[ours].keys() == values[theirs].keys()
    return [values[ours][x] / values[theirs][x] for x in sorted(values[ours])]


def said(text):
    """The page says so, wherever its lines break."""
    assert text in " ".join(PAGE.split()), text


def test_the_page_says_of_adversaries_what_was_found():
    for against, name in (
        ("curious", "any one curious user costs"),
        ("colluding:3", "against any three colluding users"),
    ):
        costs = [
            100 * (ratio - 1)
            for ratio in over("adversaries", f"DECOR torus, {against}", "central DP")
        ]
        said(f"{name} {min(costs):.0f} to {max(costs):.0f} %")
    local = over("adversaries", "local DP", "central DP")
    said(f"costs {min(local):.0f} to {max(local):.0f} times as much")
    rows = [
        r
        for r in committed.rows("adversaries")
        if r["epsilon"] == 10 and r["against"] == "eavesdropper"
    ]
    designed, plain = (
        {r["graph"]: r for r in rows}[graph] for graph in ("torus", "torus, one plain round")
    )
    said(
        f"leaves {designed['epsilon_curious']:.1f} against one curious user and "
        f"{designed['epsilon_colluding_3']:.1f} against "
        f"three ({plain['epsilon_colluding_3']:.1f} with one plain round)"
    )


def test_the_page_says_of_irregular_graphs_what_was_found():
    rows = committed.rows("irregular")
    graphs = list(dict.fromkeys(r["graph"] for r in rows))
    gains = {
        (g, r["epsilon"]): r
        for g in graphs
        for r in rows
        if r["graph"] == g and r["method"] == "DECOR, uniform"
    }
    by_edge = {(r["graph"], r["epsilon"]): r for r in rows if r["method"] == "DECOR, by edge"}
    ratios = {key: gains[key]["value"] / by_edge[key]["value"] for key in by_edge}
    best = max(ratios, key=ratios.get)
    predicted = gains[best]["predicted_error"] / by_edge[best]["predicted_error"]
    said(f"up to {ratios[best]:.1f} times on the graph {best[0]} at epsilon {best[1]:g}")
    said(f"the prediction from noise alone ({predicted:.1f} times)")
    assert (
        by_edge["Florentine families", 10.0]["most_exposed"] == "Pazzi"
        and min(ratios.values()) > 0.9
    )


def test_the_page_says_of_more_users_what_was_found():
    rows = {(r["method"], r["users"]): r for r in committed.rows("scaling")}
    assert [round(rows["central DP", n]["predicted_gain"]) for n in (16, 64, 256, 1024)] == [
        16,
        64,
        256,
        1024,
    ]
    fraction = rows["DECOR random regular", 1024]["predicted_gain"] / 1024
    said(f"{100 * fraction:.0f} % of it on a random graph")
    assert rows["DECOR ring", 1024]["gain"] < 0.1 * rows["DECOR random regular", 1024]["gain"]
    assert rows["DECOR random regular", 1024]["gain"] > 500


def test_the_page_says_of_gossip_what_was_found():
    for compared in ("same steps", "same messages", "same messages, few"):
        for graph, enough in (("ring of 16", 8), ("torus of 16", 4)):
            where = {"graph": graph, "compared": compared}
            rounds = [1, 2, 3, 4, 6, 8]
            designed = dict(
                zip(rounds, over("gossip", "designed rounds", "central DP", **where), strict=True)
            )
            assert 0.99 < designed[enough] < 1.01 and all(
                designed[r] > designed[enough] for r in rounds if r < enough
            )
            plain = over("gossip", "designed rounds", "plain rounds", **where)
            assert all(ratio < 1.05 for ratio in plain)
    chebyshev = over(
        "gossip", "Chebyshev rounds", "plain rounds", graph="ring of 16", compared="same steps"
    )
    assert all(ratio > 1 for ratio in chebyshev[1:])


def test_no_setting_of_ours_was_chosen_at_the_edge_of_its_grid_where_anything_was_learned():
    from decor.reproductions import a9a, least_squares

    for study, grid in (
        ("least-squares", [least_squares.RATE * k for k in least_squares.TIMES]),
        ("a9a", [product / 0.1 for product in a9a.PRODUCTS]),
    ):
        for r in committed.rows(study):
            if r["variant"] == "ours" and r["kind"] != "local":
                assert min(grid) * 1.01 < r["learning_rate"] < max(grid) * 0.99, (
                    study,
                    r["method"],
                    r["epsilon"],
                )
