"""Peer: one user among its neighbours: secrets, models of a round, and the barrier of a round.

A neighbour is never trusted to be there. What it sends is checked before it is kept, and few of
its messages are kept at a time. A round goes on without a neighbour that has been silent for too
long, as long as a quorum of neighbours is connected. A neighbour does not ask for what it missed:
when it connects again it is sent the model that the step began with, and continues from there.
`connections` opens and closes connections.
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

from .connections import Connections, Log
from .identity import Identity
from .ledger import Ledger
from .messages import Done
from .neighbour import HELD, Link, Neighbour, Values
from .session import (
    Agreed,
    Event,
    Finished,
    Greeted,
    Heard,
    Received,
    Session,
    SessionConfig,
    Tagged,
)

SETTLING_SECONDS = 2.0
PATIENCE = 3
"""Timeouts for which a neighbour may send Alive and nothing else."""


@dataclass(frozen=True)
class RunLength:
    """Steps of a run, gossip rounds of each, and rounds after the last (one more step here)."""

    steps: int
    rounds: int
    final_rounds: int

    def rounds_of(self, step: int) -> int:
        return self.rounds if step < self.steps else self.final_rounds


@dataclass(frozen=True)
class PeerConfig:
    """What all users of a federation know, and this user's part of it."""

    identity: Identity
    neighbours: tuple[Neighbour, ...]
    federation: bytes
    digests: tuple[tuple[str, bytes], ...]
    model_bytes: int
    length: RunLength
    timeout: float
    quorum: float
    random: Callable[[int], bytes] = os.urandom
    """Source of the keys that this user offers to its neighbours."""

    @property
    def quorum_count(self) -> int:
        """How many neighbours have to take part."""
        # 0.07 * 100 is a little above 7 in floating point, and means 7
        return max(1, math.ceil(self.quorum * len(self.neighbours) - 1e-9))


def _ignore(sender: int, step: int, round_: int, values: Values) -> None:
    pass


