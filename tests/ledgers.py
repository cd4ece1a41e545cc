"""Ledgers of tests: made where they are missing, as `decor ledger new` does."""

from pathlib import Path

from decor.net.ledger import Ledger

_opened: list[Ledger] = []


def open_ledger(path, identity=bytes(32)):
    if not Path(path).exists():
        Ledger.create(path, identity)
    _opened.append(Ledger(path))
    return _opened[-1]


def close_ledgers():
    """Closes all that `open_ledger` has opened; a test may have closed some of them before."""
    while _opened:
        _opened.pop().close()
