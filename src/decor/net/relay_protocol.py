"""How two users meet at a relay: what each sends, and what the relay answers.

Both call it, and each names the other: (federation, relay, own key, neighbour's key), signed
together with a nonce of the relay. Whoever comes first waits. Once both are there the relay joins
the two connections, and passes bytes on that it cannot read: TLS with pinned keys begins then, end
to end.
A relay that lies can only fail to connect users, and only those that call it: what they have signed
is worth nothing at another relay.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from decor.errors import RemoteProtocolError

from .addresses import Address
from .rate_limit import RateLimit

GREETING = b"decor relay 2\n"
"""The relay's first bytes, before its nonce; another version has another number."""
NONCE_BYTES, CALL_BYTES = 32, 192
WAIT, JOINED, REFUSED = b".", b"+", b"!"
"""What a relay answers: wait (again and again), joined, or refused with a reason."""
WAIT_SECONDS = 20.0
"""Between two of a relay's bytes to a user that waits: connections that say nothing are cut by
routers on the way, and a user notices that its relay is gone."""
WAITS = 10
"""Such bytes that may come at once, after a delay on the way."""
ANSWER_SECONDS = 10.0
"""In which a relay greets, and answers a call."""
_LABEL = b"decor relay call 2\0"


def relay_id(relay: Address) -> bytes:
    """What a call has of a relay's address: 32 bytes, whatever the length of the name.

    Args:
        relay: As the federation file has it, in small or capital letters.
    """
    # names of hosts ignore capitals: user and relay must come to the same id
    return hashlib.sha256(str(relay).lower().encode()).digest()


@dataclass(frozen=True)
class Call:
    """What a user tells a relay."""

    federation: bytes
    """The digest of the federation's file."""
    relay: bytes
    """`relay_id` of the relay that is meant."""
    own: bytes
    neighbour: bytes
    """Public keys, of the caller and of the user that it wants to meet."""
    signature: bytes

    @staticmethod
    def make(
        key: Ed25519PrivateKey, federation: bytes, relay: Address, neighbour: bytes, nonce: bytes
    ) -> Call:
        """A call that answers the relay's nonce.

        Args:
            key: The caller's.
            federation: The digest of the federation's file.
            relay: Its address, as the file has it.
            neighbour: The public key of the user to meet.
            nonce: What the relay has sent.
        """
        own = key.public_key().public_bytes_raw()
        fields = federation, relay_id(relay), own, neighbour
        # the label: this key signs offers and receipts too; the nonce: calls can be overheard
        return Call(*fields, key.sign(_LABEL + nonce + b"".join(fields)))

    def to_bytes(self) -> bytes:
        return self.federation + self.relay + self.own + self.neighbour + self.signature

    @staticmethod
    def parse(data: bytes) -> Call:
        """From CALL_BYTES bytes; nothing is verified."""
        return Call(data[:32], data[32:64], data[64:96], data[96:128], data[128:])

    def is_signed(self, nonce: bytes) -> bool:
        """Whether the owner of the key has answered this nonce."""
        text = _LABEL + nonce + self.federation + self.relay + self.own + self.neighbour
        try:
            Ed25519PublicKey.from_public_bytes(self.own).verify(self.signature, text)
        # a stranger may name 32 bytes that are no key
        except (InvalidSignature, ValueError):
            return False
        return True


Refusal = Literal[
    "unknown_federation",
    "unknown_key",
    "not_neighbours",
    "wrong_signature",
    "wrong_relay",
    "rate_limited",
    "no_call",
    "too_many_bytes",
]
"""Why a connection is refused, as metrics name it."""
SENTENCES: Mapping[Refusal, str] = {
    "unknown_federation": "this relay does not know the federation file; give it to its operator",
    "unknown_key": "the key is of no user of the federation",
    "not_neighbours": "the two users are not neighbours",
    "wrong_signature": "the signature is not of that key",
    "wrong_relay": "the call is for a relay at another address; its operator can name this one",
    "rate_limited": "too many calls; wait a moment",
    "no_call": "made no call in time",
    "too_many_bytes": "more bytes than a call, before the other user was there",
}
"""The same, as the caller is told."""


def refusal(reason: str) -> bytes:
    """A relay's last bytes to a caller: at most 255 of the reason."""
    text = reason.encode("ascii", "replace")[:255]
    return REFUSED + bytes([len(text)]) + text


async def meet(
    made: socket.socket,
    key: Ed25519PrivateKey,
    federation: bytes,
    relay: Address,
    neighbour: bytes,
    on_wait: Callable[[], object] = lambda: None,
) -> None:
    """Calls a relay, and waits until the neighbour is there too.

    Args:
        made: A connection to the relay that does not block. Not a byte more is read from it than
            the relay's own: what follows is the neighbour's.
        key: This user's.
        federation: The digest of the federation's file.
        relay: Its address, as the file has it.
        neighbour: The public key of the user to meet.
        on_wait: Called each time the relay says that the neighbour is not there yet.

    Raises:
        RemoteProtocolError: It is no relay, it refuses, or it says wait without end.
        OSError: The connection has ended, or the relay does not answer any more.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        greeting = await _receive(made, len(GREETING) + NONCE_BYTES)
        # before anything is signed: some other server must not get a signature
        if not greeting.startswith(GREETING):
            raise RemoteProtocolError("does not answer as a relay of this version")
        call = Call.make(key, federation, relay, neighbour, greeting[len(GREETING) :])
        await asyncio.get_running_loop().sock_sendall(made, call.to_bytes())
    # three of the relay's bytes may be late or lost on the way
    patience = ANSWER_SECONDS + 3 * WAIT_SECONDS
    limit = RateLimit(WAITS, 2 / WAIT_SECONDS)
    while True:
        # anew for each answer: a neighbour may come days later
        async with asyncio.timeout(patience):
            # one byte at a time: what follows the last one belongs to TLS
            answer = await _receive(made, 1)
            if answer == JOINED:
                return
            if answer == WAIT:
                # bytes that are there are read without a pause: a flood would stop this whole user
                if not limit.allow():
                    raise RemoteProtocolError("says wait too often")
                on_wait()
            elif answer == REFUSED:
                length = await _receive(made, 1)
                # no one vouches for what a relay says
                reason = (await _receive(made, length[0])).decode("ascii", "replace")
                shown = "".join(c if c.isprintable() else "?" for c in reason)
                raise RemoteProtocolError(f"refuses: {shown}")
            else:
                raise RemoteProtocolError("does not answer as a relay of this version")


async def _receive(made: socket.socket, count: int) -> bytes:
    """Exactly so many bytes."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < count:
        part = await loop.sock_recv(made, count - len(data))
        if not part:
            raise ConnectionResetError("hung up")
        data += part
    return data