class Peer:
    """Use as `async with`; then call `exchange` round after round, and `finish`.

    Args:
        config: The federation and this user's neighbours.
        ledger: Numbers the agreements with each neighbour.
        run: The run's number in the ledger.
        log: Receives events.
        check_values: Returns what is wrong with a neighbour's parameters, or None.
        listen: Address to accept connections at; "" to accept none.
        on_model: Called with (sender, step, round, values) of every model, before any check.
    """

    def __init__(
        self,
        config: PeerConfig,
        ledger: Ledger,
        run: int,
        log: Log,
        check_values: Callable[[Values], str | None],
        listen: str,
        on_model: Callable[[int, int, int, Values], object] = _ignore,
    ) -> None:
        self.config, self.ledger, self.run, self.log = config, ledger, run, log
        self._check_values, self._on_model = check_values, on_model
        self.links = {n.number: Link(n) for n in config.neighbours}
        self.next_step = ledger.next_step(run)
        """The first step without a message of this user."""
        # after a crash the last message is sent again
        self.step = max(0, self.next_step - 1)
        self.paused: str | None = None
        """Why no step is taken now; None while steps are taken."""
        self.late = 0
        """Models that arrived after their round."""
        self._step_start: Values | None = None
        self._at = self.step, 0
        # what a neighbour that connects anew may still need
        self._sent: deque[tuple[int, int, Values]] = deque(maxlen=2)
        self._finishing = False
        self._connections = Connections(
            config.identity,
            self.links,
            listen,
            config.timeout,
            log,
            self._new_session,
            self._handle_event,
        )

    async def __aenter__(self) -> Peer:
        self._connections.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.close()

    # called by the user's own loop

    async def wait_for_neighbours(self, patience: float, needed: int) -> bool:
        """Waits for all neighbours; after `patience` seconds for `needed` of them.

        Returns whether any is connected.
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
            await self._connections.wait_for_change(left if left > 0 else None)

    async def wait_for_progress(self) -> None:
        """After a restart: waits a moment until neighbours that are further ahead say where."""
        until = time.monotonic() + SETTLING_SECONDS
        while (left := until - time.monotonic()) > 0:
            connected = [link for link in self.links.values() if link.is_open]
            further = [link for link in connected if link.their_step > self.next_step]
            if all(link.step_start is not None for link in further):
                return
            await self._connections.wait_for_change(left)

    def begin(self, step: int, model: Values | None) -> None:
        """Begins a step with this model (None: not known), which new connections are sent."""
        self.step, self._step_start, self._at = step, model, (step, 0)
        self._sent.clear()
        for link in self.links.values():
            link.inbox.drop_before(step)
            link.step_start = None

    def keys(self, step: int) -> dict[int, bytes | None]:
        """Each neighbour's key of a step; None without a common secret: its noise is then fresh."""
        return {number: link.key(step) for number, link in self.links.items()}

    def mark_recorded(self, step: int) -> None:
        """A step's message is in the ledger; secrets agreed on from now on begin later."""
        self.next_step = step + 1

    async def exchange(
        self, step: int, round_: int, values: Values, tags: Mapping[int, bytes] | None = None
    ) -> dict[int, Values] | None:
        """Sends a round's model, and waits for the neighbours' models of the same round.

        Args:
            step: The step that was begun last.
            round_: From 0.
            values: This user's model.
            tags: Noise tags of the step, by neighbour.

        Returns:
            Models by neighbour; None if this user is behind (see `ahead`).
        """
        self._at = step, round_
        # kept for neighbours that connect during the round
        self._sent.append((step, round_, values))
        for number, link in self.links.items():
            if link.is_open:
                self._send(link, step, round_, values)
                if tags and number in tags:
                    self._send_tag(link, step, tags[number])
        # a user that always finds all models here must still let its tasks read and write
        await asyncio.sleep(0)
        until = time.monotonic() + self.config.timeout
        while not self._ready(step, round_, until):
            # a quorum has left this step: its models will not come any more
            if self.ahead(step) is not None:
                return None
            seconds = self._seconds_to_deadline(step, round_, until)
            await self._connections.wait_for_change(seconds)
        models = {}
        for number, link in self.links.items():
            if (theirs := link.inbox.take(step, round_)) is not None:
                models[number] = theirs
        return models

    def ahead(self, step: int) -> tuple[int, list[Values]] | None:
        """The step that a quorum of neighbours has reached, and the models they begin it with.

        None if that step is not later than `step`. One neighbour's claim is not believed.
        """
        starts = [link.step_start for link in self.links.values() if link.step_start is not None]
        # the furthest first
        starts.sort(key=lambda start: -start[0])
        quorum = self.config.quorum_count
        if len(starts) < quorum or starts[quorum - 1][0] <= step:
            return None
        reached = starts[quorum - 1][0]
        return reached, [model for step, model in starts if step >= reached]

    async def finish(self) -> None:
        """Sends Done, and stays until all neighbours have, or for the timeout.

        A neighbour that was away can still get its last models meanwhile.
        """
        self._finishing = True
        for link in self.links.values():
            link.inbox.clear()
            link.send(Done())
        until = time.monotonic() + self.config.timeout
        while (left := until - time.monotonic()) > 0 and (
            waiting := [link for link in self.links.values() if not link.done]
        ):
            await self._connections.wait_for_change(left)
        if waiting:
            names = ", ".join(link.neighbour.name for link in waiting)
            self.log("leaves before others are done", neighbours=names)
        await self._connections.disconnect_all("done")

    def neighbour_statuses(self) -> list[dict[str, Any]]:
        """Every neighbour as `decor status` shows it."""
        return [link.status() for link in self.links.values()]

    # the barrier

    def _ready(self, step: int, round_: int, until: float) -> bool:
        """Whether a round can end: all models are here, or a quorum after the timeout.

        Gives up on neighbours whose deadline is over.
        """
        now, here, waiting = time.monotonic(), 0, False
        for link in self.links.values():
            if link.inbox.has(step, round_):
                here += 1
            elif link.done or (link.silent if link.is_open else link.absent):
                continue  # it sends no more, or has been waited for already
            elif now < self._deadline(link, until):
                waiting = True
            elif link.is_open:
                link.absent = link.silent = True
                timeout = self.config.timeout
                is_alive = now < link.heard_at + timeout
                quiet = f"was silent for {timeout:g} s"
                no_model = f"sent no model for {PATIENCE * timeout:g} s"
                self._connections.drop(link, no_model if is_alive else quiet)
            else:
                link.absent = True
                name, problem = link.neighbour.name, link.conn.problem
                self.log("going on without", neighbour=name, step=step, why=problem)
        if waiting:
            return False
        if step == self.config.length.steps:
            # after the last step a neighbour that is done has nothing to wait for
            finished = [link for link in self.links.values() if link.done]
            here += sum(not link.inbox.has(step, round_) for link in finished)
        needed = self.config.quorum_count
        if here < needed:
            count = len(self.links)
            self._pause(f"only {here} of {count} neighbours are here, and {needed} are needed")
            return False
        if self.paused:
            self.log("goes on", step=step)
            self.paused = None
        return True

    def _seconds_to_deadline(self, step: int, round_: int, until: float) -> float | None:
        """Seconds until waiting changes anything by itself; None: it never does."""
        now = time.monotonic()
        deadlines = [
            self._deadline(link, until)
            for link in self.links.values()
            if not (link.inbox.has(step, round_) or link.absent or link.silent or link.done)
        ]
        # a millisecond more, so that the deadline is over when the wait is
        return max(0.0, min(deadlines) - now) + 0.001 if deadlines else None

    def _deadline(self, link: Link, until: float) -> float:
        """When a neighbour has been waited for long enough.

        A neighbour that has just connected, or sends Alive, has more time. A user that waits for
        another sends Alive; otherwise the silence of one user would make its neighbours'
        neighbours drop their connections too.
        """
        timeout = self.config.timeout
        if link.is_open:
            last = math.inf if self.paused else until + (PATIENCE - 1) * timeout
            return min(max(until, link.heard_at + timeout), last)
        return min(until, link.conn.down_since + timeout)

    def _pause(self, reason: str) -> None:
        if self.paused != reason:
            self.paused = reason
            self.log("paused", why=reason)

    # events, and what is sent

    def _new_session(self, neighbour: Neighbour) -> Session:
        config = SessionConfig(
            self.config.identity.key,
            neighbour.name,
            neighbour.public,
            neighbour.is_lower,
            self.config.federation,
            self.config.digests,
            self.config.model_bytes,
            self.config.random,
        )
        return Session(config, self.ledger.next_epoch(self.run, neighbour.number), self.next_step)

    def _handle_event(self, link: Link, event: Event) -> None:
        match event:
            case Greeted(step):
                if step > (steps := self.config.length.steps):
                    raise RemoteProtocolError(f"claims to be at step {step} of a run of {steps}")
                # see wait_for_progress
                link.their_step = step
            case Agreed(secret, epoch, first_step):
                link.add_secret(first_step, secret)
                link.absent, link.done, link.step_start = False, False, None
                link.inbox.clear()  # it will send where it is, and its last models again
                link.heard_at = time.monotonic()
                name = link.neighbour.name
                self.log("connected", neighbour=name, epoch=epoch, secret_from_step=first_step)
                self._send_catch_up(link)
                if self._finishing:
                    link.send(Done())
            case Received(step, round_, values):
                self._handle_model(link, step, round_, values)
            case Tagged(step, tag):
                self._compare_tags(link, step, 1, tag)
            case Heard():
                link.heard_at = time.monotonic()
            case Finished():
                link.done = True

    def _handle_model(self, link: Link, step: int, round_: int, values: Values) -> None:
        length = self.config.length
        link.heard_at = time.monotonic()
        # before the checks: an audit records what was sent, valid or not
        self._on_model(link.neighbour.number, step, round_, values)
        if step > length.steps or round_ > length.rounds_of(step):
            raise RemoteProtocolError(
                f"sent a model of step {step}, round {round_}, which this run does not have"
            )
        if (problem := self._check_values(values)) is not None:
            raise RemoteProtocolError(problem)
        # a valid model shows that it takes part again
        link.silent = False
        if self._finishing:
            pass  # nothing is needed any more
        elif round_ == length.rounds_of(step):  # not a round of the step, but its result
            link.step_start = (step + 1, values)
        elif (step, round_) < self._at:
            self.late += 1
        else:
            if step > self.step + 1 and link.step_start is None:
                # it went on without this user, and no longer has the model its step began with
                link.step_start = (step, values)
            link.inbox.put(step, round_, values)

    def _send_catch_up(self, link: Link) -> None:
        """Sends what a new connection needs: this step's first model, and its last messages."""
        if self._step_start is not None and self.step > 0:
            before = self.step - 1
            self._send(link, before, self.config.length.rounds_of(before), self._step_start)
        for step, round_, values in self._sent:
            self._send(link, step, round_, values)

    def _send(self, link: Link, step: int, round_: int, values: Values) -> None:
        if not link.done and (connection := link.open_connection) is not None:
            connection.session.send_model(step, round_, values)
            # a neighbour that does not read must not fill this user's memory
            if connection.flush() > (HELD + 2) * (self.config.model_bytes + 4096):
                self._connections.drop(link, "does not read what it is sent")

    def _send_tag(self, link: Link, step: int, tag: bytes) -> None:
        if (connection := link.open_connection) is not None:
            connection.session.send_tag(step, tag)
            connection.flush()
            self._compare_tags(link, step, 0, tag)

    def _compare_tags(self, link: Link, step: int, side: int, tag: bytes) -> None:
        if not link.noise_cancels(step, side, tag):
            self.log("noise does not cancel", neighbour=link.neighbour.name, step=step)
