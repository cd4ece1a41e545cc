"""What `decor federation new --overwrite` may replace: a federation that has never run, and nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from decor.errors import InputError

if TYPE_CHECKING:
    from decor.federation.federation import Federation


def of_trial(folder: Path, overwrite: bool) -> list[str]:
    """The files of the trial that is to be replaced; refuses unless there is one, and it has never
    run.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    if not overwrite:
        raise InputError(
            f"{str(folder)!r} exists and is not empty; replace a trial that has never run by "
            "--overwrite, or name another folder "
            "by --output"
        )
    names = [member.name for member in _old(folder / "federation.toml").members]
    _refuse_run(folder.rglob("*.ledger"))
    return [
        *(f"keys/{name}.key" for name in names),
        *(f"data/{name}.npz" for name in names),
        "test.npz",
        "federation.toml",
    ]


def check_file(path: Path) -> None:
    """Refuses unless the file is a federation's, of which no ledger beside it holds a message."""
    _refuse_run(path.parent.glob("*.ledger"), _old(path).digest)


def _old(file: Path) -> Federation:
    """The federation that is to be replaced; what is none is left alone."""
    from decor.federation.federation import Federation

    try:
        return Federation.read(file)
    except InputError as problem:
        raise InputError(
            f"there is no federation that could be overwritten: {problem}; name "
            "another place by --output"
        ) from None


def _refuse_run(ledgers: Iterable[Path], digest: bytes | None = None) -> None:
    """Keeps a federation that runs or has run (of a ledger for many: the one with this digest).

    Without its keys and its file, nobody could say any more whose data has paid for what.
    """
    from decor.net.ledger import left_behind

    for ledger in sorted(ledgers):
        entries = left_behind(ledger)
        if entries is None:
            raise InputError(
                f"a node is running, or was killed, whose ledger {str(ledger)!r} is open: its "
                "federation is not overwritten; "
                "name another place by --output"
            )
        if spent := sum(entry.steps for entry in entries if digest in (None, entry.federation)):
            raise InputError(
                f"this federation has run: {str(ledger)!r} says what its data has paid for "
                f"{spent} messages, so it is not "
                "overwritten; name another place by --output, or, if that counts for nobody (a "
                "trial on public data), remove it "
                "by hand"
            )
