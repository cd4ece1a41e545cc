"""Files in TOML: sections from tables, and their text."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from decor.errors import InputError

from .file_rules import abbreviate

Section = TypeVar("Section")


def parse_section(kind: type[Section], table: Any, name: str) -> Section:
    """A section from its table; an error names the field that is unknown or missing."""
    if table is None:
        raise InputError(
            f"the section [{name}] is missing; see the example of decor federation new --help"
        )
    if not isinstance(table, Mapping):
        raise InputError(f"{name} must be a section [{name}], not {abbreviate(table)}")
    members: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    known = {each.name: each for each in members}
    refuse_unknown(table, known, f"{name}.")
    for each in known.values():
        # here, because the constructor's TypeError would not say what to give
        if each.default is MISSING and each.name not in table:
            needed = each.metadata["rule"].description
            raise InputError(f"{name}.{each.name} is missing; give {needed}")
    return kind(**table)


def refuse_unknown(table: Mapping[str, Any], known: Any, prefix: str = "") -> None:
    """Raises for a field that is not among `known`, with the field that may have been meant."""
    for name in table:
        if name not in known:
            # 0.7: a typo or two
            near = difflib.get_close_matches(name, list(known), 1, 0.7)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise InputError(f"{prefix}{name} is not a field of this file; {hint}")


def toml_text(tables: Mapping[str, Any]) -> str:
    """TOML of plain values: strings first, then a section per mapping, and tables per list.

    What is None is left out.
    """
    lines = [f"{name} = {_toml(value)}" for name, value in tables.items() if isinstance(value, str)]
    for name, value in tables.items():
        if not isinstance(value, str):
            lines += _section(_key(name), value)
    return "\n".join(lines) + "\n"


def _section(name: str, value: Any) -> list[str]:
    """A section with its sections, or a list of them."""
    is_section, lines = isinstance(value, Mapping), []
    for table in [value] if is_section else value:
        inner = {key: each for key, each in table.items() if _is_section(each)}
        plain = {key: each for key, each in table.items() if key not in inner and each is not None}
        if plain or not inner:
            lines += ["", f"[{name}]" if is_section else f"[[{name}]]"]
        lines += [f"{_key(key)} = {_toml(each)}" for key, each in plain.items()]
        for key, each in inner.items():
            lines += _section(f"{name}.{_key(key)}", each)
    return lines


def _is_section(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(each, Mapping) for each in value)
    return isinstance(value, Mapping)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        assert math.isfinite(value)
        # the shortest decimals that are read back as the same number
        return repr(value)
    # strings, integers and booleans of JSON are those of TOML
    return json.dumps(value)
