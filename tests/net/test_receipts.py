"""Receipts: a signature counts for one key, one federation, one step and one message."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decor.net.identity import Identity
from decor.net.receipts import RECEIPT_BYTES, Receipt

FEDERATION, DIGEST = bytes(range(32)), b"d" * 32
AACHEN, BONN = Identity.new(), Identity.new()


def receipt(step=7, user=1, key=BONN, federation=FEDERATION, digest=DIGEST):
    return Receipt.sign(key.key, federation, user, step, digest)


def test_a_receipt_is_valid_for_the_key_and_federation_it_was_signed_for():
    assert receipt().is_valid(BONN.public, FEDERATION)


@pytest.mark.parametrize(
    "other",
    [
        receipt(key=AACHEN),  # another user's signature
        receipt(federation=bytes(32)),  # replayed from another federation
        replace(receipt(step=6), step=7),  # from another step
        replace(receipt(digest=bytes(32)), digest=DIGEST),  # of another message
        replace(receipt(), signature=bytes(64)),  # forged
        # the last byte is below 32, as the order of the group is below 2**253
        replace(receipt(), signature=receipt().signature[:63] + b"\xff"),
        replace(receipt(), step=2**64 - 1),
    ],
)
def test_a_forged_or_replayed_one_is_not(other):
    assert not other.is_valid(BONN.public, FEDERATION)


@given(st.integers(0, RECEIPT_BYTES - 1), st.integers(1, 255))
def test_no_byte_of_what_is_signed_can_be_changed(at, change):
    packed = bytearray(receipt().pack())
    packed[at] ^= change
    # the user's number alone is not signed: its key is
    assert Receipt.parse(packed).is_valid(BONN.public, FEDERATION) == (at < 4)


def test_a_signature_is_of_nothing_else_that_a_user_signs():
    """Offers are signed by the same key: neither may be taken for the other."""
    text = b"decor offer 1" + FEDERATION + bytes(8 + 64) + b"lower" + DIGEST
    assert not replace(receipt(), signature=BONN.key.sign(text)).is_valid(BONN.public, FEDERATION)
    # as it is written down, for other programs that check a pair of receipts
    text = b"decor receipt 1" + FEDERATION + BONN.public + struct.pack("<Q", 7) + DIGEST
    assert Receipt(9, 7, DIGEST, BONN.key.sign(text)).is_valid(BONN.public, FEDERATION)


def test_a_receipt_has_108_bytes_and_is_read_as_it_was_written():
    packed = receipt(step=2**40).pack()
    assert len(packed) == RECEIPT_BYTES == 108 and Receipt.parse(packed) == receipt(step=2**40)
    for wrong in (b"", packed[:-1], packed + b"\0"):
        with pytest.raises(struct.error):
            Receipt.parse(wrong)


def test_the_same_message_has_the_same_receipt_after_a_restart():
    """Neighbours take two receipts of a step for two messages only if the digests differ; equal
    bytes are simplest.
    """
    assert receipt() == receipt()
