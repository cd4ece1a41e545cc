"""What is known of a neighbour, and the connection to it while there is one."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from decor.noise.agreement import EdgeSecret

from . import transport
from .messages import Alive, Done
from .session import Session

Values = bytes | memoryview
LAST_WORD_SECONDS = 1.0
HELD = 3
"""Messages of one neighbour that are kept until they are used."""


@dataclass(frozen=True)
class Neighbour:
    """Somebody to talk to.

    `dials`: whether this side calls; `is_lower`: whether this side has the lower number.
    """

    number: int
    name: str
    public: bytes
    address: str
    dials: bool
    is_lower: bool


class Line:
    """One connection: a session, and what it has to say but has not sent yet."""

    def __init__(self, session: Session, writer: asyncio.StreamWriter) -> None:
        self.session, self._writer = session, writer
        self._unsent: deque[Values] = deque()
        self._more = asyncio.Event()

    def flush(self) -> int:
        """Hands over what the session has to say; gives how many bytes wait to be sent."""
        self._unsent.extend(self.session.parts())
        self._more.set()
        return sum(map(len, self._unsent))

    def close(self, why: str, patience: float = LAST_WORD_SECONDS) -> None:
        """A last word, and soon the end, whether or not the other side listens; what is unsent has
        `patience` seconds.
        """
        self.session.close(why)
        self.flush()
        asyncio.get_running_loop().call_later(patience, transport.cut, self._writer)

    async def sent(self) -> None:
        """Writes a piece at a time, so that what is encrypted but not sent stays small; hangs up
        when the session is over.
        """
        with suppress(OSError):
            while True:
                while self._unsent:
                    whole = memoryview(self._unsent.popleft())
                    for first in range(0, len(whole), transport.WRITE):
                        self._writer.write(whole[first : first + transport.WRITE])
                        await self._writer.drain()
                if self.session.is_over:
                    self._writer.close()
                    return
                self._more.clear()
                await self._more.wait()


@dataclass
class Link:
    """What is known of a neighbour now."""

    neighbour: Neighbour
    line: Line | None = None
    is_open: bool = False
    absent: bool = False
    """It has been waited for already; not again before it is back."""
    silent: bool = False
    """It was here and said nothing; not waited for before it speaks."""
    done: bool = False
    """It has its model, and needs nobody any more."""
    down_since: float = 0.0
    heard_at: float = 0.0
    """When it came, or last said anything."""
    opened: int = 0
    their_step: int = 0
    """Its first step without a message, when it connected."""
    problem: str = "has not been reached yet"
    inbox: dict[tuple[int, int], Values] = field(default_factory=dict)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when what came has been used, and more may be read."""
    state: tuple[int, Values] | None = None
    """(step, model) with which it began a step; whoever is behind goes on from there."""
    secrets: list[tuple[int, EdgeSecret]] = field(default_factory=list)
    tags: tuple[dict[int, bytes], dict[int, bytes]] = field(default_factory=lambda: ({}, {}))
    """What the noise of the last steps looks like from outside, at this side and at the other."""

    @property
    def open_line(self) -> Line | None:
        """The line to it, if anything can be said over it: a goodbye may be among what has just
        come.
        """
        return (
            self.line
            if self.line is not None and self.is_open and not self.line.session.is_over
            else None
        )

    def say(self, word: Alive | Done) -> None:
        if (line := self.open_line) is not None:
            line.session.send(word)
            line.flush()

    def described(self) -> dict[str, Any]:
        """As `decor status` shows it."""
        return {
            "name": self.neighbour.name,
            "here": self.is_open,
            "done": self.done,
            "connections": self.opened,
            "problem": None if self.is_open or self.done else self.problem,
        }

    def has(self, step: int, round_: int) -> bool:
        """Whether it has said what it had to in a round, or something a little later: who is steps
        ahead is not in this one.
        """
        return any((step, round_) <= at < (step + 2, 0) for at in self.inbox)

    def take(self, step: int, round_: int) -> Values | None:
        """What it sent in a round, if anything."""
        found = self.inbox.pop((step, round_), None)
        self.let_in()
        return found

    def forget(self, step: int) -> None:
        """What is older than a step."""
        self.inbox = {at: values for at, values in self.inbox.items() if at[0] >= step}
        self.let_in()

    def let_in(self) -> None:
        if not self.inbox:
            self.room.set()

    def leave(self) -> None:
        """Its connection is over: who waited for room on it waits no more."""
        self.room.set()
        self.room = asyncio.Event()

    def keep(self, step: int, round_: int, values: Values) -> None:
        """The latest few."""
        self.room.clear()
        self.inbox[step, round_] = values
        while len(self.inbox) > HELD:
            del self.inbox[min(self.inbox)]

    def key(self, step: int) -> bytes | None:
        """Of the newest secret that both use in this step; older ones are forgotten."""
        usable = [held for held in self.secrets if held[0] <= step]
        if not usable:
            return None
        self.secrets = [held for held in self.secrets if held[0] >= usable[-1][0]]
        return usable[-1][1].key(step)

    def agreed(self, first_step: int, secret: EdgeSecret) -> None:
        self.secrets = [(first, held) for first, held in self.secrets if first < first_step] + [
            (first_step, secret)
        ]

    def cancels(self, step: int, side: int, tag: bytes) -> bool:
        """Takes a description of a step's noise, of this side (0) or the other (1): False if the
        two differ.
        """
        tags = self.tags[side]
        tags[step] = tag
        while len(tags) > 2:
            del tags[min(tags)]
        other = self.tags[1 - side].get(step)
        return other is None or other == tag
