"""Records are read by their type hints, and anything else is refused with its place."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest

from decor.errors import InputError
from decor.results.json_dataclass import Epsilon, JsonRecord


@dataclass(frozen=True)
class Inner(JsonRecord):
    low: float
    high: float


@dataclass(frozen=True)
class Outer(JsonRecord):
    name: str
    kind: Literal["a", "b"]
    epsilon: Epsilon | None = None
    size: float | Inner | None = None
    pairs: tuple[tuple[int, int], ...] = ()
    table: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    flag: bool = False

    optional_keys: ClassVar = frozenset({"flag"})


FULL = {
    "name": "x",
    "kind": "a",
    "epsilon": "inf",
    "size": {"low": 1, "high": 2.5},
    "pairs": [[0, 1], [1, 2]],
    "table": {"loss": [0.5, None]},
    "flag": True,
}


def test_a_record_is_written_as_it_was_read():
    record = Outer.from_json(FULL)
    assert record.epsilon == math.inf and record.size == Inner(1, 2.5)
    assert record.pairs == ((0, 1), (1, 2)) and record.to_json() == FULL


def test_defaults_stand_for_absent_keys_and_for_null_and_unknown_keys_are_ignored():
    record = Outer.from_json({"name": "x", "kind": "b", "pairs": None, "newer": 1})
    assert record == Outer("x", "b")
    assert "flag" not in record.to_json() and record.to_json()["epsilon"] is None


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("name", None, "name"),
        ("name", 3, "name"),
        ("kind", "c", "kind"),
        ("kind", ["a"], "kind"),
        ("epsilon", True, "epsilon"),
        ("epsilon", math.nan, "epsilon"),
        ("size", "large", "size"),
        ("size", 10**400, "size"),
        ("size", {"low": 1}, "size.high"),
        ("pairs", [[0]], "pairs[0]"),
        ("pairs", [[0, 1.5]], "pairs[0]"),
        ("pairs", "x" * 1000, "pairs"),
        ("table", [1], "table"),
        ("table", {"loss": [None, "inf"]}, "table.loss[1]"),
        ("flag", 1, "flag"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(key, value, place):
    with pytest.raises(InputError) as caught:
        Outer.from_json(FULL | {key: value}, "file")
    assert f"file.{place}: " in str(caught.value) and len(str(caught.value)) < 200
