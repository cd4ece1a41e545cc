"""The page as a file: complete, the same every time, and nothing of the data is markup."""

import base64
import hashlib
import json
import re
from functools import cache
from html.parser import HTMLParser

import pytest
import sample

from decor.errors import InputError
from decor.results import report
from decor.results.tables import summary_header, summary_rows

EVERY = pytest.mark.parametrize("make", sample.EVERY, ids=lambda make: make.__name__)


def page(data):
    return report.page(sample.read(data))


@cache
def page_of(make):
    """The page of a sample, made once for all tests."""
    return page(make())


class Reader(HTMLParser):
    """Elements, attributes and the cells of the results table."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.rows, self.cell = [], [], [], None
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]
        self.inside = self.inside or dict(attributes).get("id") == "results"
        if self.inside and tag == "tr":
            self.rows.append([])
        if self.inside and tag in ("td", "th"):
            self.cell = []

    def handle_endtag(self, tag):
        if self.cell is not None and tag in ("td", "th"):
            self.rows[-1].append("".join(self.cell))
            self.cell = None
        self.inside = self.inside and tag != "table"

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(data)


@EVERY
def test_a_page_is_small_and_names_nothing_outside_itself(make):
    text = page_of(make)
    reader = Reader(text)
    outside = [a for a in reader.attributes if a[1] in ("src", "srcset", "action", "data")]
    assert not outside
    assert all(a[2].startswith("#") for a in reader.attributes if a[1] == "href")
    assert not re.search(r"url\((?!#)|@import|https?://", text) and len(text) < 400_000
    assert {"link", "img", "image", "iframe", "object", "base"}.isdisjoint(reader.elements)


@EVERY
def test_the_same_data_makes_the_same_page_without_an_id_twice(make, tmp_path):
    report.write(sample.read(make()), tmp_path / "a.html")
    assert (tmp_path / "a.html").read_bytes() == page_of(make).encode()
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"], "nothing half written is left"
    attributes = Reader(page_of(make)).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_hostile_text_adds_no_element_and_no_attribute():
    data = sample.hostile()
    # as long as the hostile text, so that legends have as many rows
    harmless = json.loads(
        json.dumps(data).replace(json.dumps(sample.HOSTILE)[1:-1], "x" * len(sample.HOSTILE))
    )
    hostile, harmless = Reader(page_of(sample.hostile)), Reader(page(harmless))
    assert hostile.elements == harmless.elements
    assert [a[:2] for a in hostile.attributes] == [a[:2] for a in harmless.attributes]


def test_the_policy_names_the_digest_of_the_one_script():
    text = page_of(sample.star)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    (code,) = re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "http" not in policy


def test_a_text_that_looks_like_a_placeholder_stays_as_it_is():
    data = sample.star() | {"title": "{{table}} {{script}} \\1 \\g<0>"}
    assert "<h1>{{table}} {{script}} \\1 \\g&lt;0&gt;</h1>" in page(data)


@pytest.mark.parametrize("make", [sample.comparison, sample.diverged, sample.single])
def test_the_table_of_the_page_is_the_table_of_the_terminal(make):
    data = sample.read(make())
    rows, width = Reader(page_of(make)).rows, len(summary_header(data))
    assert [row[1:width] for row in rows[1:]] == [row[1:] for row in summary_rows(data)]
    names = [row[0].removesuffix("stopped early") for row in rows[1:]]
    assert names == [row[0] for row in summary_rows(data)]


def test_a_run_that_stopped_early_says_why():
    text = page_of(sample.diverged)
    reason = "The loss became infinite at step 60"
    assert f"<strong>Local DP at ε = 1, Local DP at ε = 3:</strong> {reason}" in text
    assert "60 of 200" in text and "ε spent" in text


def test_the_page_has_every_guarantee_and_how_to_repeat_it():
    data = sample.comparison()
    text = re.sub(r"<script.*?</script>", "", page_of(sample.comparison), flags=re.S)
    guarantees = [outcome["guarantee"] for outcome in data["outcomes"]]
    repeat = (data["repeat"]["command"], data["tuning"]["warning"], "2.13.0", "0–3")
    for needed in (*guarantees, *repeat, *data["notes"]):
        assert needed in text


def test_a_path_that_cannot_be_written_is_a_typed_error(tmp_path):
    data = sample.read(sample.single())
    with pytest.raises(InputError, match="cannot be written"):
        report.write(data, tmp_path / "no" / "such" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        report.write(data, tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
