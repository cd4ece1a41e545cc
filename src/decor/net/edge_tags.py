"""Tags of one edge's noise: in which steps both ends have drawn the same, so that it cancels.

Tags are sent with each message, and again on every new connection where the two ends do not know
yet that they agree. An edge and step without two equal tags leaves its noise in the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class EdgeTags:
    """Both ends' tags by step, as this end knows them.

    Attributes:
        own: Of this user's messages.
        cancelled: Steps in which both tags are known and equal.
    """

    own: dict[int, bytes] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    _theirs: dict[int, bytes] = field(default_factory=dict)
    _sent: set[int] = field(default_factory=set)
    _heard: set[int] = field(default_factory=set)

    def connect(self) -> list[int]:
        """A new connection; returns the steps whose tags are to be sent on it."""
        open_steps = sorted(self.own.keys() - self.cancelled)
        self._sent, self._heard = set(open_steps), set()
        return open_steps

    def record(self, step: int, tag: bytes) -> None:
        """This user's tag of a new message."""
        self.own[step] = tag
        self._compare(step)

    def mark_sent(self, step: int) -> None:
        """This user's tag of a step has been sent on this connection."""
        self._sent.add(step)

    def hear(self, step: int, tag: bytes) -> bool:
        """The neighbour's tag of a step.

        Returns:
            Whether the neighbour still has to be sent this user's tag.
        """
        self._theirs[step] = tag
        self._heard.add(step)
        self._compare(step)
        return step in self.own and step not in self._sent

    def was_heard(self, step: int) -> bool:
        """Whether the neighbour has sent a tag of this step on this connection."""
        return step in self._heard

    def differs(self, step: int) -> bool:
        """Whether both tags of a step are known, and differ."""
        return step in self.own and step in self._theirs and step not in self.cancelled

    def _compare(self, step: int) -> None:
        if step in self.own and self._theirs.get(step) == self.own[step]:
            self.cancelled.add(step)
            # what agrees need not be remembered
            del self._theirs[step]
