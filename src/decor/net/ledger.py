"""The ledger: every message that may have been sent, written before it is sent, and its runs.

SQLite with a write-ahead log and full synchronisation: once `record` returns, the message survives
a crash of the process and of the machine. A step of a run has one message for ever. After a crash
the same bytes are sent again, never others.

A ledger is made on purpose (`create`), and belongs to the keys that are written into it: a node
never makes one, and refuses the ledger of another key. One process at a time may write; others may
read meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from decor.errors import LedgerError, TransientError

from .receipts import Receipt

KEPT = 2
"""Steps whose bytes are kept: the last, which may have to be sent again, and the one before."""
KEY_ID_BYTES, TAG_BYTES = 32, 8
"""Of one neighbour, in the row of a message."""

FINISHED, DIVERGED = "finished", "diverged"
"""Why a run has ended; any other reason is a sentence."""

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS identities (
    public BLOB PRIMARY KEY, added REAL NOT NULL, old BLOB, signature BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS runs (
    run INTEGER PRIMARY KEY, federation BLOB NOT NULL, plan TEXT NOT NULL, began REAL NOT NULL,
    ended REAL, why TEXT, repeated INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS messages (
    run INTEGER NOT NULL REFERENCES runs, step INTEGER NOT NULL, digest BLOB NOT NULL,
    written REAL NOT NULL, keys BLOB NOT NULL DEFAULT x'', tags BLOB NOT NULL DEFAULT x'',
    cancelled BLOB NOT NULL DEFAULT x'', PRIMARY KEY (run, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slots (
    slot INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS kept (slot INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS epochs (
    run INTEGER NOT NULL REFERENCES runs, neighbour INTEGER NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (run, neighbour)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS receipts (
    run INTEGER NOT NULL REFERENCES runs, user INTEGER NOT NULL, step INTEGER NOT NULL,
    digest BLOB NOT NULL, signature BLOB NOT NULL, PRIMARY KEY (run, user)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rounds (
    run INTEGER NOT NULL REFERENCES runs, step INTEGER NOT NULL, round INTEGER NOT NULL,
    now BLOB, before BLOB, velocity BLOB, PRIMARY KEY (run, step)
) STRICT;
CREATE TABLE IF NOT EXISTS models (
    run INTEGER PRIMARY KEY REFERENCES runs, bytes BLOB NOT NULL
) STRICT;
"""
_FORMAT, _FORMAT_0_1 = "decor-ledger-2", "decor-ledger-1"
_ENTRIES = (
    "SELECT r.run, federation, plan, count(m.step), max(m.step), began, ended, why, {repeated} "
    "FROM runs r LEFT JOIN messages m ON m.run = r.run GROUP BY r.run ORDER BY r.run"
)
_ADOPT = b"decor ledger adopts key 1"


@dataclass(frozen=True)
class Entry:
    """A run in the ledger. `steps` messages exist; each has cost what the plan says for a step.

    `repeated` steps are paid once more: a neighbour has shown a receipt for a message that the
    ledger did not have, so that it had been lost, copied or restored.
    """

    run: int
    federation: bytes
    plan: str
    steps: int
    last_step: int | None
    began: float
    ended: float | None
    why: str | None
    repeated: int = 0


@dataclass(frozen=True)
class RoundState:
    """What a node needs to continue in the middle of a step, as it was before a round was sent.

    Attributes:
        step: The step.
        round: The round that is sent next.
        now: This user's model of that round; None: the step's message.
        before: Its model of the round before; None in round 0.
        velocity: Its momentum; None without.
    """

    step: int
    round: int
    now: bytes | None
    before: bytes | None
    velocity: bytes | None


@dataclass(frozen=True)
class LedgerFacts:
    """What a ledger says about itself: whose it is, and what its owner allows.

    Attributes:
        data: The name of the data set whose spending it records.
        allow: The most epsilon that all runs together may spend; None: no limit was set.
        allow_delta: The most delta; None: no limit was set.
        identities: Public keys that may use the ledger, the first one first.
    """

    data: str
    allow: float | None
    allow_delta: float | None
    identities: tuple[bytes, ...]


def adoption_text(ledger_id: str, new: bytes) -> bytes:
    """What an old key signs so that the ledger takes a new key."""
    return _ADOPT + ledger_id.encode() + new


