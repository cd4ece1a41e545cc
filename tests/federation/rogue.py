"""A user of a trial that a test plays, with the user's own key: it says what it likes.

with Rogue(trial).opened() as rogue:
    rogue.say(Model(rogue.step(), 0, values))
    rogue.refused("not finite")
"""

import hashlib
import socket
from contextlib import suppress

from decor.net import transport
from decor.net.edge_keys import NO_KEY
from decor.net.messages import Model, SignedReceipt, encode
from decor.net.receipts import Receipt
from decor.net.session import Session, SessionConfig, State


class Rogue:
    """One connection of `name`, which no process plays, to its neighbour `to`.

    It goes to `to` directly, or through the proxy of their edge; `tls` replaces its own context.
    """

    def __init__(self, trial, name="kiel", to="bonn", tls=None, through_proxy=False, step=0):
        self.trial, self.name, self.to = trial, name, to
        self.mark = len(trial.log(to))
        keys = trial.identities
        tls = tls or transport.tls_context(keys[name], [keys[to].public], server=False)
        port = trial.proxies[name, to].port if through_proxy else trial.ports[to]
        plain = socket.create_connection(("127.0.0.1", port), timeout=60)
        try:
            self.line = tls.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise
        federation = trial.federation
        is_lower = trial.names.index(name) < trial.names.index(to)
        ends = SessionConfig(
            keys[name].key,
            to,
            keys[to].public,
            is_lower,
            federation.digest,
            federation.digests,
            federation.model_bytes,
        )
        self.session = Session(ends, 1, step, lambda: (step, NO_KEY))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.line.close()

    def opened(self):
        """Goes through the greeting in good order."""
        try:
            self.line.sendall(self.session.outgoing())
            while self.session.state is not State.OPEN:
                if not (data := self.line.recv(1 << 16)):
                    raise ConnectionError(f"{self.to} hung up")
                self.session.receive(data)
                self.line.sendall(self.session.outgoing())
        except BaseException:
            self.line.close()
            raise
        return self

    def step(self):
        """Where its neighbour is."""
        return self.trial.status(self.to)["step"]

    def say(self, *what):
        self.line.sendall(
            b"".join(each if isinstance(each, bytes) else self.encoded(each) for each in what)
        )

    def encoded(self, message):
        """A message as bytes; a round 0 follows its receipt."""
        if not isinstance(message, Model) or message.round or message.step >= self.trial.steps:
            return encode(message)
        digest = hashlib.sha256(message.values).digest()
        return encode(SignedReceipt(self.receipt(message.step, digest))) + encode(message)

    def receipt(self, step, digest=bytes(32)):
        """This user's valid receipt of a step."""
        key, number = self.trial.identities[self.name].key, self.trial.names.index(self.name)
        return Receipt.sign(key, self.trial.federation.digest, number, step, digest)

    def refused(self, pattern):
        """Waits until its neighbour has refused it, by its name, and has gone on; gives the line of
        the log.
        """
        said = self.trial.logged(
            self.to, f"neighbour={self.name} why=.*({pattern})", after=self.mark
        )
        with suppress(OSError):
            while self.line.recv(1 << 16):  # it has hung up
                pass
        self.line.close()
        self.trial.moving("bonn", "ulm")
        return said
