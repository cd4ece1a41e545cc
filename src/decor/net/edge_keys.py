"""Keys of one edge at one end: which key the noise of a step is drawn from.

Two neighbours must draw the same noise, or it stays in the model; and no key may serve two
messages, or their difference is free of noise. Connections break at any point, and either end may
crash. The rules (docs/protocol.md, "Keys of an edge"):

- `next_step` is the first step whose key this end has not taken. With each new secret both ends
  tell each other theirs, and the id of the key before it.
- The new secret serves from the larger of the two on. Older secrets serve only for a key that the
  neighbour has named by its id, because it has taken that key already.
- Between an end's own confirmation and the neighbour's, it takes no key: it cannot know whether the
  neighbour uses the new secret.
- Each end keeps the last key it took until the neighbour has used it too, and gives it to the
  neighbour on request. No other past key exists anywhere.
- The cipher that seals such a key is forgotten when it has served, when it can serve no more, and
  with the connection: traffic that was recorded does not make it a second past key.

Nothing here reads, writes or waits; `tests/net/test_edge_keys.py` explores all orders of events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from decor.errors import AgreementError
from decor.noise.agreement import KEY_ID_BYTES, EdgeSecret, key_id

NO_KEY = bytes(KEY_ID_BYTES)
"""Instead of an id: no key was taken before."""
_OLDER = 4
"""Older secrets that are kept: more come only from a neighbour that connects again and again."""


@dataclass
class EdgeKeys:
    """One end of an edge.

    Attributes:
        next_step: The first step whose key this end has not taken; after a restart the ledger's
            next step.
        last_id: Id of the key of the step before, from the ledger after a restart.
    """

    next_step: int = 0
    last_id: bytes = NO_KEY
    is_confirming: bool = False
    """This end has sent its confirmation, and not got the neighbour's."""
    wanted: tuple[int, bytes] | None = None
    """(step, id): a key that the neighbour has taken and this end has not."""
    _current: tuple[int, EdgeSecret] | None = None
    _older: list[EdgeSecret] = field(default_factory=list)
    _found: bytes | None = None
    """The wanted key."""
    _spare: tuple[int, bytes] | None = None
    """(step, key) that was wanted on an earlier connection: used if it is named again."""
    _past: tuple[int, bytes] | None = None
    """The key of the step before `next_step`, while the neighbour may still need it."""

    def confirm(self) -> tuple[int, bytes]:
        """What this end's confirmation says: its next step, and the id of its last key."""
        self.lose()
        self.is_confirming = True
        # from now on the neighbour may use the new secret, or not: the old one only by id
        if self._current is not None:
            self._older = [*self._older, self._current[1]][-_OLDER:]
            self._current = None
        # nor a key that the neighbour named before: it may have crashed without using it
        if self.wanted is not None and self._found is not None:
            self._spare = self.wanted[0], self._found
        self.wanted = self._found = None
        return self.next_step, self.last_id

    def lose(self) -> None:
        """The connection is over, before or after both ends have confirmed."""
        self.is_confirming = False
        if self._current is not None:
            self._current[1].forget_sealing()

    def open(self, secret: EdgeSecret, their_step: int, their_id: bytes) -> int:
        """Both ends have confirmed a new secret.

        Args:
            secret: The new secret.
            their_step: The neighbour's next step.
            their_id: Id of the neighbour's last key.

        Returns:
            The first step that the new secret serves.
        """
        self.is_confirming = False
        first = max(self.next_step, their_step)
        self._current = first, secret
        # the neighbour has made the step before with a key that this end may still need
        if their_step > self.next_step:
            self.wanted = their_step - 1, their_id
            if self._spare is not None:
                self.receive(*self._spare)
            for older in self._older:
                if older.step <= their_step - 1:
                    self.receive(their_step - 1, older.key(their_step - 1))
        return first

    def is_ready(self, step: int) -> bool:
        """Whether this end can take the key that the neighbour has taken or will take."""
        if self.is_confirming:
            return False
        if self.wanted is not None and self.wanted[0] == step:
            return self._found is not None
        return self._current is not None and self._current[0] <= step

    def needs(self, step: int) -> bool:
        """Whether the neighbour has to be asked for the key of this step."""
        return self.wanted is not None and self.wanted[0] == step and self._found is None

    def receive(self, step: int, key: bytes) -> bool:
        """A key, from the neighbour or from an older secret; returns whether it is the wanted."""
        if self.wanted == (step, key_id(key)):
            self._found = key
            return True
        return False

    def take(self, step: int, draw: Callable[[], bytes], taken: Collection[bytes] = ()) -> bytes:
        """The key of a step, for this end's only message of it.

        Args:
            step: `next_step` or a later one.
            draw: Draws a fresh key, where the neighbour's is not known.
            taken: This user's keys of the step on other edges. Only neighbours that lie together
                can offer one of them again.

        Raises:
            AgreementError: The step's key was taken before, or the neighbour may be using either
                of two secrets now.
        """
        # not an assertion, which python -O leaves out: two messages under one key
        if step < self.next_step or self.is_confirming:
            raise AgreementError(
                f"the key of step {step} cannot be taken now; the next step is {self.next_step}"
            )
        key = None
        if self.wanted is not None and self.wanted[0] == step:
            key = self._found
        elif self._current is not None and self._current[0] <= step:
            key = self._current[1].key(step)
        if key is None or key in taken:
            key = draw()
        self.next_step, self.last_id, self._past = step + 1, key_id(key), (step, key)
        if self.wanted is not None and self.wanted[0] <= step:
            self.wanted = self._found = None
        self._spare = None
        # the neighbour asks for the step before the secret's first, and this end for `wanted`
        if self._current is not None and self.wanted is None:
            self._current[1].forget_sealing()
        # nobody can name a key of them any more
        if self._current is not None and self._current[0] <= step + 1:
            self._older = []
        # nor one of this step or an earlier one, which the neighbour may have used: an end that is
        # seized yields `_past` alone
        for older in self._older:
            if older.step <= step:
                older.key(step)
        return key

    def give(self, step: int) -> bytes | None:
        """The key of a step for the neighbour, which has not made its message; None if gone."""
        return self._past[1] if self._past is not None and self._past[0] == step else None

    def seal(self, step: int) -> bytes:
        """The same, encrypted under the newest secret; empty if gone. Once per secret."""
        key = self.give(step)
        return b"" if key is None or self._current is None else self._current[1].seal(step, key)

    def unseal(self, step: int, sealed: bytes) -> bytes | None:
        """The key that the neighbour has sealed; None if it is not the wanted one."""
        # it may come after this end has drawn another
        if self._current is None or self.wanted is None or self.wanted[0] != step:
            return None
        key = self._current[1].unseal(step, sealed)
        return key if self.wanted == (step, key_id(key)) else None

    def forget(self, step: int) -> None:
        """The neighbour has made its message of this step: it needs no key of it any more."""
        if self._past is not None and self._past[0] <= step:
            self._past = None
