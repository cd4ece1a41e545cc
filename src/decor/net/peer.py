"""Peer: one user among its neighbours: connections that come and go, the secrets agreed on, and the barrier of a round.

A neighbour is never trusted to be there. What it sends is checked before it is kept, a few messages of it at most are kept, and
a round goes on without it when it has been silent for too long, as long as a quorum of neighbours is here. What it missed it
does not ask for: whoever is connected anew is sent the model that the step began with, and goes on from there.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from decor.errors import RemoteProtocolError

from . import transport
from .identity import Identity
from .ledger import Ledger
from .link import HELD, LAST_WORD_SECONDS, Line, Link, Neighbour, Values
from .messages import Alive, Done
from .session import Agreed, Ended, Ends, Event, Finished, Greeted, Heard, Received, Session, Tagged

Log = Callable[..., None]
"""log(event, **facts): one line for people and programs; never a secret, never data."""

OPENING_SECONDS = 15.0
"""From a connection to a secret; who takes longer is hung up on."""
GREETINGS = 32
"""Connections of strangers, or of neighbours not yet known as such, at a time."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds between attempts to reach a neighbour."""
SETTLING_SECONDS, STRANGERS_SECONDS = 2.0, 10.0
PATIENCE = 3
"""Timeouts for which a neighbour may say that it is alive and nothing else."""


@dataclass(frozen=True)
class Course:
    """How far a run goes: its steps, the rounds of each, and the rounds after the last, which count as one more step."""

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

    @property
    def needed(self) -> int:
        """How many neighbours have to be here."""
        return max(1, math.ceil(self.quorum * len(self.neighbours) - 1e-9))


