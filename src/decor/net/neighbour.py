"""A neighbour as this user sees it: its connection, its messages, and their common secrets."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from . import transport
from .addresses import Address, parse_addresses
from .edge_keys import EdgeKeys
from .edge_tags import EdgeTags
from .messages import Alive, Done, KeyRequest, SealedKey, SignedReceipt
from .rate_limit import RateLimit
from .session import Session

Values = bytes | memoryview
"""The parameters of a model as they travel: little-endian, without a header."""
CLOSING_SECONDS = 1.0
"""How long a connection that ends may take to send its last bytes."""
HELD = 3
"""Models of one neighbour that are kept until they are used."""
_SHORT = 1 << 12
"""Bytes of a piece that is copied to be written with others."""
FIRST_QUARANTINE = 2.0
"""Seconds for which a neighbour that broke the rules is not talked to the first time."""


@dataclass(frozen=True)
class Neighbour:
    """A user that shares an edge with this one.

    `dials`: whether this side dials. `is_lower`: whether this side has the lower number.
    """

    number: int
    name: str
    public: bytes
    address: str
    """As in the federation's file: several are separated by spaces."""
    dials: bool
    is_lower: bool

    @cached_property
    def addresses(self) -> tuple[Address, ...]:
        """In the order in which they are tried."""
        return parse_addresses(self.address)


@dataclass
class Traffic:
    """Bytes on all connections to one neighbour, without what TLS adds."""

    sent: int = 0
    received: int = 0


class Connection:
    """One TLS connection: its session, and bytes of the session that are not written yet."""

    def __init__(
        self, session: Session, writer: asyncio.StreamWriter, traffic: Traffic | None = None
    ) -> None:
        self.session, self._writer = session, writer
        self._traffic = traffic or Traffic()
        self._unsent: deque[Values] = deque()
        self._more = asyncio.Event()

    def flush(self) -> int:
        """Queues the session's output; returns how many bytes wait to be sent."""
        self._unsent.extend(self.session.parts())
        self._more.set()
        return sum(map(len, self._unsent))

    def close(self, reason: str, patience: float = CLOSING_SECONDS) -> None:
        """Queues a Bye; aborts after `patience` seconds, whether or not it could be sent."""
        self.session.close(reason)
        self.flush()
        # the other side may never read: its socket must not stay open for that
        asyncio.get_running_loop().call_later(patience, transport.abort, self._writer)

    async def write_all(self) -> None:
        """Writes what is queued, until the session is over; then closes the connection."""
        with suppress(OSError):
            while True:
                while self._unsent:
                    whole = memoryview(self._next_piece())
                    # one piece at a time, so that little is encrypted but not yet sent
                    for first in range(0, len(whole), transport.WRITE_BYTES):
                        part = whole[first : first + transport.WRITE_BYTES]
                        self._writer.write(part)
                        await self._writer.drain()
                        self._traffic.sent += len(part)
                if self.session.is_over:
                    # not earlier: the last bytes are the Bye, which says why
                    self._writer.close()
                    return
                # no await since the queue was seen empty, so nothing that came is missed
                self._more.clear()
                await self._more.wait()

    def _next_piece(self) -> Values:
        """What is written next: short pieces together, each write is encrypted by itself."""
        piece = self._unsent.popleft()
        if len(piece) >= _SHORT or not self._unsent or len(self._unsent[0]) >= _SHORT:
            # a model is most of the bytes: it is written from where it lies
            return piece
        short = [piece]
        while self._unsent and len(self._unsent[0]) < _SHORT:
            short.append(self._unsent.popleft())
        return b"".join(short)


class Inbox:
    """Models of one neighbour that wait for their round: the latest `HELD` of them.

    While it holds any, nothing more is read from the neighbour: TCP makes the sender wait.
    """

    def __init__(self) -> None:
        self._models: dict[tuple[int, int], Values] = {}
        self._empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._models)

    def put(self, step: int, round_: int, values: Values) -> None:
        self._empty.clear()
        self._models[step, round_] = values
        # bounds the memory that one neighbour can take
        while len(self._models) > HELD:
            del self._models[min(self._models)]

    def has(self, step: int, round_: int) -> bool:
        """Whether a round's model is here, or a later one of this step or the next.

        A neighbour that is two steps ahead does not take part in this round.
        """
        return any((step, round_) <= at < (step + 2, 0) for at in self._models)

    def take(self, step: int, round_: int) -> Values | None:
        """Removes and returns the model of a round; None if there is none."""
        values = self._models.pop((step, round_), None)
        self._update()
        return values

    def drop_before(self, step: int) -> None:
        """Removes models of earlier steps."""
        self._models = {at: values for at, values in self._models.items() if at[0] >= step}
        self._update()

    def clear(self) -> None:
        self._models.clear()
        self._update()

    async def wait_until_empty(self) -> None:
        """Returns when the inbox has become empty, or its connection has ended."""
        await self._empty.wait()

    def release_reader(self) -> None:
        """Wakes the reader of a connection that has ended; the next reader has its own event."""
        self._empty.set()
        self._empty = asyncio.Event()

    def _update(self) -> None:
        if not self._models:
            self._empty.set()


