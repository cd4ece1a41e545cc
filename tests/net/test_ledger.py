"""The ledger outlives any end of the process, has one message a step, and belongs to its keys."""

import gzip
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import open_ledger

from decor.errors import DecorError, LedgerError, TransientError
from decor.net.ledger import KEY_ID_BYTES, TAG_BYTES, Ledger, RoundState, adoption_text, split
from decor.net.ledger_conversion import convert_ledger
from decor.net.ledger_reading import ENDED_EARLY, LedgerFacts, is_in_use, read_entries, read_facts
from decor.net.receipts import Receipt

FEDERATION = bytes(range(32))
KEY, OTHER = b"k" * 32, b"o" * 32
OLD = Path(__file__).parent.parent / "version_0_1" / "bonn.ledger.gz"


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(tmp_path / "ledger") as opened:
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
        ledger._db.execute("INSERT INTO messages VALUES (?, 5, x'', 0, x'', x'', x'')", (run,))


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
    with pytest.raises(TransientError, match="in use by another node; stop that one first"):
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
    for use in (Ledger, read_entries):
        with pytest.raises(LedgerError, match="not a ledger|no ledger|cannot be read as a ledger"):
            use(path)
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
from pathlib import Path
from decor.net.ledger import Ledger
if not Path(sys.argv[1]).exists():
    Ledger.create(sys.argv[1], bytes(32))
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


# made on purpose, and bound to keys


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_ledger_and_its_side_files_are_for_their_owner_alone_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = tmp_path / "ledger"
        Ledger.create(path, KEY)
        assert mode(path) == 0o600
        with Ledger(path) as ledger:
            ledger.record(ledger.begin(FEDERATION, "{}"), 0, b"first")
            sides = sorted(file for file in tmp_path.iterdir() if file != path)
            assert [side.name for side in sides] == ["ledger-lock", "ledger-shm", "ledger-wal"]
            assert [mode(side) for side in sides] == [0o600] * 3
    finally:
        os.umask(before)


def test_an_existing_file_is_never_replaced(tmp_path):
    path = tmp_path / "ledger"
    for held in (b"", b"something"):
        path.write_bytes(held)
        with pytest.raises(LedgerError, match="exists; a ledger is never replaced"):
            Ledger.create(path, KEY)
        assert path.read_bytes() == held
    with pytest.raises(LedgerError, match="cannot be made: No such file or directory"):
        Ledger.create(tmp_path / "nowhere" / "ledger", KEY)


def test_a_ledger_says_whose_it_is_and_what_it_allows(tmp_path):
    path = tmp_path / "ledger"
    Ledger.create(path, KEY, "patients 2026", allow=0.1, allow_delta=1e-5)
    facts = LedgerFacts("patients 2026", 0.1, 1e-5, (KEY,))
    Ledger.create(tmp_path / "other", KEY)
    with Ledger(path) as one, Ledger(tmp_path / "other") as other:
        assert one.facts == facts and other.facts == LedgerFacts("", None, None, (KEY,))
        assert one.id != other.id and len(one.id) == 32
        assert read_facts(path).id == one.facts.id == one.id


def test_no_ledger_is_made_by_opening_one(tmp_path):
    for path in (tmp_path / "ledger", tmp_path / "empty"):
        (tmp_path / "empty").touch()
        with pytest.raises(LedgerError, match="there is no ledger .* decor ledger new"):
            Ledger(path)
        with pytest.raises(LedgerError, match="there is no ledger"):
            read_entries(path)
    assert [file.name for file in tmp_path.iterdir()] == ["empty"]


def test_the_ledger_of_another_key_is_refused(tmp_path):
    path = tmp_path / "ledger"
    Ledger.create(path, KEY)
    with pytest.raises(LedgerError, match="ledger of another key.* decor ledger adopt"):
        Ledger(path, OTHER)
    for allowed in (KEY, None):
        with Ledger(path, allowed):
            pass


