"""The ledger outlives any end of the process, and has one message a step."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from decor.errors import LedgerError
from decor.net.ledger import Ledger, read_closed, read_entries

FEDERATION = bytes(range(32))


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger") as opened:
        yield opened


def test_a_message_is_kept_as_it_was_and_the_next_step_follows(ledger, tmp_path):
    run = ledger.begin(FEDERATION, "{}")
    assert ledger.next_step(run) == 0 and ledger.message(run, 0) is None
    ledger.record(run, 0, b"first")
    ledger.record(run, 3, memoryview(b"later"))
    ledger.close()
    with Ledger(tmp_path / "ledger") as again:
        assert again.next_step(run) == 4 and again.message(run, 3) == b"later"
        (entry,) = again.entries()
        assert (entry.steps, entry.last_step, entry.federation, entry.ended) == (
            2,
            3,
            FEDERATION,
            None,
        )


@pytest.mark.parametrize("step", [0, 4, 5])
def test_no_step_has_a_second_message_nor_one_before_the_last(ledger, step):
    run = ledger.begin(FEDERATION, "{}")
    ledger.record(run, 5, b"sent")
    with pytest.raises(LedgerError, match=f"step {step} has a message already .*never made again"):
        ledger.record(run, step, b"another")
    assert ledger.message(run, 5) == b"sent" and ledger.entries()[0].steps == 1
    with pytest.raises(sqlite3.IntegrityError):  # not even behind the ledger's back
        ledger._db.execute("INSERT INTO messages VALUES (?, 5, x'', 0)", (run,))


def test_old_bytes_are_let_go_and_old_steps_still_counted(ledger):
    run = ledger.begin(FEDERATION, "{}")
    for step in range(50):
        ledger.record(run, step, bytes(100_000))
    assert [ledger.message(run, step) is not None for step in (47, 48, 49)] == [False, True, True]
    assert ledger.entries()[0].steps == 50 and ledger.path.stat().st_size < 2_000_000


def test_epochs_only_grow_even_after_a_crash(ledger, tmp_path):
    run = ledger.begin(FEDERATION, "{}")
    assert [ledger.next_epoch(run, 7), ledger.next_epoch(run, 7), ledger.next_epoch(run, 8)] == [
        1,
        2,
        1,
    ]
    ledger.close()
    with Ledger(tmp_path / "ledger") as again:
        assert again.next_epoch(run, 7) == 3


def test_runs_are_told_apart_and_end_once(ledger):
    one, two = ledger.begin(FEDERATION, "{}"), ledger.begin(FEDERATION, "{}")
    ledger.record(one, 0, b"a")
    ledger.record(two, 0, b"b")
    ledger.end(one, "budget spent")
    ledger.end(one, "again")
    first, second = ledger.entries()
    assert (
        first.why == "budget spent"
        and first.ended
        and second.ended is None
        and ledger.message(two, 0) == b"b"
    )


def test_two_nodes_cannot_share_a_ledger(ledger, tmp_path):
    ledger.begin(FEDERATION, "{}")
    with pytest.raises(LedgerError, match="in use by another node"):
        Ledger(tmp_path / "ledger")


@pytest.mark.parametrize(
    "held", [b"not a database, but as long as a header of one would have to be" * 20, None]
)
def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path, held):
    path = tmp_path / "ledger"
    if held is None:
        path.mkdir()
    else:
        path.write_bytes(held)
    with pytest.raises(LedgerError, match="not a ledger|cannot be used"):
        Ledger(path)
    assert held is None or path.read_bytes() == held


def test_a_damaged_message_is_not_sent_again(ledger):
    run = ledger.begin(FEDERATION, "{}")
    ledger.record(run, 0, b"right")
    ledger._db.execute("UPDATE kept SET bytes = x'00'")
    with pytest.raises(LedgerError, match="damaged"):
        ledger.message(run, 0)


def test_a_full_disk_is_told_and_the_ledger_stays_whole(ledger):
    run = ledger.begin(FEDERATION, "{}")
    ledger.record(run, 0, bytes(1000))
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(LedgerError, match="full; nothing is sent before it can be written"):
        ledger.record(run, 1, bytes(100_000))
    assert ledger.next_step(run) == 1 and ledger.message(run, 0) == bytes(1000)
    ledger._db.execute("PRAGMA max_page_count = 100000")
    ledger.record(run, 1, bytes(100_000))


WRITER = """
import sys
from decor.net.ledger import Ledger
ledger = Ledger(sys.argv[1])
run = ledger.entries()[0].run if ledger.entries() else ledger.begin(bytes(32), "{}")
step = ledger.next_step(run)
if step:  # what was promised before the crash, sent again
    print("again", step - 1, ledger.message(run, step - 1)[:8].hex(), flush=True)
