"""Receipts that a node holds: its own, its neighbours', and those that neighbours pass on.

They prove two things. Two different receipts of one user and step show that it has made two
messages, which cancels its noise: the second one is refused. And a user that is behind skips to a
later step only if more users have signed messages of it than may lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from decor.errors import RemoteProtocolError

from .identity import Identity
from .receipts import Receipt

_KEPT = 2
"""Receipts of one user in memory: a step may be sent again after the next one was."""


class ReceiptBook:
    """The newest receipts of each user.

    Args:
        identity: This user's key.
        number: This user's number.
        members: Public keys of all users, by number.
        federation: Digest of the federation's file.
        steps: Steps of the run; each has one signed message.
        liars: Users that may lie about how far they are.
        stored: What the ledger holds of other users.
    """

    def __init__(
        self,
        identity: Identity,
        number: int,
        members: tuple[bytes, ...],
        federation: bytes,
        steps: int,
        liars: int,
        stored: Iterable[Receipt] = (),
    ) -> None:
        self._identity, self._number, self._members = identity, number, members
        self._federation, self._steps = federation, steps
        # in the smallest federations fewer than there are other users
        self._liars = min(liars, len(members) - 2)
        self._held: dict[int, dict[int, Receipt]] = {}
        self._verified: dict[int, Receipt] = {}
        for receipt in stored:
            self._add(receipt)
        self._unsaved: set[int] = set()
        # users that have signed two messages of a step, since this node started
        self._reported: set[int] = set()
        # each user's receipt that came last of those older than its newest: two of one step are
        # shown one after the other. It has no other effect, and so nobody has verified it
        self._older: dict[int, Receipt] = {}

    def sign(self, step: int, digest: bytes) -> Receipt:
        """The receipt of this user's own message, which is in its ledger."""
        receipt = Receipt.sign(self._identity.key, self._federation, self._number, step, digest)
        self._add(receipt)
        return receipt

    def of(self, user: int, step: int) -> Receipt | None:
        """A user's receipt of a step, if it is one of its newest."""
        return self._held.get(user, {}).get(step)

    def newest(self, user: int) -> Receipt | None:
        """A user's newest receipt."""
        held = self._held.get(user)
        return held[max(held)] if held else None

    def all_newest(self) -> list[Receipt]:
        """The newest receipt of each user, this one included, as others may be shown it.

        A neighbour's own receipt was not verified when it came, and the next user would refuse it
        from this one.
        """
        newest = [held[max(held)] for held in self._held.values()]
        return [receipt for receipt in newest if self.is_valid(receipt)]

    def take_unsaved(self) -> list[Receipt]:
        """Newest receipts of other users that have come since this was called last."""
        users, self._unsaved = self._unsaved, set()
        return [held[max(held)] for user in users if (held := self._held[user])]

    def hear_own(self, sender: int, receipt: Receipt) -> bool:
        """A receipt that a neighbour sends with its own message.

        Args:
            sender: The neighbour, by its certificate: the signature is verified when it is used.
            receipt: What it sent.

        Returns:
            Whether it is new. One of an older step is not kept: its message is not accepted.

        Raises:
            RemoteProtocolError: It is of a second message.
        """
        self._check_step(receipt)
        newest = self.newest(sender)
        if self._other_digest(receipt) is not None:
            raise RemoteProtocolError(
                f"sent a second message of step {receipt.step}: its ledger is old or doubled"
            )
        is_older = newest is not None and receipt.step < newest.step
        if self.of(sender, receipt.step) is not None or is_older:
            return False
        self._add(receipt)
        self._unsaved.add(sender)
        return True

    def hear_passed(self, receipt: Receipt) -> bool:
        """A receipt of another user, passed on by a neighbour.

        Returns:
            Whether it is new.

        Raises:
            RemoteProtocolError: That user has not signed it.
        """
        self._check_step(receipt)
        newest = self.newest(receipt.user)
        is_new = newest is None or receipt.step > newest.step
        # nothing is made of one that is known, or older
        is_used = is_new or self._other_digest(receipt) is not None
        if is_used and not self.is_valid(receipt):
            raise RemoteProtocolError(
                f"showed a receipt of user {receipt.user} that this user has not signed"
            )
        if not is_new:
            return False
        self._add(receipt)
        self._unsaved.add(receipt.user)
        return True

    def report_second(self, receipt: Receipt, log: Callable[..., None]) -> tuple[Receipt, ...]:
        """Logs the proof, if a user has signed two messages of a step; once for each user.

        Args:
            receipt: One of them; the other is held, or came before it.
            log: Receives both signatures, which anyone can check.

        Returns:
            Both receipts, if they were logged now.
        """
        known = self._other_digest(receipt) or self._older.get(receipt.user)
        held = self._held.get(receipt.user, {})
        if receipt.step not in held and any(step > receipt.step for step in held):
            self._older[receipt.user] = receipt
        if known is None or receipt.user in self._reported:
            return ()
        if known.step != receipt.step or known.digest == receipt.digest:
            return ()
        if not (self.is_valid(known) and self.is_valid(receipt)):
            return ()
        self._reported.add(receipt.user)
        for each in (known, receipt):
            log(
                "two messages of one step",
                signer=each.user,
                step=each.step,
                sha256=each.digest.hex(),
                signature=each.signature.hex(),
            )
        return known, receipt

    def is_own(self, receipt: Receipt) -> bool:
        """Whether a receipt claims to be this user's.

        Raises:
            RemoteProtocolError: It claims to be, and this user's key has not signed it.
        """
        if receipt.user != self._number:
            return False
        if not receipt.is_valid(self._identity.public, self._federation):
            raise RemoteProtocolError("showed a receipt that this user has not signed")
        return True

    def is_valid(self, receipt: Receipt) -> bool:
        """Whether its user has signed it."""
        # asked for in every wait of a user that is behind: verified once, and as a whole, for its
        # signature could be shown again with another step
        if self._verified.get(receipt.user) != receipt:
            if not receipt.is_valid(self._members[receipt.user], self._federation):
                return False
            self._verified[receipt.user] = receipt
        return True

    def is_proven(self, step: int) -> bool:
        """Whether more other users have signed a message of this step, or later, than may lie."""
        # the rounds after the last step have no message
        needed = min(step, self._steps - 1)
        users = 0
        for user, held in self._held.items():
            newest = held[max(held)]
            if user != self._number and newest.step >= needed and self.is_valid(newest):
                users += 1
        return users > self._liars

    def _other_digest(self, receipt: Receipt) -> Receipt | None:
        """A receipt of the same user and step with another digest, if it is held."""
        known = self.of(receipt.user, receipt.step)
        return known if known is not None and known.digest != receipt.digest else None

    def _add(self, receipt: Receipt) -> None:
        held = self._held.setdefault(receipt.user, {})
        held[receipt.step] = receipt
        while len(held) > _KEPT:
            del held[min(held)]

    def _check_step(self, receipt: Receipt) -> None:
        if receipt.step >= self._steps or receipt.user >= len(self._members):
            raise RemoteProtocolError(
                f"sent a receipt of user {receipt.user} and step {receipt.step}, which this run "
                "does not have"
            )
