"""One connection between two neighbours as a state machine: bytes in, bytes and events out, no I/O.

The table `MOVES` says which message may come in which state: a message without an entry for the
present state is refused, and the error names the neighbour. The same class serves both sides of a
connection.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from decor.errors import AgreementError, LocalProtocolError, RemoteProtocolError
from decor.noise.agreement import Agreement, Edge, EdgeSecret

from .messages import (
    Alive,
    Bye,
    Confirmation,
    Decoder,
    Done,
    Hello,
    KeyRequest,
    Message,
    Model,
    NoiseTag,
    Offer,
    SealedKey,
    SignedReceipt,
    limits,
    pieces,
)
from .receipts import Receipt


class State(Enum):
    GREETING = "waits for the neighbour's hello"
    AGREEING = "waits for the neighbour's offer of a key"
    CONFIRMING = "waits for the neighbour's proof that it holds the same secret"
    OPEN = "exchanges models"
    CLOSED = "is over"


@dataclass(frozen=True)
class Greeted:
    """The neighbour is in the same federation; `step` is its first step without a message.

    `receipt` is the newest that it has of this user; `fetches`: it only wants the final model.
    """

    step: int
    receipt: Receipt | None = None
    fetches: bool = False


@dataclass(frozen=True)
class Opened:
    """The connection is open: both ends have greeted each other as their protocol demands."""


@dataclass(frozen=True)
class Agreed(Opened):
    """Both ends hold `secret`; the neighbour has taken no key of `their_step` or a later one.

    `their_key` is the id of the key that it took for the step before.
    """

    secret: EdgeSecret
    epoch: int
    their_step: int
    their_key: bytes


@dataclass(frozen=True)
class Received:
    """A neighbour's model of a step and round. Only its order and its size are checked so far."""

    step: int
    round: int
    values: bytes | memoryview


@dataclass(frozen=True)
class Tagged:
    """The tag of the neighbour's noise of a step; equal tags mean that the noise cancels."""

    step: int
    tag: bytes


@dataclass(frozen=True)
class Receipted:
    """A receipt, of the neighbour's own message or of another user's; not verified yet."""

    receipt: Receipt


@dataclass(frozen=True)
class KeyAsked:
    """The neighbour asks for the key that this user took for `step`."""

    step: int


@dataclass(frozen=True)
class KeyGiven:
    """The neighbour's key of `step`, sealed; empty: it does not have it any more."""

    step: int
    sealed: bytes


@dataclass(frozen=True)
class Heard:
    """The neighbour is connected, and has nothing to send yet."""


@dataclass(frozen=True)
class Finished:
    """The neighbour has its model, and needs no neighbour any more."""


@dataclass(frozen=True)
class Ended:
    """The neighbour has closed the connection, and said why."""

    reason: str


Event = (
    Greeted
    | Opened
    | Agreed
    | Received
    | Tagged
    | Receipted
    | KeyAsked
    | KeyGiven
    | Heard
    | Finished
    | Ended
)


@dataclass(frozen=True)
class SessionConfig:
    """The two ends of a connection, and what both have to agree on before anything else."""

    identity: Ed25519PrivateKey
    neighbour: str
    """Its name, for messages to people."""
    public: bytes
    is_lower: bool
    """Whether this side has the lower number: it adds the edge's noise, the other subtracts it."""
    federation: bytes
    digests: tuple[tuple[str, bytes], ...]
    model_bytes: int
    random: Callable[[int], bytes] = os.urandom
    """Source of the key that this side offers."""


