"""One connection between two neighbours, without input or output: bytes and the clock come in,
bytes and events go out.

Who may say what when is the table `MOVES`: a message that has no entry for the present state is
refused, and names the neighbour. The same object serves the side that called and the side that
answered; after the greeting the two are alike.
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
    Message,
    Model,
    NoiseTag,
    Offer,
    limits,
    pieces,
)


class State(Enum):
    GREETING = "waits for the neighbour's hello"
    AGREEING = "waits for the neighbour's offer of a key"
    CONFIRMING = "waits for the neighbour's proof that it holds the same secret"
    OPEN = "exchanges models"
    CLOSED = "is over"


@dataclass(frozen=True)
class Greeted:
    """The neighbour is in the same federation, and its first step without a message is `step`."""

    step: int


@dataclass(frozen=True)
class Agreed:
    """From `first_step` on both ends draw this edge's noise from `secret`."""

    secret: EdgeSecret
    epoch: int
    first_step: int


@dataclass(frozen=True)
class Received:
    """A neighbour's model of a step and round: as many bytes as a model has, nothing else about it
    is checked yet.
    """

    step: int
    round: int
    values: bytes | memoryview


@dataclass(frozen=True)
class Tagged:
    """What the neighbour's noise of a step looks like from outside; equal tags mean that it
    cancels.
    """

    step: int
    tag: bytes


@dataclass(frozen=True)
class Heard:
    """The neighbour is here, and has nothing to say yet."""


@dataclass(frozen=True)
class Finished:
    """The neighbour has its model, and needs nobody any more."""


@dataclass(frozen=True)
class Ended:
    """The neighbour hung up, and said why."""

    reason: str


Event = Greeted | Agreed | Received | Tagged | Heard | Finished | Ended


@dataclass(frozen=True)
class Ends:
    """Who is at the two ends of a connection, and what both must know alike before they say
    anything else.
    """

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
    """Of the key that this side offers."""


