"""Why a run ended early: a sentence for people, and a cause for programs."""

from __future__ import annotations

from typing import Literal, get_args

StopCause = Literal["diverged", "interrupted", "callback", "unfinished"]
"""The models are no longer finite; a person interrupted the command; a callback stopped the run;
or the run is still training.
"""


_OLD_CAUSES: dict[str, StopCause] = {
    "diverged": "diverged",
    "interrupted": "interrupted",
    "stopped after": "unfinished",
}
"""How the sentences of version 0.1 begin; any other sentence came from a callback."""


class StopReason(str):
    """The sentence itself; `cause` is its kind."""

    cause: StopCause

    def __new__(cls, text: str, cause: StopCause) -> StopReason:
        # a str, so that messages, JSON and comparisons take it as it is
        self = super().__new__(cls, text)
        self.cause = cause
        return self

    @classmethod
    def load(cls, text: str, cause: object) -> StopReason:
        """Reads the reason from a manifest, which before version 0.2 had no cause."""
        if cause not in get_args(StopCause):
            cause = next(
                (c for start, c in _OLD_CAUSES.items() if text.startswith(start)), "callback"
            )
        return cls(text, cause)  # type: ignore[arg-type]
