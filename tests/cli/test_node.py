"""Exit codes of `decor node`, which supervisors read; nodes that are killed are in
federation/test_faults.py.
"""

import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from own_tables import EACH, FILE, NAMES, records, write_all

import decor
from decor.cli.main import main
from decor.federation.federation import Federation
from decor.federation.node import Node
from decor.net.addresses import split_address
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.net.ledger_reading import read_entries

from .commands import start


@pytest.fixture
def node(here, tmp_path):
    """Runs bonn's node of a trial in this process, with its ledger made; gives its output."""
    here(*"federation new --task breast-cancer --users 3 --epsilon 3 --steps 4 --output .".split())
    here(*"ledger new bonn.ledger --identity keys/bonn.key".split())

    def run(*more, check, ledger="bonn.ledger", data="data/bonn.npz"):
        paths = ["--identity", "keys/bonn.key", "--data", data]
        paths += [] if ledger is None else ["--ledger", ledger]
        return here("node", "federation.toml", *paths, *more, check=check)

    run.ledger = tmp_path / "bonn.ledger"
    return run


def messages(path):
    return sum(entry.steps for entry in read_entries(path))


# 1: a cause outside that may pass


def test_a_port_in_use_is_worth_a_restart(node):
    address = Federation.read("federation.toml").members[0].address
    with socket.create_server(split_address(address)):
        said = node(check=1)
    assert "is another node running there?" in said.stderr and "Traceback" not in said.stderr
    assert messages(node.ledger) == 0


def test_a_ledger_in_use_is_worth_a_restart(node):
    with Ledger(node.ledger):
        said = node(check=1)
    assert said.stderr.startswith("decor: the ledger 'bonn.ledger' is in use by another node")
    assert read_entries(node.ledger) == []


# 2: a person must look


def test_a_node_needs_to_be_told_its_ledger(node):
    said = node(ledger=None, check=2)
    assert "--ledger" in said.stderr and "required" in said.stderr
    # none is made, under any name
    assert [path.name for path in Path().glob("*.ledger")] == ["bonn.ledger"]


def test_a_node_never_makes_a_ledger(node):
    said = node(ledger="other.ledger", check=2)
    assert "there is no ledger 'other.ledger'" in said.stderr
    assert "decor ledger new" in said.stderr and not Path("other.ledger").exists()


def test_a_ledger_of_another_key_is_refused(node, here):
    Identity.new().save("other.key")
    here(*"ledger new other.ledger --identity other.key".split())
    said = node(ledger="other.ledger", check=2)
    assert "is the ledger of another key" in said.stderr and "decor ledger adopt" in said.stderr
    assert read_entries(Path("other.ledger")) == []


def test_a_ledger_of_a_newer_version_is_refused(node):
    with closing(sqlite3.connect(node.ledger)) as db:
        db.execute("UPDATE facts SET value = 'decor-ledger-3' WHERE name = 'format'")
        db.commit()
    assert "of another version (decor-ledger-3)" in node(check=2).stderr


DATA = "patient 7 has 1.5"


@pytest.mark.parametrize("where", ["__post_init__", "train"])
def test_an_unknown_exception_is_shown_and_is_not_worth_a_restart(node, monkeypatch, capsys, where):
    def fail(self):
        raise ZeroDivisionError(DATA)

    async def fail_later(self):
        fail(self)

    monkeypatch.setattr(Node, where, fail if where == "__post_init__" else fail_later)
    paths = "--identity keys/bonn.key --data data/bonn.npz --ledger bonn.ledger".split()
    assert main(["node", "federation.toml", *paths]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said and "ZeroDivisionError" in said
    # the log may be read by others than the data's owner
    assert not [line for line in said.splitlines() if "event=" in line and DATA in line]


# 3: stopped for privacy


def test_a_limit_of_the_ledger_stops_a_node_for_privacy(node, here):
    here(*"ledger new small.ledger --identity keys/bonn.key --allow 1".split())
    said = node(ledger="small.ledger", check=3)
    assert "comes to" in said.stderr and "above 1 (" in said.stderr
    assert read_entries(Path("small.ledger")) == []
    # an option does not lift what the ledger's owner has promised
    assert "above 1 (" in node("--allow", "100", ledger="small.ledger", check=3).stderr


def test_a_run_that_has_ended_without_a_model_is_spent(node):
    node_ends(node, "the owner has ended it")
    assert "its budget is spent" in node(check=3).stderr


def test_a_run_that_was_ended_by_a_receipt_has_ended_for_good(node):
    node_ends(node, "kiel holds a receipt", repeated=True)
    assert "has ended for good: kiel holds a receipt" in node(check=3).stderr


def node_ends(node, why, repeated=False):
    """Puts an ended run of this federation into the ledger."""
    from decor.federation.spending import ledger_terms
    from decor.federation.terms import Terms

    terms = Terms.of(Federation.read("federation.toml"))
    with Ledger(node.ledger) as ledger:
        run = ledger.begin(terms.digest, ledger_terms(terms, 0))
        ledger.record(run, 0, b"message")
        if repeated:
            ledger.end_as_outdated(run, 2, why)
        else:
            ledger.end(run, why)


# tables of the users' own


def test_nodes_train_on_their_own_tables_whatever_the_values(here, tmp_path):
    """One table in another order and dialect and with values out of range, one without a record."""
    write_all(tmp_path)
    Path("task.toml").write_text(FILE + EACH)
    line = "federation new --task task.toml --topology complete --epsilon 10 --steps 3 --output t"
    here(*line.split())
    Path("ulm.csv").write_text("\ufeffsick;ward;dose;age\nyes;moon;7,5;1e9\nno;;;\n?;;x;y\n")
    Path("kiel.csv").write_text("age,dose,ward,sick\n")
    running = []
    for name in NAMES:
        here("ledger", "new", f"{name}.ledger", "--identity", f"t/keys/{name}.key")
        files = ["--ledger", f"{name}.ledger", "--identity", f"t/keys/{name}.key"]
        running.append(start("node", "t/federation.toml", *files, "--data", f"{name}.csv"))
    ends = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], ends
    run = decor.Run.load("run-ulm")
    assert run.predict(records(9)).classes == ("no", "yes") and run.steps_taken == 3
    # the folder says how columns are prepared, and nothing of the records
    manifest = Path("run-ulm/manifest.json").read_text()
    assert "moon" not in manifest and "clamped" not in manifest and "records" not in manifest


def test_a_wrong_column_is_refused_before_anything_is_spent(here, tmp_path):
    write_all(tmp_path)
    Path("task.toml").write_text(FILE + EACH)
    here(*"federation new --task task.toml --epsilon 10 --steps 3 --output t".split())
    here(*"ledger new bonn.ledger --identity t/keys/bonn.key".split())
    files = "--ledger bonn.ledger --identity t/keys/bonn.key --data bad.csv".split()
    for header in ("age,dose,sick", "age,dose,ward,sick,id", "age,age,ward,sick", "1,2,3,4"):
        Path("bad.csv").write_text(f"{header}\n")
        assert "column" in here("node", "t/federation.toml", *files, check=2).stderr
    assert read_entries(Path("bonn.ledger")) == []
