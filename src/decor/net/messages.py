"""Messages between neighbours, as bytes: framed, limited in size, and checked before they are kept.

A frame is a header (kind, three zero bytes, length of the payload, little-endian) and a payload of
fixed layout. No object is ever rebuilt from received bytes. No length is believed before it is
compared with a limit, so a stranger cannot make this side hold more than one frame of the largest
kind that it may send now.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from decor.errors import LocalProtocolError, RemoteProtocolError
from decor.noise.agreement import KEY_ID_BYTES, OFFER_BYTES, SEALED_BYTES, TAG_BYTES

from .receipts import RECEIPT_BYTES, Receipt

VERSION = 3
HEADER = struct.Struct("<B3xI")
FIELDS = 64
"""The most fields that a federation's file may have."""
COUNTS = 2**62
"""Epochs and steps are below: the next one still fits a column of the ledger (63 bits)."""
PROBE_KIND = 80
"""Of the first frame of `decor federation probe`, which speaks a protocol of its own."""
_NAME_BYTES, _DIGEST_BYTES = 64, 8
"""Of a field in a Hello: the longest name, and its digest."""


@dataclass(frozen=True)
class Hello:
    """The first message of both sides: which federation, field by field, and how far this side is.

    `digests` has eight bytes for each field of the federation's file, so that two users whose files
    differ can say where. `epoch` is above that of every agreement the two have had. `step` is the
    first step for which no message of this side exists. `receipt` is the newest that this side has
    of the other: a user whose ledger does not have that message has an old one. `fetches`: this
    side takes no part any more, and only wants the final model.
    """

    federation: bytes
    digests: tuple[tuple[str, bytes], ...]
    epoch: int
    step: int
    receipt: Receipt | None = None
    fetches: bool = False

    kind: ClassVar[int] = 1
    # the version comes first in every version
    _fixed: ClassVar[struct.Struct] = struct.Struct("<H32sQQ??H")

    def payload(self) -> bytes:
        has_receipt = self.receipt is not None
        fixed = self._fixed.pack(
            VERSION,
            self.federation,
            self.epoch,
            self.step,
            self.fetches,
            has_receipt,
            len(self.digests),
        )
        receipt = b"" if self.receipt is None else self.receipt.pack()
        names = [name.encode() for name, _ in self.digests]
        return (
            fixed
            + receipt
            + b"".join(
                bytes([len(name)]) + name + digest
                for name, (_, digest) in zip(names, self.digests, strict=True)
            )
        )

    @classmethod
    def parse(cls, payload: memoryview) -> Hello:
        version = int.from_bytes(payload[:2], "little")
        # first: the fields of another version may be laid out differently
        if len(payload) > 2 and version != VERSION:
            raise RemoteProtocolError(
                f"speaks version {version} of the protocol, and this side version {VERSION}; "
                "install the same version of decor at both"
            )
        fixed = cls._fixed.unpack_from(payload)
        _, federation, epoch, step, fetches, has_receipt, count = fixed
        if count > FIELDS:
            raise RemoteProtocolError(
                f"names {count} fields of its federation; the limit is {FIELDS}"
            )
        digests, at, receipt = [], cls._fixed.size, None
        # a bool has exactly one encoding
        if not set(payload[50:52]) <= {0, 1}:
            raise ValueError
        if has_receipt:
            receipt = Receipt.parse(payload[at : at + RECEIPT_BYTES])
            at += RECEIPT_BYTES
        for _ in range(count):
            name_end = at + 1 + payload[at]
            name = bytes(payload[at + 1 : name_end]).decode("ascii")
            digests.append((name, bytes(payload[name_end : name_end + _DIGEST_BYTES])))
            at = name_end + _DIGEST_BYTES
        # a name that is there twice would hide a field that differs
        is_unique = len({name for name, _ in digests}) == count
        # a slice beyond the end is short, not an error: the length is compared here
        if at != len(payload) or not is_unique or max(epoch, step) >= COUNTS:
            raise ValueError
        return cls(federation, tuple(digests), epoch, step, receipt, fetches)


@dataclass(frozen=True)
class Offer:
    """A signed key, from which the edge's secret is derived (`decor.noise.agreement`)."""

    offer: bytes
    kind: ClassVar[int] = 2

    def payload(self) -> bytes:
        return self.offer

    @classmethod
    def parse(cls, payload: memoryview) -> Offer:
        return cls(_exactly(payload, OFFER_BYTES))


