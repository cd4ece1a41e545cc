"""A peer of which a test plays the neighbours: real sessions and ledgers, and no network between.

one = make_peer(folder, neighbours=2)
liar = Liar(one, 1)
liar.connect(step=3)
liar.send(KeyRequest(2))
assert isinstance(liar.heard[-1], KeyGiven)
"""

from __future__ import annotations

import hashlib
import os

from ledgers import open_ledger

from decor.net.edge_keys import NO_KEY
from decor.net.identity import Identity
from decor.net.messages import Message, encode
from decor.net.neighbour import Connection, Neighbour
from decor.net.peer import Peer
from decor.net.peer_config import PeerConfig, RunLength
from decor.net.reach import Reach
from decor.net.receipts import Receipt
from decor.net.session import Agreed, Event, Session, SessionConfig

SIZE, STEPS, FEDERATION = 16, 50, bytes(range(32))
IDENTITIES = [Identity.new() for _ in range(5)]


class Log:
    """Lines that a test can read."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict]] = []

    def __call__(self, event: str, **facts: object) -> None:
        self.lines.append((event, facts))

    def named(self, event: str) -> list[dict]:
        return [facts for name, facts in self.lines if name == event]


def make_peer(folder, neighbours=2, users=None, quorum=0.5, timeout=5.0, liars=1, rounds=2):
    """User 0 of a federation; the same one again if its ledger is there."""
    known = neighbours < len(IDENTITIES)
    # more neighbours than keys: only their number matters
    public = (
        [each.public for each in IDENTITIES] if known else [bytes([k]) * 32 for k in range(101)]
    )
    others = tuple(
        Neighbour(k, f"n{k}", public[k], f"127.0.0.1:{9000 + k}", False, True)
        for k in range(1, neighbours + 1)
    )
    users = neighbours + 1 if users is None else users
    config = PeerConfig(
        IDENTITIES[0],
        others,
        FEDERATION,
        (),
        SIZE,
        RunLength(STEPS, rounds, 0),
        timeout,
        quorum,
        0,
        tuple(public[:users]),
        liars,
    )
    ledger = open_ledger(folder / "ledger", IDENTITIES[0].public)
    runs = [entry.run for entry in ledger.entries()] or [ledger.begin(FEDERATION, "{}")]
    return Peer(config, ledger, runs[0], Log(), check_values, Reach(FEDERATION))


def check_values(step, values):
    """As a node does: a model of ones only is out of bounds."""
    return "sent a model that no user can reach" if bytes(values[:1]) == b"\xff" else None


def make_receipt(user: int, step: int, digest: bytes = b"d" * 32) -> Receipt:
    """A receipt that its user has signed."""
    return Receipt.sign(IDENTITIES[user].key, FEDERATION, user, step, digest)


def make_message(peer: Peer, step: int, values: bytes = bytes(SIZE)) -> dict[int, bytes]:
    """What a node does in a step, once all keys are ready; returns the keys it took."""
    keys = {
        number: link.keys.take(step, lambda: os.urandom(32)) for number, link in peer.links.items()
    }
    tags = {number: hashlib.sha256(key).digest()[:8] for number, key in keys.items()}
    peer.record(step, values, tags)
    return keys


class Writer:
    class transport:  # noqa: N801
        abort = staticmethod(lambda: None)


class Liar:
    """The neighbour of this number, with its key: it sends what it is told to."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.peer, self.number, self.link = peer, number, peer.links[number]
        self.epoch, self.heard = 1, []
        self.session: Session | None = None

    def connect(self, step=0, claim=(0, NO_KEY), receipt=None, fetches=False) -> None:
        """A new connection, open if the peer lets it; `fetches`: as decor fetch makes it."""
        if self.link.conn.connection is not None:
            self.peer._connections.drop(self.link, "connected anew")
        self.link.conn.connection = self.connection = Connection(
            self.peer._new_session(self.link.neighbour), Writer()
        )
        own = self.peer.config.identity.public
        config = SessionConfig(
            IDENTITIES[self.number].key, "peer", own, False, FEDERATION, (), SIZE
        )
        self.session = Session(config, self.epoch, step, lambda: claim, receipt, fetches)
        self.epoch += 1
        self.heard = []
        self.exchange()

    @property
    def secret(self):
        (agreed,) = [event for event in self.heard if isinstance(event, Agreed)]
        return agreed.secret

    def send(self, *messages: Message) -> None:
        self.give(b"".join(encode(message) for message in messages))

    def give(self, data: bytes) -> None:
        """Bytes to the peer, as if they had come over the network."""
        for event in self.connection.session.receive(data):
            self.happen(event)
        self.exchange()

    def happen(self, event: Event) -> None:
        """An event of the connection, as `Connections` hands it on."""
        if self.link.conn.connection is self.connection:
            self.peer._connections._handle_event(self.link, event)

    def exchange(self) -> None:
        """Until neither has anything more to say."""
        while True:
            self.connection.flush()
            said = b"".join(self.connection._unsent)
            self.connection._unsent.clear()
            mine = self.session.outgoing()
            if not said and not mine:
                return
            self.heard += self.session.receive(said)
            for event in self.connection.session.receive(mine):
                self.happen(event)
