"""Adversary: what is known to whoever attacks, as the paper's four types."""

from __future__ import annotations

from dataclasses import dataclass

from decor import checks
from decor.errors import InputError


@dataclass(frozen=True)
class Adversary:
    """Sees every message; knows the secrets of `colluders` users, or (None) of everybody.

    `average_only` is the curator of central DP, not an adversary of the paper: it sees the average
    of all messages and nothing else, and exists so that the central baseline can say what it
    protects.
    """

    colluders: int | None = 0
    average_only: bool = False

    def __post_init__(self) -> None:
        q = self.colluders
        if q is not None:
            checks.count("the number of colluding users", q, 0)
        if self.average_only and q != 0:
            raise InputError("an adversary who sees the average alone has no colluders")

    @classmethod
    def eavesdropper(cls) -> Adversary:
        """Type I: reads every message, knows no secret."""
        return cls(0)

    @classmethod
    def curious(cls) -> Adversary:
        """Type II: reads every message and is one of the users."""
        return cls(1)

    @classmethod
    def colluding(cls, users: int) -> Adversary:
        """Type III: reads every message; `users` of the users pool their secrets."""
        return cls(users)

    @classmethod
    def everyone(cls) -> Adversary:
        """Type IV: no secret is hidden; what is left is local DP."""
        return cls(None)

    @classmethod
    def parse(cls, text: str) -> Adversary:
        """From eavesdropper, curious, colluding:Q or everyone."""
        word, _, number = str(text).strip().lower().partition(":")
        plain = {
            "eavesdropper": cls(0),
            "curious": cls(1),
            "everyone": cls(None),
            "average-only": cls(0, True),
        }
        if word in plain and not number:
            return plain[word]
        if word == "colluding" and number.isascii() and number.isdigit() and len(number) < 10:
            return cls(int(number))
        raise InputError(
            f"unknown adversary {text!r}; choose eavesdropper, curious, colluding:Q (such as "
            "colluding:2) or everyone"
        )

    def check(self, users: int) -> None:
        """Raises unless at least one of `users` is left to be protected."""
        if users == 1 and self.colluders:
            raise InputError(
                f"one user alone has nobody beside it who could be {self}; choose "
                "eavesdropper or everyone"
            )
        if self.colluders is not None and self.colluders >= users:
            raise InputError(
                f"{self.colluders} colluding users of {users} leave nobody to protect; "
                f"choose colluding:{users - 1} or fewer, or everyone"
            )

    def __str__(self) -> str:
        if self.average_only:
            return "average-only"
        return {None: "everyone", 0: "eavesdropper", 1: "curious"}.get(
            self.colluders, f"colluding:{self.colluders}"
        )

    @property
    def sentence(self) -> str:
        """Who it is, to stand after "against"."""
        if self.average_only:
            return "somebody who sees nothing but the average of all messages"
        match self.colluders:
            case None:
                return "everyone else together (no secret is hidden: local DP)"
            case 0:
                return "an eavesdropper who reads every message"
            case 1:
                return "any one curious user who reads every message"
            case q:
                return f"any {q} colluding users who read every message"