def test_a_key_is_added_in_place_and_not_while_a_run_is_under_way(tmp_path):
    path = tmp_path / "ledger"
    Ledger.create(path, KEY)
    with Ledger(path, KEY) as ledger:
        run = ledger.begin(FEDERATION, "{}")
        ledger.record(run, 0, b"first")
        with pytest.raises(LedgerError, match="run 1 .* under way with the old key; finish it"):
            ledger.adopt(OTHER, KEY, b"s" * 64)
        ledger.end(run, "finished")
        ledger.adopt(OTHER, KEY, b"s" * 64)
        assert ledger.id.encode() in adoption_text(ledger.id, OTHER)
    for key in (KEY, OTHER):
        with Ledger(path, key) as ledger:
            assert ledger.facts.identities == (KEY, OTHER) and ledger.entries()[0].steps == 1
    assert not adoption_text("a", OTHER) == adoption_text("b", OTHER) == adoption_text("a", KEY)


# other versions, and damage


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "bonn.ledger"
    path.write_bytes(gzip.decompress(OLD.read_bytes()))
    path.chmod(0o644)
    return path


def test_a_ledger_of_version_0_1_is_refused_with_the_command_that_converts_it(old):
    held = old.read_bytes()
    with pytest.raises(LedgerError, match=f"version 0.1; .* decor ledger convert {old} --identity"):
        Ledger(old)
    assert old.read_bytes() == held and mode(old) == 0o644
    # and can be read as it is
    (entry,) = read_entries(old)
    assert entry.steps > 0 and entry.repeated == 0


def test_a_ledger_of_version_0_1_is_converted_and_says_what_it_said(old):
    before = read_entries(old)
    with closing(sqlite3.connect(old)) as db:
        tables = ("runs", "messages", "slots", "kept", "epochs")
        held = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    convert_ledger(old, KEY, "breast cancer")
    assert read_entries(old) == before and mode(old) == 0o600
    with closing(sqlite3.connect(old)) as db:
        for name, rows in held.items():
            new = db.execute(f"SELECT * FROM {name}").fetchall()
            assert [row[: len(rows[0])] for row in new] == rows
    with pytest.raises(LedgerError, match="ledger of another key"):
        Ledger(old, OTHER)
    with pytest.raises(LedgerError, match="is no ledger of version 0.1 .*nothing to do"):
        convert_ledger(old, OTHER)
    with Ledger(old, KEY) as ledger:
        assert ledger.facts == LedgerFacts("breast cancer", None, None, (KEY,))
        (entry,) = before
        last = entry.last_step
        assert ledger.next_step(entry.run) == last + 1
        assert ledger.message(entry.run, last) is not None
        assert [row[1:] for row in ledger.noise_rows(entry.run)] == [(b"", b"", b"")] * entry.steps
        with pytest.raises(LedgerError, match="never made again"):
            ledger.record(entry.run, last, b"another")
        run = ledger.begin(FEDERATION, "{}")
        ledger.record(run, 0, b"first", b"i" * 32, b"t" * 8)
        ledger.save_round(run, 0, 1, b"now", None, None)


def test_a_conversion_that_fails_changes_nothing(old):
    before = read_entries(old)
    with closing(sqlite3.connect(old)) as db:
        db.execute("CREATE TABLE identities (public BLOB)")  # in the way of the new one
        db.commit()
    with pytest.raises(LedgerError):
        convert_ledger(old, KEY)
    assert read_entries(old) == before
    with pytest.raises(LedgerError, match="version 0.1"):
        Ledger(old)
    with closing(sqlite3.connect(old)) as db:
        db.execute("DROP TABLE identities")
        db.commit()
    convert_ledger(old, KEY)


