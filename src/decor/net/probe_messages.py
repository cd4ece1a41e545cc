"""Messages of `decor federation probe`, as bytes: framed as others are, and limited in size.

Whoever sends them is a neighbour by its key, and not trusted: every value is checked, every text
is printable ASCII, and no object is rebuilt from received bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from decor.errors import RemoteProtocolError

from .messages import FIELDS, HEADER, KINDS, PROBE_KIND

PROTOCOL = "decor probe 1"
REPORT_BYTES = 1 << 16
PIECE_BYTES = 1 << 16
"""Of the bytes that measure bandwidth."""
WAYS = ("direct", "proxy", "relay", "proxy, relay")
"""How a neighbour is reached; the end that accepts does not see the other's proxy."""
_TEXT = 200
"""Characters of a text, at most."""
_LARGEST = 1e15
"""No time, clock or bandwidth is above, in any unit that is sent."""


class NodeAnswered(RemoteProtocolError):
    """The neighbour speaks the protocol of nodes."""


class Kind(IntEnum):
    # beyond all kinds of a node's messages: each program knows the other by its first frame
    HELLO = PROBE_KIND
    PING = 81
    PONG = 82
    BULK = 83
    TAKEN = 84
    RATE = 85
    REPORT = 86
    BYE = 87


LIMITS = {
    # 64 names with their digests as JSON are about 6 kB
    Kind.HELLO: 1 << 14,
    Kind.PING: 8,
    Kind.PONG: 16,
    Kind.BULK: PIECE_BYTES,
    Kind.TAKEN: 8,
    Kind.RATE: 8,
    Kind.REPORT: REPORT_BYTES,
    Kind.BYE: _TEXT,
}
"""The longest payload of each kind."""


@dataclass(frozen=True)
class Versions:
    """What a user has installed; None: not installed, or for `code` not needed.

    `code` is the SHA-256 of the model's installed code, in hexadecimal.
    """

    decor: str
    python: str
    torch: str | None
    code: str | None


@dataclass(frozen=True)
class ProbeHello:
    """The first message of both sides: the federation, field by field, and what is installed."""

    federation: bytes
    digests: tuple[tuple[str, bytes], ...]
    versions: Versions

    def payload(self) -> bytes:
        digests = {name: digest.hex() for name, digest in self.digests}
        return _json(
            {
                "protocol": PROTOCOL,
                "federation": self.federation.hex(),
                "digests": digests,
                "versions": asdict(self.versions),
            }
        )

    @staticmethod
    def parse(payload: bytes) -> ProbeHello:
        found = _object(payload)
        # first: in another version the other fields may be missing
        if (protocol := _text(found["protocol"])) != PROTOCOL:
            raise RemoteProtocolError(
                f"speaks {protocol!r}, and this side {PROTOCOL!r}; install the same version of "
                "decor at both"
            )
        digests = found["digests"]
        # no file has more, and this side would have to compare them all
        if not isinstance(digests, dict) or len(digests) > FIELDS:
            raise ValueError
        return ProbeHello(
            bytes.fromhex(_text(found["federation"])),
            tuple((_text(name), bytes.fromhex(_text(each))) for name, each in digests.items()),
            _versions(found["versions"]),
        )


