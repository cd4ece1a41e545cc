"""What a peer sends: its models with their receipts, its tags, and what a new connection needs."""

from __future__ import annotations

from .connections import Connections
from .messages import SignedReceipt
from .neighbour import HELD, Link, Values
from .peer_state import PeerState


class PeerSender:
    """Sends to one neighbour at a time.

    Args:
        state: The peer's.
        connections: Connections to neighbours that do not read are dropped.
    """

    def __init__(self, state: PeerState, connections: Connections) -> None:
        self._state, self._connections, self._config = state, connections, state.config

    def send_catch_up(self, link: Link) -> None:
        """Sends what a new connection needs.

        That is the step's first model, this user's last messages, and tags that the two have not
        compared; to a user that is behind also proof of where the others are.
        """
        # one step less is usual: its message may be on its way
        link.is_behind = link.their_step < self._state.next_step - 1
        if link.is_behind:
            for receipt in self._state.receipts.all_newest():
                # its own newest receipt was in the Hello already
                if receipt.user != link.neighbour.number:
                    link.send(SignedReceipt(receipt))
        messages = [each for each in self._state.sent if self._may_need(link, each[0])]
        if (start := self._state.step_start) is not None and self._state.step > 0:
            before = self._state.step - 1
            messages.append((before, self._config.length.rounds_of(before), start))
        # in the order of a run: an older one would be refused
        for step, round_, values in sorted(messages, key=lambda each: each[:2]):
            self.send_model(link, step, round_, values)
        for step in link.tags.connect():
            self.send_tag(link, step)

    def _may_need(self, link: Link, step: int) -> bool:
        """Whether a neighbour may still need a message of a step that is over here."""
        return step >= self._state.step or link.their_step <= step + 1 <= link.their_step + 1

    def send_model(self, link: Link, step: int, round_: int, values: Values) -> None:
        """Sends a model; a step's message with its receipt."""
        if not link.done and (connection := link.open_connection) is not None:
            if round_ == 0 and step < self._config.length.steps:
                receipt = self._state.receipts.of(self._config.number, step)
                # without its receipt a neighbour refuses it
                if receipt is None:
                    return
                connection.session.send(SignedReceipt(receipt))
            connection.session.send_model(step, round_, values)
            # a neighbour that does not read must not fill this user's memory
            if connection.flush() > (HELD + 2) * (self._config.model_bytes + 4096):
                self._connections.drop(link, "does not read what it is sent")

    def send_tag(self, link: Link, step: int) -> None:
        """Sends the tag of this user's noise of a step."""
        if (connection := link.open_connection) is not None:
            connection.session.send_tag(step, link.tags.own[step])
            connection.flush()
            # the neighbour refuses a second tag of a step on one connection
            link.tags.mark_sent(step)