while True:
    message = f"{step:08d}".encode() * 1000
    ledger.record(run, step, message)
    print("sent", step, message[:8].hex(), flush=True)
    step += 1
"""


def test_a_killed_process_never_loses_or_changes_a_message_that_left(tmp_path):
    """Twelve ends by SIGKILL at random moments: every step that left once has one message, and the
    same after each restart.
    """
    chance = random.Random(5)
    left: dict[int, str] = {}
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "ledger")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(4))
        time.sleep(chance.random() * 0.03)
        os.kill(process.pid, signal.SIGKILL)
        said += process.communicate()[0]
        for line in said.splitlines():
            if len(line.split()) == 3 and len(line.split()[2]) == 16:
                _, step, digest = line.split()
                assert left.setdefault(int(step), digest) == digest
    with Ledger(tmp_path / "ledger") as ledger:
        (entry,) = ledger.entries()
        assert (
            len(left) > 20 and entry.steps == entry.last_step + 1 and entry.last_step >= max(left)
        )


def test_a_database_of_somebody_else_is_left_as_it_is(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE patients (name TEXT)")
    other.close()
    held = path.read_bytes()
    with pytest.raises(LedgerError, match="of another program, not a ledger"):
        Ledger(path)
    assert path.read_bytes() == held


def test_a_closed_ledger_is_read_without_a_lock_and_an_open_one_is_left_alone(
    tmp_path, monkeypatch
):
    path = tmp_path / "a ledger?#%41"
    with Ledger(path) as ledger:
        ledger.record(ledger.begin(FEDERATION, "{}"), 0, b"first")
        assert read_closed(path) is None
        held = ledger.entries()
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}

    class Meanwhile(closing):
        def __exit__(self, *more):
            with Ledger(path) as ledger:  # a node starts before the question is over
                assert ledger.entries() == held
            super().__exit__(*more)

    monkeypatch.setattr("decor.net.ledger.closing", Meanwhile)
    assert read_closed(path) == held and held[0].steps == 1
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files
    monkeypatch.undo()
    path.write_bytes(b"no ledger" * 1000)
    with pytest.raises(LedgerError, match="cannot be read as a ledger"):
        read_closed(path)


def test_the_runs_of_a_ledger_are_read_with_what_a_killed_node_left_in_its_log(tmp_path):
    path, killed = tmp_path / "bonn.ledger", tmp_path / "killed.ledger"
    with Ledger(path) as ledger:
        ledger.record(ledger.begin(FEDERATION, "{}"), 0, b"first")
        held = ledger.entries()
        # never a figure without the messages in the log of a node that runs
        with pytest.raises(LedgerError, match="in use by a node"):
            read_entries(path)
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{killed}{suffix}")
    assert read_entries(path) == read_entries(killed) == held
    assert held[0].steps == 1 and held[0].repeated == 0
    path.write_bytes(b"no ledger" * 1000)
    with pytest.raises(LedgerError, match="cannot be read as a ledger"):
        read_entries(path)
