"""The tables and figures of plans."""

import pytest

from .conftest import RECORDS


def test_the_table_of_users_has_records_and_epsilon_and_the_most_exposed_first(here, branches):
    words = ",".join(f"{name}={count}" for name, count in RECORDS.items())
    out = here("plan", *branches, "--records", words).stdout
    table = out.split("Each user, against curious:\n")[1].split("\n\n")[0].splitlines()
    assert table[0].split() == ["user", "records", "epsilon"]
    rows = [line.split() for line in table[2:]]
    assert {name: int(count.replace(",", "")) for name, count, _ in rows} == RECORDS
    epsilons = [float(epsilon) for _, _, epsilon in rows]
    assert epsilons == sorted(epsilons, reverse=True) and rows[0][0] == "koeln"
    assert "delta x 2,710 records = 0.027: the expected number of records" in out


def test_the_table_of_users_is_only_for_users_that_differ_and_is_cut(here, branches):
    named = here("plan", "--graph", branches[1], "--epsilon", 3).stdout
    assert "user   epsilon" in named and "delta x 4 users = 4e-05" in named
    assert "Each user" not in here("plan", "--epsilon", 3).stdout
    counts = ",".join(["90", *["900"] * 29])
    line = "account --users 30 --sigma-cdp 1 --sigma-cor 1 --unit example --batch-size 16"
    many = here(*line.split(), "--steps", 100, "--records", counts).stdout
    assert "and 10 less exposed (--json lists all users)" in many and many.count(" 900 ") == 19


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figures_are_drawn(here, tmp_path, suffix):
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    lines = (
        "plan --epsilon 3 --adversary curious --topology grid",
        "account --sigma-cdp 5 --sigma-cor 20 --topology star",
        "account --sigma-cdp 0 --sigma-cor 20",
        "graph --topology erdos-renyi --users 30 --probability 0.05",
        "graph --topology ring --users 3000",
    )
    for k, line in enumerate(lines):
        file = tmp_path / f"{k}.{suffix}"
        here(*line.split(), "--plot", file)
        assert file.read_bytes().startswith(start) and file.stat().st_size > 5000


def test_a_disconnected_graph_is_answered_and_its_users_have_their_names(here, tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("a b\nb c\na c\nd e\ne f\nd f\n")
    for line in ("plan --epsilon 3", "account --sigma-cdp 5 --sigma-cor 9", "graph"):
        assert "2 parts" in here(*line.split(), "--graph", path).stdout
    assert "user a" in here("plan", "--epsilon", 3, "--graph", path).stdout
