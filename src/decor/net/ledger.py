"""The ledger: every message that may have been sent, written before it is sent, and its runs.

SQLite with a write-ahead log and full synchronisation: once `record` returns, the message survives
a crash of the process and of the machine. A step of a run has one message for ever. After a crash
the same bytes are sent again, never others.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from decor.errors import LedgerError

KEPT = 2
"""Steps whose bytes are kept: the last, which may have to be sent again, and the one before."""

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS runs (
    run INTEGER PRIMARY KEY, federation BLOB NOT NULL, plan TEXT NOT NULL, began REAL NOT NULL,
    ended REAL, why TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS messages (
    run INTEGER NOT NULL REFERENCES runs, step INTEGER NOT NULL, digest BLOB NOT NULL,
    written REAL NOT NULL, PRIMARY KEY (run, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slots (
    slot INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS kept (slot INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS epochs (
    run INTEGER NOT NULL REFERENCES runs, neighbour INTEGER NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (run, neighbour)
) STRICT, WITHOUT ROWID;
"""
_FORMAT = "decor-ledger-1"
_ENTRIES = (
    "SELECT r.run, federation, plan, count(m.step), max(m.step), began, ended, why "
    "FROM runs r LEFT JOIN messages m ON m.run = r.run GROUP BY r.run ORDER BY r.run"
)


@dataclass(frozen=True)
class Entry:
    """A run in the ledger. `steps` messages exist; each has cost what the plan says for a step.

    `repeated` steps have cost it once more: they were made again after the ledger was set back.
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


def read_entries(path: Path) -> list[Entry]:
    """All runs of a ledger, the oldest first; writes nothing.

    Args:
        path: The ledger.

    Raises:
        LedgerError: If the file is no ledger, or a running node keeps it locked.
    """
    closed = read_closed(path)
    if closed is not None:
        return closed
    try:
        address = f"file:{quote(str(path.absolute()))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=0)) as db:
            return [Entry(*row) for row in db.execute(_ENTRIES)]
    except sqlite3.Error as problem:
        if "locked" in str(problem):
            raise LedgerError(
                f"the ledger {str(path)!r} is in use by a node; see decor status"
            ) from None
        raise LedgerError(f"{str(path)!r} cannot be read as a ledger: {problem}") from None


def read_closed(path: Path) -> list[Entry] | None:
    """All runs of a closed ledger; None if it is open, or its node was killed.

    Takes no lock: a lock would keep a node from starting meanwhile.
    """
    # SQLite removes the write-ahead log when the last connection is closed in good order
    if path.with_name(f"{path.name}-wal").exists():
        return None
    address = f"file:{quote(str(path.absolute()))}?immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as db:
            return [Entry(*row) for row in db.execute(_ENTRIES)]
    except sqlite3.Error as problem:
        raise LedgerError(f"{str(path)!r} cannot be read as a ledger: {problem}") from None


class Ledger:
    """One user's ledger, open in one process at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._translate_errors():
            # no implicit transactions, and no wait for another node's lock
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=0)
            self._refuse_other_database()
            self._db.execute("PRAGMA page_size = 16384")  # of a new file: messages are large
            # two nodes with one ledger could send two messages for a step
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            mode = self._value("PRAGMA journal_mode = WAL")
            # each commit is synchronised, or a power cut could undo a message that was sent
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            if mode != "wal":
                raise LedgerError(
                    f"the disk of {str(self.path)!r} does not support a write-ahead log; name a "
                    "file on another disk"
                )
            with self._transaction():
                for statement in _TABLES.split(";\n"):
                    self._db.execute(statement)
                self._db.execute("INSERT OR IGNORE INTO facts VALUES ('format', ?)", (_FORMAT,))
            found_format = self._value("SELECT value FROM facts WHERE name = 'format'")
        if found_format != _FORMAT:
            raise LedgerError(
                f"{str(self.path)!r} is a ledger of another version ({found_format}); use the "
                "decor that wrote it"
            )

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, federation: bytes, plan: str) -> int:
        """Begins a run; returns its number."""
        with self._translate_errors(), self._transaction():
            cursor = self._db.execute(
                "INSERT INTO runs (federation, plan, began) VALUES (?, ?, ?)",
                (federation, plan, time.time()),
            )
            return int(cursor.lastrowid or 0)

    def end(self, run: int, why: str) -> None:
        """Ends a run, unless it has ended."""
        with self._translate_errors(), self._transaction():
            self._db.execute(
                "UPDATE runs SET ended = ?, why = ? WHERE run = ? AND ended IS NULL",
                (time.time(), why, run),
            )

    def record(self, run: int, step: int, message: bytes | memoryview) -> None:
        """Stores a step's message; returns when it cannot be lost any more.

        Only then may it be sent.
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
                "INSERT INTO messages VALUES (?, ?, ?, ?)", (run, step, digest, time.time())
            )
            self._store_bytes(run, step, message)

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
            return [Entry(*row) for row in self._db.execute(_ENTRIES)]

    def _refuse_other_database(self) -> None:
        """Raises if the file is a database of another program, before anything is written."""
        rows = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {name for (name,) in rows}
        if tables and "facts" not in tables:
            raise LedgerError(
                f"{str(self.path)!r} is a database of another program, not a ledger; name "
                "another file"
            )

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

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raises errors of the database as LedgerError, with a way out."""
        try:
            yield
        except sqlite3.Error as problem:
            text = str(problem)
            if "locked" in text:
                raise LedgerError(
                    f"the ledger {str(self.path)!r} is in use by another node; stop that one first"
                ) from None
            if "not a database" in text or "malformed" in text:
                raise LedgerError(
                    f"{str(self.path)!r} is not a ledger, or a damaged one ({text}); never begin "
                    "a new one for the same data"
                ) from None
            raise LedgerError(
                f"the ledger {str(self.path)!r} cannot be used: {text}; nothing is sent before it "
                "can be written"
            ) from None
