"""Witness: what an audit lets a user write down: every message it hears, and the secrets of its edges.

In a federation of real data nobody has one: with the secrets of all edges on disk nothing but everybody's own noise is left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from decor.net.link import Values

_HEADER = struct.Struct("<qqqq")
"""Kind or neighbour, step, round, bytes that follow."""


class Witness:
    """Appends to a file; after a crash it goes on with the same."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def heard(self, sender: int, step: int, round_: int, values: Values) -> None:
        self._write(sender, step, round_, values)

    def shared(self, step: int, keys: Mapping[int, bytes]) -> None:
        """The keys of a step, by neighbour."""
        for neighbour, key in keys.items():
            self._write(neighbour, step, -1, key)

    def _write(self, other: int, step: int, round_: int, values: Values) -> None:
        self._file.write(_HEADER.pack(other, step, round_, len(memoryview(values).cast("B"))) + bytes(values))
        self._file.flush()  # a process that is killed leaves whole entries, and a full disk is an error


def read(path: Path) -> Iterator[tuple[int, int, int, bytes]]:
    """(neighbour, step, round, bytes) of every entry; round -1 is a key."""
    with path.open("rb") as file:
        while head := file.read(_HEADER.size):
            other, step, round_, size = _HEADER.unpack(head)
            yield other, step, round_, file.read(size)
