"""Ledgers of tests: made where they are missing, as `decor ledger new` does."""

from pathlib import Path

from decor.net.ledger import Ledger


def open_ledger(path, identity=bytes(32)):
    if not Path(path).exists():
        Ledger.create(path, identity)
    return Ledger(path)
