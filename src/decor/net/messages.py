"""What neighbours say to each other, as bytes: every message framed, sized, typed and checked
before anything is kept.

A frame is a header (kind, three bytes of zero, length of what follows, little-endian) and a payload
of fixed layout. No object is ever rebuilt from what comes, no length is believed before it is
compared with a limit, and a stranger cannot make this side hold more than one frame of the largest
kind that it may send now.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from decor.errors import LocalProtocolError, RemoteProtocolError
from decor.noise.agreement import OFFER_BYTES, TAG_BYTES

VERSION = 2
HEADER = struct.Struct("<B3xI")
FIELDS = 64
"""Fields of a federation's file at most."""
COUNTS = 2**62
"""Epochs and steps are below: the next one of each still fits a ledger's column, whatever a
neighbour says.
"""


@dataclass(frozen=True)
class Hello:
    """The first message of both sides: which federation, field by field, and where this side is.

    `digests` has eight bytes for every field of the federation's file, so that two who differ can
    say where. `epoch` is above that of every agreement the two have had, `step` is the first step
    for which no message of this side exists.
    """

    federation: bytes
    digests: tuple[tuple[str, bytes], ...]
    epoch: int
    step: int

    kind: ClassVar[int] = 1
    _fixed: ClassVar[struct.Struct] = struct.Struct("<H32sQQH")

    def payload(self) -> bytes:
        fields = b"".join(
            struct.pack("<B", len(name.encode())) + name.encode() + digest
            for name, digest in self.digests
        )
        return (
            self._fixed.pack(VERSION, self.federation, self.epoch, self.step, len(self.digests))
            + fields
        )

    @classmethod
    def parsed(cls, payload: memoryview) -> Hello:
        version, federation, epoch, step, count = cls._fixed.unpack_from(payload)
        if version != VERSION:
            raise RemoteProtocolError(
                f"speaks version {version} of the protocol, and this side version {VERSION}; "
                "install the same version of decor at both"
            )
        if count > FIELDS:
            raise RemoteProtocolError(
                f"names {count} fields of its federation; {FIELDS} are the most"
            )
        digests, at = [], cls._fixed.size
        for _ in range(count):
            length = payload[at]
            digests.append(
                (
                    bytes(payload[at + 1 : at + 1 + length]).decode("ascii"),
                    bytes(payload[at + 1 + length :][:8]),
                )
            )
            at += 9 + length
        if (
            at != len(payload)
            or len({name for name, _ in digests}) != count
            or max(epoch, step) >= COUNTS
        ):
            raise ValueError
        return cls(federation, tuple(digests), epoch, step)


@dataclass(frozen=True)
class Offer:
    """A key, signed, from which the edge's secret is made (`decor.noise.agreement`)."""

    offer: bytes
    kind: ClassVar[int] = 2

    def payload(self) -> bytes:
        return self.offer

    @classmethod
    def parsed(cls, payload: memoryview) -> Offer:
        return cls(_exactly(payload, OFFER_BYTES))


@dataclass(frozen=True)
class Confirmation:
    """Shows that the sender holds the same secret, and from which step on it uses it."""

    tag: bytes
    first_step: int
    kind: ClassVar[int] = 3

    def payload(self) -> bytes:
        return self.tag + struct.pack("<Q", self.first_step)

    @classmethod
    def parsed(cls, payload: memoryview) -> Confirmation:
        whole = _exactly(payload, TAG_BYTES + 8)
        return cls(whole[:TAG_BYTES], int.from_bytes(whole[TAG_BYTES:], "little"))


@dataclass(frozen=True)
class Model:
    """Everybody's message of a step: the noised model in round 0, what it was mixed to in the
    rounds after.
    """

    step: int
    round: int
    values: bytes | memoryview
    """Raw little-endian numbers, as many as the federation's model has."""
    kind: ClassVar[int] = 4
    fixed: ClassVar[struct.Struct] = struct.Struct("<QI4x")

    @classmethod
    def parsed(cls, payload: memoryview) -> Model:
        step, round_ = cls.fixed.unpack_from(payload)
        if payload[12:16] != bytes(4):  # one model, one string of bytes
            raise ValueError
        return cls(step, round_, payload[cls.fixed.size :].toreadonly())


@dataclass(frozen=True)
class NoiseTag:
    """A short digest of the noise that the sender used for this edge in a step: equal at both ends
    if it cancels.
    """

    step: int
    tag: bytes
    kind: ClassVar[int] = 5

    def payload(self) -> bytes:
        return struct.pack("<Q", self.step) + self.tag

    @classmethod
    def parsed(cls, payload: memoryview) -> NoiseTag:
        whole = _exactly(payload, 16)
        return cls(int.from_bytes(whole[:8], "little"), whole[8:])