def read_entries(path: Path) -> list[Entry]:
    """All runs in a ledger. Works while a node is using it, and on ledgers of version 0.1."""
    with _read_only(path) as db:
        columns = {row[1] for row in db.execute("PRAGMA table_info(runs)")}
        repeated = "repeated" if "repeated" in columns else "0"
        return [Entry(*row) for row in db.execute(_ENTRIES.format(repeated=repeated))]


def is_in_use(path: Path) -> bool:
    """Whether a node has the ledger open for writing."""
    try:
        _Lock(path).release()
    except TransientError:
        return True
    return False


def read_facts(path: Path) -> LedgerFacts:
    """What a ledger says about itself; of version 0.1's ledgers: nothing."""
    with _read_only(path) as db:
        return _facts(db)


def read_model(path: Path, run: int) -> bytes | None:
    """The final model of a run, if the run has come to its end."""
    with _read_only(path) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'models'").fetchone():
            return None
        row = db.execute("SELECT bytes FROM models WHERE run = ?", (run,)).fetchone()
    return None if row is None else bytes(row[0])


def _facts(db: sqlite3.Connection) -> LedgerFacts:
    facts = dict(db.execute("SELECT name, value FROM facts"))
    keys: list[tuple[bytes]] = []
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'identities'").fetchone():
        keys = db.execute("SELECT public FROM identities ORDER BY added, rowid").fetchall()
    allow, delta = facts.get("allow"), facts.get("allow_delta")
    return LedgerFacts(
        facts.get("data", ""),
        None if allow is None else float(allow),
        None if delta is None else float(delta),
        tuple(bytes(key) for (key,) in keys),
    )