@dataclass
class ConnectionState:
    """Whether a neighbour is connected. Only `Connections` writes it; others read it."""

    connection: Connection | None = None
    is_open: bool = False
    """Both ends have agreed on a secret, so that models may be sent."""
    opened: int = 0
    """How often it has been open."""
    way: str = "direct"
    """Of the last connection: "direct" or "relay"."""
    traffic: Traffic = field(default_factory=Traffic)
    down_since: float = 0.0
    problem: str = "has not been reached yet"
    logged: dict[str, float] = field(default_factory=dict)
    """Problems since it was open last, and when each was logged."""
    # without a limit until `Connections` opens, which sets one
    calls: RateLimit = field(default_factory=lambda: RateLimit(math.inf, 0))
    """How many connections it may make."""
    quarantine: float = FIRST_QUARANTINE
    """Seconds of the next one."""
    quarantined_until: float = 0.0


@dataclass
class Link:
    """One neighbour. Only the parts of a `Peer` write these fields; `Connections` writes `conn`.

    `Connections` reads three of them: a neighbour that is `done` is dialled again only to serve it
    the final model, and one whose `inbox` is not empty is not read from, unless more `is_awaited`.
    """

    neighbour: Neighbour
    conn: ConnectionState = field(default_factory=ConnectionState)
    inbox: Inbox = field(default_factory=Inbox)
    absent: bool = False
    """It has been waited for; not again before it is back."""
    silent: bool = False
    """It was connected and sent nothing; it is not waited for before it does."""
    done: bool = False
    """It has its model, and needs no neighbour any more."""
    heard_at: float = 0.0
    """When it connected, or last sent anything."""
    their_step: int = 0
    """Its first step without a message, when it connected."""
    is_behind: bool = False
    """It has to skip steps, and needs proof that others have made them."""
    has_greeted: bool = False
    """It has shown the newest receipt that it has of this user, since this node started."""
    step_start: tuple[int, Values] | None = None
    """(step, model) that it began a step with; a user that is behind continues from there."""
    keys: EdgeKeys = field(default_factory=EdgeKeys)
    tags: EdgeTags = field(default_factory=EdgeTags)
    is_waited_for: bool = False
    """No step begins before all neighbours are here: a connection that ends must be noticed."""
    awaits_proof: bool = False
    """It is ahead, and receipts that prove it may come after its models."""
    first_copy: int = -1
    """Step of the message whose receipt was new on this connection."""
    asked_for_key: bool = False
    """On this connection; so are the next three."""
    awaits_key: bool = False
    key_is_gone: bool = False
    gave_key: bool = False
    # `PeerState` sets the limit, which grows with the number of users
    words: RateLimit = field(default_factory=lambda: RateLimit(math.inf, 0))
    """How many short messages it may send."""

    @property
    def is_open(self) -> bool:
        return self.conn.is_open

    @property
    def is_awaited(self) -> bool:
        """Whether what comes after its models is needed before they can be used."""
        return self.awaits_key or self.awaits_proof or self.is_waited_for

    @property
    def is_given_up(self) -> bool:
        """It sends no more models, or has been waited for already."""
        return self.done or self.absent or self.silent

    @property
    def open_connection(self) -> Connection | None:
        """The connection, if anything can be sent: a Bye may be among the bytes just read."""
        connection = self.conn.connection
        usable = connection is not None and self.is_open and not connection.session.is_over
        return connection if usable else None

    def send(self, word: Alive | Done | SignedReceipt | KeyRequest | SealedKey) -> None:
        if (connection := self.open_connection) is not None:
            connection.session.send(word)
            connection.flush()

    def status(self) -> dict[str, Any]:
        """As `decor status` shows it."""
        return {
            "name": self.neighbour.name,
            "here": self.is_open,
            "done": self.done,
            "way": self.conn.way if self.is_open else None,
            "connections": self.conn.opened,
            "reconnections": max(0, self.conn.opened - 1),
            "sent_bytes": self.conn.traffic.sent,
            "received_bytes": self.conn.traffic.received,
            # a neighbour that is done has left in good order: no operator has to look for it
            "problem": None if self.is_open or self.done else self.conn.problem,
        }