@dataclass(frozen=True)
class Confirmation:
    """Proves that the sender holds the same secret, and says which keys of the edge it has taken.

    `next_step` is the first step whose key the sender has not taken, `key_id` names the key of the
    step before (`decor.net.edge_keys`). The proof covers both.
    """

    tag: bytes
    next_step: int
    key_id: bytes
    kind: ClassVar[int] = 3
    _fixed: ClassVar[struct.Struct] = struct.Struct(f"<{TAG_BYTES}sQ{KEY_ID_BYTES}s")

    def payload(self) -> bytes:
        return self._fixed.pack(self.tag, self.next_step, self.key_id)

    @classmethod
    def parse(cls, payload: memoryview) -> Confirmation:
        tag, next_step, key_id = cls._fixed.unpack(payload)
        # its proof shows who has sent the number, not that there can be such a step
        if next_step >= COUNTS:
            raise ValueError
        return cls(tag, next_step, key_id)

    @staticmethod
    def claim(next_step: int, key_id: bytes) -> bytes:
        """What the proof covers beside the secret."""
        return struct.pack("<Q", next_step) + key_id


@dataclass(frozen=True)
class Model:
    """A user's message of a step: the noised model in round 0, the mixed model in later rounds."""

    step: int
    round: int
    values: bytes | memoryview
    """Little-endian parameters, as many as the federation's model has."""
    kind: ClassVar[int] = 4
    fixed: ClassVar[struct.Struct] = struct.Struct("<QI4x")

    @classmethod
    def parse(cls, payload: memoryview) -> Model:
        step, round_ = cls.fixed.unpack_from(payload)
        if payload[12:16] != bytes(4):  # a model has exactly one encoding
            raise ValueError
        return cls(step, round_, payload[cls.fixed.size :].toreadonly())


@dataclass(frozen=True)
class NoiseTag:
    """A digest of the sender's noise of a step for this edge: equal at both ends if it cancels."""

    step: int
    tag: bytes
    kind: ClassVar[int] = 5

    def payload(self) -> bytes:
        return struct.pack("<Q", self.step) + self.tag

    @classmethod
    def parse(cls, payload: memoryview) -> NoiseTag:
        whole = _exactly(payload, 16)
        return cls(int.from_bytes(whole[:8], "little"), whole[8:])


@dataclass(frozen=True)
class Bye:
    """The sender closes the connection, and says why in printable ASCII."""

    reason: str
    kind: ClassVar[int] = 6

    def payload(self) -> bytes:
        # cut here: a reason that is too long would be a protocol error at the neighbour
        return self.reason.encode("ascii", "replace")[:200]

    @classmethod
    def parse(cls, payload: memoryview) -> Bye:
        text = bytes(payload).decode("ascii", "replace")
        # it is written to the log, which control characters must not reach
        return cls("".join(c if " " <= c <= "~" else "?" for c in text))


@dataclass(frozen=True)
class Alive:
    """The sender is connected and has nothing to send yet: it computes, or waits for others."""

    kind: ClassVar[int] = 7

    def payload(self) -> bytes:
        return b""

    @classmethod
    def parse(cls, payload: memoryview) -> Self:
        _exactly(payload, 0)
        return cls()


