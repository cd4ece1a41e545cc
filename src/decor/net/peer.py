"""Peer: one user among its neighbours, step after step, as its own loop (a node) sees them.

A neighbour is never trusted to be there. What it sends is checked before it is kept
(`peer_receiver`). A round goes on without a neighbour that has been silent for too long, as long as
a quorum of neighbours is connected (`peer_barrier`). A neighbour does not ask for what it missed:
when it connects again it is sent the model that the step began with, and proof that others have
come so far (`peer_sender`), and continues from there. `connections` opens and closes connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .connections import Connections, Log
from .ledger import Ledger
from .messages import Done
from .neighbour import Link, Neighbour, Values
from .peer_barrier import PeerBarrier
from .peer_config import PeerConfig
from .peer_receiver import PeerReceiver
from .peer_sender import PeerSender
from .peer_state import PeerState
from .reach import Reach
from .session import Event, Session, SessionConfig

SETTLING_SECONDS = 2.0


def _ignore(sender: int, step: int, round_: int, values: Values) -> None:
    pass


class Peer:
    """Use as `async with`; then call `exchange` round after round, and `finish`.

    Args:
        config: The federation and this user's neighbours.
        ledger: Holds this user's messages, what it knows of others', and numbers agreements.
        run: The run's number in the ledger.
        log: Receives events.
        check_values: Returns what is wrong with a neighbour's parameters of a step, or None.
        reach: Where to listen, and how to reach neighbours.
        on_model: Called with (sender, step, round, values) of every model, before any check.
    """

    def __init__(
        self,
        config: PeerConfig,
        ledger: Ledger,
        run: int,
        log: Log,
        check_values: Callable[[int, Values], str | None],
        reach: Reach,
        on_model: Callable[[int, int, int, Values], object] = _ignore,
    ) -> None:
        self._state = PeerState(config, ledger, run, log)
        self.config, self.ledger, self.run, self.log = config, ledger, run, log
        self.links, self._receipts = self._state.links, self._state.receipts
        self._connections = Connections(
            config.identity,
            self.links,
            reach,
            config.timeout,
            log,
            self._new_session,
            self._handle_event,
            self._handle_loss,
        )
        self._barrier = PeerBarrier(self._state, self._connections)
        self._sender = PeerSender(self._state, self._connections)
        self._receiver = PeerReceiver(
            self._state, self._connections, self._sender, check_values, on_model
        )

    async def __aenter__(self) -> Peer:
        self._connections.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.close()

    @property
    def next_step(self) -> int:
        """The first step without a message of this user."""
        return self._state.next_step

    @property
    def step(self) -> int:
        """The step that was begun last."""
        return self._state.step

    @property
    def paused(self) -> str | None:
        """Why no step is taken now; None while steps are taken."""
        return self._barrier.paused

    @property
    def late(self) -> int:
        """Models that arrived after their round."""
        return self._receiver.late

    # called by the user's own loop

    async def wait_for_neighbours(self, patience: float, needed: int) -> bool:
        """Waits for all neighbours; after `patience` seconds for `needed` of them.

        Returns whether any is connected.
        """
        until = time.monotonic() + patience
        for link in self.links.values():
            link.is_waited_for = True
        while True:
            missing = [link for link in self.links.values() if not link.is_open]
            here = len(self.links) - len(missing)
            left = until - time.monotonic()
            if not missing or (left <= 0 and here >= needed):
                self._barrier.paused = None
                for link in missing:
                    link.absent = True
                for link in self.links.values():
                    link.is_waited_for = False
                return here > 0
            self._barrier.pause(f"waits for {', '.join(link.neighbour.name for link in missing)}")
            await self._connections.wait_for_change(left if left > 0 else None)

    async def wait_for_progress(self) -> None:
        """After a restart: waits a moment until neighbours that are further ahead say where."""
        until = time.monotonic() + SETTLING_SECONDS
        while (left := until - time.monotonic()) > 0:
            connected = [link for link in self.links.values() if link.is_open]
            further = [link for link in connected if link.their_step > self._state.next_step]
            # what this step still needs, or where the others are and proof of it: a message that
            # is made now and not needed would be paid for in vain
            in_time = all(link.inbox.has(*self._state.at) for link in further)
            if in_time or self.ahead(self._state.step) is not None:
                return
            await self._connections.wait_for_change(left)

    def begin(self, step: int, model: Values | None) -> None:
        """Begins a step with this model (None: not known), which new connections are sent."""
        self._state.begin(step, model)

    def resend(self, messages: Sequence[tuple[int, int, Values]]) -> None:
        """After a restart: the last messages, as (step, round, values), for new connections."""
        self._state.sent.extend(messages)

    async def take_keys(self, step: int, draw: Callable[[], bytes]) -> dict[int, bytes] | None:
        """Takes the key of each edge for this user's only message of a step.

        Waits for keys of neighbours that have made theirs already, as for a model: until the
        timeout, and then for a quorum.

        Args:
            step: The step.
            draw: Draws a fresh key: the noise of an edge whose key is not known has its planned
                size all the same.

        Returns:
            Keys by neighbour; None if this user is behind (see `ahead`).
        """
        until = time.monotonic() + self.config.timeout
        while not self._barrier.are_keys_ready(step, until):
            if self.ahead(step) is not None:
                return None
            await self._connections.wait_for_change(self._barrier.seconds_to_key(until))
        # all at one moment: a new connection may change what is ready
        self._connections.raise_failure()
        keys: dict[int, bytes] = {}
        for number, link in self.links.items():
            keys[number] = link.keys.take(step, draw, keys.values())
            # a neighbour that was first needs no key of the step any more
            newest = self._receipts.newest(number)
            if newest is not None and newest.step >= step:
                link.keys.forget(step)
        return keys

    def record(
        self, step: int, message: Values, tags: Mapping[int, bytes], velocity: Values | None = None
    ) -> None:
        """Writes a step's message to the ledger, and signs it; it may be sent from now on.

        Args:
            step: The step whose keys were taken last.
            message: The message.
            tags: The tag of each edge's noise, by neighbour.
            velocity: The momentum after this step, if there is any.
        """
        # a receipt that came meanwhile may say that this ledger is an old one
        self._connections.raise_failure()
        links = self.links.values()
        for link in links:
            link.tags.record(step, tags[link.neighbour.number])
        digest = self.ledger.record(
            self.run,
            step,
            message,
            b"".join(link.keys.last_id for link in links),
            b"".join(tags[number] for number in self.links),
            self._receipts.take_unsaved(),
            self._state.take_unsaved_steps(),
            velocity,
        )
        # only what the ledger holds is signed: a crash in between must not look like a rollback
        self._receipts.sign(step, digest)
        self._state.next_step = step + 1

    def steps_left_over(self) -> dict[int, list[int]]:
        """Neighbour -> steps of this user's messages whose edge noise is not known to cancel."""
        return {
            number: sorted(link.tags.own.keys() - link.tags.cancelled)
            for number, link in self.links.items()
        }

    async def exchange(self, step: int, round_: int, values: Values) -> dict[int, Values] | None:
        """Sends a round's model, and waits for the neighbours' models of the same round.

        Args:
            step: The step that was begun last.
            round_: From 0.
            values: This user's model.

        Returns:
            Models by neighbour; None if this user is behind (see `ahead`).
        """
        self._connections.raise_failure()
        self._state.at = step, round_
        # after a restart every connection has been sent it already
        if (step, round_) not in [(each[0], each[1]) for each in self._state.sent]:
            # kept for neighbours that connect during the round, or the next
            self._state.sent.append((step, round_, values))
            for link in self.links.values():
                if link.is_open:
                    # before the model: short messages are written together
                    if round_ == 0 and step in link.tags.own:
                        self._sender.send_tag(link, step)
                    self._sender.send_model(link, step, round_, values)
        # a user that always finds all models here must still let its tasks read and write
        await asyncio.sleep(0)
        until = time.monotonic() + self.config.timeout
        while not self._barrier.is_round_ready(step, round_, until):
            # a quorum has left this step: its models will not come any more
            if self.ahead(step) is not None:
                return None
            seconds = self._barrier.seconds_to_deadline(step, round_, until)
            await self._connections.wait_for_change(seconds)
        models = {}
        for number, link in self.links.items():
            if (theirs := link.inbox.take(step, round_)) is not None:
                models[number] = theirs
        return models

    def ahead(self, step: int) -> tuple[int, list[Values]] | None:
        """The step that a quorum of neighbours has reached, and the models they begin it with.

        None if that step is not later than `step`, or not proven.
        """
        return self._barrier.ahead(step)

    async def finish(self, serve: bool = False) -> None:
        """Sends Done, and stays until all neighbours have, or for the timeout.

        A neighbour that was away can still get its last models meanwhile.

        Args:
            serve: Stay until cancelled, for neighbours that fetch the final model later.
        """
        self._state.is_finishing = True
        for link in self.links.values():
            # while it holds models nothing is read, and the neighbour's Done comes after them
            link.inbox.clear()
            link.send(Done())
        until = time.monotonic() + self.config.timeout
        while (left := until - time.monotonic()) > 0 and (
            waiting := [link for link in self.links.values() if not link.done]
        ):
            await self._connections.wait_for_change(left)
        # only now: tags of the last step come after its message, and no other message follows
        self._state.save_news()
        if serve:
            self._connections.serve()
        while serve:
            await self._connections.wait_for_change(None)
        if waiting:
            names = ", ".join(link.neighbour.name for link in waiting)
            self.log("leaves before others are done", neighbours=names)
        await self._connections.disconnect_all("done")

    @property
    def refusals(self) -> dict[str, int]:
        """How many connections were refused, by kind."""
        return self._connections.refusals

    def why_not_ready(self) -> str | None:
        """Who is missing for a quorum of neighbours; None if there is one."""
        return self._barrier.why_not_ready()

    def neighbour_statuses(self) -> list[dict[str, Any]]:
        """Every neighbour as `decor status` shows it."""
        return [link.status() for link in self.links.values()]

    # what a connection asks for

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
        # on disk before it is sent: not even a crash may bring one of these numbers back
        epoch = self.ledger.next_epoch(self.run, neighbour.number)
        claim = self.links[neighbour.number].keys.confirm
        receipt = self._receipts.newest(neighbour.number)
        return Session(config, epoch, self._state.next_step, claim, receipt)

    def _handle_event(self, link: Link, event: Event) -> None:
        self._receiver.handle(link, event)

    def _handle_loss(self, link: Link) -> None:
        link.keys.lose()
