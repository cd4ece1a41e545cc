"""Peer: one user among its neighbours: keys, receipts, models of a round, and its barrier.

A neighbour is never trusted to be there. What it sends is checked before it is kept, and few of
its messages are kept at a time. A round goes on without a neighbour that has been silent for too
long, as long as a quorum of neighbours is connected. A neighbour does not ask for what it missed:
when it connects again it is sent the model that the step began with, and proof that others have
come so far (receipts), and continues from there. `connections` opens and closes connections.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decor.errors import AgreementError, PrivacyStop, RemoteProtocolError
from decor.noise.agreement import key_id

from .connections import OPENING_SECONDS, Connections, Log
from .edge_keys import NO_KEY, EdgeKeys
from .identity import Identity
from .ledger import KEY_ID_BYTES, TAG_BYTES, Ledger, split
from .messages import Done, KeyRequest, SealedKey, SignedReceipt
from .neighbour import HELD, Link, Neighbour, Values
from .rate_limit import RateLimit
from .reach import Reach
from .receipt_book import ReceiptBook
from .receipts import Receipt
from .session import (
    Agreed,
    Event,
    Finished,
    Greeted,
    Heard,
    KeyAsked,
    KeyGiven,
    Receipted,
    Received,
    Session,
    SessionConfig,
    Tagged,
)

SETTLING_SECONDS = 2.0
WORDS, WORDS_PER_SECOND = 64, 16
"""Short messages of one neighbour, such as Alive, at once and per second."""
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
    number: int
    """This user's, in the order of the federation's file."""
    members: tuple[bytes, ...]
    """Public keys of all users, in the same order."""
    liars: int = 1
    """Users that may lie about how far they are."""
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
        self.config, self.ledger, self.run, self.log = config, ledger, run, log
        self._check_values, self._on_model = check_values, on_model
        self.links = {n.number: Link(n) for n in config.neighbours}
        for link in self.links.values():
            # a user behind is shown each user's receipt by several neighbours; and what came while
            # nothing was read comes at once
            burst = WORDS + 4 * len(config.members)
            link.words = RateLimit(burst, WORDS_PER_SECOND, most=math.inf)
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
        # what a neighbour that connects anew may still need: the last round of the step before
        # too, which may not have arrived
        self._sent: deque[tuple[int, int, Values]] = deque(maxlen=2)
        self._finishing = False
        self._receipts = ReceiptBook(
            config.identity,
            config.number,
            config.members,
            config.federation,
            config.length.steps,
            config.liars,
            ledger.receipts(run).values(),
        )
        # steps whose noise is known to cancel since the last message was written
        self._unsaved_steps: set[int] = set()
        self._restore()
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
        for link in self.links.values():
            link.is_waited_for = True
        while True:
            missing = [link for link in self.links.values() if not link.is_open]
            here = len(self.links) - len(missing)
            left = until - time.monotonic()
            if not missing or (left <= 0 and here >= needed):
                self.paused = None
                for link in missing:
                    link.absent = True
                for link in self.links.values():
                    link.is_waited_for = False
                return here > 0
            self._pause(f"waits for {', '.join(link.neighbour.name for link in missing)}")
            await self._connections.wait_for_change(left if left > 0 else None)

    async def wait_for_progress(self) -> None:
        """After a restart: waits a moment until neighbours that are further ahead say where."""
        until = time.monotonic() + SETTLING_SECONDS
        while (left := until - time.monotonic()) > 0:
            connected = [link for link in self.links.values() if link.is_open]
            further = [link for link in connected if link.their_step > self.next_step]
            # what this step still needs, or where the others are and proof of it: a message that
            # is made now and not needed would be paid for in vain
            in_time = all(link.inbox.has(*self._at) for link in further)
            if in_time or self.ahead(self.step) is not None:
                return
            await self._connections.wait_for_change(left)

    def begin(self, step: int, model: Values | None) -> None:
        """Begins a step with this model (None: not known), which new connections are sent."""
        self.step, self._step_start, self._at = step, model, (step, 0)
        for link in self.links.values():
            link.inbox.drop_before(step)
            # where a neighbour is further ahead is said once in a connection, and proven later
            if link.step_start is not None and link.step_start[0] <= step:
                link.step_start, link.awaits_proof = None, False

    def resend(self, messages: Sequence[tuple[int, int, Values]]) -> None:
        """After a restart: the last messages, as (step, round, values), for new connections."""
        self._sent.extend(messages)

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
        while not self._keys_ready(step, until):
            if self.ahead(step) is not None:
                return None
            await self._connections.wait_for_change(self._seconds_to_key(until))
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
            self._take_unsaved_steps(),
            velocity,
        )
        self._receipts.sign(step, digest)
        self.next_step = step + 1

    def save_news(self) -> None:
        """Writes what is known of others to the ledger, after the last message."""
        receipts, steps = self._receipts.take_unsaved(), self._take_unsaved_steps()
        if receipts or steps:
            self.ledger.store_news(self.run, receipts, steps)

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
        self._at = step, round_
        # after a restart every connection has been sent it already
        if (step, round_) not in [(each[0], each[1]) for each in self._sent]:
            # kept for neighbours that connect during the round, or the next
            self._sent.append((step, round_, values))
            for link in self.links.values():
                if link.is_open:
                    # before the model: short messages are written together
                    if round_ == 0 and step in link.tags.own:
                        self._send_tag(link, step)
                    self._send(link, step, round_, values)
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

        None if that step is not later than `step`, or not proven: more users than may lie must have
        signed a message of it.
        """
        # the rounds' own models, if they are all here, are better than a later mean
        if all(link.inbox.has(*self._at) for link in self.links.values()):
            return None
        starts = [link.step_start for link in self.links.values() if link.step_start is not None]
        # the furthest first
        starts.sort(key=lambda start: -start[0])
        # a quorum is at the first of these steps, and at the later ones of the list all the more; a
        # liar's claim must not hide what is proven
        for reached, _ in starts[self.config.quorum_count - 1 :]:
            if reached > step and self._receipts.is_proven(reached):
                return reached, [model for at, model in starts if at >= reached]
        return None

    async def finish(self, serve: bool = False) -> None:
        """Sends Done, and stays until all neighbours have, or for the timeout.

        A neighbour that was away can still get its last models meanwhile.

        Args:
            serve: Stay until cancelled, for neighbours that fetch the final model later.
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
        self.save_news()
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
        # a neighbour that is done has left for good, and nothing is missing for it
        missing = [each for each in self.links.values() if not (each.is_open or each.done)]
        here, needed = len(self.links) - len(missing), self.config.quorum_count
        if here >= needed:
            return None
        names = ", ".join(link.neighbour.name for link in missing)
        return (
            f"{here} of {len(self.links)} neighbours connected, quorum {needed}; missing: {names}"
        )

    def neighbour_statuses(self) -> list[dict[str, Any]]:
        """Every neighbour as `decor status` shows it."""
        return [link.status() for link in self.links.values()]

    # the barrier

    def _keys_ready(self, step: int, until: float) -> bool:
        """Whether the keys of a step can be taken: all that will come are here."""
        now, waiting, connected = time.monotonic(), False, 0
        all_greeted = all(link.has_greeted for link in self.links.values())
        for link in self.links.values():
            connected += link.is_open
            if link.keys.is_ready(step):
                continue
            if link.keys.is_confirming:
                # no key before it is open or lost: the neighbour may use either secret
                if now >= until + OPENING_SECONDS:
                    self._connections.drop(link, "did not confirm a secret in time")
                else:
                    waiting = True
            elif link.is_open and link.keys.needs(step):
                # a key that was used may be used again only if nobody has a message of this step:
                # between two messages under one key only own noise is left
                if all_greeted and not link.asked_for_key:
                    link.asked_for_key = link.awaits_key = True
                    link.send(KeyRequest(step))
                    # the answer comes after models that wait for the key
                    link.inbox.release_reader()
                waiting |= not link.key_is_gone and now < until
            elif not link.is_open and not (link.absent or link.done):
                waiting |= now < self._deadline(link, until)
        if waiting:
            return False
        if connected < self.config.quorum_count:
            self._pause(f"only {connected} of {len(self.links)} neighbours are here")
            return False
        self.paused = None
        return True

    def _seconds_to_key(self, until: float) -> float | None:
        """Seconds until waiting for keys changes anything by itself."""
        now = time.monotonic()
        ends = [until, until + OPENING_SECONDS]
        ends += [self._deadline(link, until) for link in self.links.values() if not link.is_open]
        later = [end for end in ends if end > now]
        return min(later) - now + 0.001 if later else None

    def _ready(self, step: int, round_: int, until: float) -> bool:
        """Whether a round can end: all models are here, or a quorum after the timeout.

        Gives up on neighbours whose deadline is over.
        """
        now, here, waiting = time.monotonic(), 0, False
        for link in self.links.values():
            if link.inbox.has(step, round_):
                here += 1
            elif link.is_given_up:
                continue
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
            if not (link.inbox.has(step, round_) or link.is_given_up)
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

    def _restore(self) -> None:
        """What the ledger says of keys, tags and receipts, after a restart."""
        numbers = list(self.links)
        for step, ids, tags, cancelled in self.ledger.noise_rows(self.run):
            for number, tag in zip(numbers, split(tags, TAG_BYTES), strict=False):
                self.links[number].tags.own[step] = tag
            for number, flag in zip(numbers, cancelled, strict=False):
                if flag:
                    self.links[number].tags.cancelled.add(step)
            if step == self.next_step - 1:
                last = split(ids, KEY_ID_BYTES) or [NO_KEY] * len(numbers)
                for number, used in zip(numbers, last, strict=True):
                    self.links[number].keys = EdgeKeys(self.next_step, used)
        for step in range(max(0, self.next_step - 2), self.next_step):
            if (digest := self.ledger.digest(self.run, step)) is not None:
                self._receipts.sign(step, digest)

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
        epoch = self.ledger.next_epoch(self.run, neighbour.number)
        claim = self.links[neighbour.number].keys.confirm
        receipt = self._receipts.newest(neighbour.number)
        return Session(config, epoch, self.next_step, claim, receipt)

    def _handle_loss(self, link: Link) -> None:
        link.keys.lose()

    def _handle_event(self, link: Link, event: Event) -> None:
        name = link.neighbour.name
        match event:
            case Greeted(step, receipt, fetches):
                if step > (steps := self.config.length.steps):
                    raise RemoteProtocolError(f"claims to be at step {step} of a run of {steps}")
                if receipt is not None:
                    self._check_own_receipt(link, receipt)
                # see wait_for_progress
                link.their_step = step
                # whoever fetches has opened no ledger, and cannot show what is in it
                link.has_greeted |= not fetches
                if fetches and not self._finishing:
                    self._connections.drop(link, "the run has not finished; fetch the model later")
            case Agreed(secret, epoch, their_step, their_key):
                # older secrets are turned forward to it, step by step
                if their_step > (steps := self.config.length.steps):
                    raise RemoteProtocolError(
                        f"claims to have taken keys up to step {their_step} of a run of {steps}"
                    )
                first_step = link.keys.open(secret, their_step, their_key)
                link.absent, link.done, link.step_start = False, False, None
                link.awaits_proof = False
                link.asked_for_key = link.awaits_key = link.key_is_gone = link.gave_key = False
                link.inbox.clear()  # it will send where it is, and its last models again
                link.heard_at = time.monotonic()
                self.log("connected", neighbour=name, epoch=epoch, secret_from_step=first_step)
                self._send_catch_up(link)
                if self._finishing:
                    link.send(Done())
            case Received(step, round_, values):
                self._handle_model(link, step, round_, values)
            case Tagged(step, tag):
                self._handle_tag(link, step, tag)
            case Receipted(receipt):
                self._handle_receipt(link, receipt)
            case KeyAsked(step):
                self._count_word(link)
                self._give_key(link, step)
            case KeyGiven(step, sealed):
                self._handle_key(link, step, sealed)
            case Heard():
                self._count_word(link)
                link.heard_at = time.monotonic()
            case Finished():
                self._count_word(link)
                link.done = True

    def _count_word(self, link: Link) -> None:
        """A message that costs its sender nothing, and must not keep this user from its work."""
        if not link.words.allow():
            raise RemoteProtocolError("sends too many short messages")

    def _check_own_receipt(self, link: Link, receipt: Receipt) -> None:
        """Ends the run for good if this user has signed a message that its ledger lacks."""
        if not self._receipts.is_own(receipt):
            raise RemoteProtocolError(f"shows a receipt of user {receipt.user} as this user's")
        if self.ledger.digest(self.run, receipt.step) == receipt.digest:
            return
        why = (
            f"{link.neighbour.name} holds a receipt of this user for a message of step "
            f"{receipt.step} that the ledger {str(self.ledger.path)!r} does not have: it is an "
            "older copy or a new one, or another node uses the same key. The run has ended for "
            f"good; steps up to {receipt.step} are counted once more, and nothing more is sent"
        )
        self.ledger.end_as_outdated(self.run, receipt.step, why)
        raise PrivacyStop(why)

    def _handle_receipt(self, link: Link, receipt: Receipt) -> None:
        sender = link.neighbour.number
        if receipt.user == sender:
            is_new = self._receipts.hear_own(sender, receipt, self.log)
            # it has used the key, so it never needs it again
            link.keys.forget(receipt.step)
        elif self._receipts.is_own(receipt):
            self._count_word(link)
            self._check_own_receipt(link, receipt)
            return
        else:
            is_new = self._receipts.hear_passed(receipt)
            # the copy of that user which is connected here lacks a message that it has signed
            if self._receipts.report_second(receipt, self.log) and receipt.user in self.links:
                self.links[receipt.user].send(SignedReceipt(receipt))
        if not is_new:
            self._count_word(link)
            return
        for other in self.links.values():
            if other.awaits_proof and other.step_start is not None:
                other.awaits_proof = not self._receipts.is_proven(other.step_start[0])
        # a user behind needs proof from more users than this one's neighbours
        for other in self.links.values():
            if other.is_behind and other is not link and self._receipts.is_valid(receipt):
                other.send(SignedReceipt(receipt))

    def _give_key(self, link: Link, step: int) -> None:
        if link.gave_key:
            raise RemoteProtocolError("asked twice for a key")
        link.gave_key = True
        newest = self._receipts.newest(link.neighbour.number)
        # never for a message that it has made already: two messages under one key
        is_used = newest is not None and newest.step >= step
        try:
            sealed = b"" if is_used else link.keys.seal(step)
        except AgreementError as problem:
            raise RemoteProtocolError(f"asked for a key that it cannot need: {problem}") from None
        link.send(SealedKey(step, sealed))

    def _handle_key(self, link: Link, step: int, sealed: bytes) -> None:
        if not link.awaits_key:
            raise RemoteProtocolError(f"sent a key that was not asked for, of step {step}")
        link.awaits_key = False
        try:
            key = link.keys.unseal(step, sealed) if sealed else None
        except AgreementError as problem:
            raise RemoteProtocolError(f"sent a key that cannot be used: {problem}") from None
        if key is None or self.ledger.has_key(key_id(key)):
            link.key_is_gone = True
            name = link.neighbour.name
            self.log("key is gone", neighbour=name, step=step, why="noise is drawn afresh")
            return
        link.keys.receive(step, key)

    def _handle_model(self, link: Link, step: int, round_: int, values: Values) -> None:
        length = self.config.length
        link.heard_at = time.monotonic()
        # before the checks: an audit records what was sent, valid or not
        self._on_model(link.neighbour.number, step, round_, values)
        if step > length.steps or round_ > length.rounds_of(step):
            raise RemoteProtocolError(
                f"sent a model of step {step}, round {round_}, which this run does not have"
            )
        is_message = step < length.steps and round_ == 0
        if is_message and self._receipts.of(link.neighbour.number, step) is None:
            newest = self._receipts.newest(link.neighbour.number)
            if newest is None or newest.step < step:
                raise RemoteProtocolError(f"sent a message of step {step} without a receipt")
            # older than what it has sent before, so nobody can tell whether it is the same
            self.late += 1
            return
        if (problem := self._check_values(step, values)) is not None:
            raise RemoteProtocolError(problem)
        # a valid model shows that it takes part again
        link.silent = False
        if step >= self.step - 1:
            link.is_behind = False
        if self._finishing:
            pass  # nothing is needed any more
        elif round_ == length.rounds_of(step):  # not a round of the step, but its result
            self._set_step_start(link, step + 1, values)
        elif (step, round_) < self._at:
            self.late += 1
        else:
            if step > self.step + 1 and link.step_start is None:
                # it went on without this user, and no longer has the model its step began with
                self._set_step_start(link, step, values)
            link.inbox.put(step, round_, values)

    def _set_step_start(self, link: Link, step: int, model: Values) -> None:
        link.step_start = (step, model)
        # others make their messages of that step while this neighbour waits for them: it passes
        # their receipts on after its own message
        link.awaits_proof = step > self.step and not self._receipts.is_proven(step)

    def _send_catch_up(self, link: Link) -> None:
        """Sends what a new connection needs.

        That is the step's first model, this user's last messages, and tags that the two have not
        compared; to a user that is behind also proof of where the others are.
        """
        link.is_behind = link.their_step < self.next_step - 1
        if link.is_behind:
            for receipt in self._receipts.all_newest():
                if receipt.user != link.neighbour.number:
                    link.send(SignedReceipt(receipt))
        messages = [each for each in self._sent if self._may_need(link, each[0])]
        if self._step_start is not None and self.step > 0:
            before = self.step - 1
            messages.append((before, self.config.length.rounds_of(before), self._step_start))
        # in the order of a run: an older one would be refused
        for step, round_, values in sorted(messages, key=lambda each: each[:2]):
            self._send(link, step, round_, values)
        for step in link.tags.connect():
            self._send_tag(link, step)

    def _may_need(self, link: Link, step: int) -> bool:
        """Whether a neighbour may still need a message of a step that is over here."""
        return step >= self.step or link.their_step <= step + 1 <= link.their_step + 1

    def _send(self, link: Link, step: int, round_: int, values: Values) -> None:
        if not link.done and (connection := link.open_connection) is not None:
            if round_ == 0 and step < self.config.length.steps:
                receipt = self._receipts.of(self.config.number, step)
                # without its receipt a neighbour refuses it
                if receipt is None:
                    return
                connection.session.send(SignedReceipt(receipt))
            connection.session.send_model(step, round_, values)
            # a neighbour that does not read must not fill this user's memory
            if connection.flush() > (HELD + 2) * (self.config.model_bytes + 4096):
                self._connections.drop(link, "does not read what it is sent")

    def _send_tag(self, link: Link, step: int) -> None:
        if (connection := link.open_connection) is not None:
            connection.session.send_tag(step, link.tags.own[step])
            connection.flush()
            link.tags.mark_sent(step)

    def _handle_tag(self, link: Link, step: int, tag: bytes) -> None:
        if step >= self.config.length.steps or link.tags.was_heard(step):
            raise RemoteProtocolError(f"sent a tag of step {step} twice, or beyond the run")
        if link.tags.hear(step, tag):
            self._send_tag(link, step)
        self._unsaved_steps.add(step)
        if link.tags.differs(step):
            self.log("noise does not cancel", neighbour=link.neighbour.name, step=step)

    def _take_unsaved_steps(self) -> dict[int, bytes]:
        """Step -> for each neighbour whether its noise cancels, as the ledger stores it."""
        # a neighbour's tag may come before this user's message: it is saved with the next one
        steps = {step for step in self._unsaved_steps if step < self.next_step}
        self._unsaved_steps -= steps
        links = self.links.values()
        return {step: bytes(step in link.tags.cancelled for link in links) for step in steps}