class Done(Alive):
    """The sender has finished the run, its model is on disk, and it needs no neighbour any more."""

    kind: ClassVar[int] = 8


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt: the sender's own before round 0 of a step; to a user behind also others'."""

    receipt: Receipt
    kind: ClassVar[int] = 9

    def payload(self) -> bytes:
        return self.receipt.pack()

    @classmethod
    def parse(cls, payload: memoryview) -> SignedReceipt:
        return cls(Receipt.parse(payload))


@dataclass(frozen=True)
class KeyRequest:
    """The sender has not made its message of `step`, and asks for the key that the other used."""

    step: int
    kind: ClassVar[int] = 10

    def payload(self) -> bytes:
        return struct.pack("<Q", self.step)

    @classmethod
    def parse(cls, payload: memoryview) -> KeyRequest:
        return cls(*struct.unpack("<Q", payload))


@dataclass(frozen=True)
class SealedKey:
    """The answer: the key, encrypted under the newest secret; empty if it is gone."""

    step: int
    sealed: bytes
    kind: ClassVar[int] = 11

    def payload(self) -> bytes:
        return struct.pack("<Q", self.step) + self.sealed

    @classmethod
    def parse(cls, payload: memoryview) -> SealedKey:
        if len(payload) not in (8, 8 + SEALED_BYTES):
            raise ValueError
        return cls(int.from_bytes(payload[:8], "little"), bytes(payload[8:]))


Message = (
    Hello
    | Offer
    | Confirmation
    | Model
    | NoiseTag
    | Bye
    | Alive
    | Done
    | SignedReceipt
    | KeyRequest
    | SealedKey
)
_KINDS: tuple[type[Message], ...] = (
    Hello,
    Offer,
    Confirmation,
    Model,
    NoiseTag,
    Bye,
    Alive,
    Done,
    SignedReceipt,
    KeyRequest,
    SealedKey,
)
# the numbers are part of the wire format
KINDS: dict[int, type[Message]] = {m.kind: m for m in _KINDS}


def limits(model_bytes: int) -> dict[int, int]:
    """The longest payload of each kind, for models of so many bytes."""
    return {
        # 54 bytes of fixed layout
        Hello.kind: 54 + RECEIPT_BYTES + FIELDS * (1 + _NAME_BYTES + _DIGEST_BYTES),
        Offer.kind: OFFER_BYTES,
        Confirmation.kind: TAG_BYTES + 8 + KEY_ID_BYTES,
        Model.kind: Model.fixed.size + model_bytes,
        NoiseTag.kind: 16,
        Bye.kind: 200,
        Alive.kind: 0,
        Done.kind: 0,
        SignedReceipt.kind: RECEIPT_BYTES,
        KeyRequest.kind: 8,
        SealedKey.kind: 8 + SEALED_BYTES,
    }


def encode(message: Message) -> bytes:
    return b"".join(pieces(message))


def pieces(message: Message) -> list[bytes | memoryview]:
    """A frame in parts; a model's parameters are not copied."""
    rest: list[bytes | memoryview] = []
    if isinstance(message, Model):
        first, rest = Model.fixed.pack(message.step, message.round), [message.values]
    else:
        first = message.payload()
    length = len(first) + sum(map(len, rest))
    # the header has four bytes for it
    if length >= 2**32:
        raise LocalProtocolError(
            f"a message of {length:,} bytes is too long for a frame; a model has at most 4 GB"
        )
    return [HEADER.pack(message.kind, length) + first, *rest]


_LARGE = 1 << 16
"""Bytes from which a payload is not copied."""


class Decoder:
    """Turns a stream of bytes into messages.

    Holds at most one frame: a frame that is too long is refused by its header.
    """

    def __init__(self, longest: Mapping[int, int]) -> None:
        self._longest, self._held = longest, bytearray()

    def __len__(self) -> int:
        return len(self._held)

    def feed(
        self,
        data: bytes | bytearray | memoryview,
        check_turn: Callable[[type[Message]], None] | None = None,
    ) -> Iterator[Message]:
        """Yields the messages that are complete now. After an error the stream cannot go on.

        Args:
            data: The next bytes of the stream.
            check_turn: Called with each frame's kind before its payload is waited for; raises if
                that kind may not come now.
        """
        self._held += data
        at = 0
        try:
            while len(self._held) - at >= HEADER.size:
                kind, length = self._header(at)
                # before the payload is waited for: a stranger cannot make this side hold a model
                if check_turn is not None:
                    check_turn(KINDS[kind])
                first, end = at + HEADER.size, at + HEADER.size + length
                if len(self._held) < end:
                    return
                if length < _LARGE:
                    # a copy: a view of the buffer would keep it from being shortened below
                    payload, at = memoryview(bytes(self._held[first:end])), end
                # the frame goes with its message, uncopied; the bytes after it begin the next one
                else:
                    payload, self._held, at = memoryview(self._held)[first:end], self._held[end:], 0
                try:
                    message = KINDS[kind].parse(payload)
                # what parsers raise for foreign bytes; any other error is a bug of this side
                except (struct.error, ValueError, IndexError):
                    name = KINDS[kind].__name__
                    raise RemoteProtocolError(f"sent a malformed {name} ({length} bytes)") from None
                yield message
        finally:
            # also when the caller stops halfway, or an error is raised
            del self._held[:at]

    def _header(self, at: int) -> tuple[int, int]:
        """Kind and length of the frame that begins at `at`."""
        kind, length = HEADER.unpack_from(self._held, at)
        # a sentence of its own: somebody probes while this node is at work
        if kind == PROBE_KIND:
            raise RemoteProtocolError(
                "runs decor federation probe, and this side a node; start its node"
            )
        if kind not in self._longest or self._held[at + 1 : at + 4] != b"\0\0\0":
            shown = bytes(self._held[at : at + 4]).hex()
            raise RemoteProtocolError(f"sent a frame of an unknown kind ({shown})")
        if length > (longest := self._longest[kind]):
            name = KINDS[kind].__name__
            raise RemoteProtocolError(
                f"sent a {name} of {length:,} bytes; the limit is {longest:,}"
            )
        return kind, length


def _exactly(payload: memoryview, length: int) -> bytes:
    if len(payload) != length:
        raise ValueError
    return bytes(payload)
