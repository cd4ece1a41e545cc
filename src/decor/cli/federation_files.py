"""Files that `decor federation new` and `decor keygen` create, and what `--overwrite` replaces.

`--overwrite` replaces a federation that has never run, and nothing else: without its keys and its
file, a ledger could no longer be matched to the data that has spent the budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from decor.errors import InputError, write_errors
from decor.results.safe_files import replace_text

if TYPE_CHECKING:
    from decor.federation.federation import Federation


def make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"the folder {str(path)!r} cannot be made: {problem.strerror}") from None
    return path


def write_federation(path: Path, text: str, overwrite: bool = False) -> None:
    """Writes a federation file; `overwrite` replaces one that has never run."""
    exists = (
        "replace a federation that has never run with --overwrite, or name another file with "
        "--output"
    )
    with write_errors(path, exists=exists):
        if overwrite:
            if path.exists():
                digest = _old_federation(path).digest
                # a ledger may be shared: only messages of this federation count
                _refuse_if_run(path.parent.glob("*.ledger"), digest)
            replace_text(path, text)
        else:
            # "x" fails if the file exists, even if it was created a moment ago
            with path.open("x", encoding="utf-8") as file:
                file.write(text)


def replaceable_trial(folder: Path, overwrite: bool) -> list[str]:
    """The files of the old trial to remove; none where the folder is missing or empty.

    Raises:
        InputError: If the folder holds anything but a trial that has never run, or not
            `overwrite`.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    if not overwrite:
        raise InputError(
            f"{str(folder)!r} exists and is not empty; replace a trial that has never run with "
            "--overwrite, or name another folder with --output"
        )
    names = [member.name for member in _old_federation(folder / "federation.toml").members]
    _refuse_if_run(folder.rglob("*.ledger"))
    kinds = ("keys/{}.key", "data/{}.npz", "data/{}.csv")
    users = [kind.format(name) for name in names for kind in kinds]
    return [*users, "test.npz", "test.csv", "federation.toml"]


def _old_federation(file: Path) -> Federation:
    from decor.federation.federation import Federation

    try:
        return Federation.read(file)
    except InputError as problem:
        raise InputError(
            f"there is no federation that could be overwritten: {problem}; name another place "
            "with --output"
        ) from None


def _refuse_if_run(ledgers: Iterable[Path], digest: bytes | None = None) -> None:
    """Refuses if a node is running, or if a ledger holds messages (of the federation `digest`)."""
    from decor.net.ledger_reading import is_in_use, read_entries

    for ledger in sorted(ledgers):
        if is_in_use(ledger):
            raise InputError(
                f"a node is running: its ledger {str(ledger)!r} is open, so the federation is not "
                "overwritten; name another place with --output"
            )
        entries = read_entries(ledger)
        if sent := sum(entry.steps for entry in entries if digest in (None, entry.federation)):
            raise InputError(
                f"this federation has run: {str(ledger)!r} accounts for {sent} messages, so it is "
                "not overwritten; name another place with --output, or remove it by hand if its "
                "budget matters to no one (a trial on public data)"
            )
