"""The file of a ledger: its tables, its lock, and errors of the database as sentences.

SQLite with a write-ahead log. Whoever adds a column or a table gives `FORMAT` a new name and
`ledger_conversion` a way from the old one; nothing secret is written.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decor.errors import LedgerError, TransientError

TABLES = """
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
FORMAT, FORMAT_0_1 = "decor-ledger-2", "decor-ledger-1"


class Lock:
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


def connect(path: Path) -> sqlite3.Connection:
    # no implicit transactions; a reader's checkpoint may hold a lock for a moment
    return sqlite3.connect(path, isolation_level=None, timeout=5.0)


def require_log(db: sqlite3.Connection, path: Path) -> None:
    """Makes SQLite write to a log first, so that a crash loses nothing and readers need no lock."""
    db.execute("PRAGMA page_size = 16384")  # of a new file: messages are large
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise LedgerError(
            f"the disk of {str(path)!r} does not support a write-ahead log; name a file on "
            "another disk"
        )


def format_of(db: sqlite3.Connection, path: Path) -> str:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    row = None
    if "facts" in tables:
        row = db.execute("SELECT value FROM facts WHERE name = 'format'").fetchone()
    if row is None:
        raise LedgerError(
            f"{str(path)!r} is a database of another program, not a ledger; name another file"
        )
    return str(row[0])


def check_format(db: sqlite3.Connection, path: Path) -> None:
    """Raises unless the file is a ledger of this version, before anything is written."""
    if check_readable(db, path) == FORMAT_0_1:
        raise LedgerError(
            f"{str(path)!r} is a ledger of version 0.1; bring it up to date with "
            f"decor ledger convert {path} --identity KEY"
        )


def check_readable(db: sqlite3.Connection, path: Path) -> str:
    """Raises unless the file is a ledger of a known format; returns the format."""
    found = format_of(db, path)
    if found not in (FORMAT, FORMAT_0_1):
        raise LedgerError(
            f"{str(path)!r} is a ledger of another version ({found}); use the decor that wrote it"
        )
    return found


@contextmanager
def errors_as_ours(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as problem:
        text = str(problem)
        # apart from the others: a reader's lock passes, so whoever starts nodes may try again
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