@contextmanager
def _read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing. Takes no lock that would keep a node from starting."""
    if not path.is_file() or not path.stat().st_size:
        raise LedgerError(f"there is no ledger {str(path)!r}; make one with decor ledger new")
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=5.0)) as db:
            yield db
    except sqlite3.Error as problem:
        raise LedgerError(f"{str(path)!r} cannot be read as a ledger: {problem}") from None


class Ledger:
    """One user's ledger, open for writing in one process at a time.

    Args:
        path: The file, which exists: `create` makes it.
        identity: Public key of the user; None: any. A ledger of other keys is refused.
    """

    def __init__(self, path: str | Path, identity: bytes | None = None) -> None:
        self.path = Path(path)
        if not self.path.is_file() or not self.path.stat().st_size:
            raise LedgerError(
                f"there is no ledger {str(self.path)!r}. If these data have never taken part in a "
                "federation, make one with decor ledger new; otherwise find the one they have"
            )
        self._lock = _Lock(self.path)
        try:
            with self._translate_errors():
                self._db = _open(self.path)
                # before anything is changed, also the way in which the file is written
                self._check_format()
                _require_log(self._db, self.path)
                # each commit is synchronised, or a power cut could undo a message that was sent
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute("PRAGMA foreign_keys = ON")
                # a ledger that can be read and not written must fail here, not in the first step
                with self._transaction():
                    self._db.execute("UPDATE facts SET value = value WHERE name = 'format'")
            self._refuse_other_key(identity)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def create(
        path: str | Path,
        identity: bytes,
        data: str = "",
        allow: float | None = None,
        allow_delta: float | None = None,
    ) -> None:
        """Makes a ledger that nobody else on this machine can read.

        Args:
            path: A file that does not exist yet.
            identity: Public key of the user.
            data: The name of the data set whose spending it will record.
            allow: The most epsilon that all its runs together may spend; None: no limit.
            allow_delta: The most delta; None: no limit.

        Raises:
            LedgerError: The file exists, or cannot be made.
        """
        path = Path(path)
        try:
            # 0600 from its first moment on; SQLite gives its side files the same mode
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise LedgerError(
                f"{str(path)!r} exists; a ledger is never replaced: its runs would be forgotten"
            ) from None
        except OSError as problem:
            raise LedgerError(
                f"the ledger {str(path)!r} cannot be made: {problem.strerror}"
            ) from None
        facts = {"format": _FORMAT, "id": os.urandom(16).hex(), "data": data}
        facts |= {} if allow is None else {"allow": repr(allow)}
        facts |= {} if allow_delta is None else {"allow_delta": repr(allow_delta)}
        try:
            with _sqlite_errors_as_ours(path), closing(_open(path)) as db:
                _require_log(db, path)
                db.execute("PRAGMA synchronous = FULL")
                db.execute("BEGIN IMMEDIATE")
                for statement in _TABLES.split(";\n"):
                    db.execute(statement)
                db.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
                now = time.time()
                db.execute("INSERT INTO identities VALUES (?, ?, NULL, NULL)", (identity, now))
                db.execute("COMMIT")
        except BaseException:
            # on a full disk, say: half a ledger would be in the way of the next attempt
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            raise

    @staticmethod
    def convert(path: str | Path, identity: bytes, data: str = "") -> None:
        """Brings a ledger of version 0.1 to the present format, in place; keeps what it says.

        Args:
            path: The ledger; no node may be using it.
            identity: Public key of the user whose ledger it is.
            data: The name of its data set.

        Raises:
            LedgerError: It is no ledger of version 0.1, or cannot be written.
        """
        path = Path(path)
        with _read_only(path) as db:
            found = _format_of(db, path)
        if found != _FORMAT_0_1:
            raise LedgerError(f"{str(path)!r} is no ledger of version 0.1 ({found}): nothing to do")
        lock = _Lock(path)
        try:
            with _sqlite_errors_as_ours(path), closing(_open(path)) as db:
                _require_log(db, path)
                db.execute("PRAGMA synchronous = FULL")
                db.execute("BEGIN IMMEDIATE")
                db.execute("ALTER TABLE runs ADD COLUMN repeated INTEGER NOT NULL DEFAULT 0")
                for column in ("keys", "tags", "cancelled"):
                    kind = f"{column} BLOB NOT NULL DEFAULT x''"
                    db.execute(f"ALTER TABLE messages ADD COLUMN {kind}")
                for statement in _TABLES.split(";\n"):
                    db.execute(statement)
                db.execute("UPDATE facts SET value = ? WHERE name = 'format'", (_FORMAT,))
                facts = {"id": os.urandom(16).hex(), "data": data}
                db.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
                now = time.time()
                db.execute("INSERT INTO identities VALUES (?, ?, NULL, NULL)", (identity, now))
                db.execute("COMMIT")
            os.chmod(path, 0o600)
        finally:
            lock.release()

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        self._lock.release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def facts(self) -> LedgerFacts:
        with self._translate_errors():
            return _facts(self._db)

    @property
    def id(self) -> str:
        """A random name that no other ledger has."""
        with self._translate_errors():
            return str(self._value("SELECT value FROM facts WHERE name = 'id'"))

    def adopt(
        self, new: bytes, old: bytes | None, signature: bytes | None, give_up: bool = False
    ) -> None:
        """Lets another key use this ledger.

        Args:
            new: The public key.
            old: A key of the ledger that has signed `adoption_text`; None: all are lost.
            signature: The signature; None: all keys are lost.
            give_up: Whether a run under way may stay unfinished. It goes on reserving its whole
                plan: a copy of the ledger may not have all of its messages.

        Raises:
            LedgerError: A run is under way; it has to be finished with the key it began with.
        """
        unfinished = [entry for entry in self.entries() if entry.ended is None and entry.steps]
        if unfinished and not give_up:
            raise LedgerError(
                f"run {unfinished[0].run} in {str(self.path)!r} is under way with the old key; "
                "finish it first: its neighbours know that key only. If it can never be finished, "
                "--give-up-run leaves it, and its whole plan stays counted"
            )
        with self._translate_errors(), self._transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO identities VALUES (?, ?, ?, ?)",
                (new, time.time(), old, signature),
            )

    def begin(self, federation: bytes, plan: str) -> int:
        """Begins a run; returns its number."""
        with self._translate_errors(), self._transaction():
            cursor = self._db.execute(
                "INSERT INTO runs (federation, plan, began) VALUES (?, ?, ?)",
                (federation, plan, time.time()),
            )
            return int(cursor.lastrowid or 0)

    def end(self, run: int, why: str, model: bytes | memoryview | None = None) -> None:
        """Ends a run, unless it has ended; the final model is stored with it.

        Nobody can lose the model then: the ledger is known to be writable, other folders may not
        be.
        """
        with self._translate_errors(), self._transaction():
            if model is not None:
                self._db.execute("INSERT OR REPLACE INTO models VALUES (?, ?)", (run, model))
            self._db.execute("DELETE FROM rounds WHERE run = ?", (run,))
            self._db.execute(
                "UPDATE runs SET ended = ?, why = ? WHERE run = ? AND ended IS NULL",
                (time.time(), why, run),
            )

    def end_as_outdated(self, run: int, step: int, why: str) -> None:
        """Ends a run for good: a message of `step` was sent that the ledger does not have.

        Steps up to `step` count once more: each of them may have had another message.
        """
        with self._translate_errors(), self._transaction():
            # another neighbour may know less: the reason is that of the number
            self._db.execute(
                "UPDATE runs SET ended = ?, why = ?, repeated = ? WHERE run = ? AND repeated < ?",
                (time.time(), why, step + 1, run, step + 1),
            )

    def record(
        self,
        run: int,
        step: int,
        message: bytes | memoryview,
        keys: bytes = b"",
        tags: bytes = b"",
        receipts: Iterable[Receipt] = (),
        cancelled: Mapping[int, bytes] | None = None,
        velocity: bytes | memoryview | None = None,
    ) -> bytes:
        """Stores a step's message; returns its digest when it cannot be lost any more.

        Only then may it be sent.

        Args:
            run: The run.
            step: Later than all steps that have a message.
            message: The bytes.
            keys: Ids of the edges' keys, `KEY_ID_BYTES` for each neighbour in order.
            tags: Tags of the edges' noise, `TAG_BYTES` for each neighbour.
            receipts: The newest receipts of other users.
            cancelled: Step -> one byte for each neighbour: 1 if the edge's noise cancels.
            velocity: The momentum after this step; see `RoundState`.
        """
        digest = hashlib.sha256(message).digest()
        with self._translate_errors(), self._transaction():
            last = self._last_step(run)
            # the last check before two messages of one step: their difference has no noise
            if last is not None and step <= last:
                raise LedgerError(
                    f"step {step} has a message already (the last is {last}); it is sent again, "
                    "never made again"
                )
            self._db.execute(
                "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, x'')",
                (run, step, digest, time.time(), keys, tags),
            )
            self._store_bytes(run, step, message)
            if velocity is not None:
                self._store_round((run, step, 0, None, None, velocity))
            self._store_news(run, receipts, cancelled)
        return digest

    def store_news(
        self,
        run: int,
        receipts: Iterable[Receipt] = (),
        cancelled: Mapping[int, bytes] | None = None,
    ) -> None:
        """Stores receipts and which noise cancels, without a message; see `record`."""
        with self._translate_errors(), self._transaction():
            self._store_news(run, receipts, cancelled)

    def receipts(self, run: int) -> dict[int, Receipt]:
        """The newest receipt of each other user, by its number."""
        query = "SELECT user, step, digest, signature FROM receipts WHERE run = ?"
        with self._translate_errors():
            rows = self._db.execute(query, (run,)).fetchall()
        return {row[0]: Receipt(*row) for row in rows}

    def digest(self, run: int, step: int) -> bytes | None:
        """The digest of a step's message; None if there is no message."""
        query = "SELECT digest FROM messages WHERE run = ? AND step = ?"
        with self._translate_errors():
            row = self._db.execute(query, (run, step)).fetchone()
        return None if row is None else bytes(row[0])

    def noise_rows(self, run: int) -> list[tuple[int, bytes, bytes, bytes]]:
        """(step, ids of keys, tags, which noise cancels) of every message; see `record`."""
        query = "SELECT step, keys, tags, cancelled FROM messages WHERE run = ? ORDER BY step"
        with self._translate_errors():
            return self._db.execute(query, (run,)).fetchall()

    def has_key(self, key_id: bytes) -> bool:
        """Whether any message, of any run, has noise from the key with this id."""
        # rare (a key received after a restart), so no index that each step would have to write
        with self._translate_errors():
            for (ids,) in self._db.execute("SELECT keys FROM messages WHERE keys != x''"):
                if key_id in struct.unpack(f"{KEY_ID_BYTES}s" * (len(ids) // KEY_ID_BYTES), ids):
                    return True
        return False

    def save_round(
        self,
        run: int,
        step: int,
        round_: int,
        now: bytes | memoryview | None,
        before: bytes | memoryview | None,
        velocity: bytes | memoryview | None,
    ) -> None:
        """Saves where a node is within a step, without waiting for the disk; see `RoundState`.

        It survives a crash of the process. After a crash of the machine an older one may be found,
        or none: then the step's message is where the node continues.
        """
        with self._translate_errors():
            # NORMAL writes the log and does not synchronise it
            self._db.execute("PRAGMA synchronous = NORMAL")
            try:
                with self._transaction():
                    self._store_round((run, step, round_, now, before, velocity))
            finally:
                self._db.execute("PRAGMA synchronous = FULL")

    def round_state(self, run: int, step: int) -> RoundState | None:
        """What `save_round` saved last for a step."""
        query = "SELECT step, round, now, before, velocity FROM rounds WHERE run = ? AND step = ?"
        with self._translate_errors():
            row = self._db.execute(query, (run, step)).fetchone()
        return None if row is None else RoundState(*row)

    def final_model(self, run: int) -> bytes | None:
        """The model that a run has ended with."""
        with self._translate_errors():
            row = self._db.execute("SELECT bytes FROM models WHERE run = ?", (run,)).fetchone()
        return None if row is None else bytes(row[0])

    def message(self, run: int, step: int) -> bytes | None:
        """The bytes of a step, if they are still kept."""
        with self._translate_errors():
            row = self._db.execute(
                "SELECT bytes, digest FROM messages JOIN slots USING (run, step) "
                "JOIN kept USING (slot) WHERE run = ? AND step = ?",
                (run, step),
            ).fetchone()
        if row is None:
            return None
        # other bytes than those that were sent would be a second message
        if hashlib.sha256(row[0]).digest() != row[1]:
            raise LedgerError(
                f"the message of step {step} in {str(self.path)!r} is damaged: it cannot be sent "
                "again, nor made again"
            )
        return bytes(row[0])

    def next_step(self, run: int) -> int:
        """The first step such that neither it nor a later one has a message."""
        with self._translate_errors():
            last = self._last_step(run)
        return 0 if last is None else last + 1

    def next_epoch(self, run: int, neighbour: int) -> int:
        """A number above all that were returned for this neighbour, stored before it is used."""
        with self._translate_errors(), self._transaction():
            row = self._db.execute(
                "SELECT epoch FROM epochs WHERE run = ? AND neighbour = ?", (run, neighbour)
            ).fetchone()
            # an epoch used twice would let an old exchange of keys stand for a new one
            new = (row[0] if row else 0) + 1
            self._db.execute(
                "INSERT OR REPLACE INTO epochs VALUES (?, ?, ?)", (run, neighbour, new)
            )
        return new

    def entries(self) -> list[Entry]:
        """All runs, the oldest first."""
        with self._translate_errors():
            rows = self._db.execute(_ENTRIES.format(repeated="repeated"))
            return [Entry(*row) for row in rows]

    def _check_format(self) -> None:
        """Raises unless the file is a ledger of this version, before anything is written."""
        found = _format_of(self._db, self.path)
        if found == _FORMAT_0_1:
            raise LedgerError(
                f"{str(self.path)!r} is a ledger of version 0.1; bring it up to date with "
                f"decor ledger convert {self.path} --identity KEY"
            )
        if found != _FORMAT:
            raise LedgerError(
                f"{str(self.path)!r} is a ledger of another version ({found}); use the decor that "
                "wrote it"
            )

    def _refuse_other_key(self, identity: bytes | None) -> None:
        if identity is not None and identity not in self.facts.identities:
            raise LedgerError(
                f"{str(self.path)!r} is the ledger of another key. Give the ledger of this key's "
                "data; if the key is new, add it with decor ledger adopt"
            )

    def _store_news(
        self, run: int, receipts: Iterable[Receipt], cancelled: Mapping[int, bytes] | None
    ) -> None:
        rows = [(run, r.user, r.step, r.digest, r.signature) for r in receipts]
        if rows:
            self._db.executemany("INSERT OR REPLACE INTO receipts VALUES (?, ?, ?, ?, ?)", rows)
        if cancelled:
            self._db.executemany(
                "UPDATE messages SET cancelled = ? WHERE run = ? AND step = ?",
                [(flags, run, step) for step, flags in cancelled.items()],
            )

    def _store_round(self, row: tuple[int, int, int, Any, Any, Any]) -> None:
        # the step before is kept: its last round may not have reached everyone
        self._db.execute("DELETE FROM rounds WHERE run = ? AND step < ?", (row[0], row[1] - 1))
        self._db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?)", row)

    def _store_bytes(self, run: int, step: int, message: bytes | memoryview) -> None:
        slot = KEPT * run + step % KEPT
        self._db.execute("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", (slot, run, step))
        size = self._db.execute("SELECT length(bytes) FROM kept WHERE slot = ?", (slot,)).fetchone()
        if size is None or size[0] != len(message):
            self._db.execute(
                "INSERT OR REPLACE INTO kept VALUES (?, zeroblob(?))", (slot, len(message))
            )
        # over the bytes of KEPT steps ago, in place: freed and reused pages are written twice
        with self._db.blobopen("kept", "bytes", slot) as blob:
            blob.write(message)

    def _last_step(self, run: int) -> int | None:
        last: int | None = self._value("SELECT max(step) FROM messages WHERE run = ?", run)
        return last

    def _value(self, statement: str, *arguments: object) -> Any:
        """The first column of the first row."""
        return self._db.execute(statement, arguments).fetchone()[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it, or nothing."""
        # takes the write lock now, so that nothing fails halfway because of another process
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # SQLite has rolled back by itself after some errors, such as a full disk
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _translate_errors(self) -> Any:
        """Raises errors of the database as LedgerError, with a way out."""
        return _sqlite_errors_as_ours(self.path)


class _Lock:
    """Keeps a second node from using a ledger: it could send a second message of a step.

    A file beside the ledger, which readers do not need: SQLite's own exclusive mode would keep
    them out too.
    """

    def __init__(self, path: Path) -> None:
        lock = path.with_name(f"{path.name}-lock")
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise TransientError(
                f"the ledger {str(path)!r} is in use by another node; stop that one first"
            ) from None
        except OSError as problem:
            self.release()
            raise LedgerError(
                f"the ledger {str(path)!r} cannot be used: {problem.strerror} ({lock.name}); "
                "nothing is sent before it can be written"
            ) from None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open(path: Path) -> sqlite3.Connection:
    # no implicit transactions; a reader's checkpoint may hold a lock for a moment
    return sqlite3.connect(path, isolation_level=None, timeout=5.0)


def _require_log(db: sqlite3.Connection, path: Path) -> None:
    """Makes SQLite write to a log first, so that a crash loses nothing and readers need no lock."""
    db.execute("PRAGMA page_size = 16384")  # of a new file: messages are large
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise LedgerError(
            f"the disk of {str(path)!r} does not support a write-ahead log; name a file on "
            "another disk"
        )


def _format_of(db: sqlite3.Connection, path: Path) -> str:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    row = None
    if "facts" in tables:
        row = db.execute("SELECT value FROM facts WHERE name = 'format'").fetchone()
    if row is None:
        raise LedgerError(
            f"{str(path)!r} is a database of another program, not a ledger; name another file"
        )
    return str(row[0])


@contextmanager
def _sqlite_errors_as_ours(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as problem:
        text = str(problem)
        if "locked" in text:
            raise TransientError(
                f"the ledger {str(path)!r} is in use by another program; try again"
            ) from None
        if "not a database" in text or "malformed" in text:
            raise LedgerError(
                f"{str(path)!r} is not a ledger, or is damaged ({text}); do not start a new "
                "ledger for the same data"
            ) from None
        raise LedgerError(
            f"the ledger {str(path)!r} cannot be used: {text}; nothing is sent before it can be "
            "written"
        ) from None


def split(blob: bytes, size: int) -> Sequence[bytes]:
    """The values of fixed size in a column of `noise_rows`."""
    return [bytes(blob[at : at + size]) for at in range(0, len(blob), size)]
