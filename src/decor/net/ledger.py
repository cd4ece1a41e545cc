"""The ledger: every message that may have been sent, written before it is sent, and its runs.

SQLite with a write-ahead log and full synchronisation: once `record` returns, the message survives
a crash of the process and of the machine. A step of a run has one message for ever. After a crash
the same bytes are sent again, never others.

A ledger is made on purpose (`create`), and belongs to the keys that are written into it: a node
never makes one, and refuses the ledger of another key. One process at a time may write; others may
read meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decor.errors import LedgerError

from .ledger_file import (
    FORMAT,
    TABLES,
    Lock,
    check_format,
    connect,
    errors_as_ours,
    require_log,
)
from .ledger_reading import ENTRIES, Entry, LedgerFacts, facts_of
from .receipts import Receipt

KEPT = 2
"""Steps whose bytes are kept: the last, which may have to be sent again, and the one before."""
KEY_ID_BYTES, TAG_BYTES = 32, 8
"""Of one neighbour, in the row of a message."""

_ADOPT = b"decor ledger adopts key 1"


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


def adoption_text(ledger_id: str, new: bytes) -> bytes:
    """What an old key signs so that the ledger takes a new key."""
    return _ADOPT + ledger_id.encode() + new


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
        # before the first read: two nodes that read the same next step would both make it
        self._lock = Lock(self.path)
        try:
            with self._translate_errors():
                self._db = connect(self.path)
                # before anything is changed, also the way in which the file is written
                check_format(self._db, self.path)
                require_log(self._db, self.path)
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
            allow_delta: Failure probability of that limit; None: the smallest of the runs'.

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
        facts = {"format": FORMAT, "id": os.urandom(16).hex(), "data": data}
        facts |= {} if allow is None else {"allow": repr(allow)}
        facts |= {} if allow_delta is None else {"allow_delta": repr(allow_delta)}
        try:
            with errors_as_ours(path), closing(connect(path)) as db:
                require_log(db, path)
                db.execute("PRAGMA synchronous = FULL")
                db.execute("BEGIN IMMEDIATE")
                # not executescript, which would commit first: a ledger has all tables or none
                for statement in TABLES.split(";\n"):
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

    def close(self) -> None:
        # __init__ may have failed before there was a database
        if hasattr(self, "_db"):
            self._db.close()
        # last: no other node may write while this database is still open
        self._lock.release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def facts(self) -> LedgerFacts:
        with self._translate_errors():
            return facts_of(self._db)

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
            # a run that has ended never continues: what is left are two models and a momentum
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
                # also after an error: the next message must be on disk before it is sent
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
        # after the last, not the first gap: a step that was skipped never gets a message
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
            rows = self._db.execute(ENTRIES.format(repeated="repeated"))
            return [Entry(*row) for row in rows]

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
        return errors_as_ours(self.path)


def split(blob: bytes, size: int) -> Sequence[bytes]:
    """The values of fixed size in a column of `noise_rows`."""
    return [bytes(blob[at : at + size]) for at in range(0, len(blob), size)]