@dataclass(frozen=True)
class EdgeRow:
    """One edge as one of its users sees it; None: not measured.

    Attributes:
        neighbour: Its name.
        way: One of `WAYS`, as this user sees it; None: not connected.
        round_trip: Seconds.
        sent, received: Bytes per second.
        clock: Seconds by which the neighbour's clock is ahead.
        problem: Why the edge is not there, or what does not agree; "" if nothing.
    """

    neighbour: str
    way: str | None = None
    round_trip: float | None = None
    sent: float | None = None
    received: float | None = None
    clock: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Report:
    """What a user tells all others. Others pass it on: none of it is trusted.

    `version` grows whenever the user has more to tell; `is_complete`: all its edges are measured.
    """

    user: str
    version: int
    is_complete: bool
    versions: Versions
    rows: tuple[EdgeRow, ...]

    def payload(self) -> bytes:
        found = asdict(self)
        # whoever has very many neighbours tells less: a longer frame would be refused everywhere
        while len(payload := _json(found)) > REPORT_BYTES:
            found["rows"] = found["rows"][:-1]
        return payload

    @staticmethod
    def parse(payload: bytes) -> Report:
        found = _object(payload)
        version, is_complete, rows = (found[key] for key in ("version", "is_complete", "rows"))
        # isinstance would accept True, which is an int
        if type(version) is not int or not 0 <= version < 2**31:
            raise ValueError
        if not isinstance(is_complete, bool) or not isinstance(rows, list):
            raise ValueError
        edges = tuple(map(_row, rows))
        versions = _versions(found["versions"])
        return Report(_text(found["user"]), version, is_complete, versions, edges)


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def goodbye(reason: str) -> bytes:
    # cut here: a reason that is too long would be a protocol error at the neighbour
    return frame(Kind.BYE, reason.encode("ascii", "replace")[:_TEXT])


def printable(text: str) -> str:
    """A received text as it may be shown on a terminal."""
    # escape sequences could rewrite what stands on the terminal, other alphabets imitate a name
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)[:_TEXT]


class ProbeDecoder:
    """Turns a stream of bytes into (kind, payload); holds at most one frame."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Yields the frames that are complete now. After an error the stream cannot go on."""
        self._held += data
        while len(self._held) >= HEADER.size:
            number, length = HEADER.unpack_from(self._held)
            # apart from other errors: a node that is at work must not be dialled again and again
            if number in KINDS:
                raise NodeAnswered(
                    "runs its node; probe before nodes are started, or after they have ended"
                )
            if number not in LIMITS or self._held[1:4] != b"\0\0\0":
                shown = bytes(self._held[:4]).hex()
                raise RemoteProtocolError(f"sent a frame of an unknown kind ({shown})")
            kind = Kind(number)
            # before the payload is waited for
            if length > (longest := LIMITS[kind]):
                raise RemoteProtocolError(
                    f"sent a {kind.name.lower()} of {length:,} bytes; the limit is {longest:,}"
                )
            end = HEADER.size + length
            if len(self._held) < end:
                return
            payload = bytes(self._held[HEADER.size : end])
            del self._held[:end]
            yield kind, payload


def _json(value: dict[str, Any]) -> bytes:
    # the receiver refuses a message with NaN: the bug must show where it is
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _object(payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload)
    # a few kilobytes of opening brackets, which any neighbour can send
    except RecursionError:
        raise ValueError from None
    if not isinstance(found, dict):
        raise ValueError
    return found


def _text(value: object) -> str:
    # refused, not cleaned: an honest probe sends nothing else
    if not isinstance(value, str) or printable(value) != value:
        raise ValueError
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _optional_number(value: object) -> float | None:
    if value is None:
        return None
    # JSON's true would pass as the number 1
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError
    # a whole number of any length would not fit a float
    if not (-_LARGEST <= value <= _LARGEST) or math.isnan(value):
        raise ValueError
    return float(value)


def _versions(value: Any) -> Versions:
    if not isinstance(value, dict):
        raise ValueError
    decor, python = _text(value["decor"]), _text(value["python"])
    return Versions(decor, python, _optional_text(value["torch"]), _optional_text(value["code"]))


def _row(value: Any) -> EdgeRow:
    if not isinstance(value, dict) or value["way"] not in (*WAYS, None):
        raise ValueError
    names = ("round_trip", "sent", "received", "clock")
    numbers = {name: _optional_number(value[name]) for name in names}
    return EdgeRow(
        _text(value["neighbour"]), value["way"], **numbers, problem=_text(value["problem"])
    )