class Session:
    """`receive` bytes -> events, `send_model` and others -> bytes to be written by whoever has the
    socket.
    """

    def __init__(self, ends: Ends, epoch: int, step: int) -> None:
        self.ends, self.epoch, self.step = ends, epoch, step
        self.state = State.GREETING
        self._decoder = Decoder(limits(ends.model_bytes))
        self._agreement: Agreement | None = None
        self._agreed: Agreed | None = None
        self._theirs: Hello | None = None
        self._latest, self._latest_tag = (-1, -1), -1
        self._out: deque[bytes | memoryview] = deque()
        self._say(Hello(ends.federation, ends.digests, epoch, step))

    @property
    def is_over(self) -> bool:
        return self.state is State.CLOSED

    def outgoing(self) -> bytes:
        """What is to be written now; asked for again, nothing."""
        return b"".join(self.parts())

    def parts(self) -> list[bytes | memoryview]:
        """The same in pieces, models uncopied: what was given to `send_model` must not change
        before it is written.
        """
        found = list(self._out)
        self._out.clear()
        return found

    def receive(self, data: bytes) -> list[Event]:
        """What the bytes mean.

        After an error the session is closed, and the neighbour is told in a word.
        """
        found: list[Event] = []
        try:
            for message in self._decoder.feed(data, self._in_turn) if not self.is_over else ():
                found += MOVES[self.state, type(message)](self, message)
                if self.is_over:
                    break
        except (RemoteProtocolError, AgreementError) as problem:
            self.close("protocol error")
            raise RemoteProtocolError(f"{self.ends.neighbour} {_told(problem)}") from None
        return found

    def send_model(self, step: int, round_: int, values: bytes | memoryview) -> None:
        if self.state is not State.OPEN:
            raise LocalProtocolError(
                f"a model is sent over an open session; this one {self.state.value}"
            )
        if len(values) != self.ends.model_bytes:
            raise LocalProtocolError(
                f"a model has {self.ends.model_bytes:,} bytes, not {len(values):,}"
            )
        self._say(Model(step, round_, values))

    def send_tag(self, step: int, tag: bytes) -> None:
        if self.state is not State.OPEN or len(tag) != 8:
            raise LocalProtocolError("a tag of eight bytes is sent over an open session")
        self._say(NoiseTag(step, tag))

    def send(self, word: Alive | Done) -> None:
        if self.state is not State.OPEN:
            raise LocalProtocolError(
                f"this is said over an open session; this one {self.state.value}"
            )
        self._say(word)

    def close(self, reason: str) -> None:
        """Says goodbye once; nothing is said or heard afterwards."""
        if not self.is_over:
            self._say(Bye(reason))
            self.state = State.CLOSED
            self._agreement = self._agreed = None

    def _in_turn(self, kind: type[Message]) -> None:
        if (self.state, kind) not in MOVES:
            raise RemoteProtocolError(f"sent a {kind.__name__} while this side {self.state.value}")

    def _say(self, message: Message) -> None:
        self._out.extend(pieces(message))

    def _greet(self, hello: Hello) -> list[Event]:
        if hello.federation != self.ends.federation:
            raise RemoteProtocolError(
                f"has another federation file: {_difference(self.ends.digests, hello.digests)}"
            )
        self._theirs = hello
        self.epoch = max(self.epoch, hello.epoch)
        own = self.ends.identity.public_key().public_bytes_raw()
        low, high = (own, self.ends.public) if self.ends.is_lower else (self.ends.public, own)
        edge = Edge(low, high, self.ends.federation, self.epoch)
        self._agreement = Agreement(self.ends.identity, edge, self.ends.random)
        self._say(Offer(self._agreement.offer))
        self.state = State.AGREEING
        return [Greeted(hello.step)]

    def _agree(self, offer: Offer) -> list[Event]:
        assert self._agreement is not None and self._theirs is not None
        secret = self._agreement.accept(offer.offer)
        self._agreed = Agreed(secret, self.epoch, max(self.step, self._theirs.step))
        self._say(Confirmation(secret.tag, self._agreed.first_step))
        self.state = State.CONFIRMING
        return []

    def _confirm(self, confirmation: Confirmation) -> list[Event]:
        agreed = self._agreed
        assert agreed is not None
        agreed.secret.confirm(confirmation.tag)
        if confirmation.first_step != agreed.first_step:
            raise RemoteProtocolError(
                f"begins its noise at step {confirmation.first_step}, and "
                f"not at {agreed.first_step}"
            )
        # the secret is with whoever takes the event, and nowhere else
        self._agreement = self._agreed = None
        self.state = State.OPEN
        return [agreed]

    def _model(self, model: Model) -> list[Event]:
        if len(model.values) != self.ends.model_bytes:
            raise RemoteProtocolError(
                f"sent a model of {len(model.values):,} bytes instead of {self.ends.model_bytes:,}"
            )
        if (model.step, model.round) <= self._latest:
            raise RemoteProtocolError(
                f"sent a model of step {model.step}, round {model.round} after one of step "
                f"{self._latest[0]}, "
                f"round {self._latest[1]}: an old one, or one twice"
            )
        self._latest = (model.step, model.round)
        return [Received(model.step, model.round, model.values)]

    def _tag(self, tag: NoiseTag) -> list[Event]:
        if tag.step <= self._latest_tag:
            raise RemoteProtocolError(
                f"sent a tag of step {tag.step} after one of step {self._latest_tag}: an old one, "
                "or one twice"
            )
        self._latest_tag = tag.step
        return [Tagged(tag.step, tag.tag)]

    def _alive(self, _: Alive) -> list[Event]:
        return [Heard()]

    def _done(self, _: Done) -> list[Event]:
        return [Finished()]

    def _bye(self, bye: Bye) -> list[Event]:
        self.state = State.CLOSED
        self._agreement = self._agreed = None
        return [Ended(bye.reason)]


MOVES: dict[tuple[State, type[Message]], Callable[..., list[Event]]] = {
    (State.GREETING, Hello): Session._greet,
    (State.AGREEING, Offer): Session._agree,
    (State.CONFIRMING, Confirmation): Session._confirm,
    (State.OPEN, Model): Session._model,
    (State.OPEN, NoiseTag): Session._tag,
    (State.OPEN, Alive): Session._alive,
    (State.OPEN, Done): Session._done,
    (State.GREETING, Bye): Session._bye,
    (State.AGREEING, Bye): Session._bye,
    (State.CONFIRMING, Bye): Session._bye,
    (State.OPEN, Bye): Session._bye,
}
"""Every message that may come in every state; what is not here is refused."""


def _difference(ours: tuple[tuple[str, bytes], ...], theirs: tuple[tuple[str, bytes], ...]) -> str:
    """Which fields differ, in the words of this side's file: a neighbour's names are its own, and
    are not repeated.
    """
    held = dict(theirs)
    names = [name for name, digest in ours if held.get(name) != digest]
    more = len(set(held) - {name for name, _ in ours})
    said = ", ".join(names) if names else "none that this side has"
    return f"fields that differ: {said}" + (
        f", and {more} that this side does not have" if more else ""
    )


def _told(problem: Exception) -> str:
    return (
        str(problem)
        if isinstance(problem, RemoteProtocolError)
        else f"could not agree on a secret: {problem}"
    )