@dataclass(frozen=True)
class Bye:
    """The sender hangs up; says why in plain ASCII."""

    reason: str
    kind: ClassVar[int] = 6

    def payload(self) -> bytes:
        return self.reason.encode("ascii", "replace")[:200]

    @classmethod
    def parsed(cls, payload: memoryview) -> Bye:
        return cls(
            "".join(
                c if " " <= c <= "~" else "?" for c in bytes(payload).decode("ascii", "replace")
            )
        )


@dataclass(frozen=True)
class Alive:
    """The sender is here, and has nothing to say yet: it computes, or waits for others."""

    kind: ClassVar[int] = 7

    def payload(self) -> bytes:
        return b""

    @classmethod
    def parsed(cls, payload: memoryview) -> Self:
        _exactly(payload, 0)
        return cls()


class Done(Alive):
    """The sender has finished the run, its model is on its disk, and it needs nobody any more."""

    kind: ClassVar[int] = 8


Message = Hello | Offer | Confirmation | Model | NoiseTag | Bye | Alive | Done
KINDS: dict[int, type[Message]] = {
    m.kind: m for m in (Hello, Offer, Confirmation, Model, NoiseTag, Bye, Alive, Done)
}


def limits(model_bytes: int) -> dict[int, int]:
    """The longest payload of every kind, for models of so many bytes."""
    return {
        Hello.kind: 52 + FIELDS * (9 + 64),
        Offer.kind: OFFER_BYTES,
        Confirmation.kind: TAG_BYTES + 8,
        Model.kind: Model.fixed.size + model_bytes,
        NoiseTag.kind: 16,
        Bye.kind: 200,
        Alive.kind: 0,
        Done.kind: 0,
    }


def encoded(message: Message) -> bytes:
    return b"".join(pieces(message))


def pieces(message: Message) -> list[bytes | memoryview]:
    """A frame in parts; a model's numbers are not copied."""
    rest: list[bytes | memoryview] = [message.values] if isinstance(message, Model) else []
    first = (
        Model.fixed.pack(message.step, message.round)
        if isinstance(message, Model)
        else message.payload()
    )
    length = len(first) + sum(map(len, rest))
    if length >= 2**32:
        raise LocalProtocolError(
            f"a message of {length:,} bytes is too long for a frame; models have 4 GB at most"
        )
    return [HEADER.pack(message.kind, length) + first, *rest]


_LARGE = 1 << 16
"""Bytes from which a payload is not copied."""


class Decoder:
    """Bytes as they come -> messages.

    Holds at most one frame; what is too long is refused by its header.
    """

    def __init__(self, longest: Mapping[int, int]) -> None:
        self._longest, self._held = longest, bytearray()

    def __len__(self) -> int:
        return len(self._held)

    def feed(
        self,
        data: bytes | bytearray | memoryview,
        in_turn: Callable[[type[Message]], None] | None = None,
    ) -> Iterator[Message]:
        """The messages that are whole now.

        An error says what was wrong; the stream cannot go on after it.

        `in_turn` hears of every frame's kind before its payload is waited for, and raises if it may
        not come now.
        """
        self._held += data
        at = 0
        try:
            while len(self._held) - at >= HEADER.size:
                kind, length = HEADER.unpack_from(self._held, at)
                if kind not in self._longest or self._held[at + 1 : at + 4] != b"\0\0\0":
                    raise RemoteProtocolError(
                        f"sent a frame of an unknown kind ({bytes(self._held[at : at + 4]).hex()})"
                    )
                name = KINDS[kind].__name__
                if length > self._longest[kind]:
                    raise RemoteProtocolError(
                        f"sent a {name} of {length:,} bytes; {self._longest[kind]:,} are the most"
                    )
                if in_turn is not None:
                    in_turn(KINDS[kind])
                first, end = at + HEADER.size, at + HEADER.size + length
                if len(self._held) < end:
                    return
                if length < _LARGE:
                    payload, at = memoryview(bytes(self._held[first:end])), end
                # the frame goes with its message, uncopied; what came after it begins the next one
                else:
                    payload, self._held, at = memoryview(self._held)[first:end], self._held[end:], 0
                try:
                    message = KINDS[kind].parsed(payload)
                except (struct.error, ValueError, IndexError):
                    raise RemoteProtocolError(
                        f"sent a {name} that is not one ({length} bytes)"
                    ) from None
                yield message
        finally:
            del self._held[:at]


def _exactly(payload: memoryview, length: int) -> bytes:
    if len(payload) != length:
        raise ValueError
    return bytes(payload)
