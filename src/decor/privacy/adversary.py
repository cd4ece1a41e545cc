"""Adversary: what an attacker knows; the paper's four types."""

from __future__ import annotations

from dataclasses import dataclass

from decor import checks
from decor.errors import InputError


@dataclass(frozen=True)
class Adversary:
    """Reads every message, and knows the secrets of some users.

    Attributes:
        colluders: Number of users who pool their secrets; None if no secret is hidden (local DP).
        average_only: True for the curator of central DP, who sees only the average of all
            messages. The paper has no such adversary; it describes what the central baseline
            protects against.
    """

    colluders: int | None = 0
    average_only: bool = False

    def __post_init__(self) -> None:
        if self.colluders is not None:
            checks.count("the number of colluding users", self.colluders, 0)
        if self.average_only and self.colluders != 0:
            raise InputError("an adversary that sees only the average has no colluders")

    @classmethod
    def eavesdropper(cls) -> Adversary:
        """Type I: reads every message, knows no secret."""
        return cls(0)

    @classmethod
    def curious(cls) -> Adversary:
        """Type II: one of the users, who reads every message."""
        return cls(1)

    @classmethod
    def colluding(cls, users: int) -> Adversary:
        """Type III: several users, who read every message and pool their secrets.

        Args:
            users: Number of colluding users; fewer than the graph has.
        """
        return cls(users)

    @classmethod
    def everyone(cls) -> Adversary:
        """Type IV: all other users together; no secret is hidden, so this is local DP."""
        return cls(None)

    @classmethod
    def parse(cls, text: str) -> Adversary:
        """The adversary with this name; the inverse of `str`.

        Args:
            text: eavesdropper, curious, colluding:Q or everyone.

        Raises:
            InputError: If there is no such adversary.
        """
        word, _, number = str(text).strip().lower().partition(":")
        names = {
            "eavesdropper": cls(0),
            "curious": cls(1),
            "everyone": cls(None),
            "average-only": cls(0, True),
        }
        # "curious:3" is a slip, and must not be read as one curious user
        if word in names and not number:
            return names[word]
        # isdigit alone accepts other scripts' digits; ten digits are more users than any graph has
        if word == "colluding" and number.isascii() and number.isdigit() and len(number) < 10:
            return cls(int(number))
        raise InputError(
            f"unknown adversary {text!r}; choose eavesdropper, curious, colluding:Q (such as "
            "colluding:2) or everyone"
        )

    def check(self, users: int) -> None:
        """Raises unless at least one user is left to protect.

        Args:
            users: Number of users in the graph.

        Raises:
            InputError: If all users collude.
        """
        if users == 1 and self.colluders:
            raise InputError(
                f"a graph with one user has no other user who could be {self}; choose "
                "eavesdropper or everyone"
            )
        # n - 1 colluders are allowed: the last user then has its own noise, as against everyone
        if self.colluders is not None and self.colluders >= users:
            raise InputError(
                f"{self.colluders} colluding users of {users} leave no user to protect; "
                f"choose colluding:{users - 1} or fewer, or everyone"
            )

    def __str__(self) -> str:
        if self.average_only:
            return "average-only"
        names = {None: "everyone", 0: "eavesdropper", 1: "curious"}
        return names.get(self.colluders, f"colluding:{self.colluders}")

    @property
    def sentence(self) -> str:
        """The adversary in words, to follow "against"."""
        if self.average_only:
            return "an observer who sees nothing but the average of all messages"
        match self.colluders:
            case None:
                return "everyone else together (no secret is hidden: local DP)"
            case 0:
                return "an eavesdropper who reads every message"
            case 1:
                return "any one curious user who reads every message"
            case q:
                return f"any {q} colluding users who read every message"
