"""Two neighbours agree on a secret: X25519 keys signed by their identities, and HKDF over both.

Nothing here reads or writes: an `Agreement` gives bytes to send and takes bytes received. The
result is an `EdgeSecret`. Each step's key follows from it by a ratchet that only goes forward: a
machine that is seized later reveals no earlier noise.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from decor.errors import AgreementError, InputError

OFFER_BYTES = 32 + 64  # public key and signature
TAG_BYTES = 32
KEY_BYTES = 32
SEALED_BYTES = KEY_BYTES + 16  # and the tag of AES-GCM
KEY_ID_BYTES = 32
# labels keep the uses of one hash apart; the digit is the version of the protocol
_OFFER, _EDGE, _SECRET = b"decor offer 1", b"decor edge 1", b"decor edge secret 1"
_KEY_ID, _SEALED = b"decor key id 1", b"decor sealed key 1"


def key_id(key: bytes) -> bytes:
    """Names a key of a step; says nothing about it to anyone who does not have it."""
    return _hmac(key, _KEY_ID)


@dataclass(frozen=True)
class Edge:
    """What two neighbours must already agree about: their identities, the federation, the epoch.

    Attributes:
        lower: Public key of the user with the lower number.
        higher: Public key of the user with the higher number.
        federation: Digest of the federation's file.
        epoch: Grows with each agreement of the two, so that no exchange can replace another.
    """

    lower: bytes
    higher: bytes
    federation: bytes
    epoch: int

    def __post_init__(self) -> None:
        if not (len(self.lower) == len(self.higher) == len(self.federation) == 32):
            raise InputError("public keys and the federation's digest have 32 bytes each")
        if self.lower == self.higher:
            raise InputError("two neighbours have different identities; one key is used by both")
        if not 0 <= self.epoch < 2**64:
            raise InputError(f"an epoch is a whole number from 0 to 2^64 - 1, not {self.epoch!r}")

    def encode(self) -> bytes:
        return self.federation + struct.pack("<Q", self.epoch) + self.lower + self.higher


class Agreement:
    """One end of one exchange; its key is deleted by `accept`."""

    def __init__(
        self, identity: Ed25519PrivateKey, edge: Edge, random: Callable[[int], bytes] = os.urandom
    ) -> None:
        own = identity.public_key().public_bytes_raw()
        if own not in (edge.lower, edge.higher):
            raise InputError("this identity is at neither end of the edge")
        self.edge, self.is_lower = edge, own == edge.lower
        # all 32 bytes of the X25519 key come from `random`, where an audit can count them
        self._key: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(random(32))
        self._public = self._key.public_key().public_bytes_raw()
        self.offer = self._public + identity.sign(_offer_text(edge, self.is_lower, self._public))
        """To be sent to the neighbour."""

    def accept(self, offer: bytes) -> EdgeSecret:
        """The secret, from the neighbour's offer; both must compare tags before they use it."""
        if self._key is None:
            raise AgreementError(
                "this agreement was used already; begin another with a higher epoch"
            )
        if len(offer) != OFFER_BYTES:
            raise AgreementError(f"an offer has {OFFER_BYTES} bytes, not {len(offer)}")
        public, signature = offer[:32], offer[32:]
        neighbour = self.edge.higher if self.is_lower else self.edge.lower
        try:
            Ed25519PublicKey.from_public_bytes(neighbour).verify(
                signature, _offer_text(self.edge, not self.is_lower, public)
            )
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except InvalidSignature:
            raise AgreementError(
                "the offer is not signed by this neighbour for this federation and epoch"
            ) from None
        except ValueError:
            raise AgreementError(
                "the offer's key is of small order, which no honest neighbour sends"
            ) from None
        # no later compromise of this process reveals the exchange
        self._key = None
        low, high = (self._public, public) if self.is_lower else (public, self._public)
        # both offers are in the salt: a changed one gives the two ends different secrets
        transcript = hashlib.sha256(_EDGE + self.edge.encode() + low + high).digest()
        secret = HKDF(SHA256(), 96, salt=transcript, info=_SECRET).derive(shared)
        chain, confirmation, sealing = secret[:32], secret[32:64], secret[64:]
        return EdgeSecret(chain, confirmation, sealing, self.edge, transcript, self.is_lower)


