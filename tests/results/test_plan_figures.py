"""Figures of plans and graphs: the right panels, and the same file every time."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import decor
from decor.privacy.plan_answer import AdversaryRow, PlanAnswer
from decor.results import axes
from decor.results.plan_figures import graph_figure, plan_figure

EXPOSURE = decor.Exposure(clip=1.0, steps=10)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    seen = []
    original = Figure.savefig

    def savefig(self, *args, **kwargs):
        seen.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return seen


def texts(axis):
    return [text.get_text() for text in axis.texts]


def test_a_plan_is_drawn_with_its_noise_pairs_its_adversaries_and_its_graph(drawn, tmp_path):
    budget = decor.Budget(3.0, 1e-5)
    plan = decor.calibrate(decor.star(5), EXPOSURE, decor.Adversary.eavesdropper(), budget)
    answer = PlanAnswer(plan, plan.guarantee())
    rows = answer.adversary_rows()
    for k in range(2):
        plan_figure(answer, rows, tmp_path / f"{k}.svg")
    assert (tmp_path / "0.svg").read_bytes() == (tmp_path / "1.svg").read_bytes()
    pairs, against, graph, _colour_bar = drawn[0].axes
    assert "this plan" in texts(pairs) and pairs.get_yscale() == "log"
    assert len(texts(against)) == len(rows)
    assert np.allclose(graph.collections[-1].get_array(), answer.guarantee.per_user)
    assert texts(graph) == ["0", "1", "2", "3", "4"]


def test_a_plan_without_a_budget_has_no_noise_pairs(drawn, tmp_path):
    plan = decor.NoisePlan(decor.ring(4), EXPOSURE, decor.Adversary.curious(), 1.0, 2.0)
    answer = PlanAnswer(plan, plan.guarantee(1e-5))
    plan_figure(answer, answer.adversary_rows(), tmp_path / "a.png")
    assert len(drawn[0].axes) == 2
    # on a ring all users are alike
    assert texts(drawn[0].axes[1])[0].startswith("every user: ")


def test_infinite_values_are_said(drawn, tmp_path):
    silent = decor.NoisePlan(decor.ring(4), EXPOSURE, decor.Adversary.curious(), 0.0, 0.0)
    answer = PlanAnswer(silent, silent.guarantee(1e-5))
    plan_figure(answer, [AdversaryRow.of(answer.guarantee)], tmp_path / "a.png")
    against, graph = drawn[0].axes
    assert texts(against) == ["inf"] and "infinite for every user" in texts(graph)
    some = np.array([1.0, 2.0, np.inf, 1.5])
    graph_figure(decor.ring(4), some, 4.0, tmp_path / "b.png")
    legend = drawn[1].axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["infinite"]


def test_a_large_graph_is_a_histogram(drawn, tmp_path):
    users = 1501
    graph_figure(decor.ring(users), np.linspace(0.1, 1, users), 4.0, tmp_path / "a.png")
    (axis,) = drawn[0].axes
    assert sum(bar.get_height() for bar in axis.patches) == users


@pytest.mark.parametrize("seed", range(3))
def test_forty_long_names_are_drawn_beside_their_dots_without_overlap(drawn, tmp_path, seed):
    names = [f"Branch {k:02d}" for k in range(40)]
    graph = decor.from_edges(40, decor.random_regular(40, 4, seed=seed).edges, labels=names)
    graph_figure(graph, np.linspace(0.1, 1, 40), 4.0, tmp_path / "a.png")
    axis = drawn[0].axes[0]
    assert texts(axis) == names
    drawn[0].draw_without_rendering()
    boxes = np.array([text.get_window_extent().extents for text in axis.texts])
    assert overlaps(boxes) == []


def test_a_name_of_any_length_is_drawn(drawn, tmp_path):
    names = ["a" * 80, "b", "ulm"]
    graph_figure(decor.from_edges(3, [(0, 1)], labels=names), np.ones(3), 4.0, tmp_path / "a.png")
    assert texts(drawn[0].axes[0]) == ["every user: 1", "a" * 29 + "…", "b", "ulm"]


def overlaps(boxes):
    """Pairs of boxes (left, bottom, right, top) that share more than their borders."""
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    return [(i, j) for i, j in np.argwhere(np.all(high - low > 1, axis=2)) if i < j]


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["Branch 00 of Ulm", "Branch 01 of Ulm"], ["00", "01"]),
        (["Ulm North", "Ulm North West", "Ulm South"], ["North", "North West", "South"]),
        (["A", "A B"], ["A", "A B"]),
        (["A B", "A B C B"], ["B", "B C B"]),
        (["Bonn", "Ulm"], ["Bonn", "Ulm"]),
    ],
)
def test_words_that_all_names_share_are_left_out(names, parts):
    found = axes.distinct_parts(names)
    assert len({*found}) == len(names) and all(found) and found == parts
