"""`--table FILE`: all users of a plan as text, CSV or JSON."""

import csv
import json

import pytest

import decor
from decor.text import rounded_up

from .conftest import RECORDS


def test_all_formats_have_each_users_epsilon(here, branches, tmp_path):
    records = ",".join(f"{name}={count}" for name, count in RECORDS.items())
    paths = [tmp_path / f"users.{kind}" for kind in ("csv", "json", "txt")]
    for path in paths:
        here(
            "plan", *branches, "--records", records, "--table", path, "--save", tmp_path / "p.json"
        )
    guarantee = decor.NoisePlan.load(tmp_path / "p.json").guarantee()
    names = [guarantee.topology.name(user) for user in range(4)]
    rows = json.loads(paths[1].read_text())
    assert [row["user"] for row in rows] == names
    assert [row["epsilon"] for row in rows] == pytest.approx(guarantee.per_user.tolist())
    assert {row["user"]: row["records"] for row in rows} == RECORDS
    with paths[0].open() as file:
        read = list(csv.DictReader(file))
    assert [{name: str(value) for name, value in row.items()} for row in rows] == read
    text = paths[2].read_text()
    assert all(rounded_up(row["epsilon"]) in text for row in rows) and "1,520" in text


def test_account_writes_it_too_and_users_without_public_numbers_have_none(here, tmp_path):
    path = tmp_path / "users.csv"
    here(*"account --users 4 --sigma-cdp 30 --sigma-cor 9 --steps 10 --table".split(), path)
    assert path.read_text().splitlines()[0] == "user,neighbours,epsilon"
    assert len(path.read_text().splitlines()) == 5
