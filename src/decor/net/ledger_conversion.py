"""Brings ledgers of earlier versions to the present format, in place."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

from decor.errors import LedgerError

from .ledger_file import (
    FORMAT,
    FORMAT_0_1,
    TABLES,
    Lock,
    connect,
    errors_as_ours,
    format_of,
    require_log,
)
from .ledger_reading import read_only


def convert_ledger(path: str | Path, identity: bytes, data: str = "") -> None:
    """Brings a ledger of version 0.1 to the present format, in place; keeps what it says.

    Args:
        path: The ledger; no node may be using it.
        identity: Public key of the user whose ledger it is.
        data: The name of its data set.

    Raises:
        LedgerError: It is no ledger of version 0.1, or cannot be written.
    """
    path = Path(path)
    with read_only(path) as db:
        found = format_of(db, path)
    if found != FORMAT_0_1:
        raise LedgerError(f"{str(path)!r} is no ledger of version 0.1 ({found}): nothing to do")
    lock = Lock(path)
    try:
        with errors_as_ours(path), closing(connect(path)) as db:
            require_log(db, path)
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            db.execute("ALTER TABLE runs ADD COLUMN repeated INTEGER NOT NULL DEFAULT 0")
            for column in ("keys", "tags", "cancelled"):
                kind = f"{column} BLOB NOT NULL DEFAULT x''"
                db.execute(f"ALTER TABLE messages ADD COLUMN {kind}")
            for statement in TABLES.split(";\n"):
                db.execute(statement)
            # in the same transaction: a crash leaves the old format or the new one, no mixture
            db.execute("UPDATE facts SET value = ? WHERE name = 'format'", (FORMAT,))
            facts = {"id": os.urandom(16).hex(), "data": data}
            db.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
            now = time.time()
            db.execute("INSERT INTO identities VALUES (?, ?, NULL, NULL)", (identity, now))
            db.execute("COMMIT")
        # others may have been able to read the old file, in which messages have a time
        os.chmod(path, 0o600)
    finally:
        lock.release()
