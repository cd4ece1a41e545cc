"""A user of a federation's file: one table [[users]]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from decor.errors import InputError
from decor.learning.file_rules import (
    Rule,
    abbreviate,
    check_fields,
    file_field,
    keep_if,
    locate_errors,
    text,
    whole,
)
from decor.learning.file_toml import refuse_unknown
from decor.net.addresses import Address, parse_addresses

from .file_rules import net_module

# names become names of files: no slash, and no dot at the beginning
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# printable ASCII: addresses are written to logs
_ADDRESS = re.compile(r"(?=.{0,255}$)([!-~]+( [!-~]+)*)?")


def _is_public_key(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == 32


NAME = text("a name of letters, digits, dots, dashes and underlines, 64 at most", _NAME)


@dataclass(frozen=True)
class Member:
    """A user: its name, its address, and its public key.

    The address is "host:port", "relay://host:port" if it is met at a relay, or "" if it only dials.
    Several are separated by spaces; direct ones are tried first.
    `records` is how many examples it trains on: public at example level, refused at user level.
    """

    name: str = file_field(NAME)
    address: str = file_field(
        text('"host:port", "relay://host:port", or "" if it cannot be reached', _ADDRESS)
    )
    public: bytes = file_field(Rule("the 32 bytes of a public key", keep_if(_is_public_key)))
    records: int | None = file_field(whole(1, 10**15), None)

    def __post_init__(self) -> None:
        check_fields(self, "users")
        with locate_errors(f"users.address of {self.name!r}: "):
            _ = self.addresses

    @cached_property
    def addresses(self) -> tuple[Address, ...]:
        """In the order in which they are tried: direct ones first."""
        return parse_addresses(self.address)

    @property
    def ease(self) -> int:
        """How easily it is reached: 2 directly, 1 at a relay, 0 not at all."""
        return max((1 if each.is_relay else 2 for each in self.addresses), default=0)

    @property
    def key(self) -> str:
        """The public key as the line that `decor keygen` prints."""
        return str(net_module("identity").line_of(self.public))


def parse_member(table: Any, number: int) -> Member:
    """A user from one table [[users]]."""
    if not isinstance(table, Mapping):
        raise InputError(f"users must be tables [[users]], not {abbreviate(table)}")
    name = table.get("name")
    # an invalid name is not repeated: it may be anything
    user = f"user {number}" + (f" ({name})" if NAME.accept(name) else "")
    refuse_unknown(table, ("name", "address", "key", "records"), f"users ({user}): ")
    for needed in ("name", "address", "key"):
        if needed not in table:
            raise InputError(
                f"users.{needed} of {user} is missing; every user has a name, an "
                'address (or "") and a key'
            )
    with locate_errors(f"users.key of {user}: "):
        public = net_module("identity").public_of(table["key"])
    with locate_errors(after=f" ({user})"):
        return Member(table["name"], table["address"], public, table.get("records"))