class Session:
    """`receive` turns bytes into events; `send_model` and others queue bytes for `outgoing`.

    Args:
        config: The two ends.
        epoch: A number that this side has never used with this neighbour.
        step: This side's first step without a message.
        take_claim: What this side's confirmation says about its keys (`EdgeKeys.confirm`); called
            when the confirmation is made, and not before: a step may begin in between.
        receipt: The newest receipt that this side has of the neighbour.
        fetches: This side only wants the final model.
    """

    def __init__(
        self,
        config: SessionConfig,
        epoch: int,
        step: int,
        take_claim: Callable[[], tuple[int, bytes]],
        receipt: Receipt | None = None,
        fetches: bool = False,
    ) -> None:
        self.config, self.epoch = config, epoch
        self._take_claim = take_claim
        self.state = State.GREETING
        self._decoder = Decoder(limits(config.model_bytes))
        self._agreement: Agreement | None = None
        self._secret: EdgeSecret | None = None
        # of what was received: models come in order, each once
        self._latest = -1, -1
        self._out: deque[bytes | memoryview] = deque()
        # both speak first: neither has to wait for the other
        self._queue(Hello(config.federation, config.digests, epoch, step, receipt, fetches))

    @property
    def is_over(self) -> bool:
        return self.state is State.CLOSED

    def outgoing(self) -> bytes:
        """Removes and returns what is to be written now."""
        return b"".join(self.parts())

    def parts(self) -> list[bytes | memoryview]:
        """The same in parts. Models are not copied: their memory must not change until written."""
        parts = list(self._out)
        self._out.clear()
        return parts

    def receive(self, data: bytes) -> list[Event]:
        """Returns the events in these bytes.

        Raises:
            RemoteProtocolError: The neighbour sent what it may not send. The session is closed,
                and a Bye tells the neighbour.
        """
        events: list[Event] = []
        try:
            for message in self._decoder.feed(data, self._check_turn) if not self.is_over else ():
                events += MOVES[self.state, type(message)](self, message)
                # nothing after a Bye counts
                if self.is_over:
                    break
        # decoding, protocol and cryptography: all end the session in the same way
        except (RemoteProtocolError, AgreementError) as problem:
            self.close("protocol error")
            of_agreement = isinstance(problem, AgreementError)
            what = "could not agree on a secret: " if of_agreement else ""
            raise RemoteProtocolError(f"{self.config.neighbour} {what}{problem}") from None
        return events

    def send_model(self, step: int, round_: int, values: bytes | memoryview) -> None:
        self._check_open("a model")
        size = self.config.model_bytes
        # a neighbour would quarantine this user for it
        if len(values) != size:
            raise LocalProtocolError(f"a model has {size:,} bytes, not {len(values):,}")
        self._queue(Model(step, round_, values))

    def send_tag(self, step: int, tag: bytes) -> None:
        self._check_open("a tag")
        if len(tag) != 8:
            raise LocalProtocolError(f"a tag has 8 bytes, not {len(tag)}")
        self._queue(NoiseTag(step, tag))

    def send(self, word: Alive | Done | SignedReceipt | KeyRequest | SealedKey) -> None:
        self._check_open(f"a message {type(word).__name__}")
        self._queue(word)

    def close(self, reason: str) -> None:
        """Queues one Bye; nothing is sent or received afterwards."""
        # the first reason is the true one: what closes a session again only follows from it
        if not self.is_over:
            self._queue(Bye(reason))
            self._end()

    def _end(self) -> None:
        self.state = State.CLOSED
        self._agreement = self._secret = None  # no secret outlives its session here

    def _check_open(self, what: str) -> None:
        if self.state is not State.OPEN:
            raise LocalProtocolError(
                f"{what} needs an open session to be sent; this one {self.state.value}"
            )

    def _check_turn(self, kind: type[Message]) -> None:
        if (self.state, kind) not in MOVES:
            raise RemoteProtocolError(f"sent a {kind.__name__} while this side {self.state.value}")

    def _queue(self, message: Message) -> None:
        self._out.extend(pieces(message))

    def _greet(self, hello: Hello) -> list[Event]:
        config = self.config
        # before any key is offered: users of different files may draw different noise
        if hello.federation != config.federation:
            raise RemoteProtocolError(
                f"has another federation file: {difference(config.digests, hello.digests)}"
            )
        # both ends compute the same epoch, which neither has used before
        self.epoch = max(self.epoch, hello.epoch)
        own = config.identity.public_key().public_bytes_raw()
        # both ends name the edge in the same order
        low, high = (own, config.public) if config.is_lower else (config.public, own)
        edge = Edge(low, high, config.federation, self.epoch)
        self._agreement = Agreement(config.identity, edge, config.random)
        self._queue(Offer(self._agreement.offer))
        self.state = State.AGREEING
        return [Greeted(hello.step, hello.receipt, hello.fetches)]

    def _agree(self, offer: Offer) -> list[Event]:
        assert self._agreement is not None
        self._secret = self._agreement.accept(offer.offer)
        # not when this side greeted: a step may have begun since, and taken a key
        next_step, key_id = self._take_claim()
        tag = self._secret.tag(Confirmation.claim(next_step, key_id))
        self._queue(Confirmation(tag, next_step, key_id))
        self.state = State.CONFIRMING
        return []

    def _confirm(self, confirmation: Confirmation) -> list[Event]:
        secret, (step, key) = self._secret, (confirmation.next_step, confirmation.key_id)
        assert secret is not None
        # both ends must hold the same secret before any noise is drawn from it
        secret.confirm(confirmation.tag, Confirmation.claim(step, key))
        # only the receiver of the event holds the secret from here on
        self._agreement = self._secret = None
        self.state = State.OPEN
        return [Agreed(secret, self.epoch, step, key)]

    def _model(self, model: Model) -> list[Event]:
        # the decoder has refused longer ones by their header; this one may be shorter
        if len(model.values) != self.config.model_bytes:
            raise RemoteProtocolError(
                f"sent a model of {len(model.values):,} bytes instead of "
                f"{self.config.model_bytes:,}"
            )
        # a repeated model would be taken for a second message
        if (model.step, model.round) <= self._latest:
            step, round_ = self._latest
            raise RemoteProtocolError(
                f"sent a model of step {model.step}, round {model.round} after one of step {step}, "
                f"round {round_}: an old or a repeated one"
            )
        self._latest = (model.step, model.round)
        return [Received(model.step, model.round, model.values)]

    def _tag(self, tag: NoiseTag) -> list[Event]:
        return [Tagged(tag.step, tag.tag)]

    def _receipt(self, signed: SignedReceipt) -> list[Event]:
        return [Receipted(signed.receipt)]

    def _ask(self, request: KeyRequest) -> list[Event]:
        return [KeyAsked(request.step)]

    def _give(self, key: SealedKey) -> list[Event]:
        return [KeyGiven(key.step, key.sealed)]

    def _alive(self, _: Alive) -> list[Event]:
        return [Heard()]

    def _finish(self, _: Done) -> list[Event]:
        return [Finished()]

    def _bye(self, bye: Bye) -> list[Event]:
        # not answered: whoever says goodbye reads nothing any more
        self._end()
        return [Ended(bye.reason)]


