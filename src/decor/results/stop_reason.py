"""Why a run ended early: a sentence for people, with a cause for programs."""

from __future__ import annotations

from typing import Literal, get_args

StopCause = Literal["diverged", "interrupted", "callback", "unfinished"]
"""The models are no longer finite; a person stopped the command; a callback stopped the run; it is
still under way.
"""


class StopReason(str):
    """The sentence itself; `cause` says which kind it is."""

    cause: StopCause

    def __new__(cls, text: str, cause: StopCause) -> StopReason:
        self = super().__new__(cls, text)
        self.cause = cause
        return self

    @classmethod
    def load(cls, text: str, cause: object) -> StopReason:
        """As a manifest holds it.

        Manifests of before 0.2 have no cause: there the first word tells.
        """
        if cause not in get_args(StopCause):
            first = text.partition(" ")[0].rstrip(":")
            cause = (
                first
                if first in ("diverged", "interrupted")
                else "unfinished"
                if first == "stopped"
                else "callback"
            )
        return cls(text, cause)  # type: ignore[arg-type]