def test_a_ledger_that_is_in_use_is_not_converted(old):
    with closing(sqlite3.connect(old)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # as a node of version 0.1 has it
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(DecorError) as raised:
            convert_ledger(old, KEY)
    assert len(str(raised.value).splitlines()) == 1
    convert_ledger(old, KEY)


def test_a_ledger_of_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "ledger"
    Ledger.create(path, KEY)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE facts SET value = 'decor-ledger-9' WHERE name = 'format'")
        db.commit()
    held = path.read_bytes()
    # also by what only reads it: of what it does not know it would forget the cost
    for use in (Ledger, read_entries, lambda path: convert_ledger(path, KEY)):
        with pytest.raises(
            LedgerError, match=r"another version \(decor-ledger-9\); use the decor that"
        ):
            use(path)
    assert path.read_bytes() == held


@pytest.mark.parametrize("left", [0.9, 0.5, 0.1, 0.01])
def test_a_truncated_ledger_is_refused_in_a_sentence_and_left_alone(tmp_path, left):
    path = tmp_path / "ledger"
    Ledger.create(path, KEY)
    with Ledger(path) as ledger:
        run = ledger.begin(FEDERATION, "{}")
        for step in range(20):
            ledger.record(run, step, bytes(50_000))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole))])
    held = path.read_bytes()
    for use in (Ledger, read_entries):
        with pytest.raises(LedgerError) as raised:
            use(path)
        assert len(str(raised.value).splitlines()) == 1 and str(path) in str(raised.value)
    assert path.read_bytes() == held
    assert is_in_use(path) is False  # and not locked