MOVES: dict[tuple[State, type[Message]], Callable[..., list[Event]]] = {
    (State.GREETING, Hello): Session._greet,
    (State.AGREEING, Offer): Session._agree,
    (State.CONFIRMING, Confirmation): Session._confirm,
    (State.OPEN, Model): Session._model,
    (State.OPEN, NoiseTag): Session._tag,
    (State.OPEN, SignedReceipt): Session._receipt,
    (State.OPEN, KeyRequest): Session._ask,
    (State.OPEN, SealedKey): Session._give,
    (State.OPEN, Alive): Session._alive,
    (State.OPEN, Done): Session._finish,
    (State.GREETING, Bye): Session._bye,
    (State.AGREEING, Bye): Session._bye,
    (State.CONFIRMING, Bye): Session._bye,
    (State.OPEN, Bye): Session._bye,
}
"""Every message that may come in every state; anything else is refused."""


def difference(ours: tuple[tuple[str, bytes], ...], theirs: tuple[tuple[str, bytes], ...]) -> str:
    """Which fields differ, by the names in this side's file: the neighbour's are not trusted."""
    held = dict(theirs)
    # by name, not by position: a field that is missing at one end shifts all others
    names = [name for name, digest in ours if held.get(name) != digest]
    unknown = len(set(held) - {name for name, _ in ours})
    more = f", and {unknown} that this side does not have" if unknown else ""
    return f"fields that differ: {', '.join(names) or 'none that this side has'}{more}"
