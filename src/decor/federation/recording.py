"""Witness: what an audit lets a user write down: all that it hears, and all that it knows.

In a federation of real data nobody has one: with the secrets of all edges on disk nothing but
everybody's own noise is left.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from decor.net.link import Values

_HEADER = struct.Struct("<qqqq")
"""Kind or neighbour, step, round, bytes that follow."""
KEY, MODEL, OF_EDGES, OF_STEPS = -1, -2, -3, -4
"""In the place of a round: a key of an edge; the model that a step begins with; bytes drawn to
agree with a neighbour, and bytes drawn for steps. The place of a neighbour then says, of bytes that
were drawn, whether they are the operating system's.
"""


class Witness:
    """Appends to a file; after a crash it goes on with the same."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def heard(self, sender: int, step: int, round_: int, values: Values) -> None:
        self._write(sender, step, round_, values)

    def began(self, step: int, model: Values) -> None:
        """The model that this user begins a step with: a function of messages that are public
        already.
        """
        self._write(0, step, MODEL, model)

    def shared(self, step: int, keys: Mapping[int, bytes]) -> None:
        """The keys of a step, by neighbour."""
        for neighbour, key in keys.items():
            self._write(neighbour, step, KEY, key)

    def drawing(self, source: Callable[[int], bytes], kind: int) -> Callable[[int], bytes]:
        """The same source of randomness, all of whose bytes are written down."""
        is_systems = source is os.urandom

        def draw(count: int) -> bytes:
            drawn = source(count)
            self._write(int(is_systems), 0, kind, drawn)
            return drawn

        return draw

    def _write(self, other: int, step: int, round_: int, values: Values) -> None:
        self._file.write(
            _HEADER.pack(other, step, round_, len(memoryview(values).cast("B"))) + bytes(values)
        )
        # a process that is killed leaves whole entries, and a full disk is an error
        self._file.flush()


def read(path: Path) -> Iterator[tuple[int, int, int, bytes]]:
    """(neighbour, step, round, bytes) of every entry; a round below 0 is one of KEY, MODEL,
    OF_EDGES, OF_STEPS.
    """
    with path.open("rb") as file:
        while head := file.read(_HEADER.size):
            other, step, round_, size = _HEADER.unpack(head)
            yield other, step, round_, file.read(size)
