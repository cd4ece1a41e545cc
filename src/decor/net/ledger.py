"""The ledger: every message that may have left, written before it leaves, and what the data behind
it has paid.

SQLite, write-ahead and fully synchronous: once `record` returns, the message survives the end of
the process and of the machine. A step of a run has one message for ever. After a crash the same
bytes are sent again, never others.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
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
    """A run in the ledger: `steps` messages exist, each of which has been paid for by the plan's
    price of a step.
    """

    run: int
    federation: bytes
    plan: str
    steps: int
    last_step: int | None
    began: float
    ended: float | None
    why: str | None


def left_behind(path: Path) -> list[Entry] | None:
    """All runs of a ledger that has been closed; None where it is open, or its node was killed.

    Takes no lock, which would keep a node from starting meanwhile.
    """
    if path.with_name(f"{path.name}-wal").exists():
        return None
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path.absolute()))}?immutable=1", uri=True)
        ) as db:
            return [Entry(*row) for row in db.execute(_ENTRIES)]
    except sqlite3.Error as problem:
        raise LedgerError(f"{str(path)!r} cannot be read as a ledger: {problem}") from None


class Ledger:
    """One user's ledger, open in one process at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=0)
            with self._told():
                tables = {
                    name
                    for (name,) in self._db.execute(
                        "SELECT name FROM sqlite_master WHERE type = 'table'"
                    )
                }
                if tables and "facts" not in tables:
                    raise LedgerError(
                        f"{str(self.path)!r} is a database of somebody else, and no "
                        "ledger; name another file"
                    )
                self._db.execute("PRAGMA page_size = 16384")  # of a new file: messages are large
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute("PRAGMA foreign_keys = ON")
                if mode != "wal":
                    raise LedgerError(
                        f"the disk of {str(self.path)!r} cannot keep a write-ahead log; name a "
                        "file on another disk"
                    )
                with self._whole():
                    for statement in _TABLES.split(";\n"):
                        self._db.execute(statement)
                    self._db.execute("INSERT OR IGNORE INTO facts VALUES ('format', ?)", (_FORMAT,))
                held = self._db.execute("SELECT value FROM facts WHERE name = 'format'").fetchone()[
                    0
                ]
        except sqlite3.Error as problem:
            raise self._error(problem) from None
        if held != _FORMAT:
            raise LedgerError(
                f"{str(self.path)!r} is a ledger of another version ({held}); use "
                "the decor that wrote it"
            )

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, federation: bytes, plan: str) -> int:
        """A new run's number."""
        with self._told(), self._whole():
            values = (federation, plan, time.time())
            return int(
                self._db.execute(
                    "INSERT INTO runs (federation, plan, began) VALUES (?, ?, ?)", values
                ).lastrowid
                or 0
            )

    def end(self, run: int, why: str) -> None:
        with self._told(), self._whole():
            self._db.execute(
                "UPDATE runs SET ended = ?, why = ? WHERE run = ? AND ended IS NULL",
                (time.time(), why, run),
            )

    def record(self, run: int, step: int, message: bytes | memoryview) -> None:
        """Keeps a step's message; returns when it cannot be lost any more.

        Only then may it be sent.
        """
        digest = hashlib.sha256(message).digest()
        with self._told(), self._whole():
            last = self._last(run)
            if last is not None and step <= last:
                raise LedgerError(
                    f"step {step} has a message already (the last is {last}); it is "
                    "sent again, never made again"
                )
            self._db.execute(
                "INSERT INTO messages VALUES (?, ?, ?, ?)", (run, step, digest, time.time())
            )
            self._keep(run, step, message)

    def message(self, run: int, step: int) -> bytes | None:
        """The bytes of a step, if they are still kept."""
        with self._told():
            joined = "messages JOIN slots USING (run, step) JOIN kept USING (slot)"
            asked = f"SELECT bytes, digest FROM {joined} WHERE run = ? AND step = ?"
            found = self._db.execute(asked, (run, step)).fetchone()
        if found is None:
            return None
        if hashlib.sha256(found[0]).digest() != found[1]:
            raise LedgerError(
                f"the message of step {step} in {str(self.path)!r} is damaged: it cannot be sent "
                "again, nor made again"
            )
        return bytes(found[0])

    def next_step(self, run: int) -> int:
        """The first step for which no message exists, nor any after it."""
        with self._told():
            last = self._last(run)
        return 0 if last is None else last + 1

    def epoch(self, run: int, neighbour: int) -> int:
        """A number above all that were given for this neighbour, kept before it is used."""
        with self._told(), self._whole():
            found = self._db.execute(
                "SELECT epoch FROM epochs WHERE run = ? AND neighbour = ?", (run, neighbour)
            ).fetchone()
            new = (found[0] if found else 0) + 1
            self._db.execute(
                "INSERT OR REPLACE INTO epochs VALUES (?, ?, ?)", (run, neighbour, new)
            )
        return new

    def entries(self) -> list[Entry]:
        """All runs, the oldest first."""
        with self._told():
            return [Entry(*row) for row in self._db.execute(_ENTRIES)]

    def _keep(self, run: int, step: int, message: bytes | memoryview) -> None:
        """Over the run's message of KEPT steps ago, in place: pages given up and taken again would
        be written twice.
        """
        slot = KEPT * run + step % KEPT
        self._db.execute("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", (slot, run, step))
        held = self._db.execute("SELECT length(bytes) FROM kept WHERE slot = ?", (slot,)).fetchone()
        if held is None or held[0] != len(message):
            self._db.execute(
                "INSERT OR REPLACE INTO kept VALUES (?, zeroblob(?))", (slot, len(message))
            )
        with self._db.blobopen("kept", "bytes", slot) as blob:
            blob.write(message)

    def _last(self, run: int) -> int | None:
        found: int | None = self._db.execute(
            "SELECT max(step) FROM messages WHERE run = ?", (run,)
        ).fetchone()[0]
        return found

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """All of it, or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            raise self._error(problem) from None

    def _error(self, problem: sqlite3.Error) -> LedgerError:
        said = str(problem)
        if "locked" in said:
            return LedgerError(
                f"the ledger {str(self.path)!r} is in use by another node; stop that one first"
            )
        if "not a database" in said or "malformed" in said:
            return LedgerError(
                f"{str(self.path)!r} is no ledger, or a damaged one ({said}); never begin a new "
                "one for the same data"
            )
        return LedgerError(
            f"the ledger {str(self.path)!r} cannot be used: {said}; nothing is "
            "sent before it can be written"
        )
