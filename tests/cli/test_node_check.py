"""`decor node FILE --check`: what the owner learns of its data before anything is spent."""

from pathlib import Path

import numpy as np
import pytest

from decor.federation.federation import Federation

PARTS = """
[data.label]
name = "sick"
classes = ["no", "yes"]

[[data.columns]]
name = "age"
kind = "number"
low = 0
high = 100

[[data.columns]]
name = "ward"
kind = "category"
values = ["north", "south"]
"""


@pytest.fixture
def file(here, users):
    """A federation of three users; with columns. Without a node, ledger or key."""
    line = "federation new --name heart --epsilon 3 --features 4 --output heart.toml"
    here(*line.split(), *users(count=3))
    path = Path("heart.toml")
    path.write_text(path.read_text().replace("features = 4\n", "") + PARTS)
    Federation.read(path)
    return path


def test_the_owner_sees_what_would_be_changed(file, ask, here):
    Path("bonn.csv").write_text("ward;sick;age\nnorth;no;50\nwest;no;130\n;yes;\nnorth;;3\n")
    seen = ask("node heart.toml --check --data bonn.csv")
    assert (seen["records"], seen["used"], seen["dropped"]) == (4, 3, 1)
    assert seen["columns"]["age"] == {"missing": 1, "clamped": 1, "other": 0}
    assert seen["columns"]["ward"] == {"missing": 1, "clamped": 0, "other": 1}
    assert seen["classes"] == {"no": 2, "yes": 1} and seen["base_rate"] == pytest.approx(2 / 3)
    assert seen["warnings"] == []
    shown = here("node", file, "--check", "--data", "bonn.csv").stdout
    assert (
        "4 records" in shown and "Always guessing 'no' is right for 66.7% of the records" in shown
    )
    # it has not joined
    assert sorted(path.name for path in Path().iterdir()) == ["bonn.csv", "heart.toml"]


@pytest.mark.parametrize(
    ("rows", "warning"),
    [
        ("", "no record has a known label"),
        ("50,north,\n", "no record has a known label"),
        ("50,north,yes\n", "all records are of class 'yes'"),
    ],
)
def test_data_of_which_nothing_can_be_learnt_are_a_warning(file, here, rows, warning):
    Path("bonn.csv").write_text("age,ward,sick\n" + rows)
    assert f"Warning: {warning}" in here("node", file, "--check", "--data", "bonn.csv").stdout


def test_wrong_columns_are_refused(file, here):
    Path("bonn.csv").write_text("age,sick\n50,no\n")
    said = here("node", file, "--check", "--data", "bonn.csv", check=2).stderr
    assert "has no column 'ward'" in said


def test_files_without_columns_are_checked_as_numbers(here, ask):
    here(*"federation new --task breast-cancer --users 3 --epsilon 3 --output .".split())
    seen = ask("node federation.toml --check --data data/bonn.npz --identity keys/bonn.key")
    assert seen["used"] == seen["records"] == sum(seen["classes"].values()) and not seen["columns"]
    np.savez("few.npz", X=np.zeros((2, 3)), y=np.zeros(2))
    said = here(*"node federation.toml --check --data few.npz".split(), check=2).stderr
    assert "has records of shape (3,), and model.features is 30" in said


def test_another_number_of_records_than_the_public_one_is_refused(here):
    line = "federation new --task breast-cancer --users 3 --epsilon 3 --unit example"
    here(*line.split(), *"--batch-size 8 --output .".split())
    check = "node federation.toml --check --identity keys/bonn.key --data data/"
    here(*f"{check}bonn.npz".split())
    with np.load("data/bonn.npz") as held:
        np.savez("data/few.npz", X=held["X"][1:], y=held["y"][1:])
    assert "users.records says" in here(*f"{check}few.npz".split(), check=2).stderr


def test_every_party_reads_which_columns_its_table_needs(file, ask, here):
    shown = here("federation", "check", file).stdout
    assert "Tables have the columns age, ward; and the label sick (no, yes)." in shown
    assert ask("federation check heart.toml")["data"]["label"]["name"] == "sick"


def test_with_a_common_rate_the_owner_learns_its_largest_step_and_any_number_may_join(here, users):
    line = "federation new --name heart --epsilon 3 --features 2 --output heart.toml"
    here(*line.split(), *users(count=3), *"--unit example --rate 0.1 --batch-size 70".split())
    for count, clips in ((5, "0.007143"), (2000, "2.858")):
        np.savez("own.npz", X=np.zeros((count, 2)), y=np.arange(count) % 2)
        shown = here(*"node heart.toml --check --data own.npz".split()).stdout
        assert f"Largest local step: {clips} clips" in shown
