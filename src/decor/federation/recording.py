"""Recorder: for an audit, writes down everything that a user receives, and its secrets.

A federation with real data never has one: with the secrets of all edges on disk, only each user's
independent noise protects it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from decor.net.neighbour import Values

_HEADER = struct.Struct("<qqqq")
"""Neighbour, step, round, bytes that follow."""
KEY, MODEL, OF_EDGES, OF_STEPS = -1, -2, -3, -4
"""In the place of a round: a key of an edge; the model that a step begins with; random bytes for
agreements with neighbours; random bytes for steps. For random bytes the place of a neighbour says
whether they are from the operating system.
"""


class Recorder:
    """Appends to a file; after a crash it continues the same file."""

    def __init__(self, path: Path) -> None:
        # appended: a user that is killed and started again has one record
        self._file = path.open("ab")

    def record_model(self, sender: int, step: int, round_: int, values: Values) -> None:
        """A model that was received."""
        self._write(sender, step, round_, values)

    def record_start(self, step: int, model: Values) -> None:
        """The model that this user begins a step with: a function of public messages."""
        self._write(0, step, MODEL, model)

    def record_keys(self, step: int, keys: Mapping[int, bytes]) -> None:
        """The keys of a step, by neighbour."""
        for neighbour, key in keys.items():
            self._write(neighbour, step, KEY, key)

    def record_random(self, source: Callable[[int], bytes], kind: int) -> Callable[[int], bytes]:
        """The same source of randomness; all its bytes are written down."""
        # the audit reports randomness of any other origin
        is_system = source is os.urandom

        def draw(count: int) -> bytes:
            drawn = source(count)
            self._write(int(is_system), 0, kind, drawn)
            return drawn

        return draw

    def _write(self, other: int, step: int, round_: int, values: Values) -> None:
        # bytes, not parameters: a memoryview may have any format
        size = len(memoryview(values).cast("B"))
        self._file.write(_HEADER.pack(other, step, round_, size) + bytes(values))
        # a process that is killed leaves whole entries, and a full disk is an error
        self._file.flush()


def read(path: Path) -> Iterator[tuple[int, int, int, bytes]]:
    """Yields (neighbour, step, round, bytes) of each entry; rounds below 0 are KEY, MODEL, ..."""
    with path.open("rb") as file:
        while head := file.read(_HEADER.size):
            other, step, round_, size = _HEADER.unpack(head)
            yield other, step, round_, file.read(size)
