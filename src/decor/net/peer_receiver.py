"""What a peer makes of what its neighbours send: everything is checked before it is kept.

A neighbour that breaks a rule is refused with a sentence (RemoteProtocolError), which ends its
connection.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from decor.errors import AgreementError, PrivacyStop, RemoteProtocolError
from decor.noise.agreement import key_id

from .connections import Connections
from .messages import Done, SealedKey, SignedReceipt
from .neighbour import Link, Values
from .peer_sender import PeerSender
from .peer_state import PeerState
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
    Tagged,
)


class PeerReceiver:
    """Handles the events of all connections.

    Args:
        state: The peer's.
        connections: Connections of users that come too early for the final model are dropped.
        sender: Answers.
        check_values: Returns what is wrong with a neighbour's parameters of a step, or None.
        on_model: Called with (sender, step, round, values) of every model, before any check.
    """

    def __init__(
        self,
        state: PeerState,
        connections: Connections,
        sender: PeerSender,
        check_values: Callable[[int, Values], str | None],
        on_model: Callable[[int, int, int, Values], object],
    ) -> None:
        self._state, self._connections, self._sender = state, connections, sender
        self._check_values, self._on_model = check_values, on_model
        self._config, self._links, self._receipts = state.config, state.links, state.receipts
        self._ledger, self._log = state.ledger, state.log
        self.late = 0
        """Models that arrived after their round."""

    def handle(self, link: Link, event: Event) -> None:
        """Takes note of an event of a connection, and answers it.

        Raises:
            RemoteProtocolError: The neighbour has broken a rule.
            PrivacyStop: This user's ledger lacks a message that it has signed.
        """
        name = link.neighbour.name
        match event:
            case Greeted(step, receipt, fetches):
                if step > (steps := self._config.length.steps):
                    raise RemoteProtocolError(f"claims to be at step {step} of a run of {steps}")
                if receipt is not None:
                    self._check_own_receipt(link, receipt)
                # see wait_for_progress
                link.their_step = step
                # whoever fetches has opened no ledger, and cannot show what is in it
                link.has_greeted |= not fetches
                # a model of a run under way is no result, and must not be taken for one
                if fetches and not self._state.is_finishing:
                    self._connections.drop(link, "the run has not finished; fetch the model later")
            case Agreed(secret, epoch, their_step, their_key):
                # older secrets are turned forward to it, step by step
                if their_step > (steps := self._config.length.steps):
                    raise RemoteProtocolError(
                        f"claims to have taken keys up to step {their_step} of a run of {steps}"
                    )
                first_step = link.keys.open(secret, their_step, their_key)
                link.absent, link.done, link.step_start = False, False, None
                link.awaits_proof, link.first_copy = False, -1
                link.asked_for_key = link.awaits_key = link.key_is_gone = link.gave_key = False
                link.inbox.clear()  # it will send where it is, and its last models again
                link.heard_at = time.monotonic()
                self._log("connected", neighbour=name, epoch=epoch, secret_from_step=first_step)
                self._sender.send_catch_up(link)
                if self._state.is_finishing:
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
        if self._ledger.digest(self._state.run, receipt.step) == receipt.digest:
            return
        why = (
            f"{link.neighbour.name} holds a receipt of this user for a message of step "
            f"{receipt.step} that the ledger {str(self._ledger.path)!r} does not have: it is an "
            "older copy or a new one, or another node uses the same key. The run has ended for "
            f"good; steps up to {receipt.step} are counted once more, and nothing more is sent"
        )
        # on disk before anything else: after a restart the run must not go on
        self._ledger.end_as_outdated(self._state.run, receipt.step, why)
        raise PrivacyStop(why)

    def _handle_receipt(self, link: Link, receipt: Receipt) -> None:
        sender = link.neighbour.number
        if receipt.user == sender:
            self._show_second(receipt)
            if is_new := self._receipts.hear_own(sender, receipt):
                link.first_copy = receipt.step
            # it has used the key, so it never needs it again
            link.keys.forget(receipt.step)
        elif self._receipts.is_own(receipt):
            self._count_word(link)
            self._check_own_receipt(link, receipt)
            return
        else:
            is_new = self._receipts.hear_passed(receipt)
            self._show_second(receipt)
        if not is_new:
            self._count_word(link)
            return
        for other in self._links.values():
            if other.awaits_proof and other.step_start is not None:
                other.awaits_proof = not self._receipts.is_proven(other.step_start[0])
        # a user behind needs proof from more users than this one's neighbours
        for other in self._links.values():
            if other.is_behind and other is not link and self._receipts.is_valid(receipt):
                other.send(SignedReceipt(receipt))

    def _show_second(self, receipt: Receipt) -> None:
        """Shows everyone the proof that a user has made two messages of one step; once.

        They show it their neighbours, until it comes to that user, whose ledger lacks one of the
        two: it stops.
        """
        for each in self._receipts.report_second(receipt, self._log):
            for other in self._links.values():
                other.send(SignedReceipt(each))

    def _give_key(self, link: Link, step: int) -> None:
        # the sealing key serves once, and an honest user has one step to ask for
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
        # a liar may give a key that has served: two messages would share their noise
        if key is None or self._ledger.has_key(key_id(key)):
            link.key_is_gone = True
            name = link.neighbour.name
            self._log("key is gone", neighbour=name, step=step, why="noise is drawn afresh")
            return
        link.keys.receive(step, key)

    def _handle_model(self, link: Link, step: int, round_: int, values: Values) -> None:
        length = self._config.length
        link.heard_at = time.monotonic()
        # before the checks: an audit records what was sent, valid or not
        self._on_model(link.neighbour.number, step, round_, values)
        if step > length.steps or round_ > length.rounds_of(step):
            raise RemoteProtocolError(
                f"sent a model of step {step}, round {round_}, which this run does not have"
            )
        if step < length.steps and round_ == 0 and not self._is_message_signed(link, step, values):
            # older than what it has sent before, so nobody can tell whether it is the same
            self.late += 1
            return
        if (problem := self._check_values(step, values)) is not None:
            raise RemoteProtocolError(problem)
        # a valid model shows that it takes part again
        link.silent = False
        if step >= self._state.step - 1:
            link.is_behind = False
        if self._state.is_finishing:
            pass  # nothing is needed any more
        elif round_ == length.rounds_of(step):  # not a round of the step, but its result
            self._set_step_start(link, step + 1, values)
        elif (step, round_) < self._state.at:
            self.late += 1
        else:
            if step > self._state.step + 1 and link.step_start is None:
                # it went on without this user, and no longer has the model its step began with
                self._set_step_start(link, step, values)
            link.inbox.put(step, round_, values)

    def _is_message_signed(self, link: Link, step: int, message: Values) -> bool:
        """Whether a neighbour's message is one of its newest, which it has signed.

        Raises:
            RemoteProtocolError: There is no receipt of it, or it is another message than the one
                before it with the same receipt.
        """
        number = link.neighbour.number
        receipt, newest = self._receipts.of(number, step), self._receipts.newest(number)
        if receipt is None:
            if newest is None or newest.step < step:
                raise RemoteProtocolError(f"sent a message of step {step} without a receipt")
            return False
        # one whose receipt was known may have been here before. A first copy is not hashed: who
        # signs other bytes than it sends deceives nobody but itself, and hashing is a tenth of the
        # CPU time of a round
        if link.first_copy != step and hashlib.sha256(message).digest() != receipt.digest:
            raise RemoteProtocolError(
                f"sent another message of step {step} than the one whose receipt it has shown"
            )
        return True

    def _set_step_start(self, link: Link, step: int, model: Values) -> None:
        link.step_start = (step, model)
        # others make their messages of that step while this neighbour waits for them: it passes
        # their receipts on after its own message
        link.awaits_proof = step > self._state.step and not self._receipts.is_proven(step)

    def _handle_tag(self, link: Link, step: int, tag: bytes) -> None:
        # one of each step: every tag is written to the ledger with the next message
        if step >= self._config.length.steps or link.tags.was_heard(step):
            raise RemoteProtocolError(f"sent a tag of step {step} twice, or beyond the run")
        if link.tags.hear(step, tag):
            self._sender.send_tag(link, step)
        self._state.unsaved_steps.add(step)
        if link.tags.differs(step):
            self._log("noise does not cancel", neighbour=link.neighbour.name, step=step)
