"""Receipts: a user's signature on a step and the digest of its message.

A node signs each message once it is in its ledger. Neighbours keep the newest receipt of each
other and show it in every greeting, so that a node whose ledger was lost, copied or restored learns
about the messages it has forgotten, before it makes a second message for one of their steps.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_LABEL = b"decor receipt 1"
_LAYOUT = struct.Struct("<IQ32s64s")
RECEIPT_BYTES = _LAYOUT.size


@dataclass(frozen=True)
class Receipt:
    """`user` has made a message of `step` with this SHA-256.

    Anyone can make one with a wrong signature: `is_valid` is asked before one has any effect.
    """

    user: int
    step: int
    digest: bytes
    signature: bytes

    @staticmethod
    def sign(
        key: Ed25519PrivateKey, federation: bytes, user: int, step: int, digest: bytes
    ) -> Receipt:
        """Signs; only for a message that is in the ledger.

        Args:
            key: The user's identity.
            federation: Digest of the federation's file.
            user: The user's number there.
            step: The step of the message.
            digest: SHA-256 of its bytes.
        """
        public = key.public_key().public_bytes_raw()
        return Receipt(user, step, digest, key.sign(_text(federation, public, step, digest)))

    def is_valid(self, public: bytes, federation: bytes) -> bool:
        """Whether the owner of this public key has signed it for this federation."""
        text = _text(federation, public, self.step, self.digest)
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(self.signature, text)
        except InvalidSignature:
            return False
        return True

    def pack(self) -> bytes:
        return _LAYOUT.pack(self.user, self.step, self.digest, self.signature)

    @staticmethod
    def parse(payload: bytes | memoryview) -> Receipt:
        """The inverse of `pack`; raises struct.error for another length."""
        return Receipt(*_LAYOUT.unpack(payload))


def _text(federation: bytes, public: bytes, step: int, digest: bytes) -> bytes:
    # the key stands for the user: its number is only an order in the file, which the digest covers
    return _LABEL + federation + public + struct.pack("<Q", step) + digest
