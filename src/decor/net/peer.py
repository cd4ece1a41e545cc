"""Peer: one user among its neighbours: the secrets agreed on, what is said in a step, and the
barrier of a round.

A neighbour is never trusted to be there. What it sends is checked before it is kept, a few messages
of it at most are kept, and a round goes on without it when it has been silent for too long, as long
as a quorum of neighbours is here. What it missed it does not ask for: whoever is connected anew is
sent the model that the step began with, and goes on from there. How connections come and go is the
business of `calls`.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from decor.errors import RemoteProtocolError

from .connections import Calls, Log
from .identity import Identity
from .ledger import Ledger
from .link import HELD, Link, Neighbour, Values
from .messages import Done
from .session import Agreed, Ends, Event, Finished, Greeted, Heard, Received, Session, Tagged

SETTLING_SECONDS = 2.0
PATIENCE = 3
"""Timeouts for which a neighbour may say that it is alive and nothing else."""


@dataclass(frozen=True)
class Course:
    """How far a run goes: its steps, the rounds of each, and the rounds after the last, which count
    as one more step.
    """

    steps: int
    rounds: int
    final_rounds: int

    def rounds_of(self, step: int) -> int:
        return self.rounds if step < self.steps else self.final_rounds


@dataclass(frozen=True)
class Agenda:
    """What all users know alike, and this one's place in it."""

    identity: Identity
    neighbours: tuple[Neighbour, ...]
    federation: bytes
    digests: tuple[tuple[str, bytes], ...]
    model_bytes: int
    course: Course
    timeout: float
    quorum: float
    random: Callable[[int], bytes] = os.urandom
    """Of the keys that this user offers to its neighbours."""

    @property
    def needed(self) -> int:
        """How many neighbours have to be here."""
        return max(1, math.ceil(self.quorum * len(self.neighbours) - 1e-9))


