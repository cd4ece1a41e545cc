"""Options of `decor federation` that describe a user: NAME,ADDRESS,KEY and NAME=VALUE."""

from __future__ import annotations

from typing import Any

from decor.errors import InputError

SHAPE = "NAME,ADDRESS,KEY[,RECORDS]"


def user_table(text: str, flag: str = "--user") -> dict[str, Any]:
    """A user as the federation file lists it.

    Args:
        text: NAME,ADDRESS,KEY, and ,RECORDS at example level.
        flag: The option, for an error.
    """
    # neither names, addresses nor keys contain commas
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (3, 4):
        raise InputError(
            f"{flag} {text!r} must be NAME,ADDRESS,KEY (and ,RECORDS at example level), with two "
            "or three commas"
        )
    user: dict[str, Any] = dict(zip(("name", "address", "key"), parts, strict=False))
    if len(parts) == 4:
        user["records"] = record_count(parts[3], f"{flag} {text!r}")
    return user


def pair(text: str, flag: str, separator: str, shape: str) -> tuple[str, str]:
    """The two parts of a value such as NAME=VALUE or A:B.

    Args:
        text: The value.
        flag: The option, for an error.
        separator: Between the two parts; the second may contain it too, as keys do.
        shape: What the value must be, for an error.
    """
    first, found, second = (part.strip() for part in text.partition(separator))
    if not found or not first:
        raise InputError(f"{flag} {text!r} must be {shape}")
    return first, second


def record_count(text: str, where: str) -> int:
    """A number of records.

    Args:
        text: As typed.
        where: The option, for an error.
    """
    if not text.isdecimal():
        raise InputError(f"{where}: the number of records must be a whole number, not {text!r}")
    return int(text)
