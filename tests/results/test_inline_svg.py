"""Figures as elements of a page: small, alike every time, and nothing of them is markup."""

import re
from xml.etree import ElementTree

import pytest
import sample

from decor.results.figures import comparison_svg, curves_svg, users_svg

EVERY = {
    "comparison": lambda name="a": comparison_svg(sample.read(sample.diverged()), metric(), name),
    "curves": lambda name="a": curves_svg(sample.read(sample.diverged()), metric(), 3.0, name),
    "users": lambda name="a": users_svg(star(), star().outcomes[0], name),
    "hostile": lambda name="a": comparison_svg(
        sample.read(sample.hostile()), sample.read(sample.hostile()).metrics[0], name
    ),
}


def metric():
    return sample.read(sample.comparison()).metrics[0]


def star():
    return sample.read(sample.star())


@pytest.mark.parametrize("name", EVERY)
def test_the_same_figure_is_the_same_text_and_loads_nothing(name):
    text = EVERY[name]()
    assert text == EVERY[name]() and len(text) < 60_000
    assert not re.search(r"http|<style|<image|metadata|font-family", text)
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img" and len(root.get("aria-label")) > 20


@pytest.mark.parametrize("name", EVERY)
def test_ids_are_unique_on_a_page_and_all_references_are_known(name):
    text = EVERY[name]("first") + EVERY[name]("second")
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) == set(ids)


@pytest.mark.parametrize("name", EVERY)
def test_colours_are_variables_that_know_light_and_dark(name):
    colours = set(re.findall(r"(?:fill|stroke):([^;\"]+)", EVERY[name]()))
    plain = {colour for colour in colours if colour.startswith("#")}
    # the colours of epsilons, and names upon them, are the same in both
    assert name == "users" or not plain, plain
    assert "var(--method-0)" in colours or name == "users"


def test_text_of_the_data_stays_text():
    data = sample.hostile()
    data["methods"][0]["name"] = "a\x00\ud800$b$ <i>&amp;"
    for outcome in data["outcomes"]:
        outcome["method"] = data["methods"][0]["name"]
    from decor.results.report_data import Report

    report = Report.from_json(data)
    text = curves_svg(report, report.metrics[0], None, "x") or comparison_svg(
        report, report.metrics[0], "x"
    )
    root = ElementTree.fromstring(text)
    assert {element.tag for element in root.iter()} <= {
        *("svg", "g", "defs", "path", "use", "text", "clipPath", "rect")
    }
    assert sample.HOSTILE in root.get("aria-label")
    assert any(sample.HOSTILE in (element.text or "") for element in root.iter("text"))