class Peer:
    """Use as `async with`; then `exchange` round after round, and `finish`."""

    def __init__(
        self,
        agenda: Agenda,
        ledger: Ledger,
        run: int,
        log: Log,
        complaint: Callable[[Values], str | None],
        listen: str,
        heard: Callable[[int, int, int, Values], object] = lambda sender, step, round_, values: (
            None
        ),
    ) -> None:
        self.agenda, self.ledger, self.run, self.log, self.heard = agenda, ledger, run, log, heard
        self.complaint = complaint
        """What is wrong with a neighbour's numbers, if anything."""
        self.links = {n.number: Link(n) for n in agenda.neighbours}
        self.next_step = ledger.next_step(run)
        self.step = max(0, self.next_step - 1)
        self.paused: str | None = None
        self.late = 0
        """Messages that came after their round."""
        self._begun: Values | None = None
        self._at = self.step, 0
        self._sent: deque[tuple[int, int, Values]] = deque(maxlen=2)
        self._finishing = False
        self._calls = Calls(
            agenda.identity, self.links, listen, agenda.timeout, log, self._session, self._happened
        )

    async def __aenter__(self) -> Peer:
        self._calls.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._calls.close()

    # what the user's own loop calls

    async def gathered(self, patience: float, needed: int) -> bool:
        """Waits for all neighbours, after `patience` seconds for as many as are needed; says
        whether anybody is here.
        """
        until = time.monotonic() + patience
        while True:
            missing = [link for link in self.links.values() if not link.is_open]
            here = len(self.links) - len(missing)
            left = until - time.monotonic()
            if not missing or (left <= 0 and here >= needed):
                self.paused = None
                for link in missing:
                    link.absent = True
                return here > 0
            self._pause(f"waits for {', '.join(link.neighbour.name for link in missing)}")
            await self._calls.change(left if left > 0 else None)

    async def settled(self) -> None:
        """After coming back: waits a moment for neighbours who are further to say where
        they are.
        """
        until = time.monotonic() + SETTLING_SECONDS
        while (left := until - time.monotonic()) > 0:
            further = [
                link
                for link in self.links.values()
                if link.is_open and link.their_step > self.next_step
            ]
            if all(link.state is not None for link in further):
                return
            await self._calls.change(left)

    def begin(self, step: int, model: Values | None) -> None:
        """A step begins with this model (None: not known); whoever connects from now on is
        told so.
        """
        self.step, self._begun, self._at = step, model, (step, 0)
        self._sent.clear()
        for link in self.links.values():
            link.forget(step)
            link.state = None

    def keys(self, step: int) -> dict[int, bytes | None]:
        """Every neighbour's key of a step; None where there is no secret, and noise has to be drawn
        afresh.
        """
        return {number: link.key(step) for number, link in self.links.items()}

    def recorded(self, step: int) -> None:
        """A step's message is in the ledger; secrets agreed on from now on begin later."""
        self.next_step = step + 1

    async def exchange(
        self, step: int, round_: int, values: Values, tags: Mapping[int, bytes] | None = None
    ) -> dict[int, Values] | None:
        """Sends a round's model and gives the neighbours' of the same round; None when this user is
        behind (see `ahead`).
        """
        self._at = step, round_
        self._sent.append((step, round_, values))
        for number, link in self.links.items():
            if link.is_open:
                self._send(link, step, round_, values)
                if tags and number in tags:
                    self._describe(link, step, tags[number])
        # who finds all it needs here, again and again, has to send and to read meanwhile
        await asyncio.sleep(0)
        until = time.monotonic() + self.agenda.timeout
        while not self._ready(step, round_, until):
            if self.ahead(step) is not None:
                return None
            await self._calls.change(self._next_deadline(step, round_, until))
        found = {number: link.take(step, round_) for number, link in self.links.items()}
        return {number: values for number, values in found.items() if values is not None}

    def ahead(self, step: int) -> tuple[int, list[Values]] | None:
        """How far a quorum of neighbours has come, and the models of those who have, if that is
        later than a step.
        """
        states = sorted(
            (link.state for link in self.links.values() if link.state is not None),
            key=lambda state: -state[0],
        )
        if len(states) < self.agenda.needed or states[self.agenda.needed - 1][0] <= step:
            return None
        reached = states[self.agenda.needed - 1][0]
        return reached, [model for step, model in states if step >= reached]

    async def finish(self) -> None:
        """Says that this user is done, and stays until its neighbours are, or for a while: who was
        away can be done too.
        """
        self._finishing = True
        for link in self.links.values():
            link.inbox.clear()
            link.let_in()
            link.say(Done())
        until = time.monotonic() + self.agenda.timeout
        while (left := until - time.monotonic()) > 0 and (
            waiting := [link for link in self.links.values() if not link.done]
        ):
            await self._calls.change(left)
        if waiting:
            self.log(
                "leaves before others are done",
                neighbours=", ".join(link.neighbour.name for link in waiting),
            )
        await self._calls.hang_up("done")

    def described(self) -> list[dict[str, Any]]:
        """Every neighbour as `decor status` shows it."""
        return [link.described() for link in self.links.values()]

    # the barrier

    def _ready(self, step: int, round_: int, until: float) -> bool:
        now, here, waiting = time.monotonic(), 0, False
        for link in self.links.values():
            if link.has(step, round_):
                here += 1
            elif link.done:
                pass  # it has said all it had to say
            elif link.is_open:
                if now < self._deadline(link, until) and not link.silent:
                    waiting = True
                elif not link.silent:
                    link.absent = link.silent = True
                    timeout = self.agenda.timeout
                    is_alive = now < link.heard_at + timeout
                    why = (
                        f"sent no model for {PATIENCE * timeout:g} s"
                        if is_alive
                        else f"was silent for {timeout:g} s"
                    )
                    self._calls.lose(link, why)
            elif not link.absent:
                if now < self._deadline(link, until):
                    waiting = True
                else:
                    link.absent = True
                    self.log(
                        "going on without",
                        neighbour=link.neighbour.name,
                        step=step,
                        why=link.problem,
                    )
        if waiting:
            return False
        if step == self.agenda.course.steps:
            here += sum(link.done and not link.has(step, round_) for link in self.links.values())
        enough = here >= self.agenda.needed
        if not enough:
            self._pause(
                f"only {here} of {len(self.links)} neighbours are here, and "
                f"{self.agenda.needed} are needed"
            )
        elif self.paused:
            self.log("goes on", step=step)
            self.paused = None
        return enough

    def _next_deadline(self, step: int, round_: int, until: float) -> float | None:
        """Seconds until waiting would change anything by itself."""
        now, ends = time.monotonic(), []
        for link in self.links.values():
            if link.has(step, round_) or link.absent or link.silent or link.done:
                continue
            ends.append(self._deadline(link, until))
        if not ends:
            return None
        return max(0.0, min(ends) - now) + 0.001

    def _deadline(self, link: Link, until: float) -> float:
        """When a neighbour has been waited for long enough: who has just come, or says that it is
        alive, has its time.

        Who waits for somebody else says so; if it did not, one user's silence would make
        neighbours' neighbours hang up as well.
        """
        timeout = self.agenda.timeout
        if link.is_open:
            last = math.inf if self.paused else until + (PATIENCE - 1) * timeout
            return min(max(until, link.heard_at + timeout), last)
        return min(until, link.down_since + timeout)

    def _pause(self, why: str) -> None:
        if self.paused != why:
            self.paused = why
            self.log("paused", why=why)

    # what is said and heard

    def _session(self, neighbour: Neighbour) -> Session:
        ends = Ends(
            self.agenda.identity.key,
            neighbour.name,
            neighbour.public,
            neighbour.is_lower,
            self.agenda.federation,
            self.agenda.digests,
            self.agenda.model_bytes,
            self.agenda.random,
        )
        return Session(ends, self.ledger.epoch(self.run, neighbour.number), self.next_step)

    def _happened(self, link: Link, event: Event) -> None:
        match event:
            case Greeted(step):
                if step > self.agenda.course.steps:
                    raise RemoteProtocolError(
                        f"claims to be at step {step} of a run of {self.agenda.course.steps}"
                    )
                link.their_step = step
            case Agreed(secret, epoch, first_step):
                link.agreed(first_step, secret)
                link.absent, link.done, link.state = False, False, None
                link.inbox.clear()  # it says where it is, and its last messages again
                link.let_in()
                link.heard_at = time.monotonic()
                self.log(
                    "connected",
                    neighbour=link.neighbour.name,
                    epoch=epoch,
                    secret_from_step=first_step,
                )
                self._catch_up(link)
                if self._finishing:
                    link.say(Done())
            case Received(step, round_, values):
                self._received(link, step, round_, values)
            case Tagged(step, tag):
                self._compare(link, step, 1, tag)
            case Heard():
                link.heard_at = time.monotonic()
            case Finished():
                link.done = True

    def _received(self, link: Link, step: int, round_: int, values: Values) -> None:
        course = self.agenda.course
        link.heard_at = time.monotonic()
        self.heard(link.neighbour.number, step, round_, values)
        if step > course.steps or round_ > course.rounds_of(step):
            raise RemoteProtocolError(
                f"sent a model of step {step}, round {round_}, which this run does not have"
            )
        complaint = self.complaint(values)
        if complaint is not None:
            raise RemoteProtocolError(complaint)
        link.silent = False
        if self._finishing:
            pass  # nothing is needed any more
        elif round_ == course.rounds_of(step):
            link.state = (step + 1, values)
        elif (step, round_) < self._at:
            self.late += 1
        else:
            if step > self.step + 1 and link.state is None:
                # it went on without this user, and does not know any more what its step began with
                link.state = (step, values)
            link.keep(step, round_, values)

    def _catch_up(self, link: Link) -> None:
        """What somebody who has just come needs: where this step began, and the last messages of
        it.
        """
        if self._begun is not None and self.step > 0:
            self._send(
                link, self.step - 1, self.agenda.course.rounds_of(self.step - 1), self._begun
            )
        for step, round_, values in self._sent:
            self._send(link, step, round_, values)

    def _send(self, link: Link, step: int, round_: int, values: Values) -> None:
        if not link.done and (line := link.open_line) is not None:
            line.session.send_model(step, round_, values)
            if line.flush() > (HELD + 2) * (self.agenda.model_bytes + 4096):
                self._calls.lose(link, "does not read what it is sent")

    def _describe(self, link: Link, step: int, tag: bytes) -> None:
        if (line := link.open_line) is not None:
            line.session.send_tag(step, tag)
            line.flush()
            self._compare(link, step, 0, tag)

    def _compare(self, link: Link, step: int, side: int, tag: bytes) -> None:
        if not link.cancels(step, side, tag):
            self.log("noise does not cancel", neighbour=link.neighbour.name, step=step)