def as_ordinary_user(code, *arguments):
    """Runs Python without the right to ignore permissions, which root has in many containers."""
    drop = """
import ctypes, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "capset"):  # Linux
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capset(header, none) == 0
from decor.errors import DecorError
from decor.net.ledger import *
from decor.net.ledger_reading import *
try:
"""
    body = "".join(f"    {line}\n" for line in code.splitlines())
    tell = "except DecorError as problem:\n    print(type(problem).__name__, problem)\n"
    done = subprocess.run(
        [sys.executable, "-c", drop + body + tell, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.strip()


def test_a_ledger_that_cannot_be_written_is_refused_before_the_first_step(tmp_path):
    path = tmp_path / "ledger"
    Ledger.create(path, KEY)
    Ledger(path).close()
    path.chmod(0o400)
    said = as_ordinary_user("Ledger(sys.argv[1])", path)
    assert said.startswith(f"LedgerError the ledger {str(path)!r} cannot be used: ")
    assert "readonly" in said and len(said.splitlines()) == 1
    assert (
        as_ordinary_user("print(read_entries(__import__('pathlib').Path(sys.argv[1])))", path)
        == "[]"
    )
    path.chmod(0o600)
    tmp_path.chmod(0o500)
    try:
        said = as_ordinary_user("Ledger.create(sys.argv[1], bytes(32))", tmp_path / "another")
        assert said.startswith("LedgerError") and "cannot be made: Permission denied" in said
        said = as_ordinary_user("Ledger(sys.argv[1])", path)
        assert said.startswith("LedgerError") and len(said.splitlines()) == 1
    finally:
        tmp_path.chmod(0o700)


def test_a_ledger_that_does_not_fit_on_the_disk_is_told_and_not_left_behind(tmp_path):
    path = tmp_path / "ledger"
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
Ledger.create(sys.argv[1], bytes(32))"""
    said = as_ordinary_user(code, path)
    assert said.startswith("LedgerError the ledger") and len(said.splitlines()) == 1
    # or the next attempt would find a file in its way
    Ledger.create(path, KEY)
    Ledger(path, KEY).close()


# several processes


HOLDER = """
import sys
from decor.net.ledger import Ledger
ledger = Ledger(sys.argv[1])
run = ledger.begin(bytes(32), "{}")
ledger.record(run, 0, b"first")
ledger.save_round(run, 0, 3, b"now", b"before", b"velocity")
ledger.save_round(run, 0, 4, b"later", b"now", b"velocity")
print("written", flush=True)
sys.stdin.readline()
ledger.record(run, 1, b"second")
print("written", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def held(tmp_path):
    """A ledger that another process has open for writing, and that process."""
    path = tmp_path / "ledger"
    Ledger.create(path, KEY)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "written\n"
    yield path, process
    process.kill()
    process.communicate()


def test_a_ledger_is_read_while_a_node_writes_it(held):
    path, process = held
    assert is_in_use(path) and [entry.steps for entry in read_entries(path)] == [1]
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert process.stdout.readline() == "written\n"
    assert [entry.steps for entry in read_entries(path)] == [2]


def test_a_second_process_gets_a_cause_that_passes_and_readers_do_not_keep_a_node_out(held):
    path, process = held
    with pytest.raises(TransientError, match="in use by another node"):
        Ledger(path)
    process.kill()
    process.wait()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM runs").fetchall()
        with Ledger(path) as ledger:  # while somebody reads
            ledger.record(1, 1, b"second")
        assert not is_in_use(path)


def test_a_killed_writer_leaves_a_ledger_that_can_be_read_and_opened(held):
    path, process = held
    process.kill()
    process.wait()
    assert not is_in_use(path) and [entry.steps for entry in read_entries(path)] == [1]
    with Ledger(path) as ledger:
        assert ledger.message(1, 0) == b"first"
        # not synchronised, but the process alone has gone
        assert ledger.round_state(1, 0) == RoundState(0, 4, b"later", b"now", b"velocity")
        ledger.record(1, 1, b"second")
    assert [entry.steps for entry in read_entries(path)] == [2]


def test_a_ledger_with_a_strange_name_is_read_by_its_name(tmp_path):
    path = tmp_path / "a ledger?#%41"
    Ledger.create(path, KEY)
    with Ledger(path) as ledger:
        ledger.record(ledger.begin(FEDERATION, "{}"), 0, b"first")
        held = ledger.entries()
    assert read_entries(path) == held and held[0].steps == 1
    path.write_bytes(b"no ledger" * 1000)
    with pytest.raises(LedgerError, match="cannot be read as a ledger"):
        read_entries(path)


def test_what_only_reads_changes_nothing(tmp_path):
    path = tmp_path / "ledger"
    Ledger.create(path, KEY)
    with Ledger(path) as ledger:
        ledger.record(ledger.begin(FEDERATION, "{}"), 0, b"first")
    held = path.read_bytes()
    read_entries(path)
    assert path.read_bytes() == held


# what is stored beside messages


def signed(user, step):
    return Receipt(user, step, bytes([user]) * 32, bytes([step]) * 64)


def test_receipts_flags_ids_and_tags_are_kept_as_they_were(ledger, tmp_path):
    run, other = ledger.begin(FEDERATION, "{}"), ledger.begin(bytes(32), "{}")
    ids, tags = bytes(range(64)), bytes(range(16))
    ledger.record(run, 0, b"a", ids, tags, [signed(1, 3), signed(2, 1)])
    ledger.record(run, 1, b"b", ids[::-1], tags[::-1], [signed(1, 4)], {0: b"\1\0", 1: b"\0\1"})
    ledger.store_news(run, [signed(3, 0)], {0: b"\1\1"})
    ledger.store_news(run)
    ledger.close()
    with Ledger(tmp_path / "ledger") as again:
        assert again.receipts(run) == {1: signed(1, 4), 2: signed(2, 1), 3: signed(3, 0)}
        assert again.receipts(other) == {}
        assert again.noise_rows(run) == [
            (0, ids, tags, b"\1\1"),
            (1, ids[::-1], tags[::-1], b"\0\1"),
        ]
        assert again.digest(run, 0) != again.digest(run, 1) and again.digest(run, 2) is None
        assert split(ids, KEY_ID_BYTES) == [ids[:32], ids[32:]]
        assert split(tags, TAG_BYTES) == [tags[:8], tags[8:]] and split(b"", 8) == []


def test_a_key_that_has_served_any_run_is_known(ledger):
    one, two = ledger.begin(FEDERATION, "{}"), ledger.begin(bytes(32), "{}")
    keys = [bytes([k]) * KEY_ID_BYTES for k in range(5)]
    ledger.record(one, 0, b"a")  # as a converted one
    ledger.record(one, 1, b"b", keys[0] + keys[1])
    ledger.record(two, 0, b"c", keys[2] + keys[3])
    assert [ledger.has_key(key) for key in keys] == [True] * 4 + [False]
    # two halves of two ids are no id
    assert not ledger.has_key(keys[0][:16] + keys[1][:16])


def test_a_record_that_fails_keeps_nothing_of_it(ledger):
    run = ledger.begin(FEDERATION, "{}")
    ledger.record(run, 5, b"sent")
    with pytest.raises(LedgerError):
        ledger.record(run, 5, b"another", b"i" * 32, b"t" * 8, [signed(1, 3)], {5: b"\1"})
    assert ledger.receipts(run) == {} and ledger.noise_rows(run) == [(5, b"", b"", b"")]


def test_a_round_is_saved_over_the_one_before_and_the_step_before_is_kept(ledger, tmp_path):
    run = ledger.begin(FEDERATION, "{}")
    assert ledger.round_state(run, 0) is None
    ledger.save_round(run, 0, 1, b"now", b"before", None)
    ledger.save_round(run, 1, 0, None, None, memoryview(b"velocity"))
    ledger.save_round(run, 2, 0, None, None, b"velocity 2")
    ledger.save_round(run, 2, 1, b"mixed", b"message", b"velocity 2")
    assert ledger.round_state(run, 0) is None
    assert ledger.round_state(run, 1) == RoundState(1, 0, None, None, b"velocity")
    assert ledger.round_state(run, 2) == RoundState(2, 1, b"mixed", b"message", b"velocity 2")


def test_messages_are_synchronised_again_after_a_round_was_saved(ledger):
    run = ledger.begin(FEDERATION, "{}")
    full = 2
    assert ledger._value("PRAGMA synchronous") == full
    ledger.save_round(run, 0, 1, b"now", None, None)
    assert ledger._value("PRAGMA synchronous") == full
    ledger._db.execute("DROP TABLE rounds")
    with pytest.raises(LedgerError):
        ledger.save_round(run, 0, 2, b"now", None, None)
    assert ledger._value("PRAGMA synchronous") == full


def test_the_final_model_is_kept_with_the_end_of_its_run(ledger, tmp_path):
    run = ledger.begin(FEDERATION, "{}")
    ledger.record(run, 0, b"message")
    ledger.save_round(run, 0, 1, b"now", None, None)
    assert ledger.final_model(run) is None
    ledger.end(run, "finished", memoryview(b"final model"))
    ledger.end(run, "again")
    ledger.close()
    with Ledger(tmp_path / "ledger") as again:
        assert again.final_model(run) == b"final model" and again.round_state(run, 0) is None
        assert again.entries()[0].why == "finished" and again.final_model(run + 1) is None


def test_an_outdated_ledger_ends_its_run_for_good_and_counts_the_steps_once_more(ledger, tmp_path):
    run = ledger.begin(FEDERATION, "{}")
    ledger.begin(bytes(32), "{}")
    ledger.record(run, 0, b"message")
    ledger.end_as_outdated(run, 6, "an older copy")
    ledger.end_as_outdated(run, 3, "another neighbour knows less")
    ledger.end(run, "finished", None)
    ledger.close()
    with Ledger(tmp_path / "ledger") as again:
        first, second = again.entries()
        assert (first.steps, first.repeated) == (1, 7) and first.ended is not None
        assert first.why == "an older copy"  # and not finished
        assert second.ended is None and second.repeated == 0
    assert read_entries(tmp_path / "ledger") == [first, second]


@pytest.mark.parametrize("messages", [0, 1])
def test_a_run_that_was_ended_early_still_takes_a_receipt_of_a_message_it_lacks(ledger, messages):
    """Its owner may have ended it in a restored copy: a receipt counts as in any other run."""
    run = ledger.begin(FEDERATION, "{}")
    for step in range(messages):
        ledger.record(run, step, b"message")
    ledger.end(run, ENDED_EARLY)
    ledger.end_as_outdated(run, 6, "kiel holds a receipt")
    (entry,) = ledger.entries()
    assert (entry.steps, entry.repeated, entry.why) == (messages, 7, "kiel holds a receipt")
