"""`decor ledger new`, `adopt`, `end` and `convert`: ledgers made on purpose, and bound to keys."""

import gzip
import hashlib
import json
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import decor
from decor.errors import LedgerError
from decor.net.identity import Identity
from decor.net.ledger import Ledger, adoption_text
from decor.net.ledger_reading import read_entries

VERSION_0_1 = Path(__file__).parent.parent / "version_0_1"


@pytest.fixture
def keys(tmp_path):
    """Two identities, saved as bonn.key and new.key."""
    made = {name: Identity.new() for name in ("bonn", "new")}
    for name, identity in made.items():
        identity.save(tmp_path / f"{name}.key")
    return made


@pytest.fixture
def ledger(here, keys, tmp_path):
    here("ledger", "new", "bonn.ledger", "--identity", "bonn.key")
    return tmp_path / "bonn.ledger"


def identities(path):
    """The rows (public, old, signature) of a ledger's keys, the first one first."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT public, old, signature FROM identities ORDER BY added").fetchall()


# new


def test_a_new_ledger_is_bound_to_its_key_its_data_and_its_limits(here, keys, tmp_path):
    said = here(
        *("ledger", "new", "bonn.ledger", "--identity", "bonn.key"),
        *("--data", "patients 2026", "--allow", "20", "--allow-delta", "1e-6"),
    )
    assert "wrote bonn.ledger: the only ledger of this data" in said.stdout
    with Ledger(tmp_path / "bonn.ledger") as opened:
        facts = opened.facts
    assert (facts.data, facts.allow, facts.allow_delta) == ("patients 2026", 20.0, 1e-6)
    assert facts.identities == (keys["bonn"].public,)
    with pytest.raises(LedgerError, match="the ledger of another key"):
        Ledger(tmp_path / "bonn.ledger", keys["new"].public)


def test_nobody_else_can_read_a_ledger_or_what_lies_beside_it(here, keys, tmp_path):
    # whatever the user's own setting is
    before = os.umask(0)
    try:
        here("ledger", "new", "bonn.ledger", "--identity", "bonn.key")
        with Ledger(tmp_path / "bonn.ledger", keys["bonn"].public) as opened:
            opened.record(opened.begin(bytes(32), "{}"), 0, b"message")
            files = sorted(tmp_path.glob("bonn.ledger*"))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    finally:
        os.umask(before)
    beside = ("", "-lock", "-shm", "-wal")
    assert modes == {f"bonn.ledger{suffix}": 0o600 for suffix in beside}


def test_a_ledger_is_never_replaced(here, ledger):
    before = ledger.read_bytes()
    said = here("ledger", "new", "bonn.ledger", "--identity", "bonn.key", check=2)
    assert "exists; a ledger is never replaced" in said.stderr
    assert ledger.read_bytes() == before


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ("--identity bonn.key --allow 0", "--allow must be a finite number above 0"),
        ("--identity bonn.key --allow inf", "--allow must be a finite number above 0"),
        ("--identity bonn.key --allow-delta 1e-5", "--allow-delta belongs to --allow"),
        ("--identity bonn.key --allow 3 --allow-delta 2", "--allow-delta"),
        ("--identity none.key", "none.key"),
        ("", "--identity"),
    ],
)
def test_a_wrong_option_leaves_no_ledger(here, keys, tmp_path, wrong, what):
    said = here("ledger", "new", "bonn.ledger", *wrong.split(), check=2)
    assert what in said.stderr and not list(tmp_path.glob("bonn.ledger*"))


def test_a_folder_that_does_not_exist_is_told(here, keys):
    said = here("ledger", "new", "none/bonn.ledger", "--identity", "bonn.key", check=2)
    assert "cannot be made: No such file or directory" in said.stderr


# adopt


def test_an_old_key_signs_for_the_new_one(here, keys, ledger):
    said = here("ledger", "adopt", "bonn.ledger", "--identity", "new.key", "--old-key", "bonn.key")
    assert keys["new"].line in said.stdout
    old, new = keys["bonn"].public, keys["new"].public
    (first, second) = identities(ledger)
    assert first == (old, None, None) and second[:2] == (new, old)
    with Ledger(ledger, new) as opened:
        text = adoption_text(opened.id, new)
    Ed25519PublicKey.from_public_bytes(old).verify(second[2], text)
    # for this ledger alone
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(old).verify(second[2], adoption_text("0" * 32, new))
    # both may use it: a federation that knows the old key may still begin
    Ledger(ledger, old).close()
    assert ledger.stat().st_mode & 0o777 == 0o600


def test_a_lost_key_needs_no_signature_and_is_on_record(here, keys, ledger):
    here("ledger", "adopt", "bonn.ledger", "--identity", "new.key", "--old-key-lost")
    assert identities(ledger)[1] == (keys["new"].public, None, None)
    Ledger(ledger, keys["new"].public).close()


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("", "--old-key"),
        ("--old-key bonn.key --old-key-lost", "not allowed with"),
        # a key that is none of the ledger's cannot sign
        ("--old-key other.key", "is the ledger of another key"),
    ],
)
def test_a_key_is_not_adopted_without_an_old_one_or_a_word_that_it_is_lost(
    here, keys, ledger, tmp_path, how, what
):
    Identity.new().save(tmp_path / "other.key")
    before = identities(ledger)
    said = here("ledger", "adopt", "bonn.ledger", "--identity", "new.key", *how.split(), check=2)
    assert what in said.stderr and identities(ledger) == before


def test_a_key_that_the_ledger_has_is_not_adopted_again(here, keys, ledger):
    again = ("--identity", "bonn.key", "--old-key", "bonn.key")
    said = here("ledger", "adopt", "bonn.ledger", *again, check=2)
    assert "has this key already" in said.stderr and len(identities(ledger)) == 1


@pytest.mark.parametrize("how", [("--old-key", "bonn.key"), ("--old-key-lost",)])
def test_no_key_is_adopted_in_the_middle_of_a_run(here, keys, ledger, how):
    with Ledger(ledger) as opened:
        run = opened.begin(bytes(32), "{}")
        opened.record(run, 0, b"message")
    adopt = ("ledger", "adopt", "bonn.ledger", "--identity", "new.key", *how)
    said = here(*adopt, check=2)
    assert "run 1" in said.stderr and "finish it first" in said.stderr
    assert "--give-up-run" in said.stderr and len(identities(ledger)) == 1
    with Ledger(ledger) as opened:
        opened.end(run, "finished")
    here(*adopt)


@pytest.mark.parametrize("how", [("--old-key", "bonn.key"), ("--old-key-lost",)])
def test_a_run_that_is_given_up_for_a_new_key_goes_on_reserving_its_plan(here, keys, ledger, how):
    with Ledger(ledger) as opened:
        run = opened.begin(bytes(32), "{}")
        opened.record(run, 0, b"message")
    here("ledger", "adopt", "bonn.ledger", "--identity", "new.key", *how, "--give-up-run")
    assert len(identities(ledger)) == 2
    # not ended: what has not ended counts with its whole plan
    (entry,) = read_entries(ledger)
    assert entry.ended is None and entry.steps == 1


def test_a_ledger_that_a_node_is_using_is_left_alone_and_may_be_tried_again(here, keys, ledger):
    with Ledger(ledger):
        adopt = ("ledger", "adopt", "bonn.ledger", "--identity", "new.key", "--old-key-lost")
        said = here(*adopt, check=1)
    assert "in use by another node" in said.stderr and len(identities(ledger)) == 1


# end


@pytest.fixture
def runs(ledger):
    """Runs of the ledger: 1 at user level, 2 at example level; gives the messages of each."""

    def begin(**messages):
        for run, (unit, more) in enumerate(
            [("user", {}), ("example", {"batch_size": 4, "records": 100})], 1
        ):
            exposure = decor.Exposure(1.0, 20, unit=unit, **more)
            budget = decor.Budget(3.0, 1e-5)
            plan = decor.calibrate(decor.ring(3), exposure, decor.Adversary.curious(), budget)
            held = {"name": unit, "delta": 1e-5, "plan": json.loads(plan.to_json())}
            held |= {"number": 0, "distance": 1e-30}
            with Ledger(ledger) as opened:
                assert opened.begin(bytes([run]) * 32, json.dumps(held)) == run
                for step in range(messages.get(unit, 0)):
                    opened.record(run, step, b"message")

    return begin


def shown(here):
    return json.loads(here("ledger", "show", "bonn.ledger", "--json").stdout)


def test_a_run_that_is_ended_counts_what_was_made_of_it(here, ledger, runs):
    runs(user=5, example=5)
    before = shown(here)["runs"]
    said = here("ledger", "end", "bonn.ledger", "--run", "1").stdout
    assert said.startswith("run 1, user, has ended after 5 messages, and never goes on. It counts ")
    said = here("ledger", "end", "bonn.ledger", "--run", "2").stdout
    assert "run 2, example, has ended after 5 messages" in said
    user, example = shown(here)["runs"]
    # steps made at user level, the whole plan at example level
    assert user["promised"] == before[0]["epsilon"] < before[0]["promised"]
    assert example["promised"] == before[1]["promised"] > 2.9
    assert all(run["why"] == "by decor ledger end" and run["ended"] for run in (user, example))


def test_a_run_without_a_message_that_is_ended_costs_nothing(here, ledger, runs):
    runs(user=20)
    assert "∞" in here("ledger", "show", "bonn.ledger").stdout
    said = here("ledger", "end", "bonn.ledger", "--run", "2").stdout
    assert "has ended after 0 messages" in said and "epsilon 0 instead of 2.999" in said
    assert "∞" not in here("ledger", "show", "bonn.ledger").stdout
    totals = {total["unit"]: total["epsilon"] for total in shown(here)["totals"]}
    assert totals["user"] == pytest.approx(3.0, rel=1e-3)


def test_only_a_run_that_is_under_way_is_ended(here, ledger, runs):
    end = ("ledger", "end", "bonn.ledger", "--run")
    assert "has no run 1; it has no run" in here(*end, "1", check=2).stderr
    runs(user=1)
    assert "has no run 3; it has runs 1, 2" in here(*end, "3", check=2).stderr
    with Ledger(ledger):
        assert "in use by another node" in here(*end, "1", check=1).stderr
    here(*end, "1")
    again = here(*end, "1", check=2).stderr
    assert "has ended already (by decor ledger end)" in again
    # a receipt that ended it stays its reason
    with Ledger(ledger) as opened:
        opened.end_as_outdated(2, 4, "kiel holds a receipt")
    assert "has ended already (kiel holds a receipt)" in here(*end, "2", check=2).stderr
    assert shown(here)["runs"][1]["repeated"] == 5


# convert


@pytest.fixture
def old(tmp_path):
    """A ledger that version 0.1 wrote."""
    path = tmp_path / "old.ledger"
    path.write_bytes(gzip.decompress((VERSION_0_1 / "bonn.ledger.gz").read_bytes()))
    return path


def test_an_old_ledger_is_converted_in_place_and_keeps_what_it_says(here, keys, old):
    before = read_entries(old)
    with closing(sqlite3.connect(old)) as db:
        query = "SELECT run, step, digest, written FROM messages ORDER BY run, step"
        messages = db.execute(query).fetchall()
    shown = json.loads(here("ledger", "old.ledger", "--json").stdout)
    with pytest.raises(LedgerError, match="decor ledger convert"):
        Ledger(old)
    said = here(
        "ledger", "convert", "old.ledger", "--identity", "bonn.key", "--data", "patients 2025"
    )
    assert f"old.ledger is up to date; it holds {len(before)} run" in said.stdout
    assert read_entries(old) == before and len(before) > 0
    with closing(sqlite3.connect(old)) as db:
        assert db.execute(query).fetchall() == messages
    assert json.loads(here("ledger", "old.ledger", "--json").stdout) == shown
    assert old.stat().st_mode & 0o777 == 0o600
    # what may have to be sent again is still there, to the byte
    with Ledger(old, keys["bonn"].public) as opened:
        facts = opened.facts
        assert facts.identities == (keys["bonn"].public,) and facts.data == "patients 2025"
        entry = before[-1]
        kept = opened.message(entry.run, entry.last_step)
        assert hashlib.sha256(kept).digest() == opened.digest(entry.run, entry.last_step)


def test_a_ledger_is_converted_once(here, keys, old, ledger):
    here("ledger", "convert", "old.ledger", "--identity", "bonn.key")
    for name in ("old.ledger", "bonn.ledger"):
        before = Path(name).read_bytes()
        said = here("ledger", "convert", name, "--identity", "new.key", check=2)
        assert "is no ledger of version 0.1" in said.stderr
        assert Path(name).read_bytes() == before


def test_a_file_that_is_no_ledger_is_not_touched(here, keys, tmp_path):
    (tmp_path / "notes").write_text("no ledger " * 1000)
    with closing(sqlite3.connect(tmp_path / "other.db")) as db:
        db.execute("CREATE TABLE patients (name TEXT)")
        db.commit()
    for name, what in (
        ("notes", "cannot be read as a ledger"),
        ("other.db", "of another program"),
        ("none", "there is no ledger"),
    ):
        before = Path(name).read_bytes() if Path(name).exists() else None
        said = here("ledger", "convert", name, "--identity", "bonn.key", check=2)
        assert what in said.stderr
        assert (Path(name).read_bytes() if Path(name).exists() else None) == before
