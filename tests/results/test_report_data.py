"""Report data: read as it was written, and refused with its place where it does not fit."""

import math

import pytest
import sample

from decor.errors import InputError
from decor.results.report_data import Report


@pytest.mark.parametrize("make", sample.EVERY, ids=lambda make: make.__name__)
def test_a_report_is_written_as_it_was_read(make):
    data, again = make(), sample.read(make()).to_json()
    # null stands where an old file may leave a key out
    for new, old in zip(again.pop("outcomes"), data.pop("outcomes"), strict=True):
        assert old.items() <= new.items()
        assert {new[key] for key in set(new) - set(old)} <= {None, "seed"}
    assert again == data
    assert sample.read(sample.read(make()).to_json()) == sample.read(make())


def put(data, path, value):
    *way, last = path
    for key in way:
        data = data[key]
    data[last] = value


WRONG = [
    (("format",), "decor-report-2", "decor-report-1"),
    (("title",), "", "title"),
    (("metrics",), [], "metrics"),
    (("metrics", 0, "better"), "more", "metrics[0].better"),
    (("metrics", 1, "name"), "accuracy", "metrics[].name"),
    (("metrics", 0, "percent"), 1, "metrics[0].percent"),
    (("methods", 1, "kind"), "magic", "methods[1].kind"),
    (("methods", 0, "graph"), "hypercube", "methods[0].graph"),
    (("methods", 1, "name"), "DECOR ring", "methods[].name"),
    (("outcomes", 3, "method"), "unknown", "outcomes[3].method"),
    (("outcomes", 0, "epsilon"), -1, "outcomes[0].epsilon"),
    (("outcomes", 0, "epsilon"), 3.0, "no other entry"),
    (("outcomes", 0, "noise"), "dice", "outcomes[0].noise"),
    (("outcomes", 0, "final", "accuracy"), [0.1, 0.2], "outcomes[0].final.accuracy"),
    (("outcomes", 0, "final", "loss", 2), math.nan, "outcomes[0].final.loss[2]"),
    (("outcomes", 0, "final"), {}, "outcomes[0].final.accuracy"),
    (("outcomes", 0, "seeds"), [], "outcomes[0].seeds"),
    (("outcomes", 0, "sigma_cor"), {"low": 1}, "outcomes[0].sigma_cor.high"),
    (("outcomes", 0, "curve", "step", 1), 0, "outcomes[0].curve.step"),
    (("outcomes", 0, "curve", "loss", 1), [1.0], "outcomes[0].curve.loss"),
    (("outcomes", 0, "per_user_epsilon"), [1.0], "outcomes[0].per_user_epsilon"),
    (("outcomes", 0, "per_user_epsilon", 3), None, "outcomes[0].per_user_epsilon[3]"),
    (("outcomes", 0, "adversaries", 0, "epsilon"), "large", "adversaries[0].epsilon"),
    (("graphs", 0, "edges", 0), [0, 16], "graphs[0].edges"),
    (("graphs", 0, "places", 0), [0], "graphs[0].places[0]"),
    (("graphs", 0, "labels"), ["a"], "graphs[0].labels"),
    (("graphs", 1, "name"), "ring", "graphs[].name"),
    (("repeat", "options"), ["x"], "repeat.options"),
    (("repeat",), "decor compare", "repeat"),
    (("notes",), "a note", "notes"),
]


@pytest.mark.parametrize(("path", "value", "named"), WRONG, ids=lambda v: str(v)[:40])
def test_wrong_data_is_refused_with_its_place(path, value, named):
    data = sample.comparison()
    put(data, path, value)
    with pytest.raises(InputError) as caught:
        Report.from_json(data)
    assert named in str(caught.value)


@pytest.mark.parametrize("value", [None, [], "text", {}])
def test_what_is_no_report_data_is_refused(value):
    with pytest.raises(InputError, match="not report data"):
        Report.from_json(value)


@pytest.mark.parametrize("missing", ["subtitle", "made", "graphs", "tuning", "repeat", "notes"])
@pytest.mark.parametrize("null", [False, True])
def test_what_is_optional_may_be_absent_or_null(missing, null):
    data = sample.comparison()
    data[missing] = None
    if not null:
        del data[missing]
    report = Report.from_json(data)
    assert not getattr(report, missing)


def test_an_outcome_without_privacy_belongs_to_every_budget():
    report = sample.read(sample.comparison())
    assert report.outcome("No privacy", 3.0).epsilon is None
    assert report.outcome("DECOR ring", 3.0).epsilon == 3.0
    assert report.outcome("DECOR ring", 4.0) is None
    assert report.first_guarantee.method == "DECOR ring"
