"""Where a user of a local federation writes its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


def socket_of(ledger: Path) -> Path:
    """The socket of the node that writes this ledger."""
    return ledger.with_name(ledger.name + ".socket")


@dataclass(frozen=True)
class UserFiles:
    """The files of one user.

    Attributes:
        number: The user, in the order of the federation's members.
        name: Its name, which its files have too.
        folder: The folder of all users.
        ledgers: The folder of their ledgers, which serve several runs; None: the same.
    """

    number: int
    name: str
    folder: Path
    ledgers: Path | None = None

    @property
    def ledger(self) -> Path:
        return (self.ledgers or self.folder) / f"{self.name}.ledger"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def socket(self) -> Path:
        return socket_of(self.ledger)

    @property
    def run_folder(self) -> Path:
        return self.folder / self.name

    @property
    def recording(self) -> Path:
        return self.folder / f"{self.name}.witness"
