"""One connection at a relay: what it has said, and how fast bytes go to its other end."""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

from .rate_limit import RateLimit
from .relay_protocol import CALL_BYTES, GREETING, JOINED, NONCE_BYTES, Call, Refusal, refusal

BUFFER_BYTES = 1 << 18
"""Of one direction of a pair: beyond it nothing is read before the other end has taken some."""
_FULL, _TOO_FAST = 1, 2
"""Why nothing is read from a connection now."""

Pair = tuple[bytes, bytes, bytes]
"""(digest of a federation, caller's public key, neighbour's public key)."""


class Desk(Protocol):
    """What a connection needs of its relay."""

    connections: int
    """Open now."""
    passed_bytes: int

    def receive_call(self, side: Side, call: Call) -> None:
        """Admits a caller or refuses it."""

    def refuse(self, side: Side, problem: Refusal) -> None:
        """Counts a refusal, and ends the connection."""

    def forget(self, side: Side) -> None:
        """A connection has ended."""


class Side(asyncio.Protocol):
    """One connection: first a caller, then one end of a pair.

    Args:
        relay: Decides about its call.
    """

    transport: asyncio.Transport

    def __init__(self, relay: Desk) -> None:
        self._relay, self._held, self._paused = relay, b"", 0
        self.nonce = os.urandom(NONCE_BYTES)
        self.pair: Pair | None = None
        self.other: Side | None = None
        self.settled = asyncio.Event()
        """Whether it has made a valid call, or has ended."""
        self._bandwidth: RateLimit | None = None

    def identify(self, pair: Pair, bandwidth: RateLimit) -> None:
        """The caller's signature was valid.

        Args:
            pair: Whom it calls, and as whom.
            bandwidth: What the caller may send, over all its connections.
        """
        self.pair, self._bandwidth = pair, bandwidth
        self.settled.set()

    def join(self, other: Side) -> None:
        """From now on bytes are passed on; the caller is told so first.

        Args:
            other: The neighbour's connection.
        """
        self.other = other
        self.transport.write(JOINED)

    def refuse(self, reason: str) -> None:
        """Ends the connection.

        Args:
            reason: Told to a caller that is not joined yet, and was not.
        """
        # one that is closing has a neighbour that has left: a user that never reads the rest must
        # not hold a buffer for each of its calls
        if self.other is not None or self.transport.is_closing():
            self.transport.abort()
        else:
            self.transport.write(refusal(reason))
            self.transport.close()

    # of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._relay.connections += 1
        transport.set_write_buffer_limits(BUFFER_BYTES)
        transport.write(GREETING + self.nonce)

    def data_received(self, data: bytes) -> None:
        if (other := self.other) is not None:
            other.transport.write(data)
            self._relay.passed_bytes += len(data)
            assert self._bandwidth is not None
            if (seconds := self._bandwidth.take(len(data))) > 0:
                self._pause(_TOO_FAST)
                asyncio.get_running_loop().call_later(seconds, self._resume, _TOO_FAST)
            return
        if self.transport.is_closing():
            return
        self._held += data
        if self.pair is not None or len(self._held) > CALL_BYTES:
            self._relay.refuse(self, "too_many_bytes")
        elif len(self._held) == CALL_BYTES:
            self._relay.receive_call(self, Call.parse(self._held))

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.connections -= 1
        self._relay.forget(self)
        self.settled.set()
        if (other := self.other) is not None:
            self.other = other.other = None
            # what it was sent is still written
            other.transport.close()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other._pause(_FULL)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other._resume(_FULL)

    def _pause(self, why: int) -> None:
        if not self._paused:
            self.transport.pause_reading()
        self._paused |= why

    def _resume(self, why: int) -> None:
        was, self._paused = self._paused, self._paused & ~why
        if was and not self._paused and not self.transport.is_closing():
            self.transport.resume_reading()
