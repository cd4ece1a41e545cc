"""What a ledger says, for anyone who may read the file: also while a node is using it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from decor.errors import LedgerError, TransientError

from .ledger_file import Lock, check_readable

FINISHED, DIVERGED, ENDED_EARLY = "finished", "diverged", "by decor ledger end"
"""Why a run has ended; any other reason is a sentence."""

ENTRIES = (
    "SELECT r.run, federation, plan, count(m.step), max(m.step), began, ended, why, {repeated} "
    "FROM runs r LEFT JOIN messages m ON m.run = r.run GROUP BY r.run ORDER BY r.run"
)


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
class LedgerFacts:
    """What a ledger says about itself: whose it is, and what its owner allows.

    Attributes:
        data: The name of the data set whose spending it records.
        allow: The most epsilon that all runs together may spend; None: no limit was set.
        allow_delta: Failure probability of that limit; None: the smallest of the runs'.
        identities: Public keys that may use the ledger, the first one first.
        id: A random name that no other ledger has; empty in ledgers of version 0.1.
    """

    data: str
    allow: float | None
    allow_delta: float | None
    identities: tuple[bytes, ...]
    # every ledger has another one: facts are compared for what their owner has said
    id: str = field(default="", compare=False)


def read_entries(path: Path) -> list[Entry]:
    """All runs in a ledger. Works while a node is using it, and on ledgers of version 0.1."""
    with read_only(path) as db:
        # asked, not converted: whoever only reads a ledger must not change it
        columns = {row[1] for row in db.execute("PRAGMA table_info(runs)")}
        repeated = "repeated" if "repeated" in columns else "0"
        return [Entry(*row) for row in db.execute(ENTRIES.format(repeated=repeated))]


def is_in_use(path: Path) -> bool:
    """Whether a node has the ledger open for writing."""
    try:
        # the only sure way to ask: a file beside the ledger may be left over from a crash
        Lock(path).release()
    except TransientError:
        return True
    return False


def read_facts(path: Path) -> LedgerFacts:
    """What a ledger says about itself; of version 0.1's ledgers: nothing."""
    with read_only(path) as db:
        return facts_of(db)


def facts_of(db: sqlite3.Connection) -> LedgerFacts:
    """What an open ledger says about itself."""
    facts = dict(db.execute("SELECT name, value FROM facts"))
    keys: list[tuple[bytes]] = []
    # ledgers of version 0.1 do not say whose they are
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'identities'").fetchone():
        keys = db.execute("SELECT public FROM identities ORDER BY added, rowid").fetchall()
    allow, delta = facts.get("allow"), facts.get("allow_delta")
    return LedgerFacts(
        facts.get("data", ""),
        None if allow is None else float(allow),
        None if delta is None else float(delta),
        tuple(bytes(key) for (key,) in keys),
        facts.get("id", ""),
    )


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing. Takes no lock that would keep a node from starting."""
    if not path.is_file() or not path.stat().st_size:
        raise LedgerError(f"there is no ledger {str(path)!r}; make one with decor ledger new")
    # not `connect`: by default SQLite makes the file if it was removed in between
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=5.0)) as db:
            # a format that is not known may count in another way: half of it would be too little
            check_readable(db, path)
            yield db
    except sqlite3.Error as problem:
        raise LedgerError(f"{str(path)!r} cannot be read as a ledger: {problem}") from None