class EdgeSecret:
    """What the two ends of an edge share. Never printed or written; past steps' keys are gone."""

    def __init__(
        self,
        chain: bytes,
        confirmation: bytes,
        sealing: bytes,
        edge: Edge,
        transcript: bytes,
        is_lower: bool,
    ) -> None:
        self._chain, self.step = bytearray(chain), 0
        """The first step whose key can still be computed."""
        self._confirmation = confirmation
        self._sealing: AESGCM | None = AESGCM(sealing)
        self._edge, self._transcript, self.is_lower = edge, transcript, is_lower

    def __repr__(self) -> str:
        return f"EdgeSecret(step {self.step})"

    def __reduce__(self) -> str:
        raise TypeError("an edge's secret must not be written anywhere")

    def tag(self, claim: bytes = b"") -> bytes:
        """To be sent to the neighbour: proves that this end has the secret, and reveals nothing.

        Args:
            claim: What this end says at the same time; nobody else can change it.
        """
        return self._tag(self.is_lower, claim)

    def confirm(self, tag: bytes, claim: bytes = b"") -> None:
        """Raises unless the neighbour holds the same secret, and has made this claim."""
        # in constant time: the duration must not show how many bytes agree
        if not hmac.compare_digest(tag, self._tag(not self.is_lower, claim)):
            raise AgreementError(
                "the neighbour has another secret: the connection is intercepted, or one of the "
                "two is faulty"
            )

    def seal(self, step: int, key: bytes) -> bytes:
        """Encrypts a step's key of an older secret for the neighbour; once in all."""
        cipher = self._sealing_cipher(step)
        self.forget_sealing()
        return cipher.encrypt(*self._sealing_parts(step, key, self.is_lower))

    def unseal(self, step: int, sealed: bytes) -> bytes:
        """A step's key from the neighbour; once in all."""
        cipher = self._sealing_cipher(step)
        try:
            key = cipher.decrypt(*self._sealing_parts(step, sealed, not self.is_lower))
        except InvalidTag:
            raise AgreementError(
                f"the key of step {step} was not sealed by this neighbour"
            ) from None
        self.forget_sealing()
        return key

    def forget_sealing(self) -> None:
        """No key is sealed or unsealed any more: whoever seizes this end opens no recorded one."""
        self._sealing = None

    def _sealing_cipher(self, step: int) -> AESGCM:
        if self._sealing is None:
            raise AgreementError(
                f"the key of step {step} cannot be sealed or unsealed: this secret has sealed one "
                "already, or is too old; connect again"
            )
        return self._sealing

    def _sealing_parts(self, step: int, data: bytes, by_lower: bool) -> tuple[bytes, bytes, bytes]:
        """Nonce, data and associated data of AES-GCM."""
        # one direction and step, one nonce: the secret is of this connection alone
        nonce = struct.pack("<?3xQ", by_lower, step)
        return nonce, data, _SEALED + self._edge.encode() + nonce

    def key(self, step: int) -> bytes:
        """The key of a step; steps only go forward, and skipped ones are lost too."""
        if step < self.step:
            raise AgreementError(f"the key of step {step} is gone: the edge is at step {self.step}")
        while self.step < step:
            self._advance()
        # the key and the next link come from one chain value by different labels
        key = _hmac(self._chain, b"key" + struct.pack("<Q", step))
        self._advance()
        return key

    def _advance(self) -> None:
        self._chain[:] = _hmac(self._chain, b"next")  # in place: the old one is overwritten
        self.step += 1

    def _tag(self, lower: bool, claim: bytes) -> bytes:
        side = b"lower" if lower else b"higher"
        return _hmac(self._confirmation, side + self._transcript + claim)


def _offer_text(edge: Edge, by_lower: bool, public: bytes) -> bytes:
    # the end is part of it: an offer cannot be sent back to its own sender
    return _OFFER + edge.encode() + (b"lower" if by_lower else b"higher") + public


def _hmac(key: bytes | bytearray, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
