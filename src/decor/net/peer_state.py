"""What the parts of a peer share: where it is in the run, its neighbours, and what they have said.

Only `Peer` moves it to another step; `PeerReceiver` writes what neighbours say.
"""

from __future__ import annotations

import math
from collections import deque

from .connections import Log
from .edge_keys import NO_KEY, EdgeKeys
from .ledger import KEY_ID_BYTES, TAG_BYTES, Ledger, split
from .neighbour import Link, Values
from .peer_config import PeerConfig
from .rate_limit import RateLimit
from .receipt_book import ReceiptBook

WORDS, WORDS_PER_SECOND = 64, 16
"""Short messages of one neighbour, such as Alive, at once and per second."""


class PeerState:
    """Begins where the ledger says that this user's run is.

    Args:
        config: The federation and this user's neighbours.
        ledger: Holds this user's messages, and what it knows of others.
        run: The run's number in the ledger.
        log: Receives events.
    """

    def __init__(self, config: PeerConfig, ledger: Ledger, run: int, log: Log) -> None:
        self.config, self.ledger, self.run, self.log = config, ledger, run, log
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
        self.at = self.step, 0
        """(step, round) that is under way."""
        self.step_start: Values | None = None
        """The model that the step began with, if it is known."""
        # what a neighbour that connects anew may still need: the last round of the step before
        # too, which may not have arrived
        self.sent: deque[tuple[int, int, Values]] = deque(maxlen=2)
        self.is_finishing = False
        self.receipts = ReceiptBook(
            config.identity,
            config.number,
            config.members,
            config.federation,
            config.length.steps,
            config.liars,
            ledger.receipts(run).values(),
        )
        # steps whose noise is known to cancel since the last message was written
        self.unsaved_steps: set[int] = set()
        self._restore()

    def begin(self, step: int, model: Values | None) -> None:
        """Begins a step with this model (None: not known)."""
        self.step, self.step_start, self.at = step, model, (step, 0)
        for link in self.links.values():
            link.inbox.drop_before(step)
            # where a neighbour is further ahead is said once in a connection, and proven later
            if link.step_start is not None and link.step_start[0] <= step:
                link.step_start, link.awaits_proof = None, False

    def take_unsaved_steps(self) -> dict[int, bytes]:
        """Step -> for each neighbour whether its noise cancels, as the ledger stores it."""
        # a neighbour's tag may come before this user's message: it is saved with the next one
        steps = {step for step in self.unsaved_steps if step < self.next_step}
        self.unsaved_steps -= steps
        links = self.links.values()
        return {step: bytes(step in link.tags.cancelled for link in links) for step in steps}

    def save_news(self) -> None:
        """Writes what is known of others to the ledger, after the last message."""
        receipts, steps = self.receipts.take_unsaved(), self.take_unsaved_steps()
        if receipts or steps:
            self.ledger.store_news(self.run, receipts, steps)

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
                # messages from before the ledger was converted have no ids
                last = split(ids, KEY_ID_BYTES) or [NO_KEY] * len(numbers)
                for number, used in zip(numbers, last, strict=True):
                    self.links[number].keys = EdgeKeys(self.next_step, used)
        for step in range(max(0, self.next_step - 2), self.next_step):
            if (digest := self.ledger.digest(self.run, step)) is not None:
                # signed anew, not stored: Ed25519 makes the same signature of the same text
                self.receipts.sign(step, digest)
