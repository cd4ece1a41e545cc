"""Texts of arguments and their values."""

import argparse
import json

import pytest

import decor
from decor import Adversary, Budget, Exposure
from decor.cli import values

from .conftest import RECORDS


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (values.whole, "1e6", 10**6),
        (values.whole, "1000000000000000003", 1000000000000000003),
        (values.whole, "-4", -4),
        (values.numbers, "1, 3.5,", (1.0, 3.5)),
        (values.seed, "secret", "secret"),
        (values.seed, "7", 7),
        (values.probability, "1/40", 0.025),
        (values.probability, "1e-5", 1e-5),
        (values.acceleration, "No", "no"),
        (values.acceleration_or_off, "no", False),
        (values.acceleration_or_off, "designed", "designed"),
        (values.records, "152", 152),
        (values.records, "152,80", (152, 80)),
    ],
)
def test_a_text_is_read_exactly(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (values.number, "three"),
        *((values.whole, text) for text in ("2.5", "inf", "nan", "", "x")),
        *((values.probability, text) for text in ("1/0", "1/", "a/b", "/")),
        (values.seed, "Secret"),
    ],
)
def test_a_text_that_is_no_number_is_refused(read, text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be a"):
        read(text)


@pytest.mark.parametrize("form", ["words", "csv", "headed", "semicolons", "json"])
def test_records_of_named_users_go_by_name_in_every_form(ask, branches, tmp_path, form):
    pairs = list(RECORDS.items())
    if form == "words":
        given = ",".join(f"{name}={count}" for name, count in pairs)
    elif form == "json":
        given = tmp_path / "records.json"
        given.write_text(json.dumps(dict(reversed(pairs))))
    else:
        mark = ";" if form == "semicolons" else ","
        header = [f"user{mark}records"] if form == "headed" else []
        lines = [*header, *(f"{name}{mark} {count}" for name, count in pairs)]
        given = tmp_path / "records.csv"
        given.write_text("\ufeff" + "\n".join(lines) + "\n\n")
    answer = ask("plan", *branches, "--records", given)
    assert {each["user"]: each["records"] for each in answer["per_user"]} == RECORDS
    topology, exposure = decor.read(branches[1]), Exposure(1.0, 100, "example", 16, RECORDS)
    plan = decor.calibrate(topology, exposure, Adversary.curious(), Budget(3.0, 1e-5))
    epsilons = dict(zip(topology.labels, plan.guarantee().per_user.tolist(), strict=True))
    assert {each["user"]: each["epsilon"] for each in answer["per_user"]} == epsilons
    assert answer["sigma_cdp"] == plan.sigma_cdp
    assert answer["expected_failures"] == pytest.approx(2710 * 1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("90,800,1520,300", "records is a list"),
        ("bonn=1520,jena=300,koeln=90", "ulm"),
        ("bonn=1520,jena=300,koeln=90,ulm=800,celle=70", "celle"),
        ("bonn=1520,bonn=300,koeln=90,ulm=800", "'bonn' twice"),
        ("bonn=many", "must be a whole number, not 'many'"),
        ("=5", "give a whole number for each name"),
        ("nowhere.csv", "cannot be read: No such file"),
        ({"r.csv": "bonn,1520\nulm\n"}, "line 2 of the file of records"),
        ({"r.csv": "bonn,1520\nbonn,3\n"}, "'bonn' twice"),
        ({"r.csv": "user,records\n"}, "holds no user"),
        ({"r.csv": b"\xff\xfe"}, "is not a text file"),
        ({"r.json": '{"bonn": 1, "bonn": 2}'}, "'bonn' twice"),
        ({"r.json": '{"bonn": "many"}'}, "'many' records for the user 'bonn'"),
        ({"r.json": '{"bonn": [1]}'}, "records for the user 'bonn'"),
        ({"r.json": '{"bonn": '}, "is not a JSON object"),
    ],
    ids=str,
)
def test_records_that_do_not_match_the_users_are_refused(here, branches, tmp_path, given, words):
    if isinstance(given, dict):
        ((name, content),) = given.items()
        given = tmp_path / name
        given.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert words in here("plan", *branches, "--records", given, check=2).stderr


@pytest.mark.parametrize("name", ["plot.docx", "plot", "plot.pgf", "nowhere/at/all.png"])
def test_a_figure_that_cannot_be_written_is_refused_before_it_is_computed(name, tmp_path):
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be written"):
        values.plot_file(str(tmp_path / name))
    assert values.plot_file(str(tmp_path / "plot.pdf"))
