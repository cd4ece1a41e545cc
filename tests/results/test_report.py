"""The page as a file: complete, checked, the same every time, and without anything that
leaves it.
"""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest
import sample

from decor.errors import InputError
from decor.results import plots, report, report_data
from decor.results.palette import HUES, styles
from decor.results.report_view import CURVE_POINTS, view
from decor.results.tables import Spread, spread_text, summary_header, summary_rows
from decor.text import rounded_up

EVERY = [
    sample.comparison,
    sample.star,
    sample.diverged,
    sample.single,
    sample.large,
    sample.hostile,
]


class Reader(HTMLParser):
    """Elements, attributes and the cells of the results table."""

    def __init__(self):
        super().__init__()
        self.elements, self.attributes, self.rows, self.script = [], [], [], ""
        self.inside, self.cell = None, None

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.cell = []
        self.inside = dict(attributes).get("id") if tag == "script" else self.inside

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append("".join(self.cell))
            self.cell = None
        self.inside = None if tag == "script" else self.inside

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(data)
        if self.inside == "data":
            self.script += data


def read(text):
    reader = Reader()
    reader.feed(text)
    return reader


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_a_page_names_nothing_outside_itself(make):
    reader = read(report.page(make()))
    assert not [
        a
        for a in reader.attributes
        if a[1] in ("src", "srcset", "action", "data") or (a[1] == "href" and a[2][0] != "#")
    ]
    assert not re.search(
        r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", report.page(make())
    )
    assert {"link", "img", "iframe", "object", "base"}.isdisjoint(reader.elements)


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_the_same_data_makes_the_same_page(make, tmp_path):
    report.write(make(), tmp_path / "a.html")
    report.write(json.loads(json.dumps(make())), tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_hostile_text_adds_no_element_and_no_attribute():
    plain = sample.hostile()
    text = json.dumps(plain).replace(json.dumps(sample.HOSTILE)[1:-1], "harmless")
    harmless = read(report.page(json.loads(text)))
    hostile = read(report.page(plain))
    assert hostile.elements == harmless.elements
    assert [a[:2] for a in hostile.attributes] == [a[:2] for a in harmless.attributes]


def test_embedded_json_cannot_end_its_script_and_reads_back():
    value = {"a": "</script><!-- <script> ]]> & \u2028\u2029 é \ud800"}
    text = report.embedded(value)
    assert not set("<>&") & set(text) and text.isascii()
    assert json.loads(text) == value


def test_the_policy_names_the_digest_of_the_one_script():
    text = report.page(sample.star())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    code = re.search(r"<script>(.*?)</script>", text, re.S)[1]
    assert (
        f"script-src 'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
    ) in policy
    assert policy.startswith("default-src 'none'") and "http" not in policy


def test_a_text_that_looks_like_a_place_of_the_template_stays_as_it_is():
    data = sample.star() | {"title": "{{data}} {{script}} \\1 \\g<0>"}
    assert "<h1>{{data}} {{script}} \\1 \\g&lt;0&gt;</h1>" in report.page(data)


@pytest.mark.parametrize(
    "make",
    [sample.comparison, sample.diverged, sample.single, sample.star],
    ids=lambda make: make.__name__,
)
def test_the_table_of_the_page_is_the_table_of_the_terminal(make):
    data = make()
    rows = [row for row in read(report.page(data)).rows if row][: len(data["outcomes"]) + 1]
    width = len(summary_header(data))
    assert [row[1:width] for row in rows[1:]] == [row[1:] for row in summary_rows(data)]
    assert [row[0].removesuffix("stopped early") for row in rows[1:]] == [
        row[0] for row in summary_rows(data)
    ]


def test_every_epsilon_of_the_table_is_rounded_up():
    data = sample.star()
    cases = {
        2.99991: "3",
        1.00001: "1.001",
        0.123456: "0.1235",
        12345.6: "1.235e+04",
        "inf": "∞",
        None: "none",
    }
    for given, shown in cases.items():
        data["outcomes"][0]["epsilon"] = given
        assert summary_rows(data)[0][1] == shown


def test_means_and_spreads_are_the_textbook_ones():
    spread = Spread.of_seeds([1.0, 2.0, 4.0, None])
    assert spread.mean == pytest.approx(7 / 3)
    assert spread.error == pytest.approx(
        math.sqrt(((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2) / 2 / 3)
    )
    assert (spread.low, spread.high, spread.seeds, spread.of) == (1.0, 4.0, 3, 4)
    assert spread_text(spread, 2) == "2.33 ± 0.88 (3 of 4 seeds)"
    assert spread_text(spread, 1, "%") == "2.3 ± 0.9 % (3 of 4 seeds)"
    assert Spread.of_seeds([None, None]) is None and spread_text(None, 2) == "no value"
    assert (
        Spread.of_seeds([0.5], 100).error is None
        and spread_text(Spread.of_seeds([0.5], 100), 1) == "50.0"
    )


@pytest.mark.parametrize(
    ("mean", "error", "digits", "shown"),
    [
        (98.2, 0.4, 1, "98.2 ± 0.4"),
        (98.2, 0.04, 1, "98.20 ± 0.04"),
        (0.0684, 0.0041, 1, "0.068 ± 0.004"),
        (3.14e-17, 8e-18, 4, "3.1e-17 ± 0.8e-17"),
        (3.1e-6, 2e-8, 4, "3.10e-06 ± 0.02e-06"),
        (0.0, 0.0, 4, "0 ± 0"),
        (98.2, 1e-14, 1, "98.2 ± 0"),
        (98.2301, 2e-6, 1, "98.2 ± 0"),
        (98.2301, 2e-3, 1, "98.230 ± 0.002"),
        (3.1e-17, 1e-24, 4, "3.1e-17 ± 0"),
        (1e-9, 0.003, 3, "0.000 ± 0.003"),
        (1.5e7, 2e5, 1, "1.50e+07 ± 0.02e+07"),
        (3e-17, None, 4, "3e-17"),
        (0.0456, None, 4, "0.0456"),
        (0.0, None, 4, "0"),
    ],
)
def test_a_number_keeps_digits_that_say_something_and_a_spread_ends_where_its_mean_does(
    mean, error, digits, shown
):
    assert spread_text(Spread(mean, error, mean, mean, 4, 4), digits) == shown


def test_no_value_of_a_table_is_rounded_to_nothing():
    data = sample.comparison()
    for outcome in data["outcomes"]:
        outcome["final"]["loss"] = [1e-9 * value for value in outcome["final"]["loss"]]
    for text in (row[-1] for row in summary_rows(data)):
        assert all(float(part) > 0 for part in text.split(" ± ")), text


def test_a_diverged_outcome_has_no_number_and_says_why():
    data = sample.diverged()
    rows = {(row[0], row[1]): row for row in summary_rows(data)}
    assert rows["Local DP", "1"][2:] == ["no value", "no value"]
    assert rows["Local DP", "3"][2].endswith("(3 of 4 seeds)")
    text = report.page(data)
    assert (
        "<strong>Local DP at ε = 1, Local DP at ε = 3:</strong> The loss became infinite at step 60"
    ) in text
    assert "60 of 200" in text and "ε spent" in text


def test_without_its_script_the_page_still_says_everything_that_matters():
    data = sample.comparison()
    text = re.sub(r"<script.*?</script>", "", report.page(data), flags=re.S)
    for needed in (
        data["outcomes"][0]["guarantee"],
        data["repeat"]["command"],
        data["tuning"]["warning"],
        *data["notes"],
        "2.13.0",
    ):
        assert needed in text
    assert "<noscript>" in text and "0–3" in text


def test_every_outcome_of_the_page_belongs_to_its_method():
    data = sample.comparison()
    shown = view(data)
    assert [shown["methods"][o["method"]]["name"] for o in shown["outcomes"]] == [
        o["method"] for o in data["outcomes"]
    ]
    assert [o["epsilon"] for o in shown["outcomes"]] == [o["epsilon"] for o in data["outcomes"]]


def test_a_large_graph_travels_as_a_histogram():
    data = sample.large()
    shown = view(data)
    first = shown["outcomes"][0]
    assert first["users"] is None and shown["graphs"][0]["places"] is None
    assert sum(first["histogram"]["counts"]) + first["histogram"]["infinite"] == 3000
    assert len(report.page(data)) < 100_000


def test_long_curves_are_thinned_and_keep_their_ends():
    data = sample.single()
    outcome = data["outcomes"][0]
    outcome["curve"] = {"step": list(range(5001)), "accuracy": [[k / 5001 for k in range(5001)]]}
    curve = view(data)["outcomes"][0]["curve"]
    assert len(curve["step"]) == CURVE_POINTS and (curve["step"][0], curve["step"][-1]) == (0, 5000)
    assert curve["accuracy"]["mean"][-1] == pytest.approx(100 * 5000 / 5001) and "loss" not in curve


def test_methods_of_one_kind_share_a_family_of_colours_and_differ():
    data = sample.comparison()
    found = styles(data)
    turns = (("decor", 0), ("decor", 1), ("central", 0), ("local", 0), ("none", 0))
    assert [s.light for s in found] == [HUES[kind][turn][0] for kind, turn in turns]
    assert [s.dashed for s in found] == [False] * 4 + [True]
    assert len({(s.light, s.mark) for s in found}) == 5


def test_pictures_and_page_draw_graphs_up_to_the_same_size():
    assert report_data.DRAWN_USERS == plots.DRAWN_USERS


@pytest.mark.parametrize(
    "value", [1e-320, 1e-7, 0.12344, 0.99991, 1, 2.5, 9.9999, 123.45, 99999, 123456, 1e300]
)
def test_rounded_up_never_understates(value):
    assert float(rounded_up(value)) >= value * (1 - 1e-8)


def put(data, path, value):
    *way, last = path
    for key in way:
        data = data[key]
    data[last] = value


WRONG = [
    (("format",), "decor-report-2", "decor-report-1"),
    (("title",), "", "report.title"),
    (("title",), 3, "report.title"),
    (("metrics",), [], "report.metrics"),
    (("metrics", 0, "better"), "more", "metrics[0].better"),
    (("metrics", 0, "name"), "step", "metrics[0].name"),
    (("metrics", 1, "name"), "accuracy", "metrics[].name"),
    (("metrics", 0, "percent"), 1, "metrics[0].percent"),
    (("methods", 1, "kind"), "magic", "methods[1].kind"),
    (("methods", 0, "graph"), "hypercube", "methods[0].graph"),
    (("methods", 1, "name"), "DECOR ring", "methods[].name"),
    (("outcomes", 3, "method"), "nobody", "outcomes[3].method"),
    (("outcomes", 3, "method"), ["x"], "outcomes[3].method"),
    (("outcomes", 0, "epsilon"), -1, "outcomes[0].epsilon"),
    (("outcomes", 0, "epsilon"), 0, "outcomes[0].epsilon"),
    (("outcomes", 0, "epsilon"), True, "outcomes[0].epsilon"),
    (("outcomes", 0, "epsilon"), 3.0, "no other outcome"),
    (("outcomes", 0, "epsilon"), math.inf, '"inf"'),
    (("outcomes", 0, "final", "accuracy"), [0.1, 0.2], "outcomes[0].final.accuracy"),
    (("outcomes", 0, "final", "loss", 2), math.nan, "None"),
    (("outcomes", 0, "final", "loss", 2), "low", "outcomes[0].final.loss"),
    (("outcomes", 0, "seeds"), [], "outcomes[0].seeds"),
    (("outcomes", 0, "sigma_cor"), {"low": 1}, "outcomes[0].sigma_cor"),
    (("outcomes", 0, "curve", "step", 1), 0, "outcomes[0].curve.step"),
    (("outcomes", 0, "curve", "loss", 1), [1.0], "outcomes[0].curve.loss"),
    (("outcomes", 0, "per_user_epsilon"), [1.0], "outcomes[0].per_user_epsilon"),
    (("outcomes", 0, "per_user_epsilon", 3), None, "outcomes[0].per_user_epsilon"),
    (("outcomes", 0, "adversaries", 0, "epsilon"), "large", "outcomes[0].adversaries[0].epsilon"),
    (("graphs", 0, "edges", 0), [0, 16], "graphs[0].edges"),
    (("graphs", 0, "places", 0), [0], "graphs[0].places"),
    (("graphs", 0, "labels"), ["a"], "graphs[0].labels"),
    (("graphs", 1, "name"), "ring", "graphs[].name"),
    (("repeat", "options"), ["x"], "repeat.options"),
    (("repeat",), "decor compare", "repeat"),
    (("notes",), "a note", "notes"),
    (("notes",), [{1}], "JSON"),
]


@pytest.mark.parametrize(("path", "value", "named"), WRONG, ids=lambda v: str(v)[:40])
def test_wrong_data_is_refused_with_its_place(path, value, named, tmp_path):
    data = sample.comparison()
    put(data, path, value)
    with pytest.raises(InputError) as caught:
        report.write(data, tmp_path / "report.html")
    assert named in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [None, [], "text", {}])
def test_what_is_no_report_data_is_refused(value):
    with pytest.raises(InputError, match="not report data"):
        report.page(value)


@pytest.mark.parametrize("missing", ["subtitle", "made", "graphs", "tuning", "repeat", "notes"])
def test_what_is_optional_may_be_absent(missing):
    data = sample.comparison()
    del data[missing]
    assert "</html>" in report.page(data)


def test_a_place_that_cannot_be_written_is_a_typed_error(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        report.write(sample.star(), tmp_path / "no" / "such" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        report.write(sample.star(), tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