class Peer:
    """Use as `async with`; then `exchange` round after round, and `finish`."""

    def __init__(
        self, agenda: Agenda, ledger: Ledger, run: int, log: Log, complaint: Callable[[Values], str | None], listen: str
    ) -> None:
        self.agenda, self.ledger, self.run, self.log = agenda, ledger, run, log
        self.complaint = complaint
        """What is wrong with a neighbour's numbers, if anything."""
        self.listen = listen
        self.links = {n.number: Link(n) for n in agenda.neighbours}
        self.next_step = ledger.next_step(run)
        self.step = max(0, self.next_step - 1)
        self.paused: str | None = None
        self.late = 0
        """Messages that came after their round."""
        self._begun: Values | None = None
        self._at = self.step, 0
        self._sent: deque[tuple[int, int, Values]] = deque(maxlen=2)
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting: dict[asyncio.Task[None], None] = {}
        self._strangers = 0
        self._quiet_until = 0.0
        self._failure: BaseException | None = None
        self._finishing = False
        self._lines: set[Line] = set()

    async def __aenter__(self) -> Peer:
        keys = [n.public for n in self.agenda.neighbours]
        self._callers = transport.context(self.agenda.identity, keys, server=True)
        self._called = transport.context(self.agenda.identity, keys, server=False)
        self._numbers = {n.public: n.number for n in self.agenda.neighbours}
        self._listening = transport.listening(self.listen) if self.listen else None
        now = time.monotonic()
        for link in self.links.values():
            link.down_since = now
            if link.neighbour.dials:
                self._spawn(self._keep_calling(link))
        if self._listening is not None:
            self._spawn(self._accept(self._listening))
        self._spawn(self._stay_in_touch())
        return self

    async def __aexit__(self, *_: object) -> None:
        for link in self.links.values():
            if link.line is not None:
                link.line.close("stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()

    # what the user's own loop calls

    async def gathered(self, patience: float, needed: int) -> bool:
        """Waits for all neighbours, after `patience` seconds for as many as are needed; says whether anybody is here."""
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
            await self._change(left if left > 0 else None)

    async def settled(self) -> None:
        """After coming back: waits a moment for neighbours who are further to say where they are."""
        until = time.monotonic() + SETTLING_SECONDS
        while (left := until - time.monotonic()) > 0:
            further = [link for link in self.links.values() if link.is_open and link.their_step > self.next_step]
            if all(link.state is not None for link in further):
                return
            await self._change(left)

    def begin(self, step: int, model: Values | None) -> None:
        """A step begins with this model (None: not known); whoever connects from now on is told so."""
        self.step, self._begun, self._at = step, model, (step, 0)
        self._sent.clear()
        for link in self.links.values():
            link.forget(step)
            link.state = None

    def keys(self, step: int) -> dict[int, bytes | None]:
        """Every neighbour's key of a step; None where there is no secret, and noise has to be drawn afresh."""
        return {number: link.key(step) for number, link in self.links.items()}

    def recorded(self, step: int) -> None:
        """A step's message is in the ledger; secrets agreed on from now on begin later."""
        self.next_step = step + 1

    async def exchange(
        self, step: int, round_: int, values: Values, tags: Mapping[int, bytes] | None = None
    ) -> dict[int, Values] | None:
        """Sends a round's model and gives the neighbours' of the same round; None when this user is behind (see `ahead`)."""
        self._at = step, round_
        self._sent.append((step, round_, values))
        for number, link in self.links.items():
            if link.is_open:
                self._send(link, step, round_, values)
                if tags and number in tags:
                    self._describe(link, step, tags[number])
        await asyncio.sleep(0)  # who finds all it needs here, again and again, has to send and to read meanwhile
        until = time.monotonic() + self.agenda.timeout
        while not self._ready(step, round_, until):
            if self.ahead(step) is not None:
                return None
            await self._change(self._next_deadline(step, round_, until))
        found = {number: link.take(step, round_) for number, link in self.links.items()}
        return {number: values for number, values in found.items() if values is not None}

    def ahead(self, step: int) -> tuple[int, list[Values]] | None:
        """How far a quorum of neighbours has come, and the models of those who have, if that is later than a step."""
        states = sorted((link.state for link in self.links.values() if link.state is not None), key=lambda state: -state[0])
        if len(states) < self.agenda.needed or states[self.agenda.needed - 1][0] <= step:
            return None
        reached = states[self.agenda.needed - 1][0]
        return reached, [model for step, model in states if step >= reached]

    async def finish(self) -> None:
        """Says that this user is done, and stays until its neighbours are, or for a while: who was away can be done too."""
        self._finishing = True
        for link in self.links.values():
            link.inbox.clear()
            link.let_in()
            self._say(link, Done())
        until = time.monotonic() + self.agenda.timeout
        while (left := until - time.monotonic()) > 0 and (waiting := [link for link in self.links.values() if not link.done]):
            await self._change(left)
        if waiting:
            self.log("leaves before others are done", neighbours=", ".join(link.neighbour.name for link in waiting))
        for link in self.links.values():
            if link.line is not None:
                link.line.close("done")
                link.line, link.is_open = None, False
        until = time.monotonic() + LAST_WORD_SECONDS
        while self._lines and (left := until - time.monotonic()) > 0:
            await self._change(left)

    def described(self) -> list[dict[str, Any]]:
        """Every neighbour as `decor status` shows it."""
        return [
            {
                "name": link.neighbour.name,
                "here": link.is_open,
                "done": link.done,
                "connections": link.opened,
                "problem": None if link.is_open or link.done else link.problem,
            }
            for link in self.links.values()
        ]

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
                    self._lose(
                        link, f"sent no model for {PATIENCE * timeout:g} s" if is_alive else f"was silent for {timeout:g} s"
                    )
            elif not link.absent:
                if now < self._deadline(link, until):
                    waiting = True
                else:
                    link.absent = True
                    self.log("going on without", neighbour=link.neighbour.name, step=step, why=link.problem)
        if waiting:
            return False
        if step == self.agenda.course.steps:
            here += sum(link.done and not link.has(step, round_) for link in self.links.values())
        enough = here >= self.agenda.needed
        if not enough:
            self._pause(f"only {here} of {len(self.links)} neighbours are here, and {self.agenda.needed} are needed")
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
        """When a neighbour has been waited for long enough: who has just come, or says that it is alive, has its time.

        Who waits for somebody else says so; if it did not, one user's silence would make neighbours' neighbours hang up as well.
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

    async def _change(self, seconds: float | None) -> None:
        if self._failure is not None:
            raise self._failure
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        if self._failure is not None:
            raise self._failure

    # connections

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # ours, not a neighbour's (those are dealt with where they arise): the user's loop must hear of it
            self._failure = task.exception()
            self._changed.set()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as problem:  # too many files are open, say: those who are here go on
                self._refuse(transport.reason(problem))
                await asyncio.sleep(FIRST_WAIT)
                continue
            if len(self._greeting) >= GREETINGS:  # whoever has been at it for longest: a neighbour takes a moment
                slowest = next(iter(self._greeting))
                del self._greeting[slowest]
                slowest.cancel()
                self._refuse("too many at a time")
            self._greeting[self._spawn(self._welcome(connection))] = None
            await asyncio.sleep(0)

    async def _welcome(self, connection: socket.socket) -> None:
        own = asyncio.current_task()
        assert own is not None
        try:
            reader, writer = await transport.welcomed(connection, self._callers)
            link = self.links[transport.who(writer, self._numbers)]
            self._greeting.pop(own, None)
            await self._converse(link, reader, writer)
        except (OSError, TimeoutError, RemoteProtocolError) as problem:
            self._refuse(transport.reason(problem))
        finally:
            self._greeting.pop(own, None)

    def _refuse(self, why: str) -> None:
        """One line for many strangers: they must not fill the log."""
        self._strangers += 1
        if time.monotonic() >= self._quiet_until:
            self.log("stranger refused", why=why, so_far=self._strangers)
            self._quiet_until = time.monotonic() + STRANGERS_SECONDS

    async def _keep_calling(self, link: Link) -> None:
        wait = FIRST_WAIT
        while not link.done:
            opened = link.opened
            try:
                reader, writer = await transport.dial(link.neighbour.address, self._called)
                transport.who(writer, {link.neighbour.public: link.neighbour.number})
            except (OSError, TimeoutError, RemoteProtocolError) as problem:
                self._note(link, f"cannot be reached at {link.neighbour.address}: {transport.reason(problem)}")
            else:
                await self._converse(link, reader, writer)
            wait = FIRST_WAIT if link.opened > opened else min(2 * wait, LONGEST_WAIT, self.agenda.timeout / 4)
            await asyncio.sleep(wait)

    async def _converse(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from its first byte to its last."""
        if link.line is not None:  # the same neighbour: it has shown its certificate
            self._lose(link, "connected anew")
        line = link.line = Line(self._session(link.neighbour), writer)
        self._lines.add(line)
        line.flush()
        sender = asyncio.create_task(line.sent())
        why = "hung up"
        try:
            async with asyncio.timeout(OPENING_SECONDS) as opening:
                while data := await reader.read(transport.READ):
                    for event in line.session.receive(data):
                        self._happened(link, line, event)
                    line.flush()
                    if link.line is line and link.is_open:
                        opening.reschedule(None)
                    while link.line is line and link.is_open and link.inbox:
                        await link.room.wait()  # more is read when this has been used: it may wait at the sender's
        except RemoteProtocolError as problem:
            why = str(problem).removeprefix(f"{link.neighbour.name} ")
        except TimeoutError:
            why = f"did not agree on a secret within {OPENING_SECONDS:g} s"
        except OSError as problem:
            why = transport.reason(problem)
        finally:
            if link.line is line:
                self._lose(link, why)
            line.close(why)
            await asyncio.wait([sender], timeout=LAST_WORD_SECONDS)
            sender.cancel()
            writer.transport.abort()
            self._lines.discard(line)
            self._changed.set()

    def _session(self, neighbour: Neighbour) -> Session:
        ends = Ends(
            self.agenda.identity.key,
            neighbour.name,
            neighbour.public,
            neighbour.is_lower,
            self.agenda.federation,
            self.agenda.digests,
            self.agenda.model_bytes,
        )
        return Session(ends, self.ledger.epoch(self.run, neighbour.number), self.next_step)

    def _happened(self, link: Link, line: Line, event: Event) -> None:
        if link.line is not line:
            return  # a newer connection has taken its place
        match event:
            case Greeted(step):
                if step > self.agenda.course.steps:
                    raise RemoteProtocolError(f"claims to be at step {step} of a run of {self.agenda.course.steps}")
                link.their_step = step
            case Agreed(secret, epoch, first_step):
                link.agreed(first_step, secret)
                link.is_open, link.absent, link.done, link.state = True, False, False, None
                link.inbox.clear()  # it says where it is, and its last messages again
                link.let_in()
                link.opened += 1
                link.heard_at = time.monotonic()
                self.log("connected", neighbour=link.neighbour.name, epoch=epoch, secret_from_step=first_step)
                self._catch_up(link)
                if self._finishing:
                    self._say(link, Done())
            case Received(step, round_, values):
                self._received(link, step, round_, values)
            case Tagged(step, tag):
                self._compare(link, step, 1, tag)
            case Heard():
                link.heard_at = time.monotonic()
            case Finished():
                link.done = True
            case Ended(reason):
                self._lose(link, f"said goodbye: {reason}")  # nothing can be sent any more, though the socket is still open
        self._changed.set()

    def _received(self, link: Link, step: int, round_: int, values: Values) -> None:
        course = self.agenda.course
        link.heard_at = time.monotonic()
        if step > course.steps or round_ > course.rounds_of(step):
            raise RemoteProtocolError(f"sent a model of step {step}, round {round_}, which this run does not have")
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
                link.state = (step, values)  # it went on without this user, and does not know any more what its step began with
            link.keep(step, round_, values)

    def _catch_up(self, link: Link) -> None:
        """What somebody who has just come needs: where this step began, and the last messages of it."""
        if self._begun is not None and self.step > 0:
            self._send(link, self.step - 1, self.agenda.course.rounds_of(self.step - 1), self._begun)
        for step, round_, values in self._sent:
            self._send(link, step, round_, values)

    def _send(self, link: Link, step: int, round_: int, values: Values) -> None:
        line = self._speaks(link)
        if line is not None and not link.done:
            line.session.send_model(step, round_, values)
            if line.flush() > (HELD + 2) * (self.agenda.model_bytes + 4096):
                self._lose(link, "does not read what it is sent")

    def _say(self, link: Link, word: Alive | Done) -> None:
        line = self._speaks(link)
        if line is not None:
            line.session.send(word)
            line.flush()

    def _speaks(self, link: Link) -> Line | None:
        """The line to somebody, if anything can be said over it: a goodbye may be among what has just come."""
        return link.line if link.line is not None and link.is_open and not link.line.session.is_over else None

    async def _stay_in_touch(self) -> None:
        while True:
            await asyncio.sleep(self.agenda.timeout / 3)
            for link in self.links.values():
                self._say(link, Alive())

    def _describe(self, link: Link, step: int, tag: bytes) -> None:
        line = self._speaks(link)
        if line is not None:
            line.session.send_tag(step, tag)
            line.flush()
            self._compare(link, step, 0, tag)

    def _compare(self, link: Link, step: int, side: int, tag: bytes) -> None:
        if not link.cancels(step, side, tag):
            self.log("noise does not cancel", neighbour=link.neighbour.name, step=step)

    def _note(self, link: Link, problem: str) -> None:
        if link.problem != problem:
            link.problem = problem
            self.log("not connected", neighbour=link.neighbour.name, why=problem)

    def _lose(self, link: Link, why: str) -> None:
        """The connection is over, whatever the reason."""
        was_open, line = link.is_open, link.line
        link.line, link.is_open, link.down_since = None, False, time.monotonic()
        link.leave()
        if line is not None:
            line.close(why)
        if link.done:
            pass
        elif was_open:
            link.problem = why
            self.log("lost", neighbour=link.neighbour.name, why=why)
        else:
            self._note(link, why)
        self._changed.set()
