"""Frames: every message is decoded to what was encoded, and nothing else is accepted."""

import pytest

from decor.errors import LocalProtocolError, RemoteProtocolError
from decor.net import messages
from decor.net.messages import (
    COUNTS,
    FIELDS,
    HEADER,
    KINDS,
    Alive,
    Bye,
    Confirmation,
    Decoder,
    Done,
    Hello,
    KeyRequest,
    Model,
    NoiseTag,
    Offer,
    SealedKey,
    SignedReceipt,
    encode,
    limits,
)
from decor.net.receipts import RECEIPT_BYTES, Receipt

SIZE = 40
RECEIPT = Receipt(3, 2**40, bytes(range(32)), bytes(range(64)))
EVERY = [
    Hello(bytes(range(32)), (("name", b"12345678"), ("steps", b"abcdefgh")), 3, 7),
    Offer(bytes(range(96))),
    Hello(bytes(32), (("name", b"12345678"),), 3, 7, RECEIPT, fetches=True),
    Confirmation(bytes(range(32)), COUNTS - 1, bytes(range(32, 64))),
    Model(2**40, 5, bytes(range(SIZE))),
    NoiseTag(9, b"12345678"),
    Bye("done"),
    Alive(),
    Done(),
    SignedReceipt(RECEIPT),
    KeyRequest(2**40),
    SealedKey(7, bytes(range(48))),
    SealedKey(7, b""),
]


def decode(data, size=SIZE):
    return list(Decoder(limits(size)).feed(data))


def test_every_kind_of_message_is_decoded_to_what_was_encoded():
    assert {type(message) for message in EVERY} == set(KINDS.values())
    assert decode(b"".join(map(encode, EVERY))) == EVERY


def test_a_frame_is_kind_zeros_length_and_payload():
    """The wire format, written down: neighbours of another version must read it."""
    assert encode(NoiseTag(9, b"12345678")).hex(" ", 4) == (
        "05000000 10000000 09000000 00000000 31323334 35363738"
    )
    assert encode(Model(7, 2, b"\1\2")).hex() == "04000000120000000700000000000000" + (
        "02000000000000000102"
    )
    hello = encode(Hello(bytes(32), (("name", b"12345678"),), 3, 7))
    # the version, and then epoch, step, whether it fetches, whether a receipt follows, fields
    assert hello[8:10] == b"\3\0" and hello[42:58].hex() == ("03000000000000000700000000000000")
    assert hello[58:62] == b"\0\0\1\0" and hello[62:] == b"\4name12345678"
    shown = encode(Hello(bytes(32), (), 3, 7, RECEIPT, fetches=True))
    assert shown[58:62] == b"\1\1\0\0" and shown[62:] == RECEIPT.pack()
    receipt = encode(SignedReceipt(RECEIPT))
    assert receipt[:20].hex() == "090000006c000000030000000000000000010000"
    assert receipt[20:] == bytes(range(32)) + bytes(range(64)) and RECEIPT_BYTES == 108


def test_a_large_model_is_decoded_without_a_copy_and_what_follows_it_is_kept():
    size = 1 << 17
    data = encode(Model(1, 0, bytes(size))) + encode(Alive())
    large, alive = decode(data, size)
    assert isinstance(large.values, memoryview) and large.values.readonly
    assert bytes(large.values) == bytes(size) and alive == Alive()


def frame(kind, payload):
    return HEADER.pack(kind.kind, len(payload)) + payload


HELLO = Hello(bytes(32), (("name", b"12345678"),), 1, 0).payload()
MALFORMED = {
    "short": frame(Hello, HELLO[:-1]),
    "long": frame(Hello, HELLO + b"x"),
    "name beyond the end": frame(Hello, HELLO[:54] + b"\xff" + HELLO[55:]),
    "name not ASCII": frame(Hello, HELLO[:55] + b"\xff" + HELLO[56:]),
    "fetches, in another way": frame(Hello, HELLO[:50] + b"\2" + HELLO[51:]),
    "a receipt, in another way": frame(Hello, HELLO[:51] + b"\2" + HELLO[52:]),
    "a receipt that is missing": frame(Hello, HELLO[:51] + b"\1" + HELLO[52:]),
    "name twice": encode(Hello(bytes(32), (("name", bytes(8)),) * 2, 1, 0)),
    "epoch": encode(Hello(bytes(32), (), COUNTS, 0)),
    "step": encode(Hello(bytes(32), (), 1, COUNTS)),
    "model with other zeros": frame(Model, bytes(12) + b"\0\0\0\1" + bytes(SIZE)),
    "short offer": frame(Offer, bytes(95)),
    "short tag": frame(NoiseTag, bytes(15)),
    "short confirmation": frame(Confirmation, bytes(71)),
    "next step": encode(Confirmation(bytes(32), COUNTS, bytes(32))),
    "short receipt": frame(SignedReceipt, RECEIPT.pack()[:-1]),
    "short request": frame(KeyRequest, bytes(7)),
    "short key": frame(SealedKey, bytes(8 + 47)),
    "key without a step": frame(SealedKey, bytes(7)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_is_refused(name):
    with pytest.raises(RemoteProtocolError, match="sent a malformed"):
        decode(MALFORMED[name])


def test_another_version_and_too_many_fields_are_refused_with_both_numbers():
    with pytest.raises(RemoteProtocolError, match="speaks version 9 .* version 3"):
        decode(frame(Hello, b"\x09" + HELLO[1:]))
    # as version 0.1 wrote it
    with pytest.raises(RemoteProtocolError, match="speaks version 2 .* install the same version"):
        decode(frame(Hello, b"\x02\0" + bytes(32 + 16) + b"\1\0\4name12345678"))
    many = tuple((f"field{k}", bytes(8)) for k in range(FIELDS + 1))
    with pytest.raises(RemoteProtocolError, match=f"{FIELDS + 1} fields.* {FIELDS}"):
        decode(encode(Hello(bytes(32), many, 1, 0)))


def test_a_kind_out_of_turn_is_refused_before_its_payload_arrives():
    def refuse(kind):
        raise RemoteProtocolError(f"no {kind.__name__} now")

    with pytest.raises(RemoteProtocolError, match="no Model now"):
        list(Decoder(limits(SIZE)).feed(encode(Model(0, 0, bytes(SIZE)))[: HEADER.size], refuse))


def test_a_reason_is_short_printable_ascii_whatever_was_given():
    (bye,) = decode(encode(Bye("caf\N{LATIN SMALL LETTER E WITH ACUTE}" + "x" * 300)))
    assert bye.reason.startswith("caf?xxx") and len(bye.reason) == 200
    assert decode(frame(Bye, b"\x1b[2Jgone\xff\n")) == [Bye("?[2Jgone??")]


def test_a_message_that_does_not_fit_in_a_frame_is_this_sides_error():
    class Huge(bytes):
        def __len__(self):
            return 2**32

    with pytest.raises(LocalProtocolError, match="at most 4 GB"):
        messages.pieces(Model(0, 0, Huge()))
