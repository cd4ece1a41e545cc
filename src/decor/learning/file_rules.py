"""Rules for the fields of a file: what each may be, and how an error says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import partial
from typing import Any

from decor import checks
from decor.errors import InputError


@dataclass(frozen=True)
class Rule:
    """What a field may be: `description` completes "must be ..."."""

    description: str
    accept: Callable[[Any], Any]
    """Returns the value to keep, or None to refuse it."""

    def check(self, name: str, value: Any) -> Any:
        """The value to keep; raises with the field's name."""
        kept = self.accept(value)
        if kept is None:
            raise InputError(f"{name} must be {self.description}, not {abbreviate(value)}")
        return kept


def keep_if(fits: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Keeps a value as it is if it fits."""
    return lambda x: x if fits(x) else None


def number(description: str, fits: Callable[[float], bool]) -> Rule:
    """A finite number that fits, as a float."""

    def accept(value: Any) -> float | None:
        number = checks.as_float(value)
        # + 0.0 turns -0.0 into 0.0, which has the same digest everywhere
        return number + 0.0 if abs(number) <= checks.LARGEST and fits(number) else None

    return Rule(description, accept)


def whole(least: int, most: int = 2**32 - 1) -> Rule:
    """A whole number from `least` to `most`."""
    fits = partial(checks.is_count, least=least, most=most)
    return Rule(f"a whole number from {least} to {most:,}", keep_if(fits))


def choice(*names: str) -> Rule:
    """One of these names."""
    description = ", ".join(f'"{name}"' for name in names[:-1]) + f' or "{names[-1]}"'
    return Rule(description, keep_if(lambda x: isinstance(x, str) and x in names))


def text(description: str, pattern: re.Pattern[str]) -> Rule:
    """A text that matches the pattern from its beginning to its end."""

    def fits(value: Any) -> bool:
        # the whole text, not only its beginning
        return isinstance(value, str) and pattern.fullmatch(value) is not None

    return Rule(description, keep_if(fits))


def file_field(
    rule: Rule,
    default: Any = MISSING,
    help: str = "",
    metavar: str | None = None,
    *,
    newer: bool = False,
) -> Any:
    """A field of a section.

    Args:
        rule: What it may be.
        default: Its value in files that leave it out.
        help: The help text of its command's option.
        metavar: The placeholder of that option.
        newer: Whether files were written before there was this field. They must keep their
            digest, so it is left out at its default.
    """
    shown = {} if metavar is None else {"metavar": metavar}
    return field(default=default, metadata={"rule": rule, "help": help, "newer": newer, **shown})


def section_table(section: Any) -> dict[str, Any]:
    """The fields of a section as plain values, without newer ones at their default."""
    newer = {each.name: each.default for each in fields(section) if each.metadata["newer"]}
    values = asdict(section).items()
    return {name: value for name, value in values if name not in newer or value != newer[name]}


def check_fields(section: Any, name: str) -> None:
    """Checks each field by its rule, and keeps what the rule returns; None is left as it is."""
    for each in fields(section):
        value = getattr(section, each.name)
        if value is not None or each.default is not None:
            kept = each.metadata["rule"].check(f"{name}.{each.name}", value)
            object.__setattr__(section, each.name, kept)


def abbreviate(value: object) -> str:
    """A value for a message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@contextmanager
def locate_errors(before: str = "", after: str = "") -> Iterator[None]:
    """Adds to an InputError where in the file it arose."""
    try:
        yield
    except InputError as problem:
        raise InputError(f"{before}{problem}{after}") from None
