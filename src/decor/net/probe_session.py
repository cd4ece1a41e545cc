"""One connection of `decor federation probe`: bytes in, bytes and events out, no I/O.

It agrees on no secret and carries no model. Both sides greet each other, measure the round trip
and the clocks (pings), then the bandwidth (bulk), and pass on reports.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from decor.errors import RemoteProtocolError

from .messages import Alive, Done, KeyRequest, SealedKey, SignedReceipt
from .probe_messages import (
    PIECE_BYTES,
    Kind,
    NodeAnswered,
    ProbeDecoder,
    ProbeHello,
    Report,
    frame,
    goodbye,
    printable,
)
from .rate_limit import RateLimit
from .session import Ended, Event, Heard, Opened, Session, State

PINGS = 5
"""Of each side; the best counts."""
BULK_BYTES = 1 << 20
"""That each side sends to measure the bandwidth."""
FINISHED = "has finished its probe"
"""The reason of a Bye after which the neighbour needs nothing more."""
REPORTS, REPORTS_PER_SECOND = 2000, 100
"""Of one neighbour, at once and per second."""
_NUMBER = struct.Struct("<d")
_LATEST = 1e11
"""No clock is later, in seconds since 1970."""


@dataclass
class Measurement:
    """What one connection has shown so far; None: nothing yet.

    Attributes:
        hello: The neighbour's.
        round_trip: Seconds, the best of the pings.
        clock: Seconds by which the neighbour's clock is ahead, from the best ping.
        sent: Bytes per second to the neighbour.
        received: Bytes per second from the neighbour, as it has measured them.
        is_sent: All bytes to the neighbour have arrived: `sent` is final.
    """

    hello: ProbeHello | None = None
    round_trip: float | None = None
    clock: float | None = None
    sent: float | None = None
    received: float | None = None
    is_sent: bool = False

    @property
    def is_complete(self) -> bool:
        return self.is_sent and self.received is not None


class ProbeSession(Session):
    """A `Session` for `Connections`, with messages of its own: no secret, no model, no step.

    Args:
        neighbour: Its name, for messages to people.
        hello: This side's greeting.
        on_report: Receives the neighbour's reports.
        clock: This machine's clock, seconds since 1970.
        monotonic: Seconds that never go back.
    """

    def __init__(
        self,
        neighbour: str,
        hello: ProbeHello,
        on_report: Callable[[Report], None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        # nothing of a Session's own: it would agree on a secret
        self.neighbour, self._on_report = neighbour, on_report
        self._clock, self._monotonic = clock, monotonic
        self.state = State.GREETING
        self._out: deque[bytes | memoryview] = deque()
        self._probe_decoder = ProbeDecoder()
        self.measured = Measurement()
        self.has_finished = self.is_node = False
        # nonce and time of the ping that is under way
        self._ping = b"", 0.0, 0.0
        self._pings_left, self._pings_answered = PINGS, 0
        self._bulk_began, self._acknowledged, self._taken = 0.0, 0, 0
        self._reports = RateLimit(REPORTS, REPORTS_PER_SECOND, monotonic)
        self._out.append(frame(Kind.HELLO, hello.payload()))

    def receive(self, data: bytes) -> list[Event]:
        """Returns the events in these bytes.

        Raises:
            RemoteProtocolError: The neighbour sent what it may not send. The session is closed.
        """
        events: list[Event] = []
        try:
            for kind, payload in self._probe_decoder.feed(data) if not self.is_over else ():
                try:
                    events += self._handle(kind, payload)
                # UnicodeError is a ValueError, and so are the errors of JSON
                except (struct.error, ValueError, KeyError, TypeError, OverflowError):
                    size = len(payload)
                    raise RemoteProtocolError(
                        f"sent a malformed {kind.name.lower()} ({size} bytes)"
                    ) from None
                if self.is_over:
                    break
        except RemoteProtocolError as problem:
            # kept, because the error itself ends in `Connections`, which knows nothing of probes
            self.is_node = isinstance(problem, NodeAnswered)
            self.close("protocol error")
            raise RemoteProtocolError(f"{self.neighbour} {problem}") from None
        return events

    def send(self, word: Alive | Done | SignedReceipt | KeyRequest | SealedKey) -> None:
        """Sends nothing: `Connections` calls it for its Alive, which a probe does not need."""

    def send_report(self, report: Report) -> None:
        """Queues a report; for a session that is open."""
        self._out.append(frame(Kind.REPORT, report.payload()))

    def close(self, reason: str) -> None:
        """Queues one Bye; nothing is sent or received afterwards."""
        if not self.is_over:
            self._out.append(goodbye(reason))
            self.state = State.CLOSED

    def _handle(self, kind: Kind, payload: bytes) -> list[Event]:
        if kind is Kind.BYE:
            self.state = State.CLOSED
            reason = printable(payload.decode("ascii", "replace"))
            # after any other reason it may come back, and is dialled again
            self.has_finished = reason == FINISHED
            return [Ended(reason)]
        # a second hello could take back what the first has said about the file
        if (kind is Kind.HELLO) == (self.measured.hello is not None):
            raise RemoteProtocolError(f"sent a {kind.name.lower()} at the wrong time")
        if kind is Kind.HELLO:
            self.measured.hello = ProbeHello.parse(payload)
            self._send_ping()
            return [Opened()]
        moves = {
            Kind.PING: self._answer,
            Kind.PONG: self._time,
            Kind.BULK: self._take,
            Kind.TAKEN: self._acknowledge,
            Kind.RATE: self._learn_rate,
            Kind.REPORT: self._report,
        }
        moves[kind](payload)
        return [Heard()]

    def _send_ping(self) -> None:
        self._pings_left -= 1
        # random: a pong that was sent ahead of its ping would make the way look short
        self._ping = os.urandom(8), self._monotonic(), self._clock()
        self._out.append(frame(Kind.PING, self._ping[0]))

    def _answer(self, nonce: bytes) -> None:
        self._pings_answered += 1
        # a neighbour must not make this side answer for ever
        if len(nonce) != 8 or self._pings_answered > PINGS:
            raise ValueError
        self._out.append(frame(Kind.PONG, nonce + _NUMBER.pack(self._clock())))

    def _time(self, payload: bytes) -> None:
        nonce, began, wall = self._ping
        (theirs,) = _NUMBER.unpack(payload[8:])
        # in this form the comparison refuses NaN as well
        if not nonce or payload[:8] != nonce or not abs(theirs) <= _LATEST:
            raise ValueError
        # each ping has one pong: a second would set off the next ping, or the bulk, twice
        self._ping = b"", 0.0, 0.0
        taken, measured = self._monotonic() - began, self.measured
        # the shortest: everything else that happens on the way only adds to a ping
        if measured.round_trip is None or taken < measured.round_trip:
            # the neighbour looked at its clock about halfway
            measured.round_trip, measured.clock = taken, theirs - (wall + taken / 2)
        if self._pings_left:
            self._send_ping()
        else:
            # not before the last pong: pings would queue behind the bulk
            self._send_bulk()

    def _send_bulk(self) -> None:
        self._bulk_began = self._monotonic()
        # zeros are as good as random bytes: TLS 1.3 does not compress
        piece = frame(Kind.BULK, bytes(PIECE_BYTES))
        self._out.extend([piece] * (BULK_BYTES // PIECE_BYTES))

    def _take(self, piece: bytes) -> None:
        self._taken += len(piece)
        # empty pieces would never reach the limit, and each would be answered
        if self._taken > BULK_BYTES or not piece:
            raise ValueError
        self._out.append(frame(Kind.TAKEN, self._taken.to_bytes(8, "little")))

    def _acknowledge(self, payload: bytes) -> None:
        total = int.from_bytes(payload, "little")
        # whoever could acknowledge what has not been sent could claim any bandwidth
        if (
            len(payload) != 8
            or not self._bulk_began
            or not self._acknowledged < total <= BULK_BYTES
        ):
            raise ValueError
        self._acknowledged = total
        # the acknowledgement takes half a round trip, and so does the first piece
        taken = self._monotonic() - self._bulk_began - (self.measured.round_trip or 0.0)
        # pieces can be faster than the best ping was: then the difference is not positive
        self.measured.sent = total / max(taken, 1e-6)
        if total == BULK_BYTES:
            self.measured.is_sent = True
            # the receiver cannot measure it: it does not know when the first piece left
            self._out.append(frame(Kind.RATE, _NUMBER.pack(self.measured.sent)))

    def _learn_rate(self, payload: bytes) -> None:
        (rate,) = _NUMBER.unpack(payload)
        if not (0 < rate < 1e15 and math.isfinite(rate)) or self.measured.received is not None:
            raise ValueError
        self.measured.received = rate

    def _report(self, payload: bytes) -> None:
        # before it is parsed: a report that is new goes on to other neighbours
        if not self._reports.allow():
            raise RemoteProtocolError("sends reports too often")
        self._on_report(Report.parse(payload))
