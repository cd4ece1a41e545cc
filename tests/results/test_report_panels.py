"""The panels of a page: one for each choice, and for every choice the right one."""

import re

import pytest
import sample

from decor.results.report_panels import Choice, Panels
from decor.text import rounded_up


def panels(data):
    report = sample.read(data)
    return Panels(report, Choice.first(report))


def shown(html, **choice):
    """The panels that the script shows for a choice, as text."""
    parts = re.split(r"(?=<(?:div|dl) data-)", html)[1:]
    wanted = []
    for part in parts:
        own = dict(re.findall(r'data-(\w+)="(\d+)"', part.partition(">")[0]))
        if all(str(choice[name]) == value for name, value in own.items()):
            wanted.append(re.sub(r"<[^>]*>", " ", part))
    return wanted


def test_the_first_choice_is_decor_at_the_middle_of_its_budgets():
    report = sample.read(sample.comparison())
    assert Choice.first(report) == Choice(metric=0, epsilon=1, method=0)
    assert Choice.first(sample.read(sample.single())) == Choice(0, 0, 0)


@pytest.mark.parametrize("method", range(5))
@pytest.mark.parametrize("epsilon", range(4))
def test_every_choice_has_one_panel_of_each_kind(method, epsilon):
    made, choice = panels(sample.comparison()), {"method": method, "epsilon": epsilon, "metric": 1}
    (guarantee,) = shown(made.guarantees(), **choice)
    outcome = made.report.outcome(made.report.methods[method].name, made.report.epsilons[epsilon])
    assert (outcome.guarantee or "this method has no privacy") in guarantee
    (figures,) = shown(made.key_figures(), **choice)
    assert f"training loss, {outcome.method}" in figures
    (adversaries,) = shown(made.adversaries(), **choice)
    for row in outcome.adversaries:
        bound = "" if row.exact else "≤ "
        assert re.search(
            rf"{row.adversary}\s+{bound}{re.escape(rounded_up(row.epsilon))}\s+{row.worst_user}\s",
            adversaries,
        )


def test_users_who_differ_are_drawn_and_users_who_do_not_are_a_sentence():
    made = panels(sample.star())
    assert made.users().count("<svg") == 2 and "Every user" not in made.adversaries()
    users = made.report.outcomes[0].per_user_epsilon
    assert f">{rounded_up(users[0])}<" in made.users() and made.users().count("<tr>") == 17
    made = panels(sample.comparison())
    assert made.users() == ""
    (text,) = shown(made.adversaries(), method=0, epsilon=1, metric=0)
    assert "Every user (16 users on ring(16)): ε = 3." in text
    data = sample.star()
    data["outcomes"][1]["per_user_epsilon"] = [10.0] * 16
    made = panels(data)
    assert made.users().count("<svg") == 1
    assert "Every user: ε = 10." in shown(made.users(), method=0, epsilon=1, metric=0)[0]


def test_an_infinite_epsilon_is_said():
    data = sample.star()
    data["outcomes"][0]["per_user_epsilon"][5] = "inf"
    data["outcomes"][0]["adversaries"][0] |= {"epsilon": "inf", "exact": False}
    made = panels(data)
    assert "from 0.528 to ∞" in made.users() and ">infinite</text>" in made.users()
    text = made.adversaries()
    assert ">∞<" in text and "≤ ∞" not in text and "meter endless" in text
    for outcome in data["outcomes"]:
        outcome["per_user_epsilon"] = ["inf"] * 16
    assert "Every user (16 users on star(16)): ε = ∞." in panels(data).adversaries()


def test_a_large_graph_is_a_histogram_and_its_table_a_summary():
    text = panels(sample.large()).users()
    assert "infinite for 1" in text and re.search(r"largest</th><td class=number>∞", text)
    assert len(text) < 60_000


def test_curves_have_a_table_of_their_values():
    made = panels(sample.diverged())
    figure, table = shown(made.curves(), metric=0, epsilon=0, method=0)
    assert "Test accuracy at ε = 1" in figure and "Values of the curves" in table
    last = table.split(" 200 ")[1].split()
    assert last[:2] == ["87.9", "±"] and "no value" in table


def sparse(**more):
    """The least that is report data: no privacy, no graph, no curve."""
    outcome = {"method": "plain", "epsilon": None, "seeds": [0], "final": {"loss": [0.5]}} | more
    method = {"name": "plain", "kind": "decor" if more.get("epsilon") else "none"}
    metric = {"name": "loss", "label": "loss", "better": "lower"}
    parts = {"metrics": [metric], "methods": [method], "outcomes": [outcome]}
    return {"format": "decor-report-1", "title": "least", **parts}


NOTHING = {"final": {"loss": [None]}, "epsilon": 2.0}
LEVEL = {"curve": {"step": [0, 10], "loss": [[0.0, 0.0]]}, "final": {"loss": [0.0]}}
POINT = {"curve": {"step": [0], "loss": [[-3.5]]}, "epsilon": "inf"}


@pytest.mark.parametrize("more", [{}, NOTHING, LEVEL, POINT, {"curve": {"step": []}}], ids=str)
@pytest.mark.parametrize("double", [False, True])
def test_the_least_data_makes_a_page(more, double):
    from decor.results import report

    data = sparse(**more)
    if double:
        data["methods"].append({"name": "other", "kind": "local"})
        data["outcomes"].append(data["outcomes"][0] | {"method": "other"})
    text = report.page(sample.read(data))
    assert ("Privacy against utility" in text) is double
    assert not re.search(r"\bNaN\b|\bnan\b|None", text.replace("nano", ""))
