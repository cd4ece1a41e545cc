"""What `make stats` counts stays at zero: long lines, undocumented arguments, participles as names."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

import stats  # noqa: E402


def test_no_line_is_over_100_columns():
    lines = [line for path in stats.modules() for line in path.read_text().splitlines()]
    assert [line for line in lines if len(line) > stats.COLUMNS] == []


def test_every_public_object_documents_every_argument():
    missing = {name: stats.undocumented(thing) for name, thing in stats.public_objects()}
    assert len(missing) > 100
    assert {name: names for name, names in missing.items() if names} == {}


def test_no_function_is_named_by_a_participle():
    assert list(stats.participles()) == []


@pytest.mark.parametrize("name", ["told", "_drawn", "described", "gathered_models"])
def test_a_participle_would_be_seen(name):
    assert stats.is_participle(name)


@pytest.mark.parametrize("name", ["seed", "read_file", "run", "epsilon", "as_sent", "rounded_up"])
def test_verbs_nouns_and_listed_adjectives_are_no_participles(name):
    assert not stats.is_participle(name)


def test_an_undocumented_argument_would_be_seen():
    def add(first, second):
        """Adds `first` to another number."""

    assert stats.undocumented(add) == ["second"]
    assert stats.undocumented(lambda x: x) == ["(no documentation)"]


def test_comments_are_at_least_six_in_a_hundred_lines_of_code():
    assert stats.comment_ratio() >= 0.06
