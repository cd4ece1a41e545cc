"""A page to sign as a file: it is complete, and nothing of the data is markup."""

import re
from dataclasses import replace

import pytest
import sample

from decor.results import sign_page
from decor.results.signing import Signing


@pytest.fixture(scope="module")
def content():
    return sample.sign_page()


def test_hostile_text_stays_text(content):
    bad = sample.HOSTILE
    table = sign_page.SignTable(title=bad, header=(bad, bad), rows=((bad, bad),), note=bad)
    signing = Signing(digests=((bad, bad),), check=bad, owner=bad, date="2026-11-19")
    hostile = replace(
        content,
        **{"title": bad, "subtitle": bad, "promise": (bad,), "warnings": (bad,)},
        **{"figures": ((bad, bad),), "training": ((bad, bad),), "not_protected": (bad,)},
        tables=(table,),
        signing=signing,
    )
    text = sign_page.render(hostile)
    assert "<script" not in text and "<img" not in text
    assert text.count("&lt;script&gt;alert(1)") == text.count("{{script}}") > 15


def test_a_page_is_one_file_that_loads_and_runs_nothing(content, tmp_path):
    sign_page.write(content, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    assert text == sign_page.render(content) and not re.search(r"{{\w+}}", text)
    assert "default-src 'none'" in text and "<script" not in text
    assert not re.search(r"url\(|@import|https?://| src=| href=", text)
    for words in (*content.promise, content.signing.check, "ab" * 32, "Dr Weber", "2026-11-19"):
        assert words in text
    assert "What is not protected" in text and text.count(">Zweigstelle 39 ") >= 1


def test_json_has_what_the_page_shows(content):
    data = content.to_json()
    assert data["format"] == "decor-sign-page-1" and data["kind"] == "plan"
    assert len(data["tables"][1]["rows"]) == 40
    assert data["signing"]["digests"] == [["plan (SHA-256)", "ab" * 32]]
